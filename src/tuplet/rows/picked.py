"""A few gallery members for each query, given by column: their similarities or distances, and nothing of the others."""

from typing import Any

import torch
from torch import Tensor

from tuplet.rows import geometry as geo
from tuplet.rows.once import first_derivative


def picked(queries: Tensor, gallery: Tensor, columns: Tensor, geometry: geo.Geometry, block_rows: int) -> Tensor:
    """x_i·y_j or ‖x_i − y_j‖ for every query i and each of its columns j: (n, C), differentiable by both sides.

    >>> x, y = torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 1.0], [4.0, 6.0]])
    >>> picked(x, y, torch.tensor([[1, 0]]), "euclidean", block_rows=1)
    tensor([[5.0000, 1.4142]])
    """
    return _Picked.apply(queries, gallery, columns, geometry, block_rows)


class _Picked(torch.autograd.Function):
    """Blocks of queries with their members, (R, C, d), live one at a time, forward and backward."""

    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, gallery: Tensor, columns: Tensor, geometry: geo.Geometry, block_rows: int
    ) -> Tensor:
        ctx.geometry, ctx.block_rows = geometry, block_rows
        blocks = range(0, len(columns), block_rows) or [0]
        both = (_both(queries, gallery, columns, a, a + block_rows) for a in blocks)
        values = torch.cat([geo.between(here, there, geometry) for here, there in both])
        ctx.save_for_backward(queries, gallery, columns, values)
        return values

    @staticmethod
    def backward(ctx: Any, weights: Tensor) -> Any:
        queries, gallery, columns, values = ctx.saved_tensors
        slopes = geo.slopes(weights, values, ctx.geometry)
        on_queries = torch.zeros_like(queries, dtype=values.dtype) if ctx.needs_input_grad[0] else None
        on_gallery = torch.zeros_like(gallery, dtype=values.dtype) if ctx.needs_input_grad[1] else None
        for a in range(0, len(columns), ctx.block_rows):
            b = a + ctx.block_rows
            here, there = _both(queries, gallery, columns, a, b)
            if ctx.geometry == "euclidean":
                # Differences before products: those of close vectors would cancel.
                there = here - there
                here = -there
            part = slopes[a:b, :, None]
            if on_queries is not None:
                on_queries[a:b] = (part * there).sum(1)
            if on_gallery is not None:
                on_gallery.index_add_(0, columns[a:b].flatten(), (part * here).flatten(0, 1))
        return (
            None if on_queries is None else first_derivative(on_queries, queries),
            None if on_gallery is None else first_derivative(on_gallery, gallery),
            *(None, None, None),
        )


def _both(queries: Tensor, gallery: Tensor, columns: Tensor, start: int, stop: int) -> tuple[Tensor, Tensor]:
    dtype = geo.table_dtype(queries.dtype)
    return queries[start:stop, None].to(dtype), gallery[columns[start:stop]].to(dtype)
