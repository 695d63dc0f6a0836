"""Where each query's positives stand among its negatives: all that any retrieval metric needs.

For each positive p of a query two counts say it all: the negatives that score higher (`ahead`) and those that score
the same (`tied`). Counting needs no sorted list of the gallery, only its scores, block by block; so the memory is that
of a tile of scores, K may be anything, and one pass serves every metric.
"""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tuplet.evaluation.inputs import BLOCK_ELEMENTS, Vectors, budget
from tuplet.evaluation.scores import Scores
from tuplet.progress import track

# Entries of a tile of scores, and how many queries it has at most: 16 MiB keep a tile near a CPU's caches; a GPU wants
# long products. Functions of shapes and kind of device alone.
TILE_ENTRIES = {"cpu": 1 << 21, "cuda": 1 << 26}
TILE_QUERIES = {"cpu": 1 << 10, "cuda": 1 << 12}
# Up to so many positives a query, comparing the tile with each of them is faster than sorting its rows.
FEW_POSITIVES = {"cpu": 16, "cuda": 128}


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
    queries: Vectors, labels: Tensor, gallery: Vectors | None, gallery_labels: Tensor, metric: str, first: bool = False
) -> Iterator[Ranked]:
    """Rank the positives of every query, a block of queries at a time.

    Without a gallery the queries are their own, and a query is left out of its own list by identity. With `first` only
    the nearest positive of each query (and those that may tie with it) is ranked, which is what Recall@K needs.
    Queries come in the order of their class sizes, so that a block has lists of like length.
    """
    scores = Scores(queries, queries if gallery is None else gallery, metric)
    members = Members(labels, gallery_labels)
    order = torch.from_numpy(np.lexsort((members.start.numpy(), -members.size.numpy())))
    height, _ = tile_shape(len(order), scores.gallery.count, queries.dim, scores.device)
    blocks = list(_split(order, members.size[order], height, budget(TILE_ENTRIES, scores.device)))
    for rows in track(blocks, "ranking queries"):
        yield _rank(scores, rows, members, gallery is None, first)


def _split(order: Tensor, sizes: Tensor, height: int, entries: int) -> Iterator[Tensor]:
    """Blocks of at most `height` queries whose lists of positives, padded to the longest, fit a tile."""
    start = 0
    while start < len(order):
        stop = start + max(1, min(height, entries // max(1, int(sizes[start]))))
        yield order[start:stop]
        start = stop


def _rank(scores: Scores, rows: Tensor, members: Members, own: bool, first: bool) -> Ranked:
    kin = _kin(rows, members).to(scores.device)
    rows = rows.to(scores.device)
    block, doubt = scores.query_block(rows), scores.doubt(rows)
    valid = kin >= 0
    if own:
        valid &= kin != rows[:, None]
    positives = valid.sum(1)
    near = torch.where(valid, _own_scores(scores, block, kin), -torch.inf)
    member = kin
    if first:
        contenders = valid & (near >= near.amax(1, keepdim=True) - doubt)
        near, place = torch.where(contenders, near, -torch.inf).topk(max(1, int(contenders.sum(1).max())))
        member, valid = kin.gather(1, place), contenders.gather(1, place)
    # A threshold of +∞ counts nothing: the padding needs no case of its own.
    near = torch.where(valid, near, torch.inf)
    ahead, tied = _count_negatives(scores, rows, block, kin, member, near - doubt, near + doubt)
    # A nearer positive has no more negatives ahead, and none tied where it has as many: this key sorts by exact score.
    place = torch.where(valid, 2 * ahead + tied, torch.iinfo(torch.int64).max).argsort(1)
    return Ranked(rows, positives, ahead.gather(1, place), tied.gather(1, place), valid.gather(1, place))


def _kin(rows: Tensor, members: Members) -> Tensor:
    """The gallery members with each query's label, padded with −1: (R, P)."""
    size, start = members.size[rows, None], members.start[rows, None]
    slot = torch.arange(max(1, int(size.max())))
    return torch.where(slot < size, members.order[(start + slot).clamp(max=len(members.order) - 1)], -1)


def _own_scores(scores: Scores, block: Tensor, kin: Tensor) -> Tensor:
    """The table's scores of each query's own kin. Queries of one class stand together, so one product serves many."""
    columns, place = kin.clamp(min=0).unique(return_inverse=True)
    return scores.table(block, columns).gather(1, place)


def _count_negatives(
    scores: Scores, rows: Tensor, block: Tensor, kin: Tensor, member: Tensor, low: Tensor, high: Tensor
) -> tuple[Tensor, Tensor]:
    """How many negatives score higher than each positive, and how many the same.

    Scores above `high` are higher, scores below `low` lower; those between are settled by exact scores.
    """
    ahead, tied = torch.zeros_like(member), torch.zeros_like(member)
    width = tile_shape(len(rows), scores.gallery.count, scores.queries.dim, scores.device)[1]
    for start in range(0, scores.gallery.count, width):
        tile = scores.table(block, slice(start, start + width))
        _leave_out(tile, kin - start)
        higher, not_lower = _counts(tile, low, high)
        ahead += higher
        if scores.exact_tables:
            tied += not_lower - higher
        elif bool((not_lower > higher).any()):
            _settle(scores, rows, member, tile, start, low, high, not_lower > higher, ahead, tied)
    return ahead, tied


def _leave_out(tile: Tensor, kin: Tensor) -> None:
    """Set the tile's scores of a query's own kin to −∞. Kin that lie in other tiles meet +∞, which changes nothing."""
    inside = (kin >= 0) & (kin < tile.shape[1])
    if bool(inside.any()):
        lowest = torch.where(inside, -torch.inf, torch.inf).to(tile.dtype)
        tile.scatter_reduce_(1, kin.clamp(0, tile.shape[1] - 1), lowest, "amin")


def _counts(tile: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """For each threshold of a row, how many of the row's scores are above `high`, and how many are not below `low`."""
    if low.shape[1] <= budget(FEW_POSITIVES, tile.device):
        above = [(tile > t).sum(1, dtype=torch.int32) for t in high.split(1, 1)]
        not_below = [(tile >= t).sum(1, dtype=torch.int32) for t in low.split(1, 1)]
        return torch.stack(above, 1), torch.stack(not_below, 1)
    rising = _sorted_rows(tile)
    width = tile.shape[1]
    return width - torch.searchsorted(rising, high, right=True), width - torch.searchsorted(rising, low)


def _sorted_rows(tile: Tensor) -> Tensor:
    if tile.device.type != "cpu":
        return tile.sort(1).values
    # NumPy's vectorised sort is several times faster than torch's on a CPU, and lets other threads run.
    array = tile.numpy().copy()
    with ThreadPoolExecutor(torch.get_num_threads()) as pool:
        list(pool.map(lambda part: part.sort(axis=1), np.array_split(array, torch.get_num_threads())))
    return torch.from_numpy(array)


def _settle(
    scores: Scores,
    rows: Tensor,
    member: Tensor,
    tile: Tensor,
    start: int,
    low: Tensor,
    high: Tensor,
    unclear: Tensor,
    ahead: Tensor,
    tied: Tensor,
) -> None:
    """Count, by exact scores, the negatives too near to a positive for the table to tell; add to `ahead` and `tied`."""
    prints = scores.gallery.fingerprints
    r, j = unclear.nonzero(as_tuple=True)
    # Positives that are copies of one vector have one answer, and a negative that is a copy of the positive ties with
    # it: a collapsed model makes millions of such pairs, and none of them needs its exact score.
    key = prints[member[r, j]] + r * 0x1E3779B97F4A7C15
    _, group = key.unique(return_inverse=True)
    chosen = torch.empty(int(group.max()) + 1, dtype=torch.int64, device=key.device).scatter_(
        0, group, torch.arange(len(group), device=key.device)
    )
    higher, same = [], []
    for pick in chosen.split(max(1, tile.numel() // tile.shape[1])):
        row, positive = r[pick], member[r[pick], j[pick]]
        part = tile[row]
        i, column = ((part >= low[row, j[pick], None]) & (part <= high[row, j[pick], None])).nonzero(as_tuple=True)
        lead = torch.zeros(len(i), dtype=torch.float64, device=tile.device)
        other = (prints[start + column] != prints[positive[i]]).nonzero()[:, 0]
        if len(other):
            own = scores.exact(rows[row], positive)
            lead[other] = scores.exact(rows[row[i[other]]], start + column[other]) - own[i[other]]
        higher.append(torch.bincount(i[lead > 0], minlength=len(pick)))
        same.append(torch.bincount(i[lead == 0], minlength=len(pick)))
    ahead[r, j] += torch.cat(higher)[group]
    tied[r, j] += torch.cat(same)[group]
