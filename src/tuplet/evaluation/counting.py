"""How many scores of a row lie above a threshold, or at it: by tiles, and by exact scores where those cannot tell."""

import math
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch
from torch import Tensor

from tuplet.evaluation.inputs import budget
from tuplet.evaluation.scores import Scores

# Up to so many thresholds a row, comparing the tile with each of them is faster than sorting its rows.
FEW_THRESHOLDS = {"cpu": 16, "cuda": 128}


class Tally:
    """For each positive of a block of queries, the negatives that score higher (`ahead`) and the same (`tied`).

    `positives` (R, P) are gallery members and `thresholds` their scores in the table, +∞ for padding, which then counts
    nothing. Scores of a tile that lie farther from a threshold than the doubt are above or below it for certain; those
    within are settled by exact scores.
    """

    def __init__(self, scores: Scores, rows: Tensor, positives: Tensor, thresholds: Tensor) -> None:
        self.scores, self.rows, self.positives = scores, rows, positives
        doubt = scores.doubt(rows)
        self.low, self.high = ((thresholds + side * doubt).to(scores.dtype) for side in (-1, 1))
        self.ahead, self.tied = torch.zeros_like(positives), torch.zeros_like(positives)

    def add(self, tile: Tensor, members: Tensor, patience: float = math.inf) -> bool:
        """Count a tile of scores of negatives, −∞ for what is none; `members`, of its shape, says which these are.

        False, with nothing counted, where more than `patience` pairs would need their exact scores.
        """
        above, not_below = _counts(tile, self.low, self.high)
        if patience < math.inf and int((not_below - above).sum()) > patience:
            return False
        self.ahead += above
        if self.scores.exact_tables:
            self.tied += not_below - above
        elif bool((not_below > above).any()):
            self._settle(tile, members, not_below > above)
        return True

    def _settle(self, tile: Tensor, members: Tensor, unclear: Tensor) -> None:
        """Count what lies within the doubt of the `unclear` positives by exact scores.

        Where these are many, most are copies: positives that are copies of one vector have one answer, and a negative
        that is a copy of the positive ties with it. A collapsed model makes millions of such pairs, and none of them
        needs its exact score.
        """
        row, slot = unclear.nonzero(as_tuple=True)
        few = len(row) < self.scores.gallery.count
        prints = None if few else self.scores.gallery.fingerprints
        group = torch.arange(len(row), device=row.device)
        if prints is not None:
            key = prints[self.positives[row, slot]] + row * 0x1E3779B97F4A7C15
            group = key.unique(return_inverse=True)[1]
        one_of_each = torch.empty_like(group).scatter_(0, group, torch.arange(len(group), device=group.device))
        above, same = [], []
        for pick in one_of_each[: int(group.max()) + 1].split(len(tile)):
            r, positive = row[pick], self.positives[row[pick], slot[pick]]
            low, high = self.low[r, slot[pick], None], self.high[r, slot[pick], None]
            part = tile[r]
            i, column = ((part >= low) & (part <= high)).nonzero(as_tuple=True)
            negative = members[r[i], column]
            lead = torch.zeros(len(i), dtype=torch.float64, device=tile.device)
            other = torch.ones_like(i, dtype=torch.bool) if prints is None else prints[negative] != prints[positive[i]]
            other = other.nonzero()[:, 0]
            if len(other):
                lead[other] = self.scores.lead(self.rows[r[i[other]]], negative[other], positive[i[other]])
            above.append(torch.bincount(i[lead > 0], minlength=len(pick)))
            same.append(torch.bincount(i[lead == 0], minlength=len(pick)))
        self.ahead[row, slot] += torch.cat(above)[group]
        self.tied[row, slot] += torch.cat(same)[group]


def _counts(tile: Tensor, low: Tensor, high: Tensor) -> tuple[Tensor, Tensor]:
    """For each threshold of a row, how many of the row's scores are above `high`, and how many are not below `low`.

    >>> _counts(torch.tensor([[1.0, 2.0, 3.0]]), torch.tensor([[2.0]]), torch.tensor([[2.5]]))
    (tensor([[1]], dtype=torch.int32), tensor([[2]], dtype=torch.int32))
    """
    if low.shape[1] <= budget(FEW_THRESHOLDS, tile.device):
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
