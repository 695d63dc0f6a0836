"""Helpers of losses on cosines: make vectors unit, take the sine of an angle, compute a softmax over classes."""

from dataclasses import replace

import torch
from torch import Tensor

from tuplet.losses.base import RowLoss
from tuplet.losses.proxies import ClassifierLoss
from tuplet.rows import View, masked_logsumexp, masked_sum

# 1 − s² up to this multiple of the rounding of s is that of two copies of a vector.
_SAME = 16


class CosineLoss(RowLoss):
    """Base of the losses of cosines: queries and gallery are made unit first, so a row holds the cosines s."""

    def arrange(self, view: View) -> View:
        """Make all vectors unit, in the type that rows are computed in."""
        view = super().arrange(view)
        gallery = None if view.gallery is None else unit(view.gallery.to(view.dtype))
        return replace(view, queries=unit(view.queries.to(view.dtype)), gallery=gallery)


class CosineProxyLoss(CosineLoss, ClassifierLoss):
    """Base of the softmax losses of cosines: the logits are scale · s_c, with a margin on the own class.

    A subclass may override how the cosines of the centres of a class become one number, and what the margin does to
    that of the own class.
    """

    scale: float
    margin: float

    def logits(self, s: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Join the centres of each class; the own similarity still lacks scale and margin."""
        if self.centers > 1:
            s = self.of_class(s.unflatten(1, (-1, self.centers)))
            positive, negative = positive[:, :: self.centers], negative[:, :: self.centers]
        return masked_logsumexp(self.scale * s, negative), masked_sum(s, positive), positive.any(1)

    def term(self, push: Tensor, own: Tensor) -> Tensor:
        """Return the cross-entropy with scale and margin."""
        return super().term(push, self.scale * self.with_margin(own))

    def of_class(self, s: Tensor) -> Tensor:
        """Return the similarity to each class (R, C) from those to its centres (R, C, centers): the largest."""
        return s.max(2).values

    def with_margin(self, s: Tensor) -> Tensor:
        """Return the similarity to the own class, less the margin."""
        return s - self.margin


def unit(vectors: Tensor) -> Tensor:
    """Return the vectors divided by their lengths. A vector of zeros stays as it is, with a finite gradient.

    >>> unit(torch.tensor([[3.0, 4.0], [0.0, 0.0]]))
    tensor([[0.6000, 0.8000],
            [0.0000, 0.0000]])
    """
    length = torch.linalg.vector_norm(vectors, dim=1, keepdim=True)
    return vectors / torch.where(length > 0, length, 1)


def sine(s: Tensor) -> Tensor:
    """Return √(1 − s²), the sine of the angle with the cosine s; 0 with a zero gradient if the vectors are parallel.

    >>> sine(torch.tensor([0.6, 1.0, -1.0]))
    tensor([0.8000, 0.0000, 0.0000])
    """
    square = (1 - s) * (1 + s)
    apart = square > _SAME * torch.finfo(s.dtype).eps
    return torch.where(apart, torch.where(apart, square, 1).sqrt(), 0)
