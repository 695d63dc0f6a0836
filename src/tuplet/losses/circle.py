"""Circle loss: pairs weigh by how far they are from where they should be."""

from torch import Tensor

from tuplet.errors import above_zero
from tuplet.losses.cosine import CosineLoss
from tuplet.rows import masked_logsumexp, softplus


class CircleLoss(CosineLoss):
    """Circle loss: log[1 + Σ_N e^{γ [s + m]₊ (s − m)} · Σ_P e^{−γ [1 + m − s]₊ (s − 1 + m)}], s the cosine.

    The brackets [·]₊ are constant for the gradient. The mean over the queries that have positives and negatives.

    Args:
        margin: m; negatives should fall below m, positives rise above 1 − m.
        scale: γ, the steepness. The authors take 80 for retrieval with m = 0.4, and 256 for faces with m = 0.25.

    Inputs: vectors of any length, made unit inside; batches with several examples of each class.

    Related: `GeneralizedLiftedLoss` joins positives and negatives in the same way, without weights of their own.

    >>> import torch
    >>> loss = CircleLoss(margin=0.4, scale=80.0)
    >>> loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).item()
    55.0931...

    Sun, Cheng, Zhang, Zhang, Zheng, Wang, Wei: Circle Loss: A Unified Perspective of Pair Similarity Optimization.
    CVPR 2020.
    """

    name = "circle"

    def __init__(self, margin: float = 0.4, scale: float = 80.0) -> None:
        super().__init__()
        above_zero(scale=scale)
        self.margin, self.scale = margin, scale

    def rows(self, s: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
        """Return the term of each query that has positives and negatives."""
        constant = s.detach()
        pull = self.scale * (1 + self.margin - constant).relu() * (1 - self.margin - s)
        push = self.scale * (constant + self.margin).relu() * (s - self.margin)
        gap = masked_logsumexp(push, negative) + masked_logsumexp(pull, positive)
        return softplus(gap), positive.any(1) & negative.any(1)
