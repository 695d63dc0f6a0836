"""Global loss: the means and the variances of positive and of negative distances."""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from tuplet.losses.triplet import MinedTriplets
from tuplet.mining import Mining
from tuplet.rows import View
from tuplet.rows.geometry import widest


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
        """Sum e and e² over both sides of the triplets; means and variances follow."""
        if self.mining == "disjoint":
            near, far = (d.square()[None] / 4 for d in self.disjoint(view))
            sums = _sums(Sides(near, torch.ones_like(near), far, torch.ones_like(far)))
        else:
            view, sides, inputs = self._sides(view.with_table())

            def rows(d: Tensor, positive: Tensor, negative: Tensor, *inputs: Tensor) -> Tensor:
                return _sums(sides(d, positive, negative, *inputs))

            sums = view.sum(rows, own=inputs)
        triplets = sums[0].detach()
        near, near_squares, far, far_squares = sums[1:] / (triplets + (triplets == 0))
        variances = near_squares - near.square() + far_squares - far.square()
        hinge = (near - far + self.margin).relu() * (triplets > 0)
        return (variances + self.weight * hinge).to(view.dtype)

    def _sides(self, view: View) -> tuple[View, Callable[..., Sides], tuple[Tensor, ...]]:
        """Return a view, a function of its rows that returns both sides of the triplets, and its inputs."""
        if self.combines_all:
            return view, _all_triplets, ()
        view, triplets, inputs = self.choice(view)

        def sides(d: Tensor, positive: Tensor, negative: Tensor, *inputs: Tensor) -> Sides:
            near, far, exists = triplets(d, positive, negative, *inputs)
            return Sides(near.square() / 4, exists, far.square() / 4, exists)

        return view, sides, inputs


def _all_triplets(d: Tensor, positive: Tensor, negative: Tensor) -> Sides:
    """Return the sides of all triplets of each row: a pair is in as many as the row has pairs of the other kind."""
    e, p, n = d.square() / 4, positive.sum(1, keepdim=True), negative.sum(1, keepdim=True)
    return Sides(e, positive * n, e, negative * p)


def _sums(sides: Sides) -> Tensor:
    """Return the number of triplets of a block, and Σ e and Σ e² over their positives and over their negatives."""
    near, near_count, far, far_count = sides
    # A variance is the difference of two sums, so these must not be rounded to float32.
    wide = widest(near.device)
    sums = [
        torch.where(count > 0, x * count, 0).sum(dtype=wide)
        for e, count in ((near, near_count), (far, far_count))
        for x in (e, e.square())
    ]
    return torch.stack([near_count.sum(dtype=wide), *sums])
