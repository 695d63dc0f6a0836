"""Global loss: the means and the variances of positive and of negative distances."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from tuplet.losses.triplet import MinedTriplets
from tuplet.mining import Mining
from tuplet.rows import View, masked_sum


class Sides(NamedTuple):
    """The values e of the positives and of the negatives of triplets, and how many triplets each of them is in."""

    near: Tensor
    near_count: Tensor
    far: Tensor
    far_count: Tensor


class GlobalLoss(MinedTriplets):
    """Global loss: var(e⁺) + var(e⁻) + weight · [mean(e⁺) − mean(e⁻) + t]₊, with e = d²/4 (Kumar et al. 2016).

    e⁺ runs over the positive pairs of the triplets and e⁻ over their negative pairs: a pair counts once for each
    triplet that it is in. Variances are divided by the number of triplets.

    Args:
        weight: the weight of the hinge on the means. The smart mining paper does not print it; Kumar et al. are said
            to use 1, which is not confirmed.
        margin: t, by which the means should differ, as a share of the largest squared distance of unit vectors.
        mining: the triplets to choose, as in `TripletLoss`: "all", "hardest", "disjoint" or a rule of `tuplet.mining`.
        max_per_class: the size of the largest class; if given, no synchronisation with the device is needed.

    Inputs: unit vectors, for which e lies in [0, 1]; batches with several examples of each class.

    Related: used beside a loss of single triplets: `SumLoss([(TripletRatioLoss(), 1.0), (GlobalLoss(), 1.0)])`.
    `HistogramLoss` compares the whole distributions of similarities.

    >>> loss = GlobalLoss(weight=1.0, margin=0.01)
    >>> loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).item()
    0.0099...

    Kumar, Carneiro, Reid: Learning Local Image Descriptors with Deep Siamese and Triplet Convolutional Networks by
    Minimising Global Loss Functions. CVPR 2016.
    """

    name, normalize = "global", True

    def __init__(
        self,
        weight: float = 1.0,
        margin: float = 0.01,
        mining: Mining | str | None = "all",
        max_per_class: int | None = None,
    ) -> None:
        super().__init__(mining, max_per_class)
        self.weight, self.margin = weight, margin

    def value(self, view: View) -> Tensor:
        """Find the means first, then the mean of the squared differences from them and of the hinge's linear part."""
        if self.mining == "disjoint":
            near, far = (d.square()[None] / 4 for d in self.disjoint(view))
            both = Sides(near, torch.ones_like(near), far, torch.ones_like(far))
            with torch.no_grad():
                means = self._sums(both) / near.shape[1]
            total, _ = self._moments(both, means, gap := self._gap(means))
            return total.sum() / near.shape[1] + self.weight * self.margin * gap
        view, sides, inputs = self._sides(view.with_table())

        def sums(d: Tensor, positive: Tensor, negative: Tensor, *inputs: Tensor) -> Tensor:
            """Return Σ e⁺, Σ e⁻ and the number of triplets."""
            both = sides(d, positive, negative, *inputs)
            return torch.cat([self._sums(both), both.near_count.sum().to(d.dtype)[None]])

        def rows(d: Tensor, positive: Tensor, negative: Tensor, *inputs: Tensor) -> tuple[Tensor, Tensor]:
            """Return the part of each anchor in variances and means, given both means and if the hinge is active."""
            *chosen, means, gap = inputs
            return self._moments(sides(d, positive, negative, *chosen), means, gap)

        with torch.no_grad():
            *totals, triplets = view.sum(sums, own=inputs)
            means = torch.stack(totals) / (triplets + (triplets == 0))
        gap = self._gap(means)
        value = view.mean(rows, own=inputs, shared=(means, gap))
        return value + self.weight * self.margin * gap * (triplets > 0)

    def _sides(self, view: View) -> tuple[View, Callable[..., Sides], tuple[Tensor, ...]]:
        """Return a view, a function of its rows that returns both sides of the triplets, and its inputs."""
        if self.takes_products:
            return view, _products, ()
        view, triplets, inputs = self.choice(view)

        def sides(d: Tensor, positive: Tensor, negative: Tensor, *inputs: Tensor) -> Sides:
            near, far, exists = triplets(d, positive, negative, *inputs)
            return Sides(near.square() / 4, exists, far.square() / 4, exists)

        return view, sides, inputs

    def _sums(self, sides: Sides) -> Tensor:
        """Return Σ e⁺ and Σ e⁻ over triplets."""
        near, near_count, far, far_count = sides
        return torch.stack([_sum(near, near_count).sum(), _sum(far, far_count).sum()])

    def _gap(self, means: Tensor) -> Tensor:
        """Return 1 where the hinge on the means is active, else 0; NaN where they are."""
        distance = means[0] - means[1] + self.margin
        return torch.where(distance.isnan(), distance, (distance > 0).to(means.dtype))

    def _moments(self, sides: Sides, means: Tensor, gap: Tensor) -> tuple[Tensor, Tensor]:
        """Sum (e − mean)², whose derivative by the mean is 0, and the difference of e⁺ and e⁻ under the hinge."""
        near, near_count, far, far_count = sides
        pull = (near - means[0]).square() + self.weight * gap * near
        push = (far - means[1]).square() - self.weight * gap * far
        return _sum(pull, near_count) + _sum(push, far_count), near_count.sum(1)


def _products(d: Tensor, positive: Tensor, negative: Tensor) -> Sides:
    """Return the sides of all triplets of each row: a pair is in as many as the row has pairs of the other kind."""
    e, p, n = d.square() / 4, positive.sum(1, keepdim=True), negative.sum(1, keepdim=True)
    return Sides(e, positive * n, e, negative * p)


def _sum(x: Tensor, count: Tensor) -> Tensor:
    """Return Σ count·x of each row, over what counts at all."""
    return masked_sum(x * count, count > 0)
