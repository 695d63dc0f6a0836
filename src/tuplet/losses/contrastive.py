"""Contrastive losses: each pair by itself, pulled together or pushed past a boundary."""

import torch
from torch import Tensor

from tuplet.losses.base import RowLoss, check_mining
from tuplet.mining import Mining
from tuplet.rows import masked_sum


class ContrastiveLoss(RowLoss):
    """d² on positive pairs, max(0, m − d)² on negative pairs.

    The mean over all ordered pairs i ≠ j, with d the Euclidean distance (Sohn 2016, equation 1).

    Inputs: vectors of any length; on unit vectors distances lie in [0, 2], and m should lie well inside.

    Relations: `MarginLoss` has linear terms and a slack on the positive side; `CosineContrastiveLoss` is the form on
    dot products.

    >>> loss = ContrastiveLoss(margin=1.0)
    >>> loss(torch.tensor([[0.0], [0.5], [2.0]]), torch.tensor([0, 0, 1])).item()
    0.0833...

    Hadsell, Chopra, LeCun: Dimensionality Reduction by Learning an Invariant Mapping. CVPR 2006.
    """

    geometry = "euclidean"

    def __init__(self, margin: float = 1.0) -> None:
        super().__init__()
        self.margin = margin

    def rows(self, s: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
        """Every pair counts."""
        everyone = positive | negative
        gap = torch.where(positive, s, (self.margin - s).relu())
        return masked_sum(gap.square(), everyone), everyone.sum(1)


class CosineContrastiveLoss(RowLoss):
    """Σ_N [x_i·x_j − λ]₊ − Σ_P x_i·x_j for each query i.

    The mean over all queries (Unified view 2019, equation 5); λ is `threshold`. With `mining`, the chosen
    pairs weigh the same and the threshold is gone: Σ_N̂ x_i·x_j − Σ_P̂ x_i·x_j, that paper's row "VTHM".

    Inputs: unit vectors.

    Relations: `RAWLoss` and `BinomialDevianceLoss` replace the constant weights by ones that grow with hardness.

    >>> loss = CosineContrastiveLoss(threshold=0.5)
    >>> loss(torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]]), torch.tensor([0, 0, 1])).item()
    0.1066...

    A Unified View of Deep Metric Learning via Gradient Analysis. ICLR 2019 submission.
    """

    def __init__(self, threshold: float = 0.5, mining: Mining | None = None) -> None:
        super().__init__()
        self.threshold = threshold
        self.mining = check_mining(mining)

    def rows(self, s: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
        """Every query counts."""
        push = (s - self.threshold).relu() if self.mining is None else s
        total = masked_sum(push, negative) - masked_sum(s, positive)
        return total, torch.ones_like(total)
