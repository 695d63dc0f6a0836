"""Differentiable tables outside of blocks: all pairs of a small batch, or a few columns of each row."""

from typing import Any

import torch
from torch import Tensor

from tuplet.rows import geometry as geo
from tuplet.rows.gradients import first_derivative


def whole_table(queries: Tensor, geometry: geo.Geometry, moves_gallery: bool) -> Tensor:
    """Return x_i·x_j or ‖x_i − x_j‖ for every pair of a batch, differentiable off its diagonal.

    >>> whole_table(torch.tensor([[1.0, 2.0], [4.0, 6.0]]), "euclidean", True)
    tensor([[0., 5.],
            [5., 0.]])
    """
    return _WholeTable.apply(queries, geometry, moves_gallery)


class _WholeTable(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, queries: Tensor, geometry: geo.Geometry, moves_gallery: bool) -> Tensor:
        ctx.geometry, ctx.moves_gallery = geometry, moves_gallery
        table = geo.table(*geo.sides(queries, None, geometry), geometry)
        ctx.save_for_backward(queries, table)
        return table

    @staticmethod
    def backward(ctx: Any, weights: Tensor) -> Any:
        queries, table = ctx.saved_tensors
        with torch.autocast(queries.device.type, enabled=False):
            side, _ = geo.sides(queries, None, "dot")
            slopes = geo.slopes(weights, table, ctx.geometry)
            # Other functions may read the same weights.
            slopes = slopes.clone() if slopes is weights else slopes
            slopes.diagonal().fill_(0)
            slopes = slopes + slopes.T if ctx.moves_gallery else slopes
            gradient = geo.pull_back(slopes.to(side.vectors.dtype), side, side, ctx.geometry)
        return first_derivative(gradient, queries), None, None


def table_columns(queries: Tensor, gallery: Tensor, columns: Tensor, geometry: geo.Geometry, block_rows: int) -> Tensor:
    """Return x_i·y_j or ‖x_i − y_j‖ for every query i and each of its columns j: (n, C), differentiable by both sides.

    >>> x, y = torch.tensor([[1.0, 2.0]]), torch.tensor([[0.0, 1.0], [4.0, 6.0]])
    >>> table_columns(x, y, torch.tensor([[1, 0]]), "euclidean", block_rows=1)
    tensor([[5.0000, 1.4142]])
    """
    return _TableColumns.apply(queries, gallery, columns, geometry, block_rows)


class _TableColumns(torch.autograd.Function):
    """Blocks of queries with their gallery members, (R, C, d), live one at a time, forward and backward."""

    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, gallery: Tensor, columns: Tensor, geometry: geo.Geometry, block_rows: int
    ) -> Tensor:
        ctx.geometry, ctx.block_rows = geometry, block_rows
        blocks = range(0, len(columns), block_rows) or [0]
        both = (_both_sides(queries, gallery, columns, a, a + block_rows) for a in blocks)
        values = torch.cat([geo.between(q, g, geometry) for q, g in both])
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
            q, g = _both_sides(queries, gallery, columns, a, b)
            if ctx.geometry == "euclidean":
                # Differences before products: those of close vectors would cancel.
                g = q - g
                q = -g
            part = slopes[a:b, :, None]
            if on_queries is not None:
                on_queries[a:b] = (part * g).sum(1)
            if on_gallery is not None:
                on_gallery.index_add_(0, columns[a:b].flatten(), (part * q).flatten(0, 1))
        return (
            None if on_queries is None else first_derivative(on_queries, queries),
            None if on_gallery is None else first_derivative(on_gallery, gallery),
            *(None, None, None),
        )


def _both_sides(queries: Tensor, gallery: Tensor, columns: Tensor, start: int, stop: int) -> tuple[Tensor, Tensor]:
    dtype = geo.table_dtype(queries.dtype)
    return queries[start:stop, None].to(dtype), gallery[columns[start:stop]].to(dtype)
