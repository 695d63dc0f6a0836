"""Lifted structure losses: a positive pair against all the negatives of both its ends."""

from dataclasses import replace

import torch
from torch import Tensor

from tuplet.losses.base import RowLoss
from tuplet.losses.npair import ScaledLoss
from tuplet.mining import Mining, as_rule
from tuplet.rows import View, masked_logsumexp, masked_sum

# Stands for the logarithm of an empty sum: finite, so that a difference of two of them is not NaN.
_LOG_ZERO = -1e30


class LiftedStructureLoss(RowLoss):
    """Lifted structure loss: ½ [log(Σ_{N_i} e^{m − d_ik} + Σ_{N_j} e^{m − d_jl}) + d_ij]₊².

    The mean over the unordered positive pairs (i, j) that have a negative at either end (Schall et al. 2019, equation
    3). With a gallery, a pair is a query and a gallery member, and the negatives of both ends are in the gallery.

    Args:
        margin: m, added to each negative distance.
        mining: a rule of `tuplet.mining` or its name, which chooses the pairs of each row; None for all pairs. The mean
            is then over the ordered pairs (i, j) that the row of i keeps, each with the negatives that the rows of both
            ends keep.

    Inputs: vectors of any length; batches with several examples of each class.

    Related: `GeneralizedLiftedLoss` treats all positives of a query together, on dot products.

    >>> loss = LiftedStructureLoss(margin=1.0)
    >>> loss(torch.tensor([[0.0], [1.0], [2.0]]), torch.tensor([0, 0, 1])).item()
    0.8623...

    Oh Song, Xiang, Jegelka, Savarese: Deep Metric Learning via Lifted Structured Feature Embedding. CVPR 2016.
    """

    name, geometry = "lifted_structure", "euclidean"

    def __init__(self, margin: float = 1.0, mining: Mining | str | None = None) -> None:
        super().__init__()
        self.margin = margin
        self.mining = as_rule(mining)

    def value(self, view: View) -> Tensor:
        """Return the mean over pairs, after a first pass over the negatives of both ends."""
        view = view.with_table()
        push = view.each(self._negatives)
        # The compiler takes no tensor twice.
        other = push.view_as(push)
        if view.gallery is not None:
            itself = replace(view, queries=view.gallery, labels=view.column_labels, gallery=None, gallery_labels=None)
            alone = replace(itself, member=True, group=None, split=False, first=0, table=None)
            other = alone.each(self._negatives)
        return view.mean(self._pairs, own=(push,), other=(other,))

    def _negatives(self, d: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        return masked_logsumexp(self.margin - d, negative).clamp_min(_LOG_ZERO)

    def _pairs(
        self, d: Tensor, positive: Tensor, negative: Tensor, own: Tensor, other: Tensor
    ) -> tuple[Tensor, Tensor]:
        both = torch.logaddexp(own[:, None], other)
        # A pair whose sum is NaN counts.
        defined = positive & ~(both <= _LOG_ZERO / 2)
        return masked_sum((both + d).relu().square() / 2, defined), defined.sum(1)


class GeneralizedLiftedLoss(ScaledLoss):
    """Generalized lifted structure loss: [log Σ_P e^{−s} + log Σ_N e^{λ + s}]₊ for each query, s the dot product.

    The mean over the queries that have positives and negatives (Unified view 2019, equation 9).

    Args:
        margin: λ, added to each negative similarity.
        mining: a rule of `tuplet.mining` or its name, which chooses P and N; None for all pairs.
        scale: a factor of the dot products, before λ is added.

    Inputs: vectors of free length, or unit vectors with a `scale`; batches with several examples of each class.

    Without a scale, the products of unit vectors lie in [−1, 1]. Then the sums stay near log|P| + log|N| + λ, the hinge
    never closes, and all pairs of a query weigh about the same: 1/|P| and 1/|N|. Such weights only push the mean of all
    classes to 0, which two groups of classes at opposite poles satisfy, and the network learns little. A scale of 8 to
    16 makes the hard pairs weigh most, and closes the hinge of a query whose similarities differ by
    (log|P| + log|N| + λ)/scale.

    Related: `RAWLoss` also weighs a pair by its own similarity. `LiftedStructureLoss` is the original.

    >>> loss = GeneralizedLiftedLoss(margin=1.0)
    >>> loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).item()
    1.6931...

    Hermans, Beyer, Leibe: In Defense of the Triplet Loss for Person Re-Identification. 2017.
    """

    name = "generalized_lifted"

    def __init__(self, margin: float = 1.0, mining: Mining | str | None = None, scale: float = 1.0) -> None:
        super().__init__(scale)
        self.margin = margin
        self.mining = as_rule(mining)

    def rows(self, s: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
        """Return the term of each query that has positives and negatives."""
        s = s * self.scale
        pull = masked_logsumexp(-s, positive)
        push = masked_logsumexp(self.margin + s, negative)
        return (pull + push).relu(), positive.any(1) & negative.any(1)
