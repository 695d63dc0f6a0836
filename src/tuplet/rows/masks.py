"""Who is alike: which gallery members are a query's positives, and which its negatives."""

from collections.abc import Callable

import torch
from torch import Tensor

from tuplet.rows.checks import check_same


def equal_labels(labels: Tensor, gallery_labels: Tensor) -> Tensor:
    """The usual idea of "same": one integer each, equal or not."""
    return labels[:, None] == gallery_labels


def block_positives(
    same: Callable[[Tensor, Tensor], Tensor],
    labels: Tensor,
    gallery_labels: Tensor,
    valid: Tensor | None,
    member: bool,
    start: int,
) -> Tensor:
    """The positives of a block of queries that begins at `start`, as a table.

    Where query i is gallery member i (`member`) it is none for itself.
    """
    alike = same(labels, gallery_labels)
    if same is not equal_labels:
        check_same(alike, len(labels), len(gallery_labels))
        alike = alike.clone()  # a user may hold the table, and what follows writes into it
    return _looked_at(alike, valid, member, start)


def block_negatives(positive: Tensor, valid: Tensor | None, member: bool, start: int) -> Tensor:
    """The others, without the query itself."""
    return _looked_at(~positive, valid, member, start)


def _looked_at(table: Tensor, valid: Tensor | None, member: bool, start: int) -> Tensor:
    """The table without those whom a query does not look at: itself, and what is not valid."""
    table = without_itself(table, start) if member else table
    return table if valid is None else table & valid


def without_itself(table: Tensor, start: int) -> Tensor:
    """The table with zeros where a query of a block that begins at `start` meets itself."""
    if torch.compiler.is_compiling():
        # A comparison fuses with what comes next; a write into a diagonal does not.
        rows = torch.arange(table.shape[0], device=table.device)[:, None] + start
        others = rows != torch.arange(table.shape[1], device=table.device)
        return table & others if table.dtype == torch.bool else torch.where(others, table, 0)
    # Gradients may come expanded from a plain sum: memory of their own before a write.
    table = table.contiguous()
    torch.diagonal(table, offset=start).fill_(0)
    return table
