"""Weights by similarity: binomial deviance (absolute), and RAW (relative and absolute)."""

import torch
from torch import Tensor

from tuplet.losses.base import RowLoss, check_mining
from tuplet.mining import Mining, ValidTriplet
from tuplet.rows import masked_logsumexp, masked_mean, softplus


class BinomialDevianceLoss(RowLoss):
    """1/|P| Σ_P log[1 + e^{α(λ − s)}] + 1/|N| Σ_N log[1 + e^{β(s − λ)}] for each query.

    The mean over all queries; an empty set, mined or not, contributes 0 (Unified view 2019, equation 12, there a sum).
    λ is `threshold`.

    Inputs: unit vectors. `mining=ValidTriplet()` is that paper's Binomial+VTHM.

    Relations: weights by the pair's own similarity alone; `RAWLoss` also compares it with its neighbours in the row.

    >>> loss = BinomialDevianceLoss()
    >>> loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).item()
    1.3132...

    Yi, Lei, Li: Deep Metric Learning for Practical Person Re-Identification. ICPR 2014.
    """

    def __init__(
        self, alpha: float = 2.0, beta: float = 50.0, threshold: float = 0.5, mining: Mining | None = None
    ) -> None:
        super().__init__()
        self.alpha, self.beta, self.threshold = alpha, beta, threshold
        self.mining = check_mining(mining)

    def rows(self, s: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
        """Every query counts."""
        pull = masked_mean(softplus(self.alpha * (self.threshold - s)), positive)
        push = masked_mean(softplus(self.beta * (s - self.threshold)), negative)
        return pull + push, torch.ones_like(pull)


class RAWLoss(RowLoss):
    """(1/α) log[1 + Σ_P e^{−α(s − λ)}] + (1/β) log[1 + Σ_N e^{β(s − λ)}] for each query.

    The mean over all queries (Unified view 2019, equation 17); λ is `threshold`. Its weights
    1 / (Σ_k e^{α(s_ij − s_ik)} + e^{α(s_ij − λ)}) on positives, and alike on negatives (15, 16), look at the relative
    and the absolute similarity of a pair.

    Inputs: unit vectors. `mining=ValidTriplet()` is that paper's full method RAW+VTHM; `DistanceWeighted()` and
    `SemiHard()` are its RAW+DW and RAW+SemiHard.

    Relations: between `BinomialDevianceLoss` (absolute) and `GeneralizedLiftedLoss` (relative).

    >>> from tuplet import mining
    >>> loss = RAWLoss(mining=mining.ValidTriplet())
    >>> loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).item()
    0.6566...

    A Unified View of Deep Metric Learning via Gradient Analysis. ICLR 2019 submission; later Wang, Han, Huang, Dong,
    Scott: Multi-Similarity Loss with General Pair Weighting for Deep Metric Learning. CVPR 2019.
    """

    def __init__(
        self, alpha: float = 2.0, beta: float = 50.0, threshold: float = 0.5, mining: Mining | None = None
    ) -> None:
        super().__init__()
        self.alpha, self.beta, self.threshold = alpha, beta, threshold
        self.mining = check_mining(mining)

    def rows(self, s: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
        """Every query counts."""
        pull = softplus(masked_logsumexp(-self.alpha * (s - self.threshold), positive)) / self.alpha
        push = softplus(masked_logsumexp(self.beta * (s - self.threshold), negative)) / self.beta
        return pull + push, torch.ones_like(pull)


class MultiSimilarityLoss(RAWLoss):
    """(1/α) log[1 + Σ_P̂ e^{−α(s − λ)}] + (1/β) log[1 + Σ_N̂ e^{β(s − λ)}] for each query, over its valid pairs P̂ and N̂.

    `RAWLoss` with `mining.ValidTriplet(epsilon)`, which says what is valid, under the name that it is best known by.
    The mean over all queries; λ is `threshold`.

    Inputs: unit vectors.

    >>> loss = MultiSimilarityLoss(epsilon=0.1)
    >>> loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).item()
    0.6566...
    """

    def __init__(self, alpha: float = 2.0, beta: float = 50.0, threshold: float = 0.5, epsilon: float = 0.1) -> None:
        super().__init__(alpha, beta, threshold, ValidTriplet(epsilon))
