"""Spectral clustering loss: how well the span of a batch's vectors holds its classes."""

from typing import Any

import torch
from torch import Tensor

from tuplet.losses.base import RowLoss
from tuplet.losses.batchwise import class_numbers, refuse_gallery, refuse_same
from tuplet.rows import View
from tuplet.rows.geometry import with_float64
from tuplet.rows.gradients import first_derivative

# Singular values below this part of the largest, times the longer side of the matrix, count as 0.
_CUT = 1e-15


class SpectralClusteringLoss(RowLoss):
    """Spectral clustering loss: k − tr(Y⁺ F F⁺ Y), with F the n × d matrix of the batch and k its number of classes.

    Y is the n × k matrix of ones where an example is of a class, and ⁺ the pseudo-inverse. The value lies between 0,
    where the classes are in the span of F's columns, and k − 1 or k. It is computed in float64 by one singular value
    decomposition, and its gradient 2 (F F⁺ − I) Y Y⁺ (F⁺)ᵀ is written down: that of the decomposition is not stable.
    The authors step along half of it.

    Inputs: vectors of any length; batches of many more examples than dimensions. n ≤ d is an error, since F then spans
    everything and the gradient vanishes. The authors take 1,260 examples, 70 of each of 18 classes; train with
    `micro_batch_size` where those do not fit. They advise a dimension equal to the number of training classes.

    It costs O(n·d²) and holds no table. It takes no gallery, no `same=` and has no `weights`. Each of several processes
    decomposes the batch of all. The authors' learning rate is not known.

    Related: `FacilityLocationLoss` too judges the clustering of a batch.

    >>> loss = SpectralClusteringLoss()
    >>> x = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0], [0.0, 1.0]])
    >>> [round(loss(x, torch.tensor(labels)).item(), 4) for labels in ([0, 0, 1, 1], [0, 1, 0, 1])]
    [0.0, 1.0]

    Law, Urtasun, Zemel: Deep Spectral Clustering Learning. ICML 2017.
    """

    name = "spectral_clustering"
    takes_gallery = False
    weighs_pairs = False

    def value(self, view: View) -> Tensor:
        """Return the value for the batch of all processes."""
        refuse_gallery(self, view)
        refuse_same(self, view)
        n, d = view.queries.shape
        if n <= d:
            raise ValueError(
                f"SpectralClusteringLoss needs more examples than dimensions, got {n} vectors of dimension {d}; "
                f"use batches of {d + 1} or more, several times that if possible, or a smaller dimension"
            )
        here = with_float64(view.queries.device)
        value = _Spectral.apply(view.queries.to(here), class_numbers(view.labels).to(here))
        return value.to(view.queries.device, view.dtype)


class _Spectral(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vectors: Tensor, classes: Tensor) -> Tensor:
        f = vectors.double()
        # The decomposition of NaN raises an error; return NaN instead.
        finite = f.isfinite().all()
        u, sizes, v = torch.linalg.svd(torch.where(finite, f, 0), full_matrices=False)
        kept = sizes > _CUT * max(f.shape) * sizes[:1]
        u = u * kept
        # Y Y⁺ U: each row becomes the mean of its class.
        counts = torch.zeros_like(f[:, 0]).index_add(0, classes, torch.ones_like(f[:, 0]))
        sums = torch.zeros_like(u).index_add(0, classes, u)
        means = (sums / counts.clamp_min(1)[:, None]).index_select(0, classes)
        inverse = torch.where(kept, 1 / torch.where(kept, sizes, 1), 0)
        gradient = 2 * ((u @ (u.T @ means) - means) * inverse) @ v
        value = (counts > 0).sum() - (u * means).sum()
        ctx.save_for_backward(torch.where(finite, gradient, torch.nan), vectors)
        return torch.where(finite, value.clamp_min(0), torch.nan)

    @staticmethod
    def backward(ctx: Any, weight: Tensor) -> Any:
        gradient, vectors = ctx.saved_tensors
        return first_derivative(gradient * weight, vectors), None
