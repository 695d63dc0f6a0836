"""Smooth-AP: the average precision of each query, with smooth ranks."""

import torch
from torch import Tensor

from tuplet.errors import above_zero
from tuplet.losses.cosine import CosineLoss
from tuplet.rows import View, masked_sum, weighted


class SmoothAPLoss(CosineLoss):
    """Smooth-AP loss: one minus the average precision, 1 − 1/|P| Σ_p R_P(p)/R(p), with smooth ranks.

    R_P(p) = 1 + Σ_{q∈P, q≠p} σ((s_q − s_p)/τ) is the rank of a positive among the positives. R(p), with the sum over
    P ∪ N, is its rank in the row. s is the cosine. The mean over the queries that have positives.

    Args:
        temperature: τ; the smaller, the closer to true ranks, and the fewer pairs get a gradient.
        max_per_class: the size of the largest class; if given, no synchronisation with the device is needed.

    Inputs: vectors of any length, made unit inside; batches with several examples of each class, better with many. The
    work is O(N·K·M), the memory that of a few blocks.

    Related: `HistogramLoss` also needs no margin. `NRALoss` looks at the rank of the farthest positive alone.

    >>> loss = SmoothAPLoss()
    >>> loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).item()
    0.5...

    Brown, Xie, Kalogeiton, Zisserman: Smooth-AP: Smoothing the Path Towards Large-Scale Image Retrieval. ECCV 2020.
    """

    name = "smooth_ap"

    def __init__(self, temperature: float = 0.01, max_per_class: int | None = None) -> None:
        super().__init__()
        above_zero(temperature=temperature)
        self.temperature, self.max_per_class = temperature, max_per_class

    def value(self, view: View) -> Tensor:
        """Return the mean over queries."""
        return view.mean(self._precisions, own=view.members())

    def _precisions(
        self, s: Tensor, positive: Tensor, negative: Tensor, index: Tensor, exists: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Sum over the positives one by one, and sum the weights on the way: K tables never live at once."""
        scores = s.detach() / self.temperature
        near, others = scores.gather(1, index), positive | negative
        found, push, pulls = torch.zeros_like(scores[:, 0]), torch.zeros_like(scores), []
        for k in range(index.shape[1]):
            ahead = torch.where(others, (scores - near[:, k : k + 1]).sigmoid(), 0)
            # The sums have p itself too, with σ(0) = ½ and, since its gap is 0 wherever it moves, no weight in the end.
            among, rank = masked_sum(ahead, positive) + 0.5, ahead.sum(1) + 0.5
            precision = among / rank
            found = found + torch.where(exists[:, k], precision, 0)
            slope = ahead * (1 - ahead) * (positive.to(s.dtype) - precision[:, None]) / rank[:, None]
            slope = torch.where(exists[:, k : k + 1], slope, 0)
            push += slope
            pulls.append(-slope.sum(1))
        weights = push.scatter_add(1, index, torch.stack(pulls, 1)) if pulls else push
        count = exists.sum(1).clamp_min(1)
        return weighted(1 - found / count, s, -weights / count[:, None] / self.temperature), exists.any(1)
