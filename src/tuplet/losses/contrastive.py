"""Contrastive losses: each pair by itself is pulled together or pushed past a boundary."""

import torch
from torch import Tensor

from tuplet.losses.base import RowLoss
from tuplet.mining import Mining, as_rule
from tuplet.rows import masked_sum


class ContrastiveLoss(RowLoss):
    """Contrastive loss: d² on positive pairs, max(0, m − d)² on negative pairs.

    The mean over all ordered pairs i ≠ j, with d the Euclidean distance (Sohn 2016, equation 1).

    Args:
        margin: m, the distance beyond which a negative is not pushed.

    Inputs: vectors of any length; batches with several examples of each class. On unit vectors distances lie in [0, 2],
    and m should lie well inside.

    Related: `MarginLoss` has linear terms and leaves near positives alone. `CosineContrastiveLoss` is the form on dot
    products.

    >>> loss = ContrastiveLoss(margin=1.0)
    >>> loss(torch.tensor([[0.0], [0.5], [2.0]]), torch.tensor([0, 0, 1])).item()
    0.0833...

    Hadsell, Chopra, LeCun: Dimensionality Reduction by Learning an Invariant Mapping. CVPR 2006.
    """

    name, geometry = "contrastive", "euclidean"

    def __init__(self, margin: float = 1.0) -> None:
        super().__init__()
        self.margin = margin

    def rows(self, d: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum over the pairs of each query and their number."""
        pairs = positive | negative
        gap = torch.where(positive, d, (self.margin - d).relu())
        return masked_sum(gap.square(), pairs), pairs.sum(1)


class CosineContrastiveLoss(RowLoss):
    """Cosine contrastive loss: Σ_N [x_i·x_j − λ]₊ − Σ_P x_i·x_j for each query i.

    The mean over all queries (Unified view 2019, equation 5).

    Args:
        threshold: λ, the similarity below which a negative is not pushed. Unused with `mining`.
        mining: a rule of `tuplet.mining` or its name, which chooses pairs P̂ and N̂; None for all pairs. Chosen pairs
            weigh the same: Σ_N̂ x_i·x_j − Σ_P̂ x_i·x_j. With `ValidTriplet()` this is that paper's row "VTHM".

    Inputs: unit vectors; batches with several examples of each class.

    Related: `RAWLoss` and `BinomialDevianceLoss` replace the constant weights by ones that grow with hardness.

    >>> loss = CosineContrastiveLoss(threshold=0.5)
    >>> loss(torch.tensor([[1.0, 0.0], [0.6, 0.8], [0.8, 0.6]]), torch.tensor([0, 0, 1])).item()
    0.1066...

    A Unified View of Deep Metric Learning via Gradient Analysis. ICLR 2019 submission.
    """

    name, normalize = "cosine_contrastive", True

    def __init__(self, threshold: float = 0.5, mining: Mining | str | None = None) -> None:
        super().__init__()
        self.threshold = threshold
        self.mining = as_rule(mining)

    def rows(self, s: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
        """Return the term of each query; every query counts."""
        push = (s - self.threshold).relu() if self.mining is None else s
        total = masked_sum(push, negative) - masked_sum(s, positive)
        return total, torch.ones_like(total)
