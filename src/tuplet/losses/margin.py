"""Margin loss: every pair against one boundary."""

import torch
from torch import Tensor, nn

from tuplet.losses.base import RowLoss
from tuplet.mining import Mining, as_rule
from tuplet.rows import View


class MarginLoss(RowLoss):
    """Margin loss: [m + d − β]₊ on positives, [m − d + β]₊ on negatives.

    The sum over the ordered pairs that mining keeps, divided by the number of pairs whose term is above zero.

    Args:
        beta: β, the boundary between positive and negative distances.
        margin: m, the distance that pairs keep from the boundary.
        learn_beta: make β a parameter; give `loss.parameters()` to the optimizer too.
        mining: a rule of `tuplet.mining` or its name, which chooses pairs; None for all pairs. The authors draw the
            negatives by `DistanceWeighted()`.

    Inputs: unit vectors; batches with several examples of each class.

    Related: `ContrastiveLoss` squares the terms and pulls all positives. `RankedListLoss` weighs the negatives.

    >>> loss = MarginLoss(beta=1.2, margin=0.2, mining=None)
    >>> loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).item()
    0.4142...

    Wu, Manmatha, Smola, Krähenbühl: Sampling Matters in Deep Embedding Learning. ICCV 2017.
    """

    name, geometry, normalize = "margin", "euclidean", True

    def __init__(
        self,
        beta: float = 1.2,
        margin: float = 0.2,
        learn_beta: bool = False,
        mining: Mining | str | None = "distance_weighted",
    ) -> None:
        super().__init__()
        self.margin = margin
        self.mining = as_rule(mining)
        self.beta: nn.Parameter | float = nn.Parameter(torch.tensor(float(beta))) if learn_beta else float(beta)

    def value(self, view: View) -> Tensor:
        """Return the mean over pairs. A learned β is an input of `rows`, so that it gets a gradient."""
        return view.mean(self.rows, shared=(self.beta,) if isinstance(self.beta, Tensor) else ())

    def rows(
        self, d: Tensor, positive: Tensor, negative: Tensor, learned: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the sum over the pairs of each query and the number of terms that are not zero."""
        beta = self.beta if learned is None else learned
        pull, push = (self.margin + d - beta).relu(), (self.margin - d + beta).relu()
        terms = torch.where(positive, pull, torch.where(negative, push, 0))
        return terms.sum(1), (terms != 0).sum(1)
