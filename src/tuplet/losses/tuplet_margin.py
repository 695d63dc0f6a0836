"""Tuplet margin loss: a positive against all negatives, with slack on its angle."""

from math import cos, sin

from torch import Tensor

from tuplet.errors import above_zero
from tuplet.losses.cosine import CosineLoss, sine
from tuplet.rows import masked_logsumexp, masked_sum, softplus


class TupletMarginLoss(CosineLoss):
    """Tuplet margin loss: log(1 + Σ_N e^{scale · (s_an − cos(θ_ap − margin))}) for every (a, p).

    s is the cosine, θ_ap the angle of a and p. The mean over all ordered positive pairs (a, p).

    Args:
        margin: the slack of the angle in radians. Positives within it are not pulled closer.
        scale: a factor of the cosines.

    Inputs: vectors of any length, made unit inside; batches with several examples of each class. The authors take two.

    Related: `NPairAllLoss` with a `scale` and no slack.

    >>> import torch
    >>> loss = TupletMarginLoss(margin=0.1, scale=64.0)
    >>> loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).item()
    0.0033...

    Yu, Tao: Deep Metric Learning with Tuplet Margin Loss. ICCV 2019.
    """

    name = "tuplet_margin"

    def __init__(self, margin: float = 0.1, scale: float = 64.0) -> None:
        super().__init__()
        above_zero(scale=scale)
        self.margin, self.scale = margin, scale

    def rows(self, s: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum over the positives of each query. All of them share one sum over negatives."""
        near = s * cos(self.margin) + sine(s) * sin(self.margin)
        push = masked_logsumexp(self.scale * s, negative)
        return masked_sum(softplus(push[:, None] - self.scale * near), positive), positive.sum(1)
