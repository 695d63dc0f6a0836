"""Histogram loss: the overlap of the similarities of positive and of negative pairs."""

import torch
from torch import Tensor

from tuplet.losses.base import RowLoss
from tuplet.rows import View


class HistogramLoss(RowLoss):
    """Σ_r h⁻_r · Σ_{q≤r} h⁺_q: how likely a random negative pair is more alike than a random positive one.

    h⁺ and h⁻ are the histograms of the dot products of positive and of negative pairs, on `bins` nodes from −1 to 1,
    each pair shared between its two nearest nodes by linear interpolation. Similarities are clamped to [−1, 1]. 0
    when either kind of pair is absent.

    Inputs: unit vectors. No margin and no weights to choose; it wants batches with many positive pairs.

    >>> loss = HistogramLoss(bins=151)
    >>> loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).item()
    1.0

    Ustinova, Lempitsky: Learning Deep Embeddings with Histogram Loss. NIPS 2016.
    """

    def __init__(self, bins: int = 151) -> None:
        super().__init__()
        if bins < 2:
            raise ValueError(f"HistogramLoss needs at least 2 bins, got {bins}; the authors take 151")
        self.bins = bins

    def value(self, view: View) -> Tensor:
        """Both histograms, then their overlap."""
        sums = view.whole().sum(self._histograms)
        counts = sums.detach().sum(1, keepdim=True)
        positive, negative = (sums / counts.clamp_min(1)).unbind()
        # Without pairs of one kind its histogram is 0, and so is the sum.
        return (negative * positive.cumsum(0)).sum()

    def _histograms(self, s: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        """Ordered pairs: each unordered one twice, which the division by the counts takes out."""
        place = (s.clamp(-1, 1) + 1) * ((self.bins - 1) / 2)
        # Clamped as whole numbers, where NaN is some number too: it stays in what is added to the node it gets.
        node = place.detach().long().clamp(0, self.bins - 2)
        upper = torch.where(positive | negative, place - node, 0)
        lower = torch.where(positive | negative, 1 - (place - node), 0)
        slot = node + self.bins * negative
        # A histogram for each row, summed after: rows do not wait for each other to add to one bin.
        rows = s.new_zeros(s.shape[0], 2 * self.bins).scatter_add(1, slot, lower).scatter_add(1, slot + 1, upper)
        return rows.sum(0).view(2, self.bins)
