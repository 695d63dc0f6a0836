"""Bad input gets one sentence that names the thing, the value and the remedy."""

from typing import Any

import torch
from torch import Tensor

from tuplet.rows import geometry as geo

_SIGNED = (torch.int64, torch.int32, torch.int16, torch.int8)
_UNSIGNED = (torch.uint64, torch.uint32, torch.uint16, torch.uint8)


def check_vectors(vectors: Tensor, name: str, empty: bool = False) -> None:
    """A float matrix, with at least one row unless it may be `empty`."""
    if not isinstance(vectors, Tensor):
        raise TypeError(
            f"{name} must be a torch.Tensor, got {type(vectors).__name__}; convert them with torch.as_tensor"
        )
    if vectors.ndim != 2:
        raise ValueError(
            f"{name} must have shape (N, d), got {tuple(vectors.shape)}; flatten each example to one vector"
        )
    if not vectors.is_floating_point():
        raise TypeError(f"{name} must be floating point, got {vectors.dtype}; convert them with .float()")
    if vectors.numel() == 0 and not empty:
        raise ValueError(f"{name} must not be empty, got shape {tuple(vectors.shape)}; give at least one vector")


def check_labels(labels: Tensor, vectors: Tensor, name: str, custom: bool) -> None:
    """An integer for each vector; with a comparison of the user's own, anything with a row for each vector."""
    if not isinstance(labels, Tensor):
        raise TypeError(
            f"{name} must be a torch.Tensor, got {type(labels).__name__}; convert them with torch.as_tensor"
        )
    if not custom and labels.dtype not in _SIGNED + _UNSIGNED:
        raise TypeError(f"{name} must be integers, got {labels.dtype}; convert them with .long()")
    if labels.ndim != 1 and not (custom and labels.ndim > 1):
        raise ValueError(f"{name} must have shape (N,), got {tuple(labels.shape)}; give one integer for each vector")
    if labels.shape[0] != vectors.shape[0]:
        raise ValueError(
            f"{name} must be as many as their vectors, got {labels.shape[0]} for {vectors.shape[0]} vectors; "
            "give one for each"
        )
    # A comparison of the user's own may look wherever it likes.
    if not custom:
        check_device(f"{name} are", labels.device, "vectors", vectors.device)


def check_device(what: str, device: torch.device, others: str, place: torch.device) -> None:
    """Both in one place."""
    if device != place:
        raise ValueError(f'{what} on {device}, but the {others} on {place}; move one with .to("{place}")')


def check_rows(given: Any, queries: int) -> None:
    """A total and a count for each query, from a row function."""
    if not isinstance(given, tuple) or len(given) != 2 or any(getattr(x, "shape", None) != (queries,) for x in given):
        parts = given if isinstance(given, tuple) else (given,)
        raise ValueError(
            f"rows must give a total and a count for each of {queries} queries, got {' and '.join(map(_kind, parts))}; "
            f"return two tensors of shape ({queries},)"
        )


def check_dimensions(queries: Tensor, gallery: Tensor) -> None:
    """Queries and gallery in one space."""
    if queries.shape[1] != gallery.shape[1]:
        raise ValueError(
            f"gallery must have the queries' dimension {queries.shape[1]}, got {gallery.shape[1]}; "
            "embed both with the same model"
        )
    if geo.table_dtype(queries.dtype) != geo.table_dtype(gallery.dtype):
        raise TypeError(f"gallery must be as precise as the queries' {queries.dtype}, got {gallery.dtype}; convert one")
    check_device("gallery is", gallery.device, "queries", queries.device)


def check_finite(vectors: Tensor, name: str) -> None:
    """No NaN and no infinity; names the first row that has one. Reads the values, so it waits for the device."""
    bad = ~vectors.detach().isfinite().all(1)
    if bad.any():
        row = int(bad.nonzero()[0])
        raise ValueError(
            f"{name} must be finite, but row {row} holds {_first_bad(vectors[row])} ({int(bad.sum())} in all); "
            "look for a diverged model, a zero vector made unit, or a half-precision overflow"
        )


def _first_bad(row: Tensor) -> str:
    return str(float(row[~row.isfinite()][0]))


def reads_values(tensor: Tensor, asked: bool) -> bool:
    """Whether checks of values run: always on the CPU, elsewhere when asked, never while compiling."""
    return not torch.compiler.is_compiling() and (asked or tensor.device.type == "cpu")


def check_same(same: Tensor, queries: int, members: int) -> None:
    """What a comparison of the user's own gives: a truth value for each query and gallery member."""
    if not isinstance(same, Tensor) or same.dtype != torch.bool:
        got = same.dtype if isinstance(same, Tensor) else type(same).__name__
        raise TypeError(f"same= must give a torch.Tensor of bool, got {got}; compare the labels with == or isin")
    if same.shape != (queries, members):
        raise ValueError(
            f"same= must give a table of shape {(queries, members)}, queries by gallery, got {tuple(same.shape)}; "
            "compare labels[:, None] with gallery_labels"
        )


def check_kept(kept: Any, table: Tensor, rule: Any) -> None:
    """What a mining rule that marks gives: the masks of the positives and of the negatives that it keeps."""
    parts = kept if isinstance(kept, tuple | list) else (kept,)
    if len(parts) != 2 or not all(_is(x, torch.bool, table.shape) for x in parts):
        raise ValueError(
            f"{type(rule).__name__} must keep positives and negatives of a table of shape {tuple(table.shape)}, got "
            f"{' and '.join(map(_kind, parts))}; return two tensors of bool of that shape"
        )


def check_named(columns: Any, positives: Tensor, rule: Any) -> None:
    """What a mining rule that names gives: the column of a negative for each positive."""
    if not _is(columns, torch.int64, positives.shape):
        raise ValueError(
            f"{type(rule).__name__} must name a negative for each of {tuple(positives.shape)} positives, got "
            f"{_kind(columns)}; return a tensor of int64 of that shape, or leave names out"
        )


def _is(x: Any, dtype: torch.dtype, shape: torch.Size) -> bool:
    return isinstance(x, Tensor) and x.dtype == dtype and x.shape == shape


def _kind(x: Any) -> str:
    return f"{x.dtype} {tuple(x.shape)}" if isinstance(x, Tensor) else type(x).__name__


def check_class_size(largest: int, max_per_class: int) -> None:
    """No class larger than promised."""
    if largest > max_per_class:
        raise ValueError(
            f"max_per_class is {max_per_class}, but a class has {largest} examples; "
            f"give at least {largest} or leave it out"
        )
