"""Scores of queries and gallery members: exact for single pairs, approximate for tables; a higher score is nearer.

The **exact score** of a pair is a fixed float64 formula. Its operations are elementwise, each correctly rounded, and
its additions follow one fixed tree. So it depends neither on the block in which a pair lies nor on the device, copies
of a vector tie bit for bit, and *two members tie when their exact scores are the same number*.

Exact scores of all pairs would be slow. A matrix product gives a **table** of approximate scores, and `error_bound`
says how far its rounding can move two entries of a row against each other. Entries that differ by more are in their
exact order; exact scores decide the few others. So results are those of exact scores, whatever the block size.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tuplet import cancel
from tuplet.evaluation.inputs import one_of
from tuplet.evaluation.vectors import BLOCK_ELEMENTS, Vectors, for_device

METRICS = ("euclidean", "cosine", "dot")
# Most entries and queries of one tile of a table: 16 MiB stay near a CPU's caches; a GPU needs large products.
TILE_ENTRIES = {"cpu": 1 << 21, "cuda": 1 << 26}
TILE_QUERIES = {"cpu": 1 << 10, "cuda": 1 << 12}
# Most elements of the vectors that one step of exact scores gathers; a CPU wants them in its cache.
PAIR_ELEMENTS = {"cpu": 1 << 18, "cuda": 1 << 25}
# Up to so many queries, a product on a CPU puts the gallery first; see `_products`.
FEW_QUERIES = 8


def exact_scores(a: Tensor, b: Tensor, metric: str) -> Tensor:
    """Return the exact score of each pair of float64 rows.

    −Σ(a − b)² for `euclidean`, which orders like minus the distance; Σ a·b for `dot`; Σ a·b / (|a|·|b|) for `cosine`,
    where a zero vector has cosine 0 with everything.

    >>> a, b = torch.tensor([[1.0, 0.0]]).double(), torch.tensor([[3.0, 4.0]]).double()
    >>> [round(exact_scores(a, b, metric).item(), 3) for metric in METRICS]
    [-20.0, 0.6, 3.0]
    """
    if metric == "euclidean":
        difference = a - b
        return -tree_sum(difference.mul_(difference))
    product = tree_sum(a * b)
    if metric == "dot":
        return product
    norms = square_root(tree_sum(a.square())) * square_root(tree_sum(b.square()))
    return torch.where(norms > 0, product / norms, 0.0)


def similarity(exact: Tensor, metric: str) -> Tensor:
    """Turn exact scores into the values that users read: minus the distance, the cosine or the dot product."""
    return -square_root(-exact) if metric == "euclidean" else exact


def tree_sum(x: Tensor) -> Tensor:
    """Sum each row by adding its halves again and again, so that equal rows have bitwise equal sums.

    >>> tree_sum(torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])).tolist()
    [6.0, 15.0]
    """
    while x.shape[1] > 1:
        half = x.shape[1] // 2
        total = x[:, :half] + x[:, half : 2 * half]
        if x.shape[1] % 2:
            total[:, 0] += x[:, -1]
        x = total
    return x[:, 0]


def square_root(x: Tensor) -> Tensor:
    """Return √x of float64, correctly rounded on every device.

    On a CPU torch calls a vector library whose last bit is wrong for one number in a hundred; numpy uses the
    processor's instruction, which IEEE 754 requires to be correct. A GPU's is correct.

    >>> square_root(torch.tensor([9.0, 2.0]).double()).tolist() == [3.0, 2**0.5]
    True
    """
    return torch.from_numpy(np.sqrt(x.numpy())) if x.device.type == "cpu" else x.sqrt()


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Compute float32 products in float32: without autocast, TF32 or bf16, and without gradients."""
    backends: Any = torch.backends.cuda if device.type == "cuda" else torch.backends.mkldnn
    backend = backends.matmul
    before = backend.fp32_precision
    with torch.autocast(device.type, enabled=False), torch.no_grad():
        if before not in ("none", "ieee"):
            backend.fp32_precision = "ieee"
        try:
            yield
        finally:
            if before not in ("none", "ieee"):
                backend.fp32_precision = before


def tile_shape(queries: int, gallery: int, dim: int, device: torch.device) -> tuple[int, int]:
    """Return how many queries and how many gallery members make one tile of scores.

    >>> tile_shape(60_502, 60_502, 512, torch.device("cpu"))
    (1024, 2048)
    """
    vectors = max(1, for_device(BLOCK_ELEMENTS, device) // dim)
    height = min(queries, for_device(TILE_QUERIES, device), vectors)
    width = min(gallery, for_device(TILE_ENTRIES, device) // height, vectors)
    # On a CPU products of other widths take up to one and a half times as long.
    return height, max(width // 64 * 64, min(width, 64))


def inside_tile(tile: Tensor, columns: Tensor) -> Tensor:
    """Return which column numbers lie inside a tile."""
    return (columns >= 0) & (columns < tile.shape[1])


def hide_columns(tile: Tensor, columns: Tensor) -> None:
    """Set the given columns of each row to −∞ in place; columns outside of the tile are ignored."""
    inside = inside_tile(tile, columns)
    if bool(inside.any()):
        # A column outside is clamped to the edge of the tile, where the minimum with +∞ changes nothing.
        lowest = torch.where(inside, -torch.inf, torch.inf).to(tile.dtype)
        tile.scatter_reduce_(1, columns.clamp(0, tile.shape[1] - 1), lowest, "amin")


class ScoreTables:
    """Scores between the rows of `queries` and of `gallery` under one metric.

    Tables are products in `dtype`, or in float64 if that could overflow. They leave out whatever is constant in a row,
    because they only serve to order it.
    """

    def __init__(self, queries: Vectors, gallery: Vectors, metric: str, dtype: torch.dtype = torch.float64) -> None:
        self.metric = one_of(metric, METRICS, "metric")
        if queries.dim != gallery.dim:
            raise ValueError(
                f"{gallery.name} must have the dimension of {queries.name}, {queries.dim}, got {gallery.dim}; "
                "embed both with one model"
            )
        if queries.device != gallery.device:
            raise ValueError(
                f"{queries.name} are on {queries.device}, {gallery.name} on {gallery.device}; choose one with device="
            )
        self.queries, self.gallery, self.device = queries, gallery, queries.device
        fits = (queries.max_norm + gallery.max_norm) ** 2 < torch.finfo(dtype).max
        self.dtype = dtype if fits else torch.float64

    def query_block(self, rows: slice | Tensor) -> Tensor:
        """Return the vectors of a block of queries, prepared for `table`."""
        return self._prepared(self.queries, rows)

    def table(self, block: Tensor, columns: slice | Tensor) -> Tensor:
        """Return the scores of a block of queries by members of the gallery, up to a constant in each row.

        For `euclidean` q·g + (c − |g|²)/2, which is half of |q|² + c − |q − g|², with the largest |g|² as c, so that
        little is added where all lengths are alike; q·g for the others, of unit vectors for `cosine`.
        """
        # For few queries it is cheaper to divide the scores by the members' lengths than to divide the members.
        divide_scores = self.metric == "cosine" and len(block) < self.gallery.dim and self.gallery.float32_safe
        members = self.gallery.rows(columns, self.dtype) if divide_scores else self._prepared(self.gallery, columns)
        with full_precision(self.device):
            table = _products(block, members, self._offsets(columns) if self.metric == "euclidean" else None)
            return table.div_(self.gallery.norms(columns).to(self.dtype)) if divide_scores else table

    def tiles(self, block: Tensor) -> Iterator[tuple[int, Tensor]]:
        """Yield the table of a block of queries tile by tile, each with the first gallery member in it."""
        count = self.gallery.count
        width = tile_shape(len(block), count, self.queries.dim, self.device)[1]
        for start in range(0, count, width):
            cancel.check()
            yield start, self.table(block, slice(start, start + width))

    def transposed(self, table: Tensor, rows: Tensor, columns: Tensor, out: Tensor) -> Tensor:
        """Return the table of `columns` by `rows` from that of `rows` by `columns`; both index one set of vectors.

        The result is written into the flat tensor `out`: allocating fresh memory would take longer than the copy.
        """
        result = out[: table.numel()].view(len(columns), len(rows)).copy_(table.T)
        if self.metric == "euclidean":
            result.sub_(self._offsets(columns)[:, None]).add_(self._offsets(rows))
        return result

    def error_bound(self, rows: Tensor) -> Tensor:
        """Return for each query the difference above which two entries of its row are in their exact order: (R, 1).

        A sum of d products in precision u is off by at most d·u·|q|·|g|, whatever the order of its additions, by d·u
        times what else is added to it, and by the smallest number of its type for each product that underflows. The
        difference of two entries may be off by twice that. The exact formula rounds too, in float64. The rest covers
        the rounding of |g|² and of unit vectors.
        """
        norms = self.queries.squared_norms[rows, None].sqrt()
        longest = self.gallery.max_norm
        offset = float(self.gallery.max_squared_norm - self.gallery.squared_norms.min()) / 2
        table, formula = {
            "euclidean": (norms * longest + offset, (norms + longest) ** 2),
            "dot": (norms * longest, norms * longest),
            "cosine": (torch.ones_like(norms), torch.ones_like(norms)),
        }[self.metric]
        info, steps = torch.finfo(self.dtype), self.queries.dim + 16
        return 2 * steps * (info.eps / 2 * table + torch.finfo(torch.float64).eps * formula + info.tiny)

    def exact(self, rows: Tensor, columns: Tensor) -> Tensor:
        """Return the exact score of query rows[i] and gallery member columns[i], for each i."""
        size = max(1, for_device(PAIR_ELEMENTS, self.device) // self.queries.dim)
        return torch.cat(
            [
                exact_scores(self.queries.rows(r, torch.float64), self.gallery.rows(c, torch.float64), self.metric)
                for r, c in zip(rows.split(size), columns.split(size), strict=True)
            ]
        )

    def compare(self, rows: Tensor, members: Tensor, others: Tensor) -> Tensor:
        """Return exact(rows, members) − exact(rows, others)."""
        # One of `others` is usually compared with many members in a row; its score is computed once.
        pair, position = (rows * self.gallery.count + others).unique_consecutive(return_inverse=True)
        other_scores = self.exact(pair // self.gallery.count, pair % self.gallery.count)[position]
        return self.exact(rows, members) - other_scores

    def _offsets(self, columns: slice | Tensor) -> Tensor:
        """Return (c − |g|²)/2 of gallery members, with the largest |g|² as c."""
        return ((self.gallery.max_squared_norm - self.gallery.squared_norms[columns]) / 2).to(self.dtype)

    def _prepared(self, vectors: Vectors, which: slice | Tensor) -> Tensor:
        return (vectors.unit_rows if self.metric == "cosine" else vectors.rows)(which, self.dtype)


def _products(block: Tensor, members: Tensor, offsets: Tensor | None) -> Tensor:
    """Return the product of each row of a block with each member, plus the member's offset.

    For a few rows MKL is two to four times as fast on an AMD EPYC with the members first, and with two rows instead of
    one. On an Intel Xeon both orders take the same time on all cores; on one core this one takes up to twice as long.
    """
    if block.device.type == "cpu" and len(block) <= FEW_QUERIES:
        rows = block if len(block) > 1 else block.repeat(2, 1)
        table = (members @ rows.T)[:, : len(block)].T.contiguous()
        return table if offsets is None else table.add_(offsets)
    return block @ members.T if offsets is None else torch.addmm(offsets, block, members.T)
