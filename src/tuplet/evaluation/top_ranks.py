"""Rank positives where only the first ranks matter (Recall@K, MAP@R, R-precision), on a CPU.

Only the few negatives that may take one of the first ranks are kept of each tile of float32 scores, and found without
sorting. That is 3 to 6 times as fast as ranking among all negatives.
"""

import math
from collections import deque
from collections.abc import Iterator

import numpy as np
import torch
from torch import Tensor

from tuplet.evaluation.positives import ClassMembers, NegativeCounter, RankedPositives
from tuplet.evaluation.scores import TILE_ENTRIES, ScoreTables, hide_columns, inside_tile, tile_shape
from tuplet.evaluation.vectors import for_device

# This way pays if the first ranks are at most 1/MIN_GALLERY_RATIO of the gallery, and if at most 1/EXACT_COST of the
# scores must be exact, because an exact score costs that many entries of a table.
MIN_GALLERY_RATIO, EXACT_COST = 32.0, 64.0
# All blocks are ranked together if their positives and expected candidates are at most so many tiles; they may then
# keep up to KEPT_TILES.
EXPECTED_TILES, KEPT_TILES = 2, 6
# The threshold of a row is the lowest of the highest scores of `depth` groups of entries. With four groups per rank it
# is nearly as high as possible; groups of more than 64 entries save nothing more.
GROUPS_PER_RANK, LARGEST_GROUP = 4, 64
# Numbers of groups are multiples of this, because vector instructions handle a remainder several times as slowly.
LANES = 64


def top_ranks(
    tables: ScoreTables, blocks: list[Tensor], members: ClassMembers, nearest_only: bool, depth: int
) -> Iterator[RankedPositives | None]:
    """Rank the positives of each block within the first ranks; None for a block that must be ranked in full.

    Arguments as for `rank_positives`. Where the queries are their own gallery, the scores of block A by block B are,
    transposed, those of B by A. Half of the products then suffice, if the candidates of all blocks fit into memory.
    """
    max_entries = for_device(TILE_ENTRIES, tables.device)
    largest = [int(members.size[queries[0]]) for queries in blocks]
    depths = [depth if nearest_only else max(depth, size) for size in largest]
    expected = [len(queries) * _expected_kept(d, len(blocks)) for queries, d in zip(blocks, depths, strict=True)]
    positives = sum(len(queries) * size for queries, size in zip(blocks, largest, strict=True))
    together = members.own and positives + sum(expected) <= EXPECTED_TILES * max_entries
    limits = [KEPT_TILES * max_entries * part / sum(expected) if together else max_entries for part in expected]
    order = torch.cat(blocks) if together else torch.arange(tables.gallery.count, device=tables.device)
    rankings = (
        _BlockRanking(tables, queries, members, order, block_depth, limit)
        for queries, block_depth, limit in zip(blocks, depths, limits, strict=True)
    )
    for ranking in (_rank_together if together else _rank_each)(tables, rankings):
        yield ranking.result(nearest_only)


def _rank_each(tables: ScoreTables, rankings: Iterator["_BlockRanking"]) -> Iterator["_BlockRanking"]:
    """Rank each block by itself, on the tiles of the whole gallery."""
    for ranking in rankings:
        for start, tile in tables.tiles(tables.query_block(ranking.queries)) if ranking.active else ():
            ranking.add(tile, start)
            if not ranking.active:
                break
        yield ranking


def _rank_together(tables: ScoreTables, rankings: Iterator["_BlockRanking"]) -> Iterator["_BlockRanking"]:
    """Form the scores of each pair of blocks once, for both; the columns are the queries of all blocks in order."""
    waiting, start = deque(rankings), 0
    out = torch.empty(max(len(r.queries) for r in waiting) ** 2, dtype=tables.dtype, device=tables.device)
    while waiting:
        current, column = waiting[0], start
        block = tables.query_block(current.queries)
        for other in waiting:
            if current.active or other.active:
                tile = tables.table(block, other.queries)
                if other is not current:
                    other.add(tables.transposed(tile, current.queries, other.queries, out), start)
                current.add(tile, column)
            column += len(other.queries)
        start += len(current.queries)
        yield waiting.popleft()


def _expected_kept(depth: int, tiles: float) -> float:
    """Return how many entries a row is expected to keep: tile t adds depth/t of them on average."""
    return depth * (1 + math.log(tiles))


class _BlockRanking:
    """The positives of a block of queries, and the negatives that may be among the first `depth` of their lists.

    `order` holds the gallery member in each column of the tiles to come. The block is `active` while it keeps at most
    `max_kept` entries; long lists, masses of near ties and vectors whose order float32 cannot tell exceed that.
    """

    def __init__(
        self, tables: ScoreTables, queries: Tensor, members: ClassMembers, order: Tensor, depth: int, max_kept: float
    ) -> None:
        self.tables, self.queries, self.members = tables, queries, members
        self.same_class = same_class = members.of(queries)
        self.order, self.max_kept = order, max_kept
        column_of = torch.empty_like(order).scatter_(0, order, torch.arange(len(order), device=order.device))
        self.columns = torch.where(same_class >= 0, column_of[same_class], -1)
        self.scores = torch.full(same_class.shape, -torch.inf, dtype=tables.dtype, device=same_class.device)
        self.error_bound = tables.error_bound(queries)
        self.candidates = TopCandidates(depth, self.error_bound)
        count = tables.gallery.count
        width = tile_shape(len(queries), count, tables.queries.dim, tables.device)[1]
        fits = 2 * len(queries) * _expected_kept(depth, count / width) <= max_kept
        self.active = fits and depth * MIN_GALLERY_RATIO <= count

    def add(self, tile: Tensor, start: int) -> None:
        """Read a tile that begins at column `start`; sets its entries of the queries' own classes to −∞."""
        if not self.active:
            return
        columns = self.columns - start
        inside = inside_tile(tile, columns)
        self.scores = torch.where(inside, tile.gather(1, columns.clamp(0, tile.shape[1] - 1)), self.scores)
        hide_columns(tile, columns)
        self.candidates.add(tile, start)
        if self.candidates.kept > self.max_kept:
            self.active = False
            del self.candidates

    def result(self, nearest_only: bool) -> RankedPositives | None:
        """Return the ranked positives; those behind the first `depth` ranks have all of the gallery ahead."""
        if not self.active:
            return None
        lowest = self.candidates.threshold - self.error_bound
        counter = NegativeCounter(
            self.tables, self.queries, self.same_class, self.scores, self.members, nearest_only, lowest
        )
        values, columns = self.candidates.table()
        max_exact = len(self.queries) * self.tables.gallery.count / EXACT_COST
        return counter.result() if counter.add(values, self.order[columns], max_exact) else None


class TopCandidates:
    """The entries of a table that may be among the `depth` highest of their row, collected tile by tile.

    The `threshold` of a row is a score that at least `depth` of its entries reach. Entries are kept down to three error
    bounds below it: one for entries that may belong at the threshold, one for those that may tie with them, and one for
    the rounding of the comparison.

    >>> candidates = TopCandidates(1, torch.tensor([[0.1]]))
    >>> candidates.add(torch.tensor([[1.0, 7.0, 3.0, 6.8]]), start=10)
    >>> candidates.table()
    (tensor([[7.0000, 6.8000]]), tensor([[11, 13]]))
    """

    def __init__(self, depth: int, error_bound: Tensor) -> None:
        self.depth, self.error_bound, self.kept = depth, error_bound, 0
        self._highest: Tensor | None = None
        self._found: list[tuple[np.ndarray, ...]] = []

    @property
    def threshold(self) -> Tensor:
        """The threshold of each row, (R, 1) in float64; −∞ while fewer than `depth` groups were seen."""
        assert self._highest is not None
        if self._highest.shape[1] < self.depth:
            return torch.full_like(self.error_bound, -torch.inf)
        return self._highest[:, :1].double()

    def add(self, tile: Tensor, start: int) -> None:
        """Collect the candidates of a tile that begins at column `start`."""
        self._raise_threshold(tile)
        scores = tile.numpy()
        flat = np.flatnonzero(scores >= self._lowest(scores.dtype))
        row = flat // tile.shape[1]
        self._found.append((row.astype(np.int32), flat - row * tile.shape[1] + start, scores.reshape(-1)[flat]))
        self.kept += len(flat)

    def table(self) -> tuple[Tensor, Tensor]:
        """Return the candidates by the last threshold: their scores, padded with −∞, and their columns, (R, C) each."""
        row, column, value = (np.concatenate(parts) for parts in zip(*self._found, strict=True))
        left = np.flatnonzero(value >= self._lowest(value.dtype)[row, 0])
        # The rows of each tile are in order already; a stable sort only merges them.
        left = left[row[left].argsort(kind="stable")]
        row, counts = row[left], np.bincount(row[left], minlength=len(self.error_bound))
        slot = np.arange(len(row)) - (counts.cumsum() - counts)[row]
        shape = (len(counts), max(1, int(counts.max())))
        values, columns = np.full(shape, -np.inf, dtype=value.dtype), np.zeros(shape, dtype=np.int64)
        values[row, slot], columns[row, slot] = value[left], column[left]
        return torch.from_numpy(values), torch.from_numpy(columns)

    def _lowest(self, dtype: np.dtype) -> np.ndarray:
        """Return the lowest score of each row that is kept: (R, 1)."""
        return (self.threshold - 3 * self.error_bound).numpy().astype(dtype)

    def _raise_threshold(self, tile: Tensor) -> None:
        """Hold the highest scores of the best `depth` groups, the lowest of them first."""
        groups = LANES * max(1, round(GROUPS_PER_RANK * self.depth / LANES))
        size = min(LARGEST_GROUP, max(1, tile.shape[1] // groups))
        end = tile.shape[1] // size * size
        # A group is every n-th entry: the maximum then runs over contiguous numbers, with vector instructions.
        parts = [tile[:, :end].unflatten(1, (size, -1)).amax(1), tile[:, end:]]
        highest = torch.cat(parts if self._highest is None else [self._highest, *parts], 1)
        if highest.shape[1] >= self.depth:
            # numpy's partition is vectorised, and many times as fast as torch's kthvalue.
            cut = highest.shape[1] - self.depth
            highest = torch.from_numpy(np.partition(highest.numpy(), cut, axis=1)[:, cut:].copy())
        self._highest = highest
