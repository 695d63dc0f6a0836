"""Positives of a block of queries, and the negatives that come before each of them."""

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from tuplet.evaluation.scores import ScoreTables
from tuplet.threads import map_in_threads

# Up to so many thresholds per row, comparing the tile with each of them is faster than sorting its rows.
FEW_THRESHOLDS = 16


@dataclass
class RankedPositives:
    """The positives of a block of queries, nearest first; entries that are not `valid` are padding."""

    queries: Tensor  # (R,) indices of the queries
    num_positives: Tensor  # (R,) number of positives of each query
    ahead: Tensor  # (R, P) number of negatives that score higher than this positive
    tied: Tensor  # (R, P) number of negatives that score the same
    valid: Tensor  # (R, P)


class ClassMembers:
    """The gallery members that share each query's label, on the CPU, and which of them it may find.

    Those of query i are `order[start[i] : start[i] + size[i]]`. Where examples have several labels, (N, L) padded with
    −1, these are the members that share any of them. A query does not find itself, if `own`, nor members that share its
    group beside its label; neither are they negatives.
    """

    def __init__(
        self, labels: Tensor, gallery_labels: Tensor, own: bool, groups: tuple[Tensor, Tensor] | None = None
    ) -> None:
        self.own, self.groups = own, groups
        if labels.ndim == 2:
            self.order, self.start, self.size = _sharing_any(labels, gallery_labels)
            return
        classes, code, sizes = gallery_labels.unique(return_inverse=True, return_counts=True)
        self.order = code.argsort(stable=True)
        position = torch.searchsorted(classes, labels).clamp(max=len(classes) - 1)
        known = classes[position] == labels
        self.size = torch.where(known, sizes[position], 0)
        self.start = torch.where(known, (sizes.cumsum(0) - sizes)[position], 0)

    def positives(self, queries: Tensor, members: Tensor) -> Tensor:
        """Return which of the `members` (R, P) that `of` returned each query may find."""
        valid = members >= 0
        if self.own:
            valid &= members != queries[:, None]
        if self.groups is not None:
            mine, theirs = (codes.to(members.device) for codes in self.groups)
            valid &= mine[queries, None] != theirs[members.clamp(min=0)]
        return valid

    def of(self, queries: Tensor) -> Tensor:
        """Return the members of each query's class, padded with −1: (R, P)."""
        size, start = self.size[queries, None], self.start[queries, None]
        slot = torch.arange(max(1, int(size.max())), device=size.device)
        return torch.where(slot < size, self.order[(start + slot).clamp(max=len(self.order) - 1)], -1)


def _sharing_any(labels: Tensor, gallery_labels: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the lists of members that share a label with a query, joined, and each query's start and size in them."""
    holders: dict[int, list[int]] = {}
    for member, own in enumerate(gallery_labels.tolist()):
        for label in own:
            holders.setdefault(label, []).append(member)
    sets, code = labels.unique(dim=0, return_inverse=True)
    lists = [
        torch.tensor(sorted({m for label in own if label >= 0 for m in holders.get(label, ())}), dtype=torch.int64)
        for own in sets.tolist()
    ]
    sizes = torch.tensor([len(each) for each in lists])
    # One more member, because an empty list at the end is indexed too.
    return torch.cat([*lists, torch.zeros(1, dtype=torch.int64)]), (sizes.cumsum(0) - sizes)[code], sizes[code]


class NegativeCounter:
    """Count for each positive of a block of queries the negatives that score higher and those that score the same.

    Negatives whose table score differs from the positive's by more than the error bound are above or below it for
    certain; exact scores decide the others. `same_class` (R, P) are the members of the queries' classes, padded with
    −1, and `scores` their entries in the table; `members` tells which of them are positives. Positives that score
    below `lowest` get the whole gallery ahead.
    """

    def __init__(
        self,
        tables: ScoreTables,
        queries: Tensor,
        same_class: Tensor,
        scores: Tensor,
        members: ClassMembers,
        nearest_only: bool,
        lowest: float | Tensor = -math.inf,
    ) -> None:
        self.tables, self.queries = tables, queries
        error_bound = tables.error_bound(queries)
        valid = members.positives(queries, same_class)
        self.num_positives = valid.sum(1)
        if nearest_only:
            scores = torch.where(valid, scores, -torch.inf)
            valid &= scores >= scores.amax(1, keepdim=True) - error_bound
            scores, position = torch.where(valid, scores, -torch.inf).topk(max(1, int(valid.sum(1).max())))
            same_class, valid = same_class.gather(1, position), valid.gather(1, position)
        self.positives, self.valid = same_class, valid
        self.behind = scores.double() < lowest
        # Nothing is above +∞, so what is not to be counted has no negatives ahead and none tied.
        scores = torch.where(valid & ~self.behind, scores, torch.inf)
        self.low, self.high = ((scores + sign * error_bound).to(tables.dtype) for sign in (-1, 1))
        self.ahead, self.tied = torch.zeros_like(same_class), torch.zeros_like(same_class)

    def result(self) -> RankedPositives:
        """Return the positives with their counts, nearest first."""
        ahead = torch.where(self.behind, self.tables.gallery.count, self.ahead)
        # Of two positives the nearer has fewer negatives ahead, or as many and none tied: this key is in exact order.
        order = torch.where(self.valid, 2 * ahead + self.tied, torch.iinfo(torch.int64).max).argsort(1)
        sorted_tables = (table.gather(1, order) for table in (ahead, self.tied, self.valid))
        return RankedPositives(self.queries, self.num_positives, *sorted_tables)

    def add(self, tile: Tensor, members: Tensor, max_exact: float = math.inf) -> bool:
        """Count the negatives of a tile, whose entries are scores of gallery `members`, or −∞ to ignore.

        `members` are those of every row, (M,), or of each row its own, (R, M). Return False and count nothing if more
        than `max_exact` pairs would need exact scores.
        """
        above, not_below = _counts(tile, self.low, self.high)
        pairs = int((not_below - above).sum())
        if pairs > max_exact:
            return False
        if pairs > tile.numel():
            # Nearly all pairs of a collapsed model are close, and one exact score of an entry serves all of its pairs.
            above, not_below = _counts(self._exact(tile, members), self._exact_positives, self._exact_positives)
            self.tied += not_below - above
        elif pairs:
            self._count_close(tile, members.expand_as(tile), not_below > above)
        self.ahead += above
        return True

    def _count_close(self, tile: Tensor, members: Tensor, unclear: Tensor) -> None:
        """Count by exact scores the negatives within the error bound of the `unclear` positives."""
        for where in unclear.nonzero().split(len(tile)):
            r, slot = where.unbind(1)
            part, positive = tile[r], self.positives[r, slot]
            within = (part >= self.low[r, slot, None]) & (part <= self.high[r, slot, None])
            i, column = within.nonzero(as_tuple=True)
            difference = self.tables.compare(self.queries[r[i]], members[r[i], column], positive[i])
            self.ahead[r, slot] += torch.bincount(i[difference > 0], minlength=len(r))
            self.tied[r, slot] += torch.bincount(i[difference == 0], minlength=len(r))

    @cached_property
    def _exact_positives(self) -> Tensor:
        """The exact scores of the positives that are counted, +∞ for the others."""
        members = self.positives.clamp(min=0)
        exact = self.tables.exact(self.queries.repeat_interleave(members.shape[1]), members.flatten())
        return torch.where(self.low < torch.inf, exact.view_as(self.low), torch.inf)

    def _exact(self, tile: Tensor, members: Tensor) -> Tensor:
        """Return the exact scores of a tile; copies of a vector, of which a collapsed model has many, share one."""
        copy_of = torch.arange(tile.shape[1], device=tile.device)
        if members.ndim == 1:
            _, copy_of = self.tables.gallery.fingerprints[members].unique(return_inverse=True)
            members = torch.empty_like(members).scatter_(0, copy_of, members)[: int(copy_of.max()) + 1]
        members = members.expand(len(tile), -1)
        exact = self.tables.exact(self.queries.repeat_interleave(members.shape[1]), members.flatten())
        return torch.where(tile > -torch.inf, exact.view_as(members)[:, copy_of], -torch.inf)


def _counts(tile: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """Count for each threshold of a row the row's scores above `high`, and those not below `low`.

    >>> _counts(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[2.0]]), torch.tensor([[2.5]]))
    (tensor([[1]], dtype=torch.int32), tensor([[2]], dtype=torch.int32))
    """
    if low.shape[1] <= FEW_THRESHOLDS:
        above = [(tile > t).sum(1, dtype=torch.int32) for t in high.split(1, 1)]
        not_below = [(tile >= t).sum(1, dtype=torch.int32) for t in low.split(1, 1)]
        return torch.stack(above, 1), torch.stack(not_below, 1)
    ascending, width = _sort_rows(tile), tile.shape[1]
    return width - torch.searchsorted(ascending, high, right=True), width - torch.searchsorted(ascending, low)


def _sort_rows(tile: Tensor) -> Tensor:
    if tile.device.type != "cpu":
        return tile.sort(1).values
    # On a CPU numpy's vectorised sort is several times as fast as torch's, and it lets other threads run.
    array, threads = tile.numpy().copy(), torch.get_num_threads()
    list(map_in_threads(lambda part: part.sort(axis=1), np.array_split(array, threads), threads, threads))
    return torch.from_numpy(array)
