"""Geometry: from vectors to a table of similarities or distances, and from weights on it back to the vectors."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

Geometry = Literal["dot", "euclidean"]

# Squared distances this small, relative to the squared length, are rounding of a float64 product: the same vector.
_SAME = 2e-14
# The same bound for products of bf16 vectors, per sixteen dimensions: matrix units add sixteen at a time, and drop what
# float32 cannot hold. Rounding to bf16 moves a vector as far: 0.003 of its length.
_SAME_HALF = 2.0**-22
# Squared distances below this share of |q|² have lost digits to cancellation in a float32 product. (The length of
# either vector will do: where they differ much, the distance is large.)
_CLOSE = 0.25
# On a CPU up to one pair in this many is computed from differences; with more close pairs a float64 product is faster.
_CROWDED = 50


def table_dtype(dtype: torch.dtype) -> torch.dtype:
    """Return the type of a table: float64 for float64 vectors, float32 for everything narrower."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def widest(device: torch.device) -> torch.dtype:
    """Return the widest float type of a device: float64, except on Apple's GPUs, which have none."""
    return torch.float32 if device.type == "mps" else torch.float64


def with_float64(device: torch.device) -> torch.device:
    """Return the device for a computation in float64: the CPU in place of Apple's GPUs, which have no float64.

    >>> with_float64(torch.device("mps")), with_float64(torch.device("cuda:1"))
    (device(type='cpu'), device(type='cuda', index=1))
    """
    return device if widest(device) == torch.float64 else torch.device("cpu")


def product(a: Tensor, b: Tensor) -> Tensor:
    """Return a·b, summed in float32 or wider. On a GPU bf16 factors stay bf16, for its matrix units."""
    if a.dtype == torch.bfloat16:
        return torch.mm(a, b, out_dtype=torch.float32)
    return a @ b


class Side(NamedTuple):
    """One side of a table: its vectors, and for distances their squared lengths."""

    vectors: Tensor
    squares: Tensor | None = None
    rest: Tensor | None = None
    """The rounding error of float32 vectors that are kept in bf16."""
    wide: Tensor | None = None
    """The vectors in the widest type, kept where all products are computed in it."""

    def block(self, start: int, stop: int) -> "Side":
        """Return the rows from start to stop."""
        return Side(self.vectors[start:stop], *(None if part is None else part[start:stop] for part in self[1:]))

    def widened(self) -> Tensor:
        """Return the vectors in the widest type."""
        return self.vectors.to(widest(self.vectors.device)) if self.wide is None else self.wide

    def exact(self) -> Tensor:
        """Return the vectors in the type of the table, with their rounding error added back."""
        vectors = self.vectors.to(table_dtype(self.vectors.dtype))
        return vectors if self.rest is None else vectors + self.rest


def side(vectors: Tensor, geometry: Geometry) -> Side:
    """Prepare vectors once for all blocks."""
    vectors = vectors.to(table_dtype(vectors.dtype))
    wide = widest(vectors.device)
    if geometry == "dot" or vectors.dtype == wide:
        return Side(vectors)
    squares = torch.linalg.vector_norm(vectors, dim=1, dtype=wide).square()
    return Side(vectors, squares, wide=None if vectors.device.type == "cpu" else vectors.to(wide))


def half_side(vectors: Tensor, geometry: Geometry) -> Side:
    """Prepare vectors for a GPU's matrix units: in bf16, with the rounding error of float32 vectors beside them."""
    half = vectors.to(torch.bfloat16)
    squares = None if geometry == "dot" else vectors.to(torch.float32).square().sum(1)
    return Side(half, squares, None if vectors.dtype == half.dtype else (vectors - half).to(half.dtype))


def for_matrix_units(vectors: Tensor) -> bool:
    """Return True if a GPU multiplies these vectors on its matrix units, fast and exactly."""
    return vectors.is_cuda and vectors.dtype == torch.bfloat16


def sides(queries: Tensor, gallery: Tensor | None, geometry: Geometry) -> tuple[Side, Side]:
    """Prepare both sides of a table; they are one object where the queries are their own gallery."""
    there = queries if gallery is None else gallery
    prepare = half_side if for_matrix_units(there) else side
    here = prepare(queries, geometry)
    return here, here if gallery is None else prepare(gallery, geometry)


class Raw(NamedTuple):
    """A table before its last pass: its entries, or products with the squared lengths that make them distances."""

    entries: Tensor
    squares: tuple[Tensor, Tensor] | None = None
    same: float = 0.0
    """Squared distances up to this share of the query's squared length are rounding errors, and become 0."""

    def table(self) -> Tensor:
        """Return x_i·x_j or ‖x_i − x_j‖; compiled blocks fuse this pass with the row function."""
        if self.squares is None:
            return self.entries
        here = self.squares[0][:, None]
        square = (here + self.squares[1]).sub_(self.entries, alpha=2)
        return square.masked_fill_(square <= self.same * here, 0).sqrt_().to(torch.float32)


def raw_table(queries: Side, gallery: Side, geometry: Geometry) -> Raw:
    """Return x_i·x_j or ‖x_i − x_j‖ for every query i and gallery member j, before the last pass.

    A float32 product loses d² = |q|² + |g|² − 2 q·g to cancellation where d is small, and training depends on small
    distances. So float32 takes a float64 product or, on a CPU, where that is slow, a float32 product and differences
    for the pairs that are close. float64 takes differences everywhere. Products of bf16 numbers are exact, and their
    sum in float32 loses less than the rounding of the vectors did.
    """
    q, g = queries.vectors, gallery.vectors
    if queries.rest is not None:
        q, g = torch.cat([q, queries.rest], 1), torch.cat([g, g], 1)
    if geometry == "dot":
        return Raw(product(q, g.T))
    if queries.squares is None or gallery.squares is None:
        return Raw(torch.cdist(q, g, compute_mode="donot_use_mm_for_euclid_dist"))
    squares = queries.squares, gallery.squares
    if q.dtype == torch.bfloat16:
        return Raw(product(q, g.T), squares, (4 + q.shape[1] / 16) * _SAME_HALF)
    if q.device.type == "cpu" and not torch.compiler.is_compiling():
        lengths = queries.squares.to(q.dtype)[:, None]
        square = (lengths + gallery.squares.to(q.dtype)).addmm_(q, g.T, alpha=-2)
        close = (square < _CLOSE * lengths).nonzero()
        if len(close) * _CROWDED <= square.numel():
            for start in range(0, len(close), 4096):
                i, j = close[start : start + 4096].unbind(1)
                square[i, j] = (q[i] - g[j]).square().sum(1)
            return Raw(square.sqrt_())
    return Raw(queries.widened() @ gallery.widened().T, squares, _SAME)


def table(queries: Side, gallery: Side, geometry: Geometry) -> Tensor:
    """Return the table of both sides."""
    return raw_table(queries, gallery, geometry).table()


def slopes(weights: Tensor, table: Tensor, geometry: Geometry) -> Tensor:
    """Turn weights on the table into coefficients of the vectors: w for products, w/d for distances, 0 where d = 0."""
    if geometry == "dot":
        return weights
    return weights / torch.where(table > 0, table, torch.inf)


def pull_back(slopes: Tensor, here: Side, there: Side, geometry: Geometry) -> Tensor:
    """Return the gradient by the vectors `here` (the rows of `slopes`) from the vectors `there` (its columns).

    Products: S·there. Distances: rowsum(S)·here − S·there.
    """
    pulled = product(slopes.to(there.vectors.dtype), there.vectors)
    if geometry == "dot":
        return pulled
    # The sum of the very slopes that were multiplied, so that close vectors cancel; rounded, it would move both.
    return (slopes.sum(1, keepdim=True, dtype=pulled.dtype) * here.exact()).sub_(pulled)


def folds(slopes: Tensor) -> bool:
    """Return True if one product of S + Sᵀ is faster than two products: always, except on matrix units."""
    return slopes.shape[0] == slopes.shape[1] and slopes.dtype != torch.bfloat16


def zeros(side: Side) -> Tensor:
    """Return zeros to sum up the gradient of a side."""
    return torch.zeros_like(side.vectors, dtype=table_dtype(side.vectors.dtype))


def between(a: Tensor, b: Tensor, geometry: Geometry) -> Tensor:
    """Return the similarity or distance of each row of a and the same row of b; the gradient of d = 0 is 0."""
    return (a * b).sum(-1) if geometry == "dot" else torch.linalg.vector_norm(a - b, dim=-1)
