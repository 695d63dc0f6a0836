"""Histogram loss: the overlap of the similarities of positive and of negative pairs."""

import torch
from torch import Tensor

from tuplet.errors import at_least
from tuplet.losses.base import RowLoss
from tuplet.rows import View


class HistogramLoss(RowLoss):
    """Histogram loss: Σ_r h⁻_r · Σ_{q≤r} h⁺_q.

    This is the probability that a random negative pair is more similar than a random positive pair. h⁺ and h⁻ are the
    histograms of the dot products of positive and of negative pairs, clamped to [−1, 1]. Each pair is shared between
    its two nearest nodes by linear interpolation. The value is 0 if either kind of pair is missing.

    Args:
        bins: the number of nodes from −1 to 1.

    Inputs: unit vectors; batches with several examples of each class, better with many.

    Related: no margin and no weights to choose, unlike `ContrastiveLoss` and `RAWLoss`.

    >>> loss = HistogramLoss(bins=151)
    >>> loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).item()
    1.0

    Ustinova, Lempitsky: Learning Deep Embeddings with Histogram Loss. NIPS 2016.
    """

    name, normalize = "histogram", True

    def __init__(self, bins: int = 151) -> None:
        super().__init__()
        at_least(2, bins=bins)
        self.bins = bins

    def value(self, view: View) -> Tensor:
        """Return the overlap of both histograms."""
        sums = view.with_table().sum(self._histograms)
        counts = sums.detach().sum(1, keepdim=True)
        positive, negative = (sums / counts.clamp_min(1)).unbind()
        # Without pairs of one kind its histogram is 0, and so is the sum.
        return (negative * positive.cumsum(0)).sum()

    def _histograms(self, s: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        """Count ordered pairs: each unordered pair twice, which the division by the counts cancels."""
        place = (s.clamp(-1, 1) + 1) * ((self.bins - 1) / 2)
        # Clamp the integers: NaN becomes some node, and stays NaN in what is added to that node.
        node = place.detach().long().clamp(0, self.bins - 2)
        upper = torch.where(positive | negative, place - node, 0)
        lower = torch.where(positive | negative, 1 - (place - node), 0)
        slot = node + self.bins * negative
        # A histogram for each row, summed afterwards: rows do not wait for each other to add to one bin.
        rows = s.new_zeros(s.shape[0], 2 * self.bins).scatter_add(1, slot, lower).scatter_add(1, slot + 1, upper)
        return rows.sum(0).view(2, self.bins)
