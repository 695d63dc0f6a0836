"""How near a query is to the members of a gallery: quickly for a whole table, exactly for single pairs.

The **exact score** of a pair is a fixed formula on its two vectors in float64 (`direct`): elementwise operations, each
correctly rounded, and one fixed tree of additions. It does not depend on where in which block the pair lies, nor on the
device, so copies of a vector tie bit for bit, and *two scores tie when their exact scores are the same number*.

Exact scores of all pairs would be slow. A matrix product gives a **table** of them, wrong by some rounding; `doubt`
bounds that rounding. Entries of a row that differ by more than the doubt are in their exact order, and the few that do
not are settled by exact scores. So results are those of the exact scores, whatever the block size.
"""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tuplet.evaluation.inputs import Vectors, budget, one_of

METRICS = ("euclidean", "cosine", "dot")
# Elements of the vectors that a step of exact scores gathers; a CPU wants them in its cache.
PAIR_ELEMENTS = {"cpu": 1 << 18, "cuda": 1 << 25}
# Rows that are few for a product.
FEW = 8
# The length from which on `folded_sum` adds columns instead of rows.
SHORT = 32


def folded_sum(x: Tensor) -> Tensor:
    """The sum of each row by adding its halves again and again: the same bits for a row wherever it stands.

    >>> folded_sum(torch.tensor([[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]])).tolist()
    [6.0, 15.0]
    """
    while x.shape[1] > SHORT:
        x = _folded(x, 1)
    # Short rows one by one are slow: here each step adds whole rows of the transpose.
    x = x.T.contiguous()
    while len(x) > 1:
        x = _folded(x, 0)
    return x[0]


def _folded(x: Tensor, dim: int) -> Tensor:
    """The halves of each row (or column) added; what is left over goes to the first."""
    half = x.shape[dim] // 2
    folded = x.narrow(dim, 0, half) + x.narrow(dim, half, half)
    if x.shape[dim] % 2:
        folded.select(dim, 0).add_(x.select(dim, -1))
    return folded


def root(x: Tensor) -> Tensor:
    """√x of float64, correctly rounded everywhere.

    A GPU's is. On a CPU torch asks a vector library, whose last bit is wrong for one number in a hundred; numpy asks
    the processor, which rounds as IEEE 754 says.

    >>> root(torch.tensor([9.0, 2.0]).double()).tolist() == [3.0, math.sqrt(2)]
    True
    """
    return torch.from_numpy(np.sqrt(x.numpy())) if x.device.type == "cpu" else x.sqrt()


def direct(a: Tensor, b: Tensor, metric: str) -> Tensor:
    """The exact score of each pair of float64 rows; higher is nearer.

    −Σ(a − b)² for `euclidean` (the order of the distances), Σ a·b for `dot`, Σ a·b / (|a|·|b|) for `cosine`, where a
    zero vector has cosine 0 with everything.

    >>> a, b = torch.tensor([[1.0, 0.0]]).double(), torch.tensor([[3.0, 4.0]]).double()
    >>> [round(direct(a, b, metric).item(), 3) for metric in METRICS]
    [-20.0, 0.6, 3.0]
    """
    if metric == "euclidean":
        difference = a - b
        return -folded_sum(difference.mul_(difference))
    product = folded_sum(a * b)
    if metric == "dot":
        return product
    lengths = root(folded_sum(a.square())) * root(folded_sum(b.square()))
    return torch.where(lengths > 0, product / lengths, 0.0)


def similarity(exact: Tensor, metric: str) -> Tensor:
    """Exact scores as users read them: minus the distance, the cosine or the dot product."""
    return -root(-exact) if metric == "euclidean" else exact


def _products(block: Tensor, members: Tensor, added: Tensor | None) -> Tensor:
    """The product of each row of a block with each member, and what is added for the member.

    For a few rows MKL is two to four times as fast on an AMD EPYC with the members first, and with two rows for one. On
    an Intel Xeon both ways are alike on all cores; on one core this is the slower one, by up to two times.
    """
    if block.device.type == "cpu" and len(block) <= FEW:
        rows = block if len(block) > 1 else block.repeat(2, 1)
        table = (members @ rows.T)[:, : len(block)].T.contiguous()
        return table if added is None else table.add_(added)
    return block @ members.T if added is None else torch.addmm(added, block, members.T)


@contextmanager
def full_precision(device: torch.device) -> Iterator[None]:
    """Float32 products that are float32: no autocast, no TF32, no bf16 in disguise."""
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


class Scores:
    """Scores between the rows of `queries` and of `gallery` under one metric.

    Tables are products in `dtype`. They leave out what is constant in a row: the order in a row is all they are for.
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
        self.queries, self.gallery, self.dtype = queries, gallery, dtype
        self.device = queries.device
        self.exact_tables = dtype == torch.float64 and metric != "cosine" and self._products_are_exact()

    def quickest(self) -> "Scores":
        """The same scores with tables in float32, where the vectors hold no more and ties are not exact already."""
        fits = (self.queries.max_norm + self.gallery.max_norm) ** 2 < torch.finfo(self.queries.dtype).max
        if self.exact_tables or not fits:
            return self
        return Scores(self.queries, self.gallery, self.metric, self.queries.dtype)

    def query_block(self, rows: slice | Tensor) -> Tensor:
        """The queries of a block, ready for `table`."""
        return self._prepared(self.queries, rows)

    def table(self, block: Tensor, columns: slice | Tensor) -> Tensor:
        """The scores of a block of queries by members of the gallery, up to a constant in each row.

        q·g + (c − |g|²)/2 for `euclidean`, which is half of |q|² + c − |q − g|², with the largest |g|² as c: where all
        are of one length, little is added. q·g for the others, of unit vectors for `cosine`.
        """
        # A few queries: dividing their scores by the members' lengths is less than dividing the members.
        divides = self.metric == "cosine" and len(block) < self.gallery.dim and self.gallery.is_moderate
        members = self.gallery.rows(columns, self.dtype) if divides else self._prepared(self.gallery, columns)
        with full_precision(self.device):
            table = _products(block, members, self._shorter(columns) if self.metric == "euclidean" else None)
            return table.div_(self.gallery.divisors(columns).to(self.dtype)) if divides else table

    def turned(self, table: Tensor, rows: Tensor, columns: Tensor, space: Tensor) -> Tensor:
        """The table of `columns` by `rows`, from that of `rows` by `columns`, of queries that are their own gallery.

        It lies in the `space` that is given, since fresh memory would take longer than all the rest.
        """
        turned = space[: table.numel()].view(len(columns), len(rows)).copy_(table.T)
        if self.metric == "euclidean":
            turned.sub_(self._shorter(columns)[:, None]).add_(self._shorter(rows))
        return turned

    def doubt(self, rows: Tensor, *, sums: bool = True) -> Tensor:
        """Entries of a query's row farther apart than this are in the order of their exact scores: (R, 1).

        A sum of d products in precision u is off by at most d·u·|q|·|g|, whatever the order of its additions, by d·u
        times what else is added to it, and by the least number of its type for each product too small for it. The
        difference of two entries may be off by twice that. The exact formula rounds too, in float64; and there is room
        for the rounding of |g|² and of unit vectors. Without `sums`: of products in precision u that float64 adds up.
        """
        lengths = self.queries.squared_norms[rows, None].sqrt()
        if self.exact_tables:
            return torch.zeros_like(lengths)
        longest = self.gallery.max_norm
        added = float(self.gallery.longest_square - self.gallery.squared_norms.min()) / 2
        table, formula = {
            "euclidean": (lengths * longest + added, (lengths + longest) ** 2),
            "dot": (lengths * longest, lengths * longest),
            "cosine": (torch.ones_like(lengths), torch.ones_like(lengths)),
        }[self.metric]
        kind, steps = torch.finfo(self.dtype), self.queries.dim + 16
        rounding = kind.eps / 2 * (steps if sums else 16) * table
        return 2 * (rounding + steps * (torch.finfo(torch.float64).eps * formula + kind.tiny))

    def exact(self, rows: Tensor, columns: Tensor) -> Tensor:
        """The exact score of query rows[i] and gallery member columns[i], for each i."""
        size = max(1, budget(PAIR_ELEMENTS, self.device) // self.queries.dim)
        pairs = zip(rows.split(size), columns.split(size), strict=True)
        return torch.cat(
            [
                direct(self.queries.rows(r, torch.float64), self.gallery.rows(c, torch.float64), self.metric)
                for r, c in pairs
            ]
        )

    def lead(self, rows: Tensor, members: Tensor, others: Tensor) -> Tensor:
        """By how much members[i] is nearer to query rows[i] than others[i]; the sign is that of their exact scores.

        Single products in float32 that float64 adds up tell most of them apart, in a fraction of the time.
        """
        moderate = self.metric != "cosine" or (self.queries.is_moderate and self.gallery.is_moderate)
        if self.dtype == torch.float64 or not moderate:
            return self._exact_lead(rows, members, others)
        size = max(1, budget(PAIR_ELEMENTS, self.device) // self.queries.dim)
        triples = zip(rows.split(size), members.split(size), others.split(size), strict=True)
        lead = torch.cat([self._single(r, m) - self._single(r, o) for r, m, o in triples])
        close = (lead.abs() <= self.doubt(rows, sums=False)[:, 0]).nonzero()[:, 0]
        lead[close] = self._exact_lead(rows[close], members[close], others[close])
        return lead

    def _exact_lead(self, rows: Tensor, members: Tensor, others: Tensor) -> Tensor:
        """The same by exact scores; one of `others` mostly stands against many members, one after another."""
        pair, place = (rows * self.gallery.count + others).unique_consecutive(return_inverse=True)
        behind = self.exact(pair // self.gallery.count, pair % self.gallery.count)[place]
        return self.exact(rows, members) - behind

    def _single(self, rows: Tensor, columns: Tensor) -> Tensor:
        """The table's entry of each pair, up to a constant of the row, with no other rounding than that of products."""
        products = self.gallery.rows(columns, self.dtype).mul_(self.queries.rows(rows, self.dtype))
        sums = products.sum(1, dtype=torch.float64)
        if self.metric == "cosine":
            return sums / (self.queries.divisors(rows) * self.gallery.divisors(columns))
        return sums - self.gallery.squared_norms[columns] / 2 if self.metric == "euclidean" else sums

    def _shorter(self, columns: slice | Tensor) -> Tensor:
        """(c − |g|²)/2 of members of the gallery, with the largest |g|² as c."""
        return ((self.gallery.longest_square - self.gallery.squared_norms[columns]) / 2).to(self.dtype)

    def _prepared(self, vectors: Vectors, which: slice | Tensor) -> Tensor:
        return (vectors.unit_rows if self.metric == "cosine" else vectors.rows)(which, self.dtype)

    def _products_are_exact(self) -> bool:
        """Whether float64 holds every partial sum without rounding: integers, binary codes, mostly half precision.

        With elements that are multiples of 2⁻ᵇ all terms are multiples of 2⁻²ᵇ⁻¹, and sums stay below (|q| + |g|)².
        Ties may then be in the millions, and need no settling.
        """
        size = (self.queries.max_norm + self.gallery.max_norm) ** 2
        if size == 0:
            return True
        bits = math.floor((52 - math.log2(size)) / 2)
        if not -500 < bits < 500:
            return False
        step = 2.0**-bits
        return self.queries.multiples_of(step) and (self.gallery is self.queries or self.gallery.multiples_of(step))
