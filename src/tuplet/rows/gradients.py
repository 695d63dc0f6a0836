"""Gradients of a reduction: summed up block by block, differentiable once."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tuplet.rows import geometry as geo


def first_derivative(gradient: Tensor, of: Tensor) -> Tensor:
    """Return the gradient by `of`, in its type; raise a clear error on double backward."""
    gradient = gradient.to(of.dtype)
    return _FirstDerivative.apply(gradient, of) if torch.is_grad_enabled() else gradient


class _FirstDerivative(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gradient: Tensor, of: Tensor) -> Tensor:
        return gradient.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise RuntimeError(
            "a Tuplet loss was differentiated twice, but the row engine forms first derivatives only; "
            "leave out create_graph=True, or write the loss in plain torch on the whole table"
        )


class Gradients:
    """The gradients by the queries, the gallery and the extra inputs, summed up block by block.

    `wanted` tells for the queries, the gallery and each extra input if its gradient is needed. Queries and
    gallery are one object where the batch is its own gallery. The first `num_own` extras have a row for each query.
    """

    def __init__(
        self,
        wanted: Sequence[bool],
        queries: geo.Side,
        gallery: geo.Side,
        geometry: geo.Geometry,
        extras: Sequence[Tensor],
        num_own: int,
        moves_gallery: bool,
    ) -> None:
        self.q, self.g, self.geometry, self.num_own = queries, gallery, geometry, num_own
        self.is_own_gallery = gallery is queries
        self.moves_queries = wanted[0]
        self.moves_gallery = moves_gallery and wanted[0 if self.is_own_gallery else 1]
        self.queries: Tensor | None = None
        self.gallery: Tensor | None = None
        self.extras = [torch.zeros_like(x) if want else None for x, want in zip(extras, wanted[2:], strict=True)]

    def add(self, slopes: Tensor | None, extras: Sequence[Tensor], start: int, stop: int) -> None:
        """Add the block of the queries from start to stop: its slopes, and the gradients of its extra inputs."""
        q, g = self.q.block(start, stop), self.g
        if slopes is not None and self.is_own_gallery and self.moves_gallery and geo.folds(slopes):
            # The whole batch in one block: both halves of its gradient are one product.
            self.queries = geo.pull_back(slopes + slopes.T, g, g, self.geometry)
        elif slopes is not None:
            if self.moves_queries:
                self.queries = _added(self.queries, geo.pull_back(slopes, q, g, self.geometry), self.q, start)
            if self.moves_gallery:
                part = geo.pull_back(slopes.T, g, q, self.geometry)
                if self.is_own_gallery:
                    self.queries = _added(self.queries, part, g)
                else:
                    self.gallery = _added(self.gallery, part, g)
        parts = iter(extras)
        for k, gradient in enumerate(self.extras):
            if gradient is not None:
                (gradient[start:stop] if k < self.num_own else gradient).add_(next(parts))

    def all(self) -> list[Tensor | None]:
        """Return the gradients in the order of `wanted`; None where one was not asked for."""
        return [self.queries, self.gallery, *self.extras]


def _added(total: Tensor | None, part: Tensor, side: geo.Side, start: int = 0) -> Tensor:
    """Add a part to the rows of the total from `start` on; the first part becomes the total where it has all rows."""
    if total is None and len(part) == len(side.vectors):
        return part
    total = geo.zeros(side) if total is None else total
    total[start : start + len(part)] += part
    return total
