"""Lifted structure: a positive pair against all the negatives of both its ends."""

from dataclasses import replace

import torch
from torch import Tensor

from tuplet.losses.base import RowLoss
from tuplet.rows import View, masked_logsumexp, masked_sum

# Stands for the logarithm of an empty sum: finite, so that a difference of two of them is no NaN.
_NONE = -1e30


class LiftedStructureLoss(RowLoss):
    """1/(2|P|) Σ_{(i,j)∈P} [J̃_ij]₊² with J̃_ij = log(Σ_{N_i} e^{m − d_ik} + Σ_{N_j} e^{m − d_jl}) + d_ij.

    Over the unordered positive pairs P that have a negative at either end (Schall et al. 2019, equation 3). With a
    gallery, a pair is a query and a gallery member, and the negatives of both ends are those in the gallery.

    Inputs: vectors of any length. It looks twice: for the log-sum of each row, then at both ends of each pair.

    Relations: `GeneralizedLiftedLoss` treats all positives of a query together, on dot products.

    >>> loss = LiftedStructureLoss(margin=1.0)
    >>> loss(torch.tensor([[0.0], [1.0], [2.0]]), torch.tensor([0, 0, 1])).item()
    0.8623...

    Oh Song, Xiang, Jegelka, Savarese: Deep Metric Learning via Lifted Structured Feature Embedding. CVPR 2016.
    """

    geometry = "euclidean"

    def __init__(self, margin: float = 1.0) -> None:
        super().__init__()
        self.margin = margin

    def value(self, view: View) -> Tensor:
        """First the negatives of every end, then the pairs."""
        view = view.whole()
        push = view.each(self._negatives)
        # The compiler takes no tensor twice.
        other = push.view_as(push)
        if view.gallery is not None:
            itself = replace(view, queries=view.gallery, labels=view.there_labels, gallery=None, gallery_labels=None)
            other = replace(itself, member=True, ranks=None, split=False, table=None).each(self._negatives)
        return view.mean(self._pairs, own=(push,), other=(other,))

    def _negatives(self, d: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        return masked_logsumexp(self.margin - d, negative).clamp_min(_NONE)

    def _pairs(
        self, d: Tensor, positive: Tensor, negative: Tensor, own: Tensor, other: Tensor
    ) -> tuple[Tensor, Tensor]:
        both = torch.logaddexp(own[:, None], other)
        # NaN is not nothing, and counts.
        defined = positive & ~(both <= _NONE / 2)
        return masked_sum((both + d).relu().square() / 2, defined), defined.sum(1)


class GeneralizedLiftedLoss(RowLoss):
    """[ log Σ_P e^{−s} + log Σ_N e^{λ + s} ]₊ for each query, s the dot product.

    The mean over the queries that have positives and negatives (Unified view 2019, equation 9). λ is `margin`.

    Inputs: unit vectors.

    Relations: its weights are the relative half of those of `RAWLoss`; `LiftedStructureLoss` is the original.

    >>> loss = GeneralizedLiftedLoss(margin=1.0)
    >>> loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).item()
    1.6931...

    Hermans, Beyer, Leibe: In Defense of the Triplet Loss for Person Re-Identification. 2017.
    """

    def __init__(self, margin: float = 1.0) -> None:
        super().__init__()
        self.margin = margin

    def rows(self, s: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
        """Both sides of each query."""
        pull = masked_logsumexp(-s, positive)
        push = masked_logsumexp(self.margin + s, negative)
        return (pull + push).relu(), positive.any(1) & negative.any(1)
