"""Reductions over the marked entries of each row, safe if a row has none.

A query without positives or negatives must not make a NaN, in the value or in the gradient, where 0·NaN is NaN. So
these functions never divide by zero, take its logarithm or subtract infinities, not even in a branch that `where`
discards.
"""

import torch
from torch import Tensor
from torch.nn import functional


def masked_sum(x: Tensor, mask: Tensor) -> Tensor:
    """Return Σ over the marked entries of each row; 0 if there are none.

    >>> masked_sum(torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor([[True, False, True]]))
    tensor([5.])
    """
    return torch.where(mask, x, 0).sum(1)


def masked_mean(x: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of the marked entries of each row; 0 if there are none.

    >>> masked_mean(torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor([[True, False, True]]))
    tensor([2.5000])
    """
    return masked_sum(x, mask) / mask.sum(1).clamp_min(1)


def masked_logsumexp(x: Tensor, mask: Tensor) -> Tensor:
    """Return log Σ eˣ over the marked entries of each row; −∞, with a zero gradient, if there are none.

    >>> masked_logsumexp(torch.zeros(2, 3), torch.tensor([[True, False, True], [False, False, False]]))
    tensor([0.6931,   -inf])
    """
    x = torch.where(mask, x, -torch.inf)
    peak = x.detach().amax(1)
    total = (x - peak.clamp_min(torch.finfo(x.dtype).min)[:, None]).exp().sum(1)
    # The peak itself adds 1, so a smaller sum means an empty row; a clamp passes no gradient there, not even a NaN.
    return total.clamp_min(0.5).log() + peak


def masked_min(x: Tensor, mask: Tensor) -> Tensor:
    """Return the smallest marked entry of each row, the first of equals; +∞ if there are none.

    >>> masked_min(torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor([[False, True, True]]))
    tensor([2.])
    """
    # The gradient goes to one entry, the first, so it does not depend on how many copies tie.
    return torch.where(mask, x, torch.inf).min(1).values


def masked_max(x: Tensor, mask: Tensor) -> Tensor:
    """Return the largest marked entry of each row, the first of equals; −∞ if there are none.

    >>> masked_max(torch.tensor([[1.0, 2.0, 4.0]]), torch.tensor([[True, True, False]]))
    tensor([2.])
    """
    return torch.where(mask, x, -torch.inf).max(1).values


def softplus(x: Tensor) -> Tensor:
    """Return log(1 + eˣ), without overflow.

    torch's default returns x from 20 on, which is 2·10⁻⁹ off there in float64. From 40 on it is x in float64 too.

    >>> softplus(torch.tensor([0.0, 1000.0]))
    tensor([6.9315e-01, 1.0000e+03])
    """
    return functional.softplus(x, threshold=40.0)


def weighted(value: Tensor, x: Tensor, weights: Tensor) -> Tensor:
    """Return a number per row that equals `value` and whose derivative by x is `weights`, both constants.

    Use it for a loss whose weights are cheaper to write down than to differentiate.

    >>> x = torch.tensor([[3.0, 4.0]], requires_grad=True)
    >>> y = weighted(torch.tensor([7.0]), x, torch.tensor([[1.0, -1.0]]))
    >>> y.item(), torch.autograd.grad(y.sum(), x)[0].tolist()
    (7.0, [[1.0, -1.0]])
    """
    return value.detach() + ((x - x.detach()) * weights.detach()).sum(1)
