"""First derivatives only, and a sentence for who asks for more."""

from typing import Any

import torch
from torch import Tensor


def first_derivative(gradient: Tensor, of: Tensor) -> Tensor:
    """The gradient by `of`, in its type; asking for a derivative of it gets a sentence instead of a wrong Hessian."""
    gradient = gradient.to(of.dtype)
    return _First.apply(gradient, of) if torch.is_grad_enabled() else gradient


class _First(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, gradient: Tensor, of: Tensor) -> Tensor:
        return gradient.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise RuntimeError(
            "a Tuplet loss was differentiated twice, but the row engine forms first derivatives only; "
            "leave out create_graph=True, or write the loss in plain torch on the whole table"
        )
