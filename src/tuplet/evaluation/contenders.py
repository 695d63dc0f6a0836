"""The negatives that may stand among the first of a query's list: few of a tile are kept, and found without sorting."""

import numpy as np
import torch
from torch import Tensor

# A bar is the lowest of the highest scores of as many groups as the list is deep. With so many groups for each place a
# bar is nearly as high as it could be; groups have at most so many entries, beyond which they save nothing.
GROUPS_FOR_A_PLACE, LARGEST_GROUP = 4, 64


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
        self.depth, self.doubt = depth, doubt
        self.kept = np.zeros(len(doubt), dtype=np.int64)
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
        least = (self.bar - 3 * self.doubt).to(tile.dtype)
        flat = np.flatnonzero(tile.numpy() >= least.numpy())
        row = flat // tile.shape[1]
        counts = np.bincount(row, minlength=len(tile))
        place = np.arange(len(flat)) + (self.kept - (counts.cumsum() - counts))[row]
        self._found.append((row, place, flat - row * tile.shape[1] + start, tile.numpy().reshape(-1)[flat]))
        self.kept += counts

    def table(self) -> tuple[Tensor, Tensor]:
        """The scores kept, padded with −∞, and which members they belong to: (R, C) each."""
        row, place, member, value = (np.concatenate(parts) for parts in zip(*self._found, strict=True))
        shape = (len(self.kept), max(1, int(self.kept.max())))
        values, members = np.full(shape, -np.inf, dtype=value.dtype), np.zeros(shape, dtype=np.int64)
        values[row, place], members[row, place] = value, member
        return torch.from_numpy(values), torch.from_numpy(members)

    def _raise_bar(self, tile: Tensor) -> None:
        """Hold the highest score of each of `depth` groups, those with the highest; the lowest of them comes first."""
        size = min(LARGEST_GROUP, max(1, tile.shape[1] // (GROUPS_FOR_A_PLACE * self.depth)))
        whole = tile.shape[1] // size * size
        # Strided groups: the maximum of whole rows of numbers, which vector instructions take at once.
        parts = [tile[:, :whole].unflatten(1, (size, -1)).amax(1), tile[:, whole:]]
        highest = torch.cat(parts if self._highest is None else [self._highest, *parts], 1)
        if highest.shape[1] >= self.depth:
            # NumPy's partition is vectorised, and many times as fast as torch's kthvalue.
            cut = highest.shape[1] - self.depth
            highest = torch.from_numpy(np.partition(highest.numpy(), cut, axis=1)[:, cut:].copy())
        self._highest = highest
