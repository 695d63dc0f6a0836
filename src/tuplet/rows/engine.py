"""The row engine: walks the queries in blocks, and turns each block of rows into totals and gradients at once.

A block is a table of R queries by M gallery members. A function of rows, given by the loss, reduces it; the engine
differentiates that function by the table (the weights W of the pairs) and forms the gradients W·G and Wᵀ·Q before it
moves on. So a few tables of R×M live at a time, and never the N×M one.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from tuplet.rows import geometry as geo

# What one table may take; ten to twenty live at once while a block is differentiated. On a CPU a table should stay near
# the caches, a GPU needs long products. It is a function of shapes, types and the kind of device alone, never of the
# memory that happens to be free, since it decides the rounding.
TABLE_BYTES = {"cpu": 8 << 20, "cuda": 64 << 20}


def default_block_rows(rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> int:
    """How many rows a block has: as many as fit the budget of a table, at least one, at most all.

    >>> default_block_rows(65_536, 65_536, torch.float32, torch.device("cpu"))
    32
    """
    budget = TABLE_BYTES.get(device.type, TABLE_BYTES["cuda"])
    return max(1, min(rows, budget // (columns * geo.table_dtype(dtype).itemsize)))


def equal_labels(labels: Tensor, gallery_labels: Tensor) -> Tensor:
    """The usual idea of "same": one integer each, equal or not."""
    return labels[:, None] == gallery_labels


def block_masks(
    same: Callable[[Tensor, Tensor], Tensor],
    labels: Tensor,
    gallery_labels: Tensor | None,
    valid: Tensor | None,
    member: bool,
    start: int,
    stop: int,
) -> tuple[Tensor, Tensor]:
    """Which gallery members are positives, and which negatives, of the queries start to stop.

    Where query i is gallery member i (`member`) it is neither for itself.
    """
    positive = same(labels[start:stop], labels if gallery_labels is None else gallery_labels)
    negative = ~positive
    if member:
        for mask in (positive, negative):
            torch.diagonal(mask, offset=start).fill_(False)
    if valid is not None:
        positive, negative = positive & valid, negative & valid
    return positive, negative


@dataclass(frozen=True)
class Walk:
    """What is to be done with the rows; the tensors it is done to travel beside it, as autograd wants them."""

    rows: Callable[..., Any]
    """rows(table, positive, negative, *own, *other, *shared) gives what `reduce` says."""
    reduce: Literal["total", "each", "sum"]
    """total: (total, count) of each query, summed · each: a number per query · sum: a tensor, summed over blocks."""
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
        """The ranges of queries, in order."""
        return [(a, min(a + self.block_rows, self.stop)) for a in range(self.start, self.stop, self.block_rows)]


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


class _Second(torch.autograd.Function):
    """Identity on the first derivative by `of`; asking it for another gets a sentence instead of a wrong Hessian."""

    @staticmethod
    def forward(ctx: Any, gradient: Tensor, of: Tensor) -> Tensor:
        return gradient.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise RuntimeError(
            "a Tuplet loss was differentiated twice, but the row engine forms first derivatives only; "
            "leave out create_graph=True, or write the loss in plain torch on the whole table"
        )


class _Gradients:
    """The gradients of one walk, filled block by block."""

    def __init__(self, walk: Walk, wanted: Sequence[bool], q: geo.Side, g: geo.Side, extras: Sequence[Tensor]) -> None:
        self.walk, self.itself = walk, g is q
        self.queries = torch.zeros_like(q.vectors) if wanted[0] else None
        self.gallery = self.queries if self.itself else torch.zeros_like(g.vectors) if wanted[1] else None
        self.extras = [torch.zeros_like(x) if want else None for x, want in zip(extras, wanted[2:], strict=True)]

    def add(self, block: "_Block", weights: Tensor, extras: Sequence[Tensor], g: geo.Side) -> None:
        """Take in a block: the weights on its table, and the gradients of those extras that want one."""
        walk, a, b, q = self.walk, block.start, block.stop, block.queries
        if walk.member:
            # Weights may come expanded from a plain sum: contiguous memory of their own before a write.
            weights = weights.contiguous()
            torch.diagonal(weights, offset=a).fill_(0)
        slopes = geo.slopes(weights, block.table, walk.geometry)
        gallery = self.gallery if walk.moves_gallery else None
        if self.itself and gallery is not None and slopes.shape[0] == slopes.shape[1]:
            # The whole batch in one block: both halves of its gradient are one product.
            gallery += geo.pull_back(slopes + slopes.T, g.vectors, g.vectors, walk.geometry)
        else:
            if self.queries is not None:
                self.queries[a:b] += geo.pull_back(slopes, q.vectors, g.vectors, walk.geometry)
            if gallery is not None:
                gallery += geo.pull_back(slopes.T, g.vectors, q.vectors, walk.geometry)
        fresh = iter(extras)
        for k, gradient in enumerate(self.extras):
            if gradient is not None:
                (gradient[a:b] if k < walk.own else gradient).add_(next(fresh))

    def all(self) -> list[Tensor | None]:
        """In the order of the inputs: queries, gallery, extras."""
        return [self.queries, None if self.itself else self.gallery, *self.extras]


class _Block:
    """One block: its table, and the loss's rows as a function of the table and of the extras that want a gradient."""

    def __init__(
        self, walk: Walk, inputs: _Inputs, wanted: Sequence[bool], q: geo.Side, g: geo.Side, a: int, b: int
    ) -> None:
        self.walk, self.start, self.stop, self.wanted = walk, a, b, wanted[2:]
        self.queries = q.block(a, b)
        self.table = geo.table(self.queries, g, walk.geometry)
        self.positive, self.negative = block_masks(
            walk.same, inputs.labels, inputs.gallery_labels, inputs.valid, walk.member, a, b
        )
        self.extras = [x[a:b] if k < walk.own else x for k, x in enumerate(inputs.extras)]

    def function(self, table: Tensor, *moving: Tensor) -> Any:
        fresh = iter(moving)
        extras = [next(fresh) if want else x for x, want in zip(self.extras, self.wanted, strict=True)]
        out = self.walk.rows(table, self.positive, self.negative, *extras)
        if self.walk.reduce != "total":
            return out, ()
        total, count = out
        # The sums of a large batch pass what float32 can count.
        wide = geo.widest(table.device)
        return torch.where(count > 0, total, 0).to(wide).sum(), count.to(wide).sum()

    def value(self) -> Any:
        """What the function gives, without any gradient work."""
        return self.function(self.table, *self.moving())

    def vjp(self) -> Any:
        """The same, with the function that pulls a cotangent back to the table and the moving extras."""
        return torch.func.vjp(self.function, self.table, *self.moving(), has_aux=True)

    def moving(self) -> list[Tensor]:
        return [x for x, want in zip(self.extras, self.wanted, strict=True) if want]


class _Walked(torch.autograd.Function):
    """One walk over the blocks.

    `total` has a scalar to be differentiated, so its gradients are formed on the way: three products in all. `each`
    and `sum` learn what to differentiate only when the gradient comes back, so they walk again then: four products.
    """

    @staticmethod
    def forward(ctx: Any, walk: Walk, wanted: tuple[bool, ...], *tensors: Tensor | None) -> Any:
        inputs = _Inputs.of(tensors)
        ctx.walk, ctx.wanted = walk, wanted
        moved = (inputs.queries, inputs.gallery, *inputs.extras)
        q, g = _sides(walk, inputs)
        at_once = walk.reduce == "total" and any(wanted)
        gradients = _Gradients(walk, wanted, q, g, inputs.extras) if at_once else None
        results: list[Any] = []
        counts: list[Any] = []
        for a, b in walk.blocks():
            block = _Block(walk, inputs, wanted, q, g, a, b)
            if gradients is None:
                result, count = block.value()
            else:
                result, back, count = block.vjp()
                weights, *extras = back(torch.ones_like(result))
                gradients.add(block, weights, extras, g)
            if walk.reduce == "sum" and results:
                result = results.pop() + result
            results.append(result)
            counts.append(count)
        if walk.reduce == "total":
            count = torch.stack(counts).sum()
            ctx.mark_non_differentiable(count)
            if gradients is not None:
                formed = gradients.all()
                ctx.formed = [gradient is not None for gradient in formed]
                ctx.save_for_backward(*moved, *(gradient for gradient in formed if gradient is not None))
            return torch.stack(results).sum(), count
        ctx.save_for_backward(*tensors)
        return torch.cat(results) if walk.reduce == "each" else results[0]

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor, *count: Any) -> Any:
        if ctx.walk.reduce == "total":
            moved, saved = ctx.saved_tensors[: len(ctx.formed)], iter(ctx.saved_tensors[len(ctx.formed) :])
            # A float64 scalar leaves the float32 gradients what they are.
            formed = [next(saved) * cotangent if present else None for present in ctx.formed]
        else:
            inputs = _Inputs.of(ctx.saved_tensors)
            moved = (inputs.queries, inputs.gallery, *inputs.extras)
            with torch.autocast(cotangent.device.type, enabled=False):
                formed = _walk_back(ctx.walk, ctx.wanted, cotangent, inputs)
        queries, gallery, *extras = [
            None if gradient is None else _Second.apply(gradient.to(x.dtype), x)
            for gradient, x in zip(formed, moved, strict=True)
        ]
        return None, None, queries, gallery, None, None, None, *extras


def _sides(walk: Walk, inputs: _Inputs) -> tuple[geo.Side, geo.Side]:
    q = geo.side(inputs.queries, walk.geometry)
    return q, q if inputs.gallery is None else geo.side(inputs.gallery, walk.geometry)


def _walk_back(walk: Walk, wanted: Sequence[bool], cotangent: Tensor, inputs: _Inputs) -> list[Tensor | None]:
    """The second walk of `each` and `sum`: the same blocks again, now with what came back for them."""
    q, g = _sides(walk, inputs)
    gradients = _Gradients(walk, wanted, q, g, inputs.extras)
    for a, b in walk.blocks():
        block = _Block(walk, inputs, wanted, q, g, a, b)
        _, back, _ = block.vjp()
        weights, *extras = back(cotangent[a - walk.start : b - walk.start] if walk.reduce == "each" else cotangent)
        gradients.add(block, weights, extras, g)
    return gradients.all()


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
