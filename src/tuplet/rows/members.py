"""The positives of each query as a table of indices, in fixed shapes and without a look at the values."""

from collections.abc import Callable, Iterable
from typing import NamedTuple

import torch
from torch import Tensor


class Members(NamedTuple):
    """For each query some gallery members: their columns in the table (n, K), and which of these exist."""

    columns: Tensor
    exists: Tensor


def members_by_label(
    labels: Tensor, gallery_labels: Tensor, valid: Tensor | None, member: bool, max_per_class: int | None
) -> Members:
    """The gallery members with the query's label, in order, without the query itself where it is a `member`.

    K is the largest class of the gallery, less the query itself: given as `max_per_class`, or read from the labels at
    the cost of one host synchronisation.

    >>> members_by_label(torch.tensor([3, 8, 3]), torch.tensor([3, 8, 3]), None, True, None).columns.tolist()
    [[2], [1], [0]]
    """
    size = gallery_labels.shape[0]
    ordered, order = gallery_labels.sort(stable=True)
    labels = labels.contiguous()
    left = torch.searchsorted(ordered, labels)
    right = torch.searchsorted(ordered, labels, right=True)
    if valid is not None:
        # A gallery's invalid rows come last, and the sort is stable: each class has its valid members first.
        right = left + _between(valid[order], left, right)
    count = right - left
    largest = most_of(count) if max_per_class is None else min(max_per_class, size)
    k = torch.arange(largest - 1 if member else largest, device=order.device)
    place = left[:, None] + k
    if member:
        own = torch.empty_like(order).scatter_(0, order, torch.arange(size, device=order.device)) - left
        place = place + (k >= own[:, None])
        count = count - 1
    return Members(order[place.clamp_max(size - 1)], k < count[:, None])


def most_of(counts: Tensor) -> int:
    """The highest of the counts, which the host waits for; 0 of none, since one of several processes may be empty."""
    return int(counts.max()) if len(counts) else 0


def _between(flags: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """How many flags are set from each `left` up to each `right`."""
    before = torch.nn.functional.pad(flags.to(torch.int64).cumsum(0), (1, 0))
    return before[right] - before[left]


def members_by_mask(blocks: Callable[[], Iterable[Tensor]], member: bool, max_per_class: int | None) -> Members:
    """The same from blocks of masks, for any idea of "same".

    >>> members_by_mask(lambda: [torch.tensor([[False, True, True]])], True, None).columns.tolist()
    [[1, 2]]
    """
    if max_per_class is None:
        largest = most_of(torch.cat([mask.sum(1) for mask in blocks()]))
    else:
        largest = max_per_class - 1 if member else max_per_class
    found = []
    for mask in blocks():
        counted = mask.cumsum(1, dtype=torch.int32)
        kth = torch.arange(1, min(largest, mask.shape[1]) + 1, dtype=torch.int32, device=mask.device)
        # The k-th positive is where the k-th is counted.
        columns = torch.searchsorted(counted, kth.expand(len(mask), -1).contiguous()).clamp_max(mask.shape[1] - 1)
        found.append(Members(columns, kth <= counted[:, -1:]))
    if len(found) == 1:
        return found[0]
    return Members(*(torch.cat(parts) for parts in zip(*found, strict=True)))
