"""Triplet ratio loss: the distance to the negative as a share of the distance to the positive."""

import torch
from torch import Tensor

from tuplet.errors import above_zero
from tuplet.losses.triplet import MinedTriplets
from tuplet.mining import Mining
from tuplet.rows import weighted


class TripletRatioLoss(MinedTriplets):
    """Triplet ratio loss: [1 − d_an / (d_ap + m)]₊, the mean over the chosen triplets (Harwood et al. 2017).

    Args:
        margin: m, above 0: by how much the distance of a negative should exceed that of a positive. It also keeps the
            ratio finite.
        mining: the triplets to choose, as in `TripletLoss`: "all", "hardest", "disjoint" or a rule of `tuplet.mining`.
            The authors choose them from the whole training set.
        max_per_class: the size of the largest class; if given, no synchronisation with the device is needed.

    Inputs: vectors of any length, usually unit; batches with several examples of each class, for "disjoint" those of
    `sampling.TripletSampler`. The work of "all" and "semi_hard" is O(N·K·M), their memory that of a few blocks.

    Related: `TripletLoss` has a difference of squared distances. The authors add `GlobalLoss` by `SumLoss`; the weight
    that they give it is not known.

    >>> loss = TripletRatioLoss(margin=0.5)
    >>> loss(torch.tensor([[0.0], [0.5], [0.6]]), torch.tensor([0, 0, 1])).item()
    0.6499...

    Harwood, Kumar, Carneiro, Reid, Drummond: Smart Mining for Deep Metric Learning. ICCV 2017.
    """

    name = "triplet_ratio"

    def __init__(
        self, margin: float = 0.2, mining: Mining | str | None = "all", max_per_class: int | None = None
    ) -> None:
        super().__init__(mining, max_per_class)
        above_zero(margin=margin)
        self.margin = margin

    def term(self, near: Tensor, far: Tensor) -> Tensor:
        """Return the hinge on the ratio."""
        return (1 - far / (near + self.margin)).relu()

    def all_terms(
        self, d: Tensor, positive: Tensor, negative: Tensor, index: Tensor, exists: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Sum over the positives one by one, and sum the weights on the way: K tables never live at once."""
        far = torch.where(negative, d.detach(), torch.inf)
        bound = d.detach().gather(1, index) + self.margin
        # An infinite distance in a product with zero would be NaN; NaN itself stays in the value.
        there = torch.where(negative, d.detach(), 0)
        total, push, pulls = torch.zeros_like(far[:, 0]), torch.zeros_like(far), []
        for k in range(index.shape[1]):
            limit, some = bound[:, k : k + 1], exists[:, k : k + 1]
            active = negative & some & ~(far >= limit)
            ratio = torch.where(active, there / limit, 0)
            total = total + (active.sum(1) - ratio.sum(1))
            push -= active / limit
            pulls.append(ratio.sum(1) / limit[:, 0])
        weights = push.scatter_add(1, index, torch.stack(pulls, 1)) if pulls else push
        return weighted(total, d, weights), exists.sum(1) * negative.sum(1)
