"""The negatives that may stand among the first of a query's list: few of a tile are kept, and found without sorting."""

import numpy as np
import torch
from torch import Tensor

# A bar is the lowest of the highest scores of as many groups as the list is deep. With so many groups for each place a
# bar is nearly as high as it could be; groups have at most so many entries, beyond which they save nothing.
GROUPS_FOR_A_PLACE, LARGEST_GROUP = 4, 64
# Rows of so many numbers fill registers; what is left over takes several times as long.
LANES = 64


class Contenders:
    """Of tiles of scores of a block of queries, what may be among the `depth` highest of a row. On a CPU.

    The `bar` of a row is a score that at least `depth` of its entries reach. What lies below it by more than the doubt
    has so many others ahead of it for certain. Entries are kept down to three doubts below the bar: one for what may
    stand at it, one for what may tie with that, and one for the rounding of the comparison itself.

    >>> contenders = Contenders(1, torch.tensor([[0.1]]))
    >>> contenders.add(torch.tensor([[1.0, 7.0, 3.0, 6.8]]), start=10)
    >>> contenders.table()
    (tensor([[7.0000, 6.8000]]), tensor([[11, 13]]))
    """

    def __init__(self, depth: int, doubt: Tensor) -> None:
        self.depth, self.doubt, self.kept = depth, doubt, 0
        self._highest: Tensor | None = None
        self._found: list[tuple[np.ndarray, ...]] = []

    @property
    def bar(self) -> Tensor:
        """(R, 1) in float64; −∞ while fewer groups than `depth` were seen."""
        assert self._highest is not None
        if self._highest.shape[1] < self.depth:
            return torch.full_like(self.doubt, -torch.inf)
        return self._highest[:, :1].double()

    def add(self, tile: Tensor, start: int) -> None:
        """Keep what may be among the first of a tile, whose columns are the members from `start` on."""
        self._raise_bar(tile)
        scores = tile.numpy()
        flat = np.flatnonzero(scores >= self._least(scores.dtype))
        row = flat // tile.shape[1]
        self._found.append((row.astype(np.int32), flat - row * tile.shape[1] + start, scores.reshape(-1)[flat]))
        self.kept += len(flat)

    def table(self) -> tuple[Tensor, Tensor]:
        """What is left by the last bar: the scores, padded with −∞, and which members they belong to, (R, C) each."""
        row, member, value = (np.concatenate(parts) for parts in zip(*self._found, strict=True))
        left = np.flatnonzero(value >= self._least(value.dtype)[row, 0])
        # Sorted runs one after another, which a stable sort only merges.
        left = left[row[left].argsort(kind="stable")]
        row, counts = row[left], np.bincount(row[left], minlength=len(self.doubt))
        place = np.arange(len(row)) - (counts.cumsum() - counts)[row]
        shape = (len(counts), max(1, int(counts.max())))
        values, members = np.full(shape, -np.inf, dtype=value.dtype), np.zeros(shape, dtype=np.int64)
        values[row, place], members[row, place] = value[left], member[left]
        return torch.from_numpy(values), torch.from_numpy(members)

    def _least(self, dtype: np.dtype) -> np.ndarray:
        """The lowest score of each row that is kept: (R, 1)."""
        return (self.bar - 3 * self.doubt).numpy().astype(dtype)

    def _raise_bar(self, tile: Tensor) -> None:
        """Hold the highest score of each of `depth` groups, those with the highest; the lowest of them comes first."""
        groups = LANES * max(1, round(GROUPS_FOR_A_PLACE * self.depth / LANES))
        size = min(LARGEST_GROUP, max(1, tile.shape[1] // groups))
        whole = tile.shape[1] // size * size
        # Strided groups: the maximum of whole rows of numbers, which vector instructions take at once.
        parts = [tile[:, :whole].unflatten(1, (size, -1)).amax(1), tile[:, whole:]]
        highest = torch.cat(parts if self._highest is None else [self._highest, *parts], 1)
        if highest.shape[1] >= self.depth:
            # NumPy's partition is vectorised, and many times as fast as torch's kthvalue.
            cut = highest.shape[1] - self.depth
            highest = torch.from_numpy(np.partition(highest.numpy(), cut, axis=1)[:, cut:].copy())
        self._highest = highest
