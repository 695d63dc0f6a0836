"""The whole table of a small batch, formed once for a loss that looks at it more than once."""

from typing import Any

import torch
from torch import Tensor

from tuplet.rows import geometry as geo
from tuplet.rows.once import first_derivative


def whole_table(queries: Tensor, geometry: geo.Geometry, moves_gallery: bool) -> Tensor:
    """x_i·x_j or ‖x_i − x_j‖ for every pair of a batch, differentiable; its diagonal is not.

    >>> whole_table(torch.tensor([[1.0, 2.0], [4.0, 6.0]]), "euclidean", True)
    tensor([[0., 5.],
            [5., 0.]])
    """
    with torch.autocast(queries.device.type, enabled=False):
        return _Whole.apply(queries, geometry, moves_gallery)


class _Whole(torch.autograd.Function):
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
            # Others look at the same weights.
            slopes = slopes.clone() if slopes is weights else slopes
            slopes.diagonal().fill_(0)
            slopes = slopes + slopes.T if ctx.moves_gallery else slopes
            gradient = geo.pull_back(slopes.to(side.vectors.dtype), side, side, ctx.geometry)
        return first_derivative(gradient, queries), None, None
