"""Weights by similarity: binomial deviance (absolute), and RAW (relative and absolute)."""

import torch
from torch import Tensor

from tuplet.errors import above_zero
from tuplet.losses.base import RowLoss
from tuplet.mining import Mining, ValidTriplet, as_rule
from tuplet.rows import masked_logsumexp, masked_mean, softplus


class BinomialDevianceLoss(RowLoss):
    """Binomial deviance: 1/|P| Σ_P log[1 + e^{α(λ − s)}] + 1/|N| Σ_N log[1 + e^{β(s − λ)}] for each query.

    The mean over all queries. An empty set, mined or not, contributes 0 (Unified view 2019, equation 12, there a sum).

    Args:
        alpha: α, the steepness on positives.
        beta: β, the steepness on negatives.
        threshold: λ, the boundary between positive and negative similarities.
        mining: a rule of `tuplet.mining` or its name, which chooses pairs; None for all pairs. With `ValidTriplet()`
            this is the Binomial+VTHM of the Unified view.

    Inputs: unit vectors; batches with several examples of each class.

    Related: a pair weighs by its own similarity alone. `RAWLoss` also compares it with the other pairs of the row.

    >>> loss = BinomialDevianceLoss()
    >>> loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).item()
    1.3132...

    Yi, Lei, Li: Deep Metric Learning for Practical Person Re-Identification. ICPR 2014.
    """

    name, normalize = "binomial_deviance", True

    def __init__(
        self, alpha: float = 2.0, beta: float = 50.0, threshold: float = 0.5, mining: Mining | str | None = None
    ) -> None:
        super().__init__()
        above_zero(alpha=alpha, beta=beta)
        self.alpha, self.beta, self.threshold = alpha, beta, threshold
        self.mining = as_rule(mining)

    def rows(self, s: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
        """Return the term of each query; every query counts."""
        pull = masked_mean(softplus(self.alpha * (self.threshold - s)), positive)
        push = masked_mean(softplus(self.beta * (s - self.threshold)), negative)
        return pull + push, torch.ones_like(pull)


class RAWLoss(BinomialDevianceLoss):
    """RAW loss: (1/α) log[1 + Σ_P e^{−α(s − λ)}] + (1/β) log[1 + Σ_N e^{β(s − λ)}] for each query.

    The mean over all queries (Unified view 2019, equation 17). A positive weighs
    1 / (Σ_k e^{α(s_ij − s_ik)} + e^{α(s_ij − λ)}), a negative likewise (15, 16): the weights depend on the relative and
    on the absolute similarity of a pair.

    Args:
        alpha: α, the steepness on positives.
        beta: β, the steepness on negatives.
        threshold: λ, the boundary between positive and negative similarities.
        mining: a rule of `tuplet.mining` or its name, which chooses pairs; None for all pairs. `ValidTriplet()` is that
            paper's full method RAW+VTHM, `DistanceWeighted()` its RAW+DW and `SemiHard()` its RAW+SemiHard.

    Inputs: unit vectors; batches with several examples of each class.

    Related: between `BinomialDevianceLoss` (absolute) and `GeneralizedLiftedLoss` (relative).

    >>> from tuplet import mining
    >>> loss = RAWLoss(mining=mining.ValidTriplet())
    >>> loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).item()
    0.6566...

    A Unified View of Deep Metric Learning via Gradient Analysis. ICLR 2019 submission; later Wang, Han, Huang, Dong,
    Scott: Multi-Similarity Loss with General Pair Weighting for Deep Metric Learning. CVPR 2019.
    """

    name = "raw"

    def rows(self, s: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
        """Return the term of each query; every query counts."""
        pull = softplus(masked_logsumexp(-self.alpha * (s - self.threshold), positive)) / self.alpha
        push = softplus(masked_logsumexp(self.beta * (s - self.threshold), negative)) / self.beta
        return pull + push, torch.ones_like(pull)


class MultiSimilarityLoss(RAWLoss):
    """Multi-similarity loss: `RAWLoss` over valid pairs, `RAWLoss(mining=mining.ValidTriplet(epsilon))`.

    Args:
        alpha: α, the steepness on positives.
        beta: β, the steepness on negatives.
        threshold: λ, the boundary between positive and negative similarities.
        epsilon: the margin of the triplets that make a pair valid, see `mining.ValidTriplet`.

    Inputs: unit vectors; batches with several examples of each class.

    Related: `RAWLoss` takes any mining rule, or none.

    >>> loss = MultiSimilarityLoss(epsilon=0.1)
    >>> loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).item()
    0.6566...

    Wang, Han, Huang, Dong, Scott: Multi-Similarity Loss with General Pair Weighting for Deep Metric Learning. CVPR
    2019.
    """

    name = "multi_similarity"

    def __init__(self, alpha: float = 2.0, beta: float = 50.0, threshold: float = 0.5, epsilon: float = 0.1) -> None:
        super().__init__(alpha, beta, threshold, ValidTriplet(epsilon))
