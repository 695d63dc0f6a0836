"""Where each query's positives stand among its negatives: all that any retrieval metric needs.

For each positive p of a query two counts say it all: the negatives that score higher (`ahead`) and those that score
the same (`tied`). Counting needs no sorted list of the gallery, only its scores, block by block; so the memory is that
of a tile of scores, K may be anything, and one pass serves every metric.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tuplet.evaluation.contenders import Contenders
from tuplet.evaluation.counting import Tally
from tuplet.evaluation.inputs import BLOCK_ELEMENTS, Vectors, budget
from tuplet.evaluation.scores import Scores
from tuplet.progress import track

# Entries of a tile of scores, and how many queries it has at most: 16 MiB keep a tile near a CPU's caches; a GPU wants
# long products. Functions of shapes and kind of device alone.
TILE_ENTRIES = {"cpu": 1 << 21, "cuda": 1 << 26}
TILE_QUERIES = {"cpu": 1 << 10, "cuda": 1 << 12}
# Looking for the first places alone pays where they are at most one in DEEP of the gallery, and where at most one score
# in COSTLY has to be exact, for that takes so many times as long as one of a table.
DEEP, COSTLY = 32.0, 64.0


@dataclass
class Ranked:
    """The positives of a block of queries, nearest first; beyond `valid` a row is padding."""

    rows: Tensor  # (R,) which queries these are
    positives: Tensor  # (R,) how many positives each has
    ahead: Tensor  # (R, P) negatives that score higher than this positive
    tied: Tensor  # (R, P) negatives that score the same
    valid: Tensor  # (R, P)


class Members:
    """Which gallery members share a query's label, as runs in the gallery ordered by label. All on the CPU."""

    def __init__(self, labels: Tensor, gallery_labels: Tensor) -> None:
        classes, code, sizes = gallery_labels.unique(return_inverse=True, return_counts=True)
        self.order = code.argsort(stable=True)
        place = torch.searchsorted(classes, labels).clamp(max=len(classes) - 1)
        known = classes[place] == labels
        self.size = torch.where(known, sizes[place], 0)
        self.start = torch.where(known, (sizes.cumsum(0) - sizes)[place], 0)


def tile_shape(queries: int, gallery: int, dim: int, device: torch.device) -> tuple[int, int]:
    """How many queries by how many gallery members make one tile of scores.

    >>> tile_shape(60_502, 60_502, 512, torch.device("cpu"))
    (1024, 2048)
    """
    vectors = max(1, budget(BLOCK_ELEMENTS, device) // dim)
    height = min(queries, budget(TILE_QUERIES, device), vectors)
    return height, min(gallery, budget(TILE_ENTRIES, device) // height, vectors)


def ranked(
    queries: Vectors,
    labels: Tensor,
    gallery: Vectors | None,
    gallery_labels: Tensor,
    metric: str,
    first: bool = False,
    within: int | None = None,
) -> Iterator[Ranked]:
    """Rank the positives of every query, a block of queries at a time.

    Without a gallery the queries are their own, and a query is left out of its own list by identity. With `first` only
    the nearest positive of each query (and those that may tie with it) is ranked, which is what Recall@K needs. With
    `within` the first so many places of a list matter, and without `first` as many as the query has positives if that
    is more: a positive with as many negatives ahead may be given any such number of them.
    Queries come in the order of their class sizes, so that a block has lists of like length.
    """
    scores = Scores(queries, queries if gallery is None else gallery, metric)
    members = Members(labels, gallery_labels)
    order = torch.from_numpy(np.lexsort((members.start.numpy(), -members.size.numpy())))
    height, _ = tile_shape(len(order), scores.gallery.count, queries.dim, scores.device)
    blocks = list(_split(order, members, height, budget(TILE_ENTRIES, scores.device)))
    filtering = None if within is None or scores.device.type != "cpu" else scores.quickest()
    for rows in track(blocks, "ranking queries"):
        kin = _kin(rows, members).to(scores.device)
        rows = rows.to(scores.device)
        block = None
        if within is not None and filtering is not None:
            depth = within if first else max(within, kin.shape[1])
            block = _rank_within(filtering, rows, kin, gallery is None, first, depth)
        yield _rank(scores, rows, kin, gallery is None, first) if block is None else block


def _split(order: Tensor, members: Members, height: int, entries: int) -> Iterator[Tensor]:
    """Blocks of at most `height` queries, such that the table of their scores by all their kin fits a tile.

    A tile is also several times as wide as a list of positives, so that sorting it costs more than looking them up.
    """
    start = 0
    while start < len(order):
        rows = order[start : start + height]
        size = members.size[rows]
        new_class = torch.cat([size.new_ones(1), members.start[rows].diff()]) != 0
        kin = torch.where(new_class, size, 0).cumsum(0)
        fits = torch.arange(1, len(rows) + 1, device=kin.device) * kin.clamp(min=4 * int(size[0])) <= entries
        yield rows[: max(1, int(fits.sum()))]
        start += max(1, int(fits.sum()))


def _rank(scores: Scores, rows: Tensor, kin: Tensor, own: bool, first: bool) -> Ranked:
    block = scores.query_block(rows)
    valid = _positive(rows, kin, own)
    positives = valid.sum(1)
    near, member = _kin_scores(scores, block, kin), kin
    if first:
        near, member, valid = _nearest(near, kin, valid, scores.doubt(rows))
    tally = Tally(scores, rows, member, torch.where(valid, near, torch.inf))
    for start, tile in _tiles(scores, block):
        _leave_out(tile, kin - start)
        tally.add(tile, torch.arange(start, start + tile.shape[1], device=tile.device).expand_as(tile))
    return _in_order(rows, positives, tally.ahead, tally.tied, valid)


def _rank_within(scores: Scores, rows: Tensor, kin: Tensor, own: bool, first: bool, depth: int) -> Ranked | None:
    """The same where `depth` places matter: only the negatives that may stand there are looked at closely.

    None where they are too many to gain by it: long lists, masses of near ties, or rounding that leaves them open.
    """
    count, entries = scores.gallery.count, budget(TILE_ENTRIES, scores.device)
    width = tile_shape(len(rows), count, scores.queries.dim, scores.device)[1]
    # The second tile has half a chance to add to what the first holds, the third a third, and so on.
    likely = len(rows) * depth * (1 + math.log(count / width))
    if depth * DEEP > count or 2 * likely > entries:
        return None
    block, doubt = scores.query_block(rows), scores.doubt(rows)
    contenders = Contenders(depth, doubt)
    near = torch.full(kin.shape, -torch.inf, dtype=scores.dtype, device=kin.device)
    for start, tile in _tiles(scores, block):
        place = kin - start
        near = torch.where(_inside(tile, place), tile.gather(1, place.clamp(0, tile.shape[1] - 1)), near)
        _leave_out(tile, place)
        contenders.add(tile, start)
        if contenders.kept.sum() > entries:
            return None
    valid, member = _positive(rows, kin, own), kin
    positives = valid.sum(1)
    if first:
        near, member, valid = _nearest(near, kin, valid, doubt)
    far = near.double() < contenders.bar - doubt
    tally = Tally(scores, rows, member, torch.where(valid & ~far, near, torch.inf))
    if not tally.add(*contenders.table(), patience=len(rows) * count / COSTLY):
        return None
    return _in_order(rows, positives, torch.where(far, count, tally.ahead), tally.tied, valid)


def _nearest(near: Tensor, kin: Tensor, valid: Tensor, doubt: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The scores and members of the positives that may be a query's nearest; beyond what is valid, padding."""
    near = torch.where(valid, near, -torch.inf)
    valid = valid & (near >= near.amax(1, keepdim=True) - doubt)
    near, place = torch.where(valid, near, -torch.inf).topk(max(1, int(valid.sum(1).max())))
    return near, kin.gather(1, place), valid.gather(1, place)


def _tiles(scores: Scores, block: Tensor) -> Iterator[tuple[int, Tensor]]:
    """The scores of a block of queries, tile by tile, each with the gallery member that it starts from."""
    count = scores.gallery.count
    width = tile_shape(len(block), count, scores.queries.dim, scores.device)[1]
    for start in range(0, count, width):
        yield start, scores.table(block, slice(start, start + width))


def _in_order(rows: Tensor, positives: Tensor, ahead: Tensor, tied: Tensor, valid: Tensor) -> Ranked:
    """The positives nearest first."""
    # A nearer one has no more negatives ahead, and none tied where it has as many: this key sorts by exact score.
    place = torch.where(valid, 2 * ahead + tied, torch.iinfo(torch.int64).max).argsort(1)
    return Ranked(rows, positives, *(table.gather(1, place) for table in (ahead, tied, valid)))


def _positive(rows: Tensor, kin: Tensor, own: bool) -> Tensor:
    """Which of the kin are there, and not the query itself."""
    return (kin >= 0) & (kin != rows[:, None]) if own else kin >= 0


def _kin(rows: Tensor, members: Members) -> Tensor:
    """The gallery members with each query's label, padded with −1: (R, P)."""
    size, start = members.size[rows, None], members.start[rows, None]
    slot = torch.arange(max(1, int(size.max())), device=size.device)
    return torch.where(slot < size, members.order[(start + slot).clamp(max=len(members.order) - 1)], -1)


def _kin_scores(scores: Scores, block: Tensor, kin: Tensor) -> Tensor:
    """The table's scores of each query's own kin. Queries of one class stand together, so one product serves many."""
    columns, place = kin.clamp(min=0).unique(return_inverse=True)
    return scores.table(block, columns).gather(1, place)


def _leave_out(tile: Tensor, kin: Tensor) -> None:
    """Set the tile's scores of a query's own kin to −∞. Kin that lie in other tiles meet +∞, which changes nothing."""
    inside = _inside(tile, kin)
    if bool(inside.any()):
        lowest = torch.where(inside, -torch.inf, torch.inf).to(tile.dtype)
        tile.scatter_reduce_(1, kin.clamp(0, tile.shape[1] - 1), lowest, "amin")


def _inside(tile: Tensor, place: Tensor) -> Tensor:
    return (place >= 0) & (place < tile.shape[1])
