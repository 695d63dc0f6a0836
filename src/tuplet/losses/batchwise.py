"""Helpers of losses that look at a whole batch: check the call, and number its classes."""

import torch
from torch import Tensor

from tuplet.losses.base import RowLoss
from tuplet.rows import View
from tuplet.rows.masks import equal_labels


def refuse_gallery(loss: RowLoss, view: View) -> None:
    """Raise an error for a call with a gallery."""
    if view.gallery is not None:
        raise ValueError(
            f"{type(loss).__name__} looks at its batch as a whole and takes no gallery; leave gallery= out"
        )


def refuse_same(loss: RowLoss, view: View) -> None:
    """Raise an error for a custom `same=`, which need not divide the batch into classes."""
    if view.same is not equal_labels:
        raise ValueError(f"{type(loss).__name__} needs one class for each example; leave same= out and give labels")


def class_numbers(labels: Tensor) -> Tensor:
    """Return the number of each row's class among the classes in order, from 0.

    >>> class_numbers(torch.tensor([7, -3, 7, 9])).tolist()
    [1, 0, 1, 2]
    """
    ordered, order = labels.sort()
    numbers = torch.zeros_like(order)
    # Not by `unique`, whose shape depends on the values.
    return numbers.scatter(0, order, (ordered.diff(prepend=ordered[:1]) != 0).cumsum(0))
