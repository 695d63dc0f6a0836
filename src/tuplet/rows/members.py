"""The positives of each query as a table of indices, of a shape that does not depend on the labels."""

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from tuplet.rows import paths
from tuplet.rows.checks import check_class_size
from tuplet.rows.masks import block_positives, equal_labels

if TYPE_CHECKING:
    from tuplet.rows.view import View


class Members(NamedTuple):
    """For each query some gallery members: their columns in the table (n, K), and a mask of those that exist."""

    columns: Tensor
    exists: Tensor


def members_of(view: "View") -> Members:
    """Return the positives of each query of a view."""
    if view.max_per_class is not None and view.checks_values:
        check_class_size(_largest_class(view), view.max_per_class)
    # A sort is a dozen launches on a GPU, and long ones.
    if view.same is equal_labels and not paths.is_launch_bound(view):
        return members_by_label(view.labels, view.column_labels, view.valid, view.member, view.max_per_class)
    return members_by_mask(lambda: _positives(view), view.member, view.max_per_class)


def _positives(view: "View") -> Iterator[Tensor]:
    """Yield the masks of the positives, block by block; one of no rows where there are no queries."""
    step = paths.block_rows_of(view)
    for start in range(0, view.size, step) or [0]:
        labels = view.labels[start : start + step]
        yield block_positives(view.same, labels, view.column_labels, view.valid, view.member, start)


def _largest_class(view: "View") -> int:
    """Return the size of the largest class, a query in its own gallery included."""
    if view.same is not equal_labels:
        return view.member + largest_of(torch.cat([mask.sum(1) for mask in _positives(view)]))
    labels = view.column_labels if view.valid is None else view.column_labels[view.valid]
    return max(labels.unique(return_counts=True)[1].tolist(), default=0)


def members_by_label(
    labels: Tensor, gallery_labels: Tensor, valid: Tensor | None, member: bool, max_per_class: int | None
) -> Members:
    """Return the gallery members with the query's label, in order, without the query itself if it is a `member`.

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
    largest = largest_of(count) if max_per_class is None else min(max_per_class, size)
    k = torch.arange(largest - 1 if member else largest, device=order.device)
    place = left[:, None] + k
    if member:
        own = torch.empty_like(order).scatter_(0, order, torch.arange(size, device=order.device)) - left
        place = place + (k >= own[:, None])
        count = count - 1
    return Members(order[place.clamp_max(size - 1)], k < count[:, None])


def largest_of(counts: Tensor) -> int:
    """Return the largest count, or 0 if there are none, as in a process without rows. The host waits for it."""
    if torch.compiler.is_compiling():
        torch._dynamo.graph_break(msg="the size of the largest class is read from the labels; give max_per_class=")
    return int(counts.max()) if len(counts) else 0


def _between(flags: Tensor, left: Tensor, right: Tensor) -> Tensor:
    """Return the number of flags that are set from each `left` up to each `right`."""
    before = torch.nn.functional.pad(flags.to(torch.int64).cumsum(0), (1, 0))
    return before[right] - before[left]


def members_by_mask(blocks: Callable[[], Iterable[Tensor]], member: bool, max_per_class: int | None) -> Members:
    """Return what `members_by_label` returns, from blocks of masks, for any comparison of labels.

    >>> members_by_mask(lambda: [torch.tensor([[False, True, True]])], True, None).columns.tolist()
    [[1, 2]]
    """
    if max_per_class is None:
        largest = largest_of(torch.cat([mask.sum(1) for mask in blocks()]))
    else:
        largest = max_per_class - 1 if member else max_per_class
    found = []
    for mask in blocks():
        counted = mask.cumsum(1, dtype=torch.int32)
        kth = torch.arange(1, min(largest, mask.shape[1]) + 1, dtype=torch.int32, device=mask.device)
        # The k-th positive is where the running count reaches k.
        columns = torch.searchsorted(counted, kth.expand(len(mask), -1).contiguous()).clamp_max(mask.shape[1] - 1)
        found.append(Members(columns, kth <= counted[:, -1:]))
    if len(found) == 1:
        return found[0]
    return Members(*(torch.cat(parts) for parts in zip(*found, strict=True)))
