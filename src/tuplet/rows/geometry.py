"""From vectors to a table of similarities or distances, and from weights on the table back to the vectors."""

from typing import Literal, NamedTuple

import torch
from torch import Tensor

Geometry = Literal["dot", "euclidean"]

# Two vectors this close, relative to their lengths, are one vector to a float64 product of float32 numbers.
_SAME = 1e-14


def table_dtype(dtype: torch.dtype) -> torch.dtype:
    """float64 stays float64; everything narrower is computed in float32."""
    return torch.float64 if dtype == torch.float64 else torch.float32


def widest(device: torch.device) -> torch.dtype:
    """The widest float of a device: float64, but for Apple's GPUs, which have none."""
    return torch.float32 if device.type == "mps" else torch.float64


class Side(NamedTuple):
    """One side of a table: its vectors, and for distances also what their float64 product needs."""

    vectors: Tensor
    wide: Tensor | None = None
    squares: Tensor | None = None

    def block(self, start: int, stop: int) -> "Side":
        """The rows from start to stop."""
        vectors, wide, squares = self
        if wide is None or squares is None:
            return Side(vectors[start:stop])
        return Side(vectors[start:stop], wide[start:stop], squares[start:stop])


def side(vectors: Tensor, geometry: Geometry) -> Side:
    """Prepare vectors once for all the blocks that will use them."""
    vectors = vectors.to(table_dtype(vectors.dtype))
    wide = widest(vectors.device)
    if geometry == "dot" or vectors.dtype == wide:
        return Side(vectors)
    return Side(vectors, vectors.to(wide), vectors.to(wide).square().sum(1))


def table(queries: Side, gallery: Side, geometry: Geometry) -> Tensor:
    """x_i·x_j or ‖x_i − x_j‖ for every query i and gallery member j.

    Distances of narrow types come from a float64 product: a float32 one loses d² = |q|² + |g|² − 2 q·g to
    cancellation where d is small, and small distances are what training looks at. float64 takes differences directly.
    """
    if geometry == "dot":
        return queries.vectors @ gallery.vectors.T
    if queries.wide is None or gallery.wide is None or queries.squares is None or gallery.squares is None:
        return torch.cdist(queries.vectors, gallery.vectors, compute_mode="donot_use_mm_for_euclid_dist")
    lengths = queries.squares[:, None] + gallery.squares
    square = torch.addmm(lengths, queries.wide, gallery.wide.T, alpha=-2)
    return square.masked_fill(square <= _SAME * lengths, 0).sqrt().to(queries.vectors.dtype)


def slopes(weights: Tensor, table: Tensor, geometry: Geometry) -> Tensor:
    """Weights on the table as coefficients of the vectors: w for products, w/d for distances, 0 where d = 0."""
    if geometry == "dot":
        return weights
    apart = table > 0
    return torch.where(apart, weights / torch.where(apart, table, 1), 0)


def pull_back(slopes: Tensor, here: Tensor, there: Tensor, geometry: Geometry) -> Tensor:
    """The gradient on the vectors `here` (the rows of `slopes`) that look at the vectors `there` (its columns).

    Products: S·there. Distances: rowsum(S)·here − S·there.
    """
    product = slopes @ there
    return product if geometry == "dot" else slopes.sum(1, keepdim=True) * here - product


def between(a: Tensor, b: Tensor, geometry: Geometry) -> Tensor:
    """The similarity or distance of each row of a with the same row of b, differentiable; d = 0 has gradient 0."""
    if geometry == "dot":
        return (a * b).sum(1)
    square = (a - b).square().sum(1)
    apart = square > 0
    return torch.where(apart, torch.where(apart, square, 1).sqrt(), 0)
