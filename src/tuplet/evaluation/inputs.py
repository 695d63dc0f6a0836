"""Checks of labels, galleries and numbers that users give."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tuplet.evaluation.vectors import Device, Vectors, as_vectors
from tuplet.labels import label_array


def as_labels(labels: Any, count: int, name: str = "labels", several: bool = False) -> Tensor:
    """Return `count` labels as int64 on the CPU, from a list, an array or a tensor of integers.

    With `several`, (count, L) is allowed too: L labels each, padded with −1.

    >>> as_labels([2**53, 2**53 + 1], 2)
    tensor([9007199254740992, 9007199254740993])
    """
    array = label_array(labels, name)
    if array.shape != (count,) and not (several and array.ndim == 2 and len(array) == count and array.shape[1]):
        raise ValueError(f"{name} must have shape ({count},), got {array.shape}; give one integer for each row")
    limits = np.iinfo(np.int64)
    if array.dtype.kind in "uO" and (wide := array[(array < limits.min) | (array > limits.max)]).size:
        raise ValueError(f"{name} must fit into int64, got {wide[0]}; subtract a constant from all of them")
    return torch.from_numpy(array.astype(np.int64))


def as_gallery(
    gallery: Any, gallery_labels: Any, query_labels: Tensor, device: Device
) -> tuple[Vectors | None, Tensor]:
    """Return a gallery and its labels, or None and the labels of the queries where these are their own gallery."""
    if (gallery is None) != (gallery_labels is None):
        given, missing = ("gallery", "gallery_labels") if gallery_labels is None else ("gallery_labels", "gallery")
        raise ValueError(f"{given} is given without {missing}; give both or neither")
    if gallery is None:
        return None, query_labels
    vectors = as_vectors(gallery, "gallery", device)
    labels = as_labels(gallery_labels, vectors.count, "gallery_labels", several=True)
    if labels.ndim != query_labels.ndim:
        raise ValueError(
            f"labels have shape {tuple(query_labels.shape)} and gallery_labels {tuple(labels.shape)}; "
            "give one label for each of both, or several"
        )
    return vectors, labels


def as_groups(
    groups: Any, gallery_groups: Any, queries: Vectors, gallery: Vectors | None
) -> tuple[Tensor, Tensor] | None:
    """Return the groups of the queries and of what they search: a gallery, or themselves. None without groups."""
    if groups is None and gallery_groups is None:
        return None
    if groups is None or (gallery_groups is None) != (gallery is None):
        raise ValueError("groups and gallery_groups do not fit; give both with a gallery, or groups alone without one")
    own = as_labels(groups, queries.count, "groups")
    return own, own if gallery is None else as_labels(gallery_groups, gallery.count, "gallery_groups")


def one_of(value: str, choices: tuple[str, ...], name: str) -> str:
    """Return `value` if it is one of the choices; raise ValueError otherwise.

    >>> one_of("dot", ("dot", "cosine"), "metric")
    'dot'
    """
    if value not in choices:
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
    return value


def positive_integer(value: int, name: str) -> int:
    """Return `value` if it is an integer above 0; raise ValueError otherwise."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or value < 1:
        raise ValueError(f"{name} must be a positive integer, got {value!r}; give 1 or more")
    return int(value)


def as_seed(value: int, name: str = "seed") -> int:
    """Return `value` if it is an integer that fits into int64; raise ValueError otherwise."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool) or not -(2**63) <= value < 2**63:
        raise ValueError(f"{name} must be an integer that fits into int64, got {value!r}")
    return int(value)


def as_list(values: Any, name: str) -> list[Any]:
    """Return an iterable of numbers as a list; raise TypeError for a single number."""
    if not isinstance(values, Iterable):
        raise TypeError(f"{name} must be a sequence of numbers, got {values!r}; give ({values!r},)")
    return list(values)
