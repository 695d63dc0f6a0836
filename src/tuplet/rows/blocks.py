"""Blocks of rows: reduce each block, and differentiate it at once.

A block is a table of R queries by M gallery members. The row function of a loss reduces it; the engine differentiates
that function by the table (the weights W of the pairs) and forms the gradients W·G and Wᵀ·Q before it moves on. So a
few tables of R×M live at a time, and never the N×M one.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import disable_saved_tensors_hooks

from tuplet.rows import geometry as geo
from tuplet.rows import paths
from tuplet.rows.checks import check_rows, hidden_parameter, refuse_hidden_parameters
from tuplet.rows.gradients import Gradients, first_derivative
from tuplet.rows.masks import block_negatives, block_positives, without_itself
from tuplet.rows.rules import Block, Rule, keep_pairs

# Saved-tensor hooks would see the table of every block; torch raises this where there are any.
_NO_HOOKS = (
    "a loss cannot be computed under saved-tensor hooks, such as save_on_cpu's or those of "
    "checkpoint(use_reentrant=False); call it outside of them: it holds one block of its table at a time"
)


@dataclass
class Reduction:
    """A reduction of rows, without its tensors: autograd takes those as arguments of their own."""

    rows: Callable[..., Any]
    """rows(table, positive, negative, *own, *other, *shared) returns what `reduce` says."""
    reduce: paths.Reduce
    rule: Rule | None
    """Chooses the pairs that `rows` gets."""
    num_rule_inputs: int
    """The number of extra inputs, the first ones, that only the rule gets."""
    geometry: geo.Geometry
    dim: int
    same: Callable[[Tensor, Tensor], Tensor]
    block_rows: int
    start: int
    stop: int
    member: bool
    """Query i is itself gallery member i, and so kept out of its own row."""
    moves_gallery: bool
    num_own: int
    """The number of extra inputs with a row for each query; each block gets the others whole."""
    compiled: bool
    parameters: Mapping[str, Tensor]
    """Parameters of the loss, which the row function must not read by itself."""

    def blocks(self) -> list[tuple[int, int]]:
        """Return the ranges of queries, in order; one empty range where a process has no queries."""
        starts = range(self.start, self.stop, self.block_rows) or [self.start]
        return [(a, min(a + self.block_rows, self.stop)) for a in starts]


class Tensors(NamedTuple):
    """The tensors of a reduction. `gallery` is None where the batch is its own gallery."""

    queries: Tensor
    gallery: Tensor | None
    labels: Tensor
    gallery_labels: Tensor | None
    valid: Tensor | None
    extras: Sequence[Tensor]

    @staticmethod
    def of(tensors: Sequence[Any]) -> "Tensors":
        """Return them from the flat list that autograd keeps."""
        queries, gallery, labels, gallery_labels, valid, *extras = tensors
        return Tensors(queries, gallery, labels, gallery_labels, valid, extras)

    def moving(self) -> list[Tensor | None]:
        """Return those that may have a gradient, in the order of `wanted`."""
        return [self.queries, self.gallery, *self.extras]


class Outcome(NamedTuple):
    """The result and Σ counts of a reduction, both None if a cotangent was given, and its gradients."""

    result: Any
    counted: Any
    gradients: list[Tensor | None]


class _Step(NamedTuple):
    """The part of one block in the result and, where asked for, in the gradients."""

    result: Tensor
    counted: Any
    """Σ counts of the queries for `total`, else empty."""
    slopes: Tensor | None
    extras: Sequence[Tensor]


def reduce_blocks(
    task: Reduction, wanted: tuple[bool, ...], tensors: Tensors, cotangent: Tensor | None = None
) -> Outcome:
    """Reduce every block in turn."""
    q, g = geo.sides(tensors.queries, tensors.gallery, task.geometry)
    gallery_labels = tensors.labels if tensors.gallery_labels is None else tensors.gallery_labels
    gradients = Gradients(wanted, q, g, task.geometry, tensors.extras, task.num_own, task.moves_gallery)
    # A last block with few rows and few entries runs eagerly: its shape would need a compilation of its own.
    least = min(paths.COMPILED_ENTRIES, task.block_rows * len(g.vectors))
    result, counted = None, None
    for a, b in task.blocks():
        raw = geo.raw_table(q.block(a, b), g, task.geometry)
        compiled = task.compiled and raw.entries.numel() >= least
        take_step = _compiled_step((type(task.rule), *_kind(task.rows))) if compiled else _step
        extras = [x[a:b] if k < task.num_own else x for k, x in enumerate(tensors.extras)]
        own = cotangent
        if task.reduce == "each" and cotangent is not None:
            own = cotangent[a - task.start : b - task.start]
        labels, valid, dtype = tensors.labels[a:b], tensors.valid, g.vectors.dtype
        step = take_step(task, wanted, a, raw, labels, gallery_labels, valid, extras, own, dtype)
        gradients.add(step.slopes, step.extras, a, b)
        if cotangent is None:
            result = _joined(task, result, step.result, a)
            counted = step.counted if counted is None else counted + step.counted
    return Outcome(result, counted, gradients.all())


def _step(
    task: Reduction,
    wanted: Sequence[bool],
    start: int,
    raw: geo.Raw,
    labels: Tensor,
    gallery_labels: Tensor,
    valid: Tensor | None,
    extras: Sequence[Tensor],
    cotangent: Tensor | None,
    slope_dtype: torch.dtype,
) -> _Step:
    """Reduce a block that begins at query `start`, and differentiate it by its table and by the extras that move."""
    positive = block_positives(task.same, labels, gallery_labels, valid, task.member, start)
    negative = block_negatives(positive, valid, task.member, start)
    table, moving = raw.table(), any(wanted)
    if task.rule is not None:
        block = Block(table, positive, negative, task.geometry, task.dim)
        positive, negative = keep_pairs(task.rule, block, extras[: task.num_rule_inputs])
    extras, moves = extras[task.num_rule_inputs :], wanted[2 + task.num_rule_inputs :]
    if not moving and (not task.parameters or torch.compiler.is_compiling()):
        result, count = _reduced(task, task.rows(table, positive, negative, *extras), table)
        return _Step(result, count, None, ())
    if torch.compiler.is_compiling():
        result, count, gradients = _vjp(task, table, positive, negative, extras, moves, cotangent)
    else:
        with torch.enable_grad(), disable_saved_tensors_hooks(_NO_HOOKS):
            leaf = table.detach().requires_grad_(moving)
            inputs = [x.detach().requires_grad_(moved) for x, moved in zip(extras, moves, strict=True)]
            result, count = _reduced(task, task.rows(leaf, positive, negative, *inputs), table)
            if not moving:
                refuse_hidden_parameters(result, task.parameters, task.rows)
                return _Step(result.detach(), count, None, ())
            gradients = _gradients(task, result, [leaf, *_moved(inputs, moves)], cotangent)
            result = result.detach()
    weights = without_itself(gradients[0], start) if task.member else gradients[0]
    # Where only the gradient is asked for, the compiler need not form the result.
    result = result if cotangent is None else result.new_empty(0)
    return _Step(result, count, geo.slopes(weights, table, task.geometry).to(slope_dtype), gradients[1:])


def _reduced(task: Reduction, out: Any, table: Tensor) -> tuple[Tensor, Any]:
    return totals(out, table.shape[0]) if task.reduce == "total" else (out, ())


def totals(out: Any, queries: int) -> tuple[Tensor, Tensor]:
    """Return Σ totals and Σ counts of what a row function returned. Counts are constants."""
    check_rows(out, queries)
    total, count = out
    # The sums of a large batch pass what float32 can count.
    wide = geo.widest(total.device)
    return torch.where(count > 0, total, 0).sum(dtype=wide), count.detach().sum(dtype=wide)


def _moved(inputs: Sequence[Tensor], moves: Sequence[bool]) -> list[Tensor]:
    return [x for x, moved in zip(inputs, moves, strict=True) if moved]


def _gradients(task: Reduction, result: Tensor, inputs: Sequence[Tensor], cotangent: Tensor | None) -> Sequence[Tensor]:
    """Return the derivative of a result by the inputs, zeros where it does not depend on one.

    A parameter of the loss that it depends on beside them would get no gradient.
    """
    if not result.requires_grad:
        return [torch.zeros_like(x) for x in inputs]
    sources = [*inputs, *task.parameters.values()]
    found = torch.autograd.grad(result, sources, cotangent, allow_unused=True)
    for name, gradient in zip(task.parameters, found[len(inputs) :], strict=True):
        if gradient is not None:
            raise hidden_parameter(task.rows, name)
    return [torch.zeros_like(x) if gradient is None else gradient for x, gradient in zip(inputs, found, strict=False)]


def _vjp(
    task: Reduction,
    table: Tensor,
    positive: Tensor,
    negative: Tensor,
    extras: Sequence[Tensor],
    moves: Sequence[bool],
    cotangent: Tensor | None,
) -> tuple[Tensor, Any, Sequence[Tensor]]:
    """Return result, counts and derivatives by torch.func, which the compiler follows; eagerly it is slower."""

    def function(table: Tensor, *moving: Tensor) -> Any:
        fresh = iter(moving)
        inputs = [next(fresh) if moved else x for x, moved in zip(constants, moves, strict=True)]
        return _reduced(task, task.rows(table, positive, negative, *inputs), table)

    constants = [x.detach() for x in extras]
    vjp: Any = torch.func.vjp
    with torch.set_grad_enabled(len(task.parameters) > 0):  # the compiler of torch 2.11 knows no bool of a dict
        result, back, count = vjp(function, table, *_moved(constants, moves), has_aux=True)
    if task.parameters and result.requires_grad:
        raise hidden_parameter(task.rows, " or ".join(task.parameters))
    return result, count, back(torch.ones_like(result) if cotangent is None else cotangent)


def _kind(rows: Any) -> tuple[Any, ...]:
    """Return what identifies a row function: its owner's class, its code, and the same of functions in its closure."""
    function, owner = getattr(rows, "__func__", rows), type(getattr(rows, "__self__", None))
    calls = (cell.cell_contents for cell in getattr(function, "__closure__", None) or ())
    return (owner, getattr(function, "__code__", type(function)), *(_kind(x) for x in calls if callable(x)))


@functools.cache
def _compiled_step(kind: tuple[Any, ...]) -> Callable[..., _Step]:
    """Compile a copy of `_step` for each kind: of one code the compiler keeps eight variants, and runs more eagerly."""
    return torch.compile(FunctionType(_step.__code__.replace(), _step.__globals__))


def _joined(task: Reduction, before: Tensor | None, part: Tensor, start: int) -> Tensor:
    """Join the result of the blocks so far with that of the block that begins at query `start`.

    Joining a list at the end would keep small tensors between large tables. They would cut the memory of a CPU into
    parts that are each a little too small for the next table.
    """
    if task.reduce != "each":
        return part if before is None else before + part
    if before is None and len(part) == task.stop - task.start:
        return part
    before = part.new_empty(task.stop - task.start, *part.shape[1:]) if before is None else before
    before[start - task.start : start - task.start + len(part)] = part
    return before


def differentiable(task: Reduction, wanted: tuple[bool, ...], tensors: Tensors, outcome: Outcome) -> Any:
    """Return what a reduction gives, connected to the tensors that it was computed from.

    The gradients of `total` are formed with it: three products in all. `each` and `sum` learn their cotangent only in
    the backward pass, so they go through the blocks again then: four products.
    """
    if torch.compiler.is_compiling() and not any(wanted):
        return outcome.result if task.reduce != "total" else (outcome.result, outcome.counted)
    if task.reduce != "total":
        return _Deferred.apply(task, wanted, outcome.result, *tensors[:5], *tensors.extras)
    formed = [gradient is not None for gradient in outcome.gradients]
    known = [gradient for gradient in outcome.gradients if gradient is not None]
    return _Formed.apply(formed, outcome.result, *tensors.moving(), *known), outcome.counted


class _Formed(torch.autograd.Function):
    """A total whose gradients are known."""

    @staticmethod
    def forward(ctx: Any, formed: Sequence[bool], total: Tensor, *tensors: Tensor | None) -> Tensor:
        ctx.formed, ctx.count = formed, len(tensors)
        ctx.save_for_backward(*tensors)
        return total.clone()

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        n = len(ctx.formed)
        moving, known = ctx.saved_tensors[:n], iter(ctx.saved_tensors[n:])
        # A float64 scalar leaves the float32 gradients in their type.
        gradients = [
            first_derivative(next(known) * cotangent, x) if formed else None
            for x, formed in zip(moving, ctx.formed, strict=True)
        ]
        return None, None, *gradients, *[None] * (ctx.count - n)


class _Deferred(torch.autograd.Function):
    """A result whose gradients are computed in the backward pass, from the same tensors."""

    @staticmethod
    def forward(ctx: Any, task: Reduction, wanted: tuple[bool, ...], result: Tensor, *tensors: Tensor | None) -> Tensor:
        ctx.task, ctx.wanted = task, wanted
        ctx.save_for_backward(*tensors)
        return result.clone()

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        tensors = Tensors.of(ctx.saved_tensors)
        with torch.autocast(cotangent.device.type, enabled=False), torch.no_grad():
            gradients = reduce_blocks(ctx.task, ctx.wanted, tensors, cotangent).gradients
        queries, gallery, *extras = [
            None if gradient is None or x is None else first_derivative(gradient, x)
            for gradient, x in zip(gradients, tensors.moving(), strict=True)
        ]
        return None, None, None, queries, gallery, None, None, None, *extras
