"""Margin loss: every pair against one boundary."""

from types import EllipsisType

import torch
from torch import Tensor, nn

from tuplet.losses.base import RowLoss, check_mining
from tuplet.mining import DistanceWeighted, Mining
from tuplet.rows import View


class MarginLoss(RowLoss):
    """[m + d − β]₊ on positives, [m − d + β]₊ on negatives.

    The sum over the ordered pairs that mining keeps, divided by the number of pairs whose term is above zero. By
    default the negatives are drawn by `mining.DistanceWeighted()`, as the authors have it; `mining=None` takes all
    pairs.

    Inputs: unit vectors. With `learn_beta` the boundary β is a parameter: give `loss.parameters()` to the optimiser
    too.

    Relations: `ContrastiveLoss` is its square with no slack for positives; `RankedListLoss` weighs the negatives.

    >>> loss = MarginLoss(beta=1.2, margin=0.2, mining=None)
    >>> loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).item()
    0.4142...

    Wu, Manmatha, Smola, Krähenbühl: Sampling Matters in Deep Embedding Learning. ICCV 2017.
    """

    geometry = "euclidean"

    def __init__(
        self,
        beta: float = 1.2,
        margin: float = 0.2,
        learn_beta: bool = False,
        mining: Mining | EllipsisType | None = ...,
    ) -> None:
        super().__init__()
        self.margin = margin
        # A rule that draws keeps count of its calls, so every loss gets one of its own.
        self.mining = DistanceWeighted() if mining is ... else check_mining(mining)
        self.beta: nn.Parameter | float = nn.Parameter(torch.tensor(float(beta))) if learn_beta else float(beta)

    def value(self, view: View) -> Tensor:
        """The rows; a β that learns is an input of theirs."""
        return view.mean(self.rows, shared=(self.beta,) if isinstance(self.beta, Tensor) else ())

    def rows(
        self, s: Tensor, positive: Tensor, negative: Tensor, learned: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Each pair against its side of the boundary."""
        beta = self.beta if learned is None else learned
        pull, push = (self.margin + s - beta).relu(), (self.margin - s + beta).relu()
        terms = torch.where(positive, pull, torch.where(negative, push, 0))
        return terms.sum(1), (terms != 0).sum(1)
