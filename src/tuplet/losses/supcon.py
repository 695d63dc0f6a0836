"""Supervised contrastive loss: every positive against all others of the row."""

from torch import Tensor

from tuplet.errors import above_zero
from tuplet.losses.cosine import CosineLoss
from tuplet.rows import masked_logsumexp, masked_mean


class SupConLoss(CosineLoss):
    """Supervised contrastive loss: −1/|P| Σ_P (s_ip/τ − log Σ_{j≠i} e^{s_ij/τ}), s the cosine.

    The mean over the queries that have positives.

    Args:
        temperature: τ; the smaller, the more the nearest negatives weigh.

    Inputs: vectors of any length, made unit inside; batches with several examples of each class.

    Related: `NCALoss` has the logarithm outside of the sum over positives; with one positive for each query both are
    the same. `NPairAllLoss` leaves the other positives out of the denominator.

    >>> import torch
    >>> loss = SupConLoss(temperature=1.0)
    >>> loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).item()
    1.0986...

    Khosla, Teterwak, Wang, Sarna, Tian, Isola, Maschinot, Liu, Krishnan: Supervised Contrastive Learning. NeurIPS 2020.
    """

    name = "supcon"

    def __init__(self, temperature: float = 0.1) -> None:
        super().__init__()
        above_zero(temperature=temperature)
        self.temperature = temperature

    def rows(self, s: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
        """Return the term of each query that has positives."""
        s = s / self.temperature
        return masked_logsumexp(s, positive | negative) - masked_mean(s, positive), positive.any(1)
