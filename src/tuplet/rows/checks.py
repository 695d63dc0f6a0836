"""Checks of inputs: an error says what was given, what is expected and what to do."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from tuplet.rows import geometry as geo

_INTEGERS = {torch.int64, torch.int32, torch.int16, torch.int8, torch.uint64, torch.uint32, torch.uint16, torch.uint8}


def _check_tensor(x: Any, name: str) -> None:
    if not isinstance(x, Tensor):
        raise TypeError(f"{name} must be a torch.Tensor, got {type(x).__name__}; give torch.as_tensor({name})")


def check_vectors(vectors: Tensor, name: str, empty: bool = False) -> None:
    """Raise unless vectors are a float matrix, with at least one row unless it may be `empty`."""
    _check_tensor(vectors, name)
    if vectors.ndim != 2:
        raise ValueError(
            f"{name} must have shape (N, d), got {tuple(vectors.shape)}; flatten each example to one vector"
        )
    if not vectors.is_floating_point():
        raise TypeError(f"{name} must be floating point, got {vectors.dtype}; convert them with .float()")
    if vectors.numel() == 0 and not empty:
        raise ValueError(f"{name} must not be empty, got shape {tuple(vectors.shape)}; give at least one vector")


def check_labels(labels: Tensor, vectors: Tensor, name: str, custom: bool) -> None:
    """Raise unless there is an integer for each vector; a custom comparison takes anything with a row for each."""
    _check_tensor(labels, name)
    if not custom and labels.dtype not in _INTEGERS:
        raise TypeError(f"{name} must be integers, got {labels.dtype}; convert them with .long()")
    if labels.ndim != 1 and not (custom and labels.ndim > 1):
        raise ValueError(f"{name} must have shape (N,), got {tuple(labels.shape)}; give one integer for each vector")
    if labels.shape[0] != vectors.shape[0]:
        raise ValueError(
            f"{name} must have one entry for each vector, got {labels.shape[0]} for {vectors.shape[0]} vectors; "
            "give one for each"
        )
    # A custom comparison may compare labels on any device.
    if not custom:
        check_device(f"{name} are", labels.device, "vectors", vectors.device)


def check_device(what: str, device: torch.device, others: str, place: torch.device) -> None:
    """Raise unless both are on one device."""
    if device != place:
        raise ValueError(f'{what} on {device}, but the {others} on {place}; move one with .to("{place}")')


def check_rows(given: Any, queries: int) -> None:
    """Raise unless a row function returned a total and a count for each query."""
    if not isinstance(given, tuple) or len(given) != 2 or any(getattr(x, "shape", None) != (queries,) for x in given):
        parts = given if isinstance(given, tuple) else (given,)
        raise ValueError(
            f"rows must return a total and a count for each of {queries} queries, got "
            f"{' and '.join(map(_kind, parts))}; return two tensors of shape ({queries},)"
        )


def check_hidden_parameters(
    parameters: Mapping[str, Tensor],
    rows: Callable[..., Any],
    table: Tensor,
    positive: Tensor,
    negative: Tensor,
    inputs: Sequence[Tensor],
) -> None:
    """Raise where a row function reads a parameter by itself: in blocks it would get no gradient."""
    if parameters and torch.is_grad_enabled():
        out = rows(table.detach(), positive, negative, *[x.detach() for x in inputs])
        refuse_hidden_parameters(out[0] if isinstance(out, tuple) else out, parameters, rows)


def refuse_hidden_parameters(result: Any, parameters: Mapping[str, Tensor], rows: Callable[..., Any]) -> None:
    """Raise where a result, computed from constants, depends on a parameter."""
    if isinstance(result, Tensor) and result.requires_grad:
        found = torch.autograd.grad(result.sum(), list(parameters.values()), allow_unused=True)
        for name, gradient in zip(parameters, found, strict=True):
            if gradient is not None:
                raise hidden_parameter(rows, name)


def hidden_parameter(rows: Callable[..., Any], name: str) -> RuntimeError:
    """Return the error about a parameter that a row function reads by itself."""
    owner = getattr(rows, "__self__", None)
    where = getattr(rows, "__name__", "rows") if owner is None else f"{type(owner).__name__}.{rows.__name__}"
    return RuntimeError(
        f"{where} reads the parameter {name} from the loss, where it gets no gradient; pass it as an input: "
        f"in value(view), view.mean(self.rows, shared=[self.{name}])"
    )


def check_dimensions(queries: Tensor, gallery: Tensor) -> None:
    """Raise unless queries and gallery have one dimension, precision and device."""
    if queries.shape[1] != gallery.shape[1]:
        raise ValueError(
            f"gallery must have the queries' dimension {queries.shape[1]}, got {gallery.shape[1]}; "
            "embed both with the same model"
        )
    if geo.table_dtype(queries.dtype) != geo.table_dtype(gallery.dtype):
        raise TypeError(
            f"gallery must be as precise as the queries' {queries.dtype}, got {gallery.dtype}; "
            f"convert it with .to({queries.dtype})"
        )
    check_device("gallery is", gallery.device, "queries", queries.device)


def check_finite(vectors: Tensor, name: str) -> None:
    """Raise on NaN or infinity, and name the first row that has one. This waits for the device."""
    bad = ~vectors.detach().isfinite().all(1)
    if bad.any():
        row = int(bad.nonzero()[0])
        first = float(vectors[row][~vectors[row].isfinite()][0])
        raise ValueError(
            f"{name} must be finite, but row {row} holds {first} ({int(bad.sum())} in all); "
            "look for a diverged model, a normalized zero vector, or an overflow in half precision"
        )


def reads_values(tensor: Tensor, asked: bool) -> bool:
    """Return True if values are checked: always on a CPU, elsewhere when asked, never while compiling."""
    return not torch.compiler.is_compiling() and (asked or tensor.device.type == "cpu")


def check_same(same: Tensor, queries: int, members: int) -> None:
    """Raise unless a custom comparison returned a truth value for each query and gallery member."""
    if not isinstance(same, Tensor) or same.dtype != torch.bool:
        got = same.dtype if isinstance(same, Tensor) else type(same).__name__
        raise TypeError(f"same= must return a torch.Tensor of bool, got {got}; compare the labels with == or isin")
    if same.shape != (queries, members):
        raise ValueError(
            f"same= must return a table of shape {(queries, members)}, queries by gallery, got {tuple(same.shape)}; "
            "compare labels[:, None] with gallery_labels"
        )


def check_kept(kept: Any, table: Tensor, rule: Any) -> None:
    """Raise unless a mining rule returned the masks of the positives and of the negatives that it keeps."""
    parts = kept if isinstance(kept, tuple | list) else (kept,)
    if len(parts) != 2 or not all(_is(x, torch.bool, table.shape) for x in parts):
        raise ValueError(
            f"{type(rule).__name__} must return two masks for a table of shape {tuple(table.shape)}, got "
            f"{' and '.join(map(_kind, parts))}; return two tensors of bool of that shape"
        )


def check_named(columns: Any, positives: Tensor, rule: Any) -> None:
    """Raise unless a mining rule that names pairs returned the column of a negative for each positive."""
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
    """Raise where a class is larger than `max_per_class`."""
    if largest > max_per_class:
        raise ValueError(
            f"max_per_class is {max_per_class}, but a class has {largest} examples; "
            f"give at least {largest} or leave it out"
        )
