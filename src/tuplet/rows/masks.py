"""Masks of the positives and negatives of a block of queries."""

from collections.abc import Callable

import torch
from torch import Tensor

from tuplet.rows.checks import check_same


def equal_labels(labels: Tensor, gallery_labels: Tensor) -> Tensor:
    """Compare integer labels for equality: the default of `same=`."""
    return labels[:, None] == gallery_labels


def share_any(labels: Tensor, gallery_labels: Tensor) -> Tensor:
    """Compare examples of several labels, (R, L) and (M, L) padded with −1: the same if they share any of them.

    Labels (R,) or (M,), such as those of proxies or of a memory bank, are one for each.

    >>> share_any(torch.tensor([[1, 2], [3, -1]]), torch.tensor([[2, -1], [4, 5]])).tolist()
    [[True, False], [False, False]]
    """
    shared = torch.zeros(len(labels), len(gallery_labels), dtype=torch.bool, device=labels.device)
    for mine in labels.unsqueeze(1).flatten(1).T:
        for theirs in gallery_labels.unsqueeze(1).flatten(1).T:
            shared |= (mine[:, None] == theirs) & (mine >= 0)[:, None]
    return shared


#: Ideas of "same" that losses take by name.
SAME = {"any": share_any}


def block_positives(
    same: Callable[[Tensor, Tensor], Tensor],
    labels: Tensor,
    gallery_labels: Tensor,
    valid: Tensor | None,
    member: bool,
    start: int,
) -> Tensor:
    """Return the mask of the positives of a block of queries that begins at `start`.

    Where query i is gallery member i (`member`) it is not its own positive.
    """
    alike = same(labels, gallery_labels)
    if same is not equal_labels:
        check_same(alike, len(labels), len(gallery_labels))
        alike = alike.clone()  # the user may keep the table, and the next lines write into it
    return _restricted(alike, valid, member, start)


def block_negatives(positive: Tensor, valid: Tensor | None, member: bool, start: int) -> Tensor:
    """Return the mask of the negatives: all others, without the query itself."""
    return _restricted(~positive, valid, member, start)


def _restricted(table: Tensor, valid: Tensor | None, member: bool, start: int) -> Tensor:
    """Remove the query itself and invalid gallery members from a mask."""
    table = without_itself(table, start) if member else table
    return table if valid is None else table & valid


def without_itself(table: Tensor, start: int) -> Tensor:
    """Return the table of a block that begins at `start` with zeros where a query is compared with itself."""
    if torch.compiler.is_compiling():
        # The compiler fuses a comparison with the next operation, but not a write into a diagonal.
        rows = torch.arange(table.shape[0], device=table.device)[:, None] + start
        others = rows != torch.arange(table.shape[1], device=table.device)
        return table & others if table.dtype == torch.bool else torch.where(others, table, 0)
    # A gradient may be an expanded scalar, which cannot be written to.
    table = table.contiguous()
    torch.diagonal(table, offset=start).fill_(0)
    return table
