"""Where each query's positives stand among its negatives: all that any retrieval metric needs.

For each positive p of a query two counts say it all: the negatives that score higher (`ahead`) and those that score
the same (`tied`). Counting needs no sorted list of the gallery, only its scores, block by block; so the memory is that
of a tile of scores, K may be anything, and one pass serves every metric.
"""

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import repeat

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
# All queries look for their first places together where their positives and what they are likely to keep are at most so
# many times the entries of a tile; and there is room to keep so many.
TOGETHER, ROOM = 2, 6


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
    found: Iterator[Ranked | None] = repeat(None)
    if within is not None and scores.device.type == "cpu":
        found = _ranked_within(scores.quickest(), blocks, members, gallery is None, first, within)
    for rows in track(blocks, "ranking queries"):
        yield next(found) or _rank(scores, rows, members, gallery is None, first)


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


def _rank(scores: Scores, rows: Tensor, members: Members, own: bool, first: bool) -> Ranked:
    kin, rows = _kin(rows, members).to(scores.device), rows.to(scores.device)
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


def _ranked_within(
    scores: Scores, blocks: list[Tensor], members: Members, own: bool, first: bool, within: int
) -> Iterator[Ranked | None]:
    """The same where only the first places matter, on a CPU; None for a block that gains nothing by it.

    Where the queries are their own gallery, the scores of a block by another one, turned, are those of the other by
    this one. So half of the products will do, if all blocks are looked at together and what they keep fits.
    """
    entries = budget(TILE_ENTRIES, scores.device)
    kin = [int(members.size[rows[0]]) for rows in blocks]
    depths = [within if first else max(within, most) for most in kin]
    likely = [len(rows) * _kept(depth, len(blocks)) for rows, depth in zip(blocks, depths, strict=True)]
    positives = sum(len(rows) * most for rows, most in zip(blocks, kin, strict=True))
    together = own and positives + sum(likely) <= TOGETHER * entries
    rooms = [ROOM * entries * part / sum(likely) if together else entries for part in likely]
    order = torch.cat(blocks) if together else torch.arange(scores.gallery.count, device=scores.device)
    place = order.argsort()
    lists = (
        _FirstPlaces(scores, rows, _kin(rows, members), order, place, depth, room)
        for rows, depth, room in zip(blocks, depths, rooms, strict=True)
    )
    if not together:
        for alone in lists:
            block = scores.query_block(alone.rows)
            for start, tile in _tiles(scores, block) if alone.hopeful else ():
                alone.add(tile, start)
                if not alone.hopeful:
                    break
            yield alone.ranked(own, first)
        return
    waiting, start = deque(lists), 0
    space = torch.empty(max(map(len, blocks)) ** 2, dtype=scores.dtype, device=scores.device)
    while waiting:
        mine, column = waiting[0], start
        block = scores.query_block(mine.rows)
        for other in waiting:
            if mine.hopeful or other.hopeful:
                tile = scores.table(block, other.rows)
                if other is not mine:
                    other.add(scores.turned(tile, mine.rows, other.rows, space), start)
                mine.add(tile, column)
            column += len(other.rows)
        start += len(mine.rows)
        yield waiting.popleft().ranked(own, first)


def _kept(depth: int, tiles: float) -> float:
    """How many entries of a row are likely to be kept for its first places.

    The second tile has half a chance to add to what the first holds, the third a third, and so on.
    """
    return depth * (1 + math.log(tiles))


class _FirstPlaces:
    """The positives of a block of queries, and the negatives that may stand among the first `depth` of their lists.

    Scores come in tiles, whose columns are the members of the gallery in an `order`; `place` says where in it each is.
    It is `hopeful` as long as they fit into the `room`: not so for long lists, masses of near ties, or rounding that
    leaves them open.
    """

    def __init__(
        self, scores: Scores, rows: Tensor, kin: Tensor, order: Tensor, place: Tensor, depth: int, room: float
    ) -> None:
        self.scores, self.rows, self.kin, self.order, self.room = scores, rows, kin, order, room
        self.place = torch.where(kin >= 0, place[kin], -1)
        self.near = torch.full(kin.shape, -torch.inf, dtype=scores.dtype, device=kin.device)
        self.doubt = scores.doubt(rows)
        self.contenders = Contenders(depth, self.doubt)
        count = scores.gallery.count
        width = tile_shape(len(rows), count, scores.queries.dim, scores.device)[1]
        self.hopeful = depth * DEEP <= count and 2 * len(rows) * _kept(depth, count / width) <= room

    def add(self, tile: Tensor, start: int) -> None:
        """Look at a tile, whose entries of the queries' own kin become −∞."""
        if not self.hopeful:
            return
        place = self.place - start
        inside = _inside(tile, place)
        self.near = torch.where(inside, tile.gather(1, place.clamp(0, tile.shape[1] - 1)), self.near)
        _leave_out(tile, place)
        self.contenders.add(tile, start)
        if self.contenders.kept > self.room:
            self.hopeful = False
            del self.contenders

    def ranked(self, own: bool, first: bool) -> Ranked | None:
        """The positives, with the negatives ahead of them where these are fewer than `depth`; None without hope."""
        if not self.hopeful:
            return None
        near, member, valid = self.near, self.kin, _positive(self.rows, self.kin, own)
        positives = valid.sum(1)
        if first:
            near, member, valid = _nearest(near, member, valid, self.doubt)
        far = near.double() < self.contenders.bar - self.doubt
        tally = Tally(self.scores, self.rows, member, torch.where(valid & ~far, near, torch.inf))
        values, place = self.contenders.table()
        count = self.scores.gallery.count
        if not tally.add(values, self.order[place], patience=len(self.rows) * count / COSTLY):
            return None
        return _in_order(self.rows, positives, torch.where(far, count, tally.ahead), tally.tied, valid)


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
