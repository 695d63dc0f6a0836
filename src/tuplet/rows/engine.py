"""The row engine: walks the queries in blocks, and turns each block of rows into totals and gradients at once.

A block is a table of R queries by M gallery members. A function of rows, given by the loss, reduces it; the engine
differentiates that function by the table (the weights W of the pairs) and forms the gradients W·G and Wᵀ·Q before it
moves on. So a few tables of R×M live at a time, and never the N×M one.
"""

import functools
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from types import FunctionType
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor
from torch.autograd.graph import disable_saved_tensors_hooks
from torch.utils._triton import has_triton

from tuplet.rows import fused
from tuplet.rows import geometry as geo
from tuplet.rows.checks import check_rows
from tuplet.rows.masks import block_negatives, block_positives, equal_labels, without_itself
from tuplet.rows.once import first_derivative

# What one table may take; ten to twenty live at once while a block is differentiated. On a CPU a table should stay near
# the caches, a GPU needs long products. It is a function of shapes, types and the kind of device alone, never of the
# memory that happens to be free, since it decides the rounding.
TABLE_BYTES = {"cpu": 8 << 20, "cuda": 128 << 20}
# Entries from which on the work on a table is compiled on a GPU: seconds at a first call, a fraction of the time after.
COMPILED_ENTRIES = 1 << 20


def default_block_rows(rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> int:
    """How many rows a block has: as many as fit the budget of a table, at least one, at most all.

    >>> default_block_rows(65_536, 65_536, torch.float32, torch.device("cpu"))
    32
    """
    budget = TABLE_BYTES.get(device.type, TABLE_BYTES["cuda"])
    return max(1, min(rows, budget // (columns * geo.table_dtype(dtype).itemsize)))


#: What a row function gives · total: (total, count) of each query, to be summed · each: a number per query · sum: a
#: tensor, summed over blocks.
Reduce = Literal["total", "each", "sum"]


@dataclass(frozen=True)
class Walk:
    """What is to be done with the rows; the tensors it is done to travel beside it, as autograd wants them."""

    rows: Callable[..., Any]
    """rows(table, positive, negative, *own, *other, *shared) gives what `reduce` says."""
    reduce: Reduce
    geometry: geo.Geometry
    same: Callable[[Tensor, Tensor], Tensor]
    block_rows: int
    start: int
    stop: int
    member: bool
    """Whether query i is itself gallery member i, and so kept out of its own row."""
    moves_gallery: bool
    own: int
    """How many of the extra inputs belong to the queries, row by row; the rest is given to each block whole."""

    def blocks(self) -> list[tuple[int, int]]:
        """The ranges of queries, in order; one empty range where a process has nothing to walk."""
        starts = range(self.start, self.stop, self.block_rows) or [self.start]
        return [(a, min(a + self.block_rows, self.stop)) for a in starts]


class _Step(NamedTuple):
    """What one block comes to: its part of the result and, where asked for, of the gradients."""

    result: Tensor
    counted: Any
    """Σ counts of the queries for `total`, else empty."""
    slopes: Tensor | None
    extras: Sequence[Tensor]


def _step(
    walk: Walk,
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
    """Reduce a block that begins at query `start`, and differentiate it by its table and the extras that want that."""
    positive = block_positives(walk.same, labels, gallery_labels, valid, walk.member, start)
    negative = block_negatives(positive, valid, walk.member, start)
    table = raw.table()

    def function(table: Tensor, *moving: Tensor) -> Any:
        fresh = iter(moving)
        inputs = [next(fresh) if want else x for x, want in zip(extras, wanted[2:], strict=True)]
        out = walk.rows(table, positive, negative, *inputs)
        return totals(out, table.shape[0]) if walk.reduce == "total" else (out, ())

    moving = [x for x, want in zip(extras, wanted[2:], strict=True) if want]
    if not any(wanted):
        result, count = function(table, *moving)
        return _Step(result, count, None, ())
    result, count, (weights, *gradients) = _differentiated(function, [table, *moving], cotangent)
    if walk.member:
        weights = without_itself(weights, start)
    # Where only the gradient is asked for, the compiler need not form the result.
    result = result if cotangent is None else result.new_empty(0)
    return _Step(result, count, geo.slopes(weights, table, walk.geometry).to(slope_dtype), gradients)


def totals(out: Any, queries: int) -> tuple[Tensor, Tensor]:
    """Σ totals and Σ counts of what a row function gives for some queries. A count is a constant, whatever it is of."""
    check_rows(out, queries)
    total, count = out
    # The sums of a large batch pass what float32 can count.
    wide = geo.widest(total.device)
    return torch.where(count > 0, total, 0).sum(dtype=wide), count.detach().sum(dtype=wide)


def _differentiated(
    function: Callable[..., tuple[Tensor, Any]], inputs: Sequence[Tensor], cotangent: Tensor | None
) -> tuple[Tensor, Any, Sequence[Tensor]]:
    """What a function gives, what it gives beside, and its derivative by each input, times the cotangent."""
    if torch.compiler.is_compiling():  # it follows torch.func, whose layers cost a small batch a tenth of its time
        vjp: Any = torch.func.vjp
        result, back, beside = vjp(function, *inputs, has_aux=True)
        return result, beside, back(torch.ones_like(result) if cotangent is None else cotangent)
    with torch.enable_grad(), disable_saved_tensors_hooks("saved tensor hooks would see every table"):
        fresh = [x.detach().requires_grad_() for x in inputs]
        result, beside = function(*fresh)
        if not result.requires_grad:
            return result, beside, [torch.zeros_like(x) for x in inputs]
        gradients = torch.autograd.grad(result, fresh, cotangent, materialize_grads=True)
    return result.detach(), beside, gradients


def step_for(walk: Walk, table: Tensor) -> Callable[..., _Step]:
    """The step as it stands, or on a GPU, for tables that are worth it, as a few fused kernels."""
    if not worth_compiling(table):
        return _step
    return _compiled_step(_kind(walk.rows)) if has_triton() else _uncompiled_step()


def worth_compiling(table: Tensor) -> bool:
    """Whether it is large and on a GPU, and nobody is compiling all this already."""
    return table.is_cuda and table.numel() >= COMPILED_ENTRIES and not torch.compiler.is_compiling()


def _kind(rows: Any) -> tuple[Any, ...]:
    """What tells a row function from others: its code, and those that it calls."""
    function = getattr(rows, "__func__", rows)
    calls = (cell.cell_contents for cell in getattr(function, "__closure__", None) or ())
    return (getattr(function, "__code__", type(function)), *(_kind(x) for x in calls if callable(x)))


@functools.cache
def _compiled_step(kind: tuple[Any, ...]) -> Callable[..., _Step]:
    """A copy for each kind: the compiler keeps eight variants of a code, and runs it as it stands from then on."""
    return torch.compile(FunctionType(_step.__code__.replace(), _step.__globals__))


@functools.cache
def _uncompiled_step() -> Callable[..., _Step]:
    warnings.warn(
        "Tuplet runs large batches on this GPU without compiling them, since Triton cannot be used here; "
        "install triton for several times the speed",
        stacklevel=2,
    )
    return _step


class _Inputs(NamedTuple):
    """The tensors of a walk. `gallery` is None where the queries are their own gallery."""

    queries: Tensor
    gallery: Tensor | None
    labels: Tensor
    gallery_labels: Tensor | None
    valid: Tensor | None
    extras: tuple[Tensor, ...]

    @staticmethod
    def of(tensors: Sequence[Any]) -> "_Inputs":
        queries, gallery, labels, gallery_labels, valid, *extras = tensors
        return _Inputs(queries, gallery, labels, gallery_labels, valid, tuple(extras))

    def moving(self) -> list[Tensor | None]:
        """Those that may have a gradient, in the order of `wanted`."""
        return [self.queries, self.gallery, *self.extras]


class _Gradients:
    """The gradients of one walk, filled block by block, in the order of `wanted`."""

    def __init__(self, walk: Walk, wanted: Sequence[bool], q: geo.Side, g: geo.Side, extras: Sequence[Tensor]) -> None:
        self.walk, self.q, self.g, self.itself = walk, q, g, g is q
        self.moves_queries = wanted[0]
        self.moves_gallery = walk.moves_gallery and wanted[0 if self.itself else 1]
        self.queries: Tensor | None = None
        self.gallery: Tensor | None = None
        self.extras = [torch.zeros_like(x) if want else None for x, want in zip(extras, wanted[2:], strict=True)]

    def add(self, step: _Step, a: int, b: int) -> None:
        """Take in the block of queries a to b."""
        walk, q, g, slopes = self.walk, self.q.block(a, b), self.g, step.slopes
        if slopes is not None and self.itself and self.moves_gallery and geo.folds(slopes):
            # The whole batch in one block: both halves of its gradient are one product.
            self.queries = geo.pull_back(slopes + slopes.T, g, g, walk.geometry)
        elif slopes is not None:
            if self.moves_queries:
                self.queries = _added(self.queries, geo.pull_back(slopes, q, g, walk.geometry), self.q, a)
            if self.moves_gallery:
                part = geo.pull_back(slopes.T, g, q, walk.geometry)
                if self.itself:
                    self.queries = _added(self.queries, part, g)
                else:
                    self.gallery = _added(self.gallery, part, g)
        fresh = iter(step.extras)
        for k, gradient in enumerate(self.extras):
            if gradient is not None:
                (gradient[a:b] if k < walk.own else gradient).add_(next(fresh))

    def all(self) -> list[Tensor | None]:
        return [self.queries, self.gallery, *self.extras]


def _added(total: Tensor | None, part: Tensor, side: geo.Side, start: int = 0) -> Tensor:
    """The total with a part added from row `start` on. Nothing is added to where nothing was yet."""
    if total is None and len(part) == len(side.vectors):
        return part
    total = geo.zeros(side) if total is None else total
    total[start : start + len(part)] += part
    return total


class _Outcome(NamedTuple):
    """What all blocks come to: the result and Σ counts, where no cotangent was given, and the gradients."""

    result: Any
    counted: Any
    gradients: list[Tensor | None]


def _walk(walk: Walk, wanted: tuple[bool, ...], inputs: _Inputs, cotangent: Tensor | None = None) -> _Outcome:
    """Every block in turn."""
    if _is_own_table(walk, inputs) and fused.suits(inputs.queries):
        fast = fused.walk(walk.rows, inputs.queries, inputs.labels, wanted[0])
        if fast is not None:
            total, count, gradient = fast
            return _Outcome(total, count, [gradient, None])
    fused.without_program()
    q, g = geo.sides(inputs.queries, inputs.gallery, walk.geometry)
    there_labels = inputs.labels if inputs.gallery_labels is None else inputs.gallery_labels
    gradients = _Gradients(walk, wanted, q, g, inputs.extras)
    result, counted = None, None
    for a, b in walk.blocks():
        raw = geo.raw_table(q.block(a, b), g, walk.geometry)
        step = step_for(walk, raw.entries)(
            walk,
            wanted,
            a,
            raw,
            inputs.labels[a:b],
            there_labels,
            inputs.valid,
            [x[a:b] if k < walk.own else x for k, x in enumerate(inputs.extras)],
            cotangent[a - walk.start : b - walk.start]
            if walk.reduce == "each" and cotangent is not None
            else cotangent,
            g.vectors.dtype,
        )
        gradients.add(step, a, b)
        if cotangent is None:
            result = _joined(walk, result, step.result, a)
            counted = step.counted if counted is None else counted + step.counted
    return _Outcome(result, counted, gradients.all())


def _joined(walk: Walk, before: Tensor | None, part: Tensor, start: int) -> Tensor:
    """The result of the blocks so far with that of the one that begins at query `start`.

    At once, and not of a list at the end: what is small and stays between large tables cuts a host's memory into pieces
    that are each a little too small for the next table.
    """
    if walk.reduce != "each":
        return part if before is None else before + part
    if before is None and len(part) == walk.stop - walk.start:
        return part
    before = part.new_empty(walk.stop - walk.start, *part.shape[1:]) if before is None else before
    before[start - walk.start : start - walk.start + len(part)] = part
    return before


def _is_own_table(walk: Walk, inputs: _Inputs) -> bool:
    """Whether a loss sums up the table of a whole batch with itself, and leaves the size of the blocks open."""
    x = inputs.queries
    return (
        walk.reduce == "total"
        and walk.geometry == "dot"
        and walk.same is equal_labels
        and walk.member
        and walk.moves_gallery
        and (walk.start, walk.stop) == (0, x.shape[0])
        and walk.block_rows == default_block_rows(x.shape[0], x.shape[0], x.dtype, x.device)
        and inputs.gallery is None
        and inputs.gallery_labels is None
        and inputs.valid is None
        and len(inputs.extras) == 0
    )


class _Walked(torch.autograd.Function):
    """One walk over the blocks.

    `total` has a scalar to be differentiated, so its gradients are formed on the way: three products in all. `each`
    and `sum` learn what to differentiate only when the gradient comes back, so they walk again then: four products.
    """

    @staticmethod
    def forward(ctx: Any, walk: Walk, wanted: tuple[bool, ...], *tensors: Tensor | None) -> Any:
        inputs = _Inputs.of(tensors)
        ctx.walk, ctx.wanted = walk, wanted
        if walk.reduce != "total":
            ctx.save_for_backward(*tensors)
            return _walk(walk, (False,) * len(wanted), inputs).result
        total, count, gradients = _walk(walk, wanted, inputs)
        ctx.formed = [gradient is not None for gradient in gradients]
        ctx.save_for_backward(*inputs.moving(), *(gradient for gradient in gradients if gradient is not None))
        ctx.mark_non_differentiable(count)
        ctx.set_materialize_grads(False)
        return total, count

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor, *count: Any) -> Any:
        if ctx.walk.reduce == "total":
            moving, saved = ctx.saved_tensors[: len(ctx.formed)], iter(ctx.saved_tensors[len(ctx.formed) :])
            # A float64 scalar leaves the float32 gradients what they are.
            gradients = [next(saved) * cotangent if formed else None for formed in ctx.formed]
        else:
            inputs = _Inputs.of(ctx.saved_tensors)
            moving = inputs.moving()
            with torch.autocast(cotangent.device.type, enabled=False):
                gradients = _walk(ctx.walk, ctx.wanted, inputs, cotangent).gradients
        queries, gallery, *extras = [
            None if gradient is None else first_derivative(gradient, x)
            for gradient, x in zip(gradients, moving, strict=True)
        ]
        return None, None, queries, gallery, None, None, None, *extras


def walk_rows(
    walk: Walk,
    queries: Tensor,
    gallery: Tensor | None,
    labels: Tensor,
    gallery_labels: Tensor | None,
    valid: Tensor | None,
    extras: Sequence[Tensor],
) -> Any:
    """Walk the rows and reduce them as `walk` says; differentiable by queries, gallery and float extras."""
    # Rows keep their precision whatever the surrounding autocast would have them do.
    with torch.autocast(queries.device.type, enabled=False):
        grad = torch.is_grad_enabled()
        moves = (queries, gallery if walk.moves_gallery else None, *extras)
        wanted = tuple(grad and x is not None and x.requires_grad for x in moves)
        return _Walked.apply(walk, wanted, queries, gallery, labels, gallery_labels, valid, *extras)
