"""Rank the positives of every query among its negatives: all that any retrieval metric needs.

For each positive two counts suffice: the negatives that score higher (`ahead`) and those that score the same (`tied`).
Counting needs no sorted list of the gallery, only its scores, tile by tile. So the memory is that of one tile, K may be
any number, and one pass serves every metric.
"""

from collections.abc import Iterator
from itertools import repeat

import numpy as np
import torch
from torch import Tensor

from tuplet.evaluation.positives import ClassMembers, NegativeCounter, RankedPositives
from tuplet.evaluation.scores import TILE_ENTRIES, ScoreTables, hide_columns, tile_shape
from tuplet.evaluation.top_ranks import top_ranks
from tuplet.evaluation.vectors import Vectors, for_device
from tuplet.progress import track


def rank_positives(
    queries: Vectors,
    labels: Tensor,
    gallery: Vectors | None,
    gallery_labels: Tensor,
    metric: str,
    nearest_only: bool = False,
    depth: int | None = None,
    groups: tuple[Tensor, Tensor] | None = None,
) -> Iterator[RankedPositives]:
    """Rank the positives of every query, a block of queries at a time.

    Queries come in the order of their class sizes, so that the lists of a block have similar lengths.

    Args:
        queries: the query vectors.
        labels: their labels.
        gallery: the vectors to search; None if the queries search among themselves, each without itself.
        gallery_labels: the labels of the gallery.
        metric: "euclidean", "cosine" or "dot".
        nearest_only: rank only the nearest positive of each query, and those that may tie with it.
        depth: only so many first ranks matter and, without `nearest_only`, at least as many as the query has positives.
            A positive behind them may get any number of negatives that puts it there. None: all ranks matter.
        groups: the groups of the queries and of the gallery; see `ClassMembers`.
    """
    tables = ScoreTables(queries, queries if gallery is None else gallery, metric)
    members = ClassMembers(labels, gallery_labels, gallery is None, groups)
    order = torch.from_numpy(np.lexsort((members.start.numpy(), -members.size.numpy())))
    height, _ = tile_shape(len(order), tables.gallery.count, queries.dim, tables.device)
    blocks = list(_query_blocks(order, members, height, for_device(TILE_ENTRIES, tables.device)))
    found: Iterator[RankedPositives | None] = repeat(None)
    if depth is not None and tables.device.type == "cpu":
        narrow = ScoreTables(queries, tables.gallery, metric, queries.dtype)
        found = top_ranks(narrow, blocks, members, nearest_only, depth)
    for block in track(blocks, "ranking queries"):
        yield next(found) or _rank_block(tables, block, members, nearest_only)


def _query_blocks(order: Tensor, members: ClassMembers, height: int, max_entries: int) -> Iterator[Tensor]:
    """Yield blocks of at most `height` queries whose scores by all members of their classes fit into a tile.

    A tile is at least four times as wide as the longest list of positives, so that it takes longer to sort than these.
    """
    start = 0
    while start < len(order):
        queries = order[start : start + height]
        size = members.size[queries]
        new_class = torch.cat([size.new_ones(1), members.start[queries].diff()]) != 0
        columns = torch.where(new_class, size, 0).cumsum(0).clamp(min=4 * int(size[0]))
        fits = torch.arange(1, len(queries) + 1, device=columns.device) * columns <= max_entries
        count = max(1, int(fits.sum()))
        yield queries[:count]
        start += count


def _rank_block(tables: ScoreTables, queries: Tensor, members: ClassMembers, nearest_only: bool) -> RankedPositives:
    """Rank the positives of a block of queries among all their negatives."""
    same_class, queries = members.of(queries).to(tables.device), queries.to(tables.device)
    block = tables.query_block(queries)
    # Queries of one class are neighbours, so their columns are few and one product serves all.
    columns, position = same_class.clamp(min=0).unique(return_inverse=True)
    scores = tables.table(block, columns).gather(1, position)
    counter = NegativeCounter(tables, queries, same_class, scores, members, nearest_only)
    for start, tile in tables.tiles(block):
        hide_columns(tile, same_class - start)
        counter.add(tile, torch.arange(start, start + tile.shape[1], device=tile.device))
    return counter.result()
