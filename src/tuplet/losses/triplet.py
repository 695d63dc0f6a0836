"""Triplet losses: an anchor nearer to its positive than to its negative."""

from typing import Literal

import torch
from torch import Tensor

from tuplet.losses.base import RowLoss
from tuplet.mining import semi_hard
from tuplet.rows import View, masked_max, masked_min, masked_sum, softplus, weighted
from tuplet.rows.masks import equal_labels

Choice = Literal["all", "semi_hard", "hardest", "disjoint"]


class TripletLoss(RowLoss):
    """[d_ap² − d_an² + m]₊, the mean over the chosen triplets (Wang et al. 2017, equation 2).

    `mining` says which triplets those are:

    - "all": every anchor, positive and negative; triplets with no loss count in the mean.
    - "semi_hard": for each (a, p) the nearest negative with d_an > d_ap, else the farthest (FaceNet).
    - "hardest": for each anchor its farthest positive and nearest negative (batch hard).
    - "disjoint": rows 3t, 3t+1, 3t+2 of the batch are anchor, positive and negative.

    Inputs: usually unit vectors. "all" and "semi_hard" take `max_per_class`, the size of the largest class, and then
    need no synchronisation with the device; their work is O(N·K·M), their memory that of a few blocks.

    Relations: `SmoothTripletLoss` is the smooth form on dot products; `NPairLoss` compares with all negatives at once.

    >>> loss = TripletLoss(margin=0.2)
    >>> loss(torch.tensor([[0.0], [0.5], [0.6]]), torch.tensor([0, 0, 1])).item()
    0.2649...

    Schroff, Kalenichenko, Philbin: FaceNet. CVPR 2015. Hermans, Beyer, Leibe: In Defense of the Triplet Loss. 2017.
    """

    geometry = "euclidean"

    def __init__(self, margin: float = 0.2, mining: Choice = "all", max_per_class: int | None = None) -> None:
        super().__init__()
        if mining not in ("all", "semi_hard", "hardest", "disjoint"):
            raise ValueError(
                f"TripletLoss has no mining {mining!r}; choose 'all', 'semi_hard', 'hardest' or 'disjoint'"
            )
        self.margin, self.mining, self.max_per_class = margin, mining, max_per_class

    def value(self, view: View) -> Tensor:
        """The rows, or the rows with the positives of each query by index, or no rows at all."""
        if self.mining == "hardest":
            return view.mean(self.rows)
        if self.mining == "disjoint":
            return self._disjoint(view)
        return view.mean(self._all if self.mining == "all" else self._semi_hard, own=view.members())

    def rows(self, s: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
        """The hardest triplet of each anchor."""
        square = s.square()
        hinge = (masked_max(square, positive) - masked_min(square, negative) + self.margin).relu()
        return hinge, positive.any(1) & negative.any(1)

    def _all(
        self, d: Tensor, positive: Tensor, negative: Tensor, index: Tensor, exists: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Each active triplet adds d_ap² − d_an² + m: so only how often each pair is active has to be counted."""
        square = d.square()
        near = square.gather(1, index)
        limits = torch.where(exists, near + self.margin, -torch.inf).detach()
        far = torch.where(negative, square.detach(), torch.inf)
        push, pulls = torch.zeros_like(square), []
        for k in range(index.shape[1]):
            active = far < limits[:, k : k + 1]
            push += active
            pulls.append(active.sum(1))
        pull = torch.stack(pulls, 1) if pulls else torch.zeros_like(near)
        total = ((near + self.margin) * pull).sum(1) - (square * push).sum(1)
        return total, exists.sum(1) * negative.sum(1)

    def _semi_hard(
        self, d: Tensor, positive: Tensor, negative: Tensor, index: Tensor, exists: Tensor
    ) -> tuple[Tensor, Tensor]:
        square = d.square()
        chosen = semi_hard(d.detach(), negative, index)
        hinge = (square.gather(1, index) - square.gather(1, chosen) + self.margin).relu()
        defined = exists & negative.any(1, keepdim=True)
        return masked_sum(hinge, defined), defined.sum(1)

    def _disjoint(self, view: View) -> Tensor:
        n = view.size
        if view.gallery is not None or n % 3:
            raise ValueError(
                f"TripletLoss(mining='disjoint') needs a batch of triplets and no gallery, got {n} rows"
                f"{'' if view.gallery is None else ' and a gallery'}; give anchor, positive, negative in turn"
            )
        anchor = torch.arange(0, n, 3, device=view.queries.device)
        if view.checks_values and view.same is equal_labels:
            labels = view.labels[anchor]
            wrong = (labels != view.labels[anchor + 1]) | (labels == view.labels[anchor + 2])
            if wrong.any():
                first = 3 * int(wrong.nonzero()[0])
                raise ValueError(
                    f"rows {first} to {first + 2} have labels {view.labels[first : first + 3].tolist()}, not of an "
                    "anchor, a positive and a negative; use TripletSampler, or another mining"
                )
        near, far = view.at(anchor, anchor + 1), view.at(anchor, anchor + 2)
        return (near.square() - far.square() + self.margin).relu().mean()


class SmoothTripletLoss(RowLoss):
    """log(1 + e^{x_a·x_n − x_a·x_p}), the mean over all triplets (Sohn 2016, equation 4).

    Inputs: vectors of free length, or unit vectors with a `scale` that multiplies the products. Takes `max_per_class`,
    the size of the largest class, and then needs no synchronisation with the device.

    Relations: with two classes the terms of `NPairLoss` are of this form; `TripletLoss` is the hinge on distances.

    >>> loss = SmoothTripletLoss()
    >>> loss(torch.eye(3), torch.tensor([0, 0, 1])).item()
    0.6931...

    Sohn: Improved Deep Metric Learning with Multi-class N-pair Loss Objective. NIPS 2016.
    """

    def __init__(self, scale: float = 1.0, max_per_class: int | None = None) -> None:
        super().__init__()
        self.scale, self.max_per_class = scale, max_per_class

    def value(self, view: View) -> Tensor:
        """The rows, with the positives of each query by index."""
        return view.mean(self._triplets, own=view.members())

    def _triplets(
        self, s: Tensor, positive: Tensor, negative: Tensor, index: Tensor, exists: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Σ over positives of a sum over negatives, with its weights summed on the way: K tables never live at once."""
        s = s * self.scale
        far = torch.where(negative, s.detach(), -torch.inf)
        near = torch.where(exists, s.detach().gather(1, index), torch.inf)
        total, push, pulls = torch.zeros_like(far[:, 0]), torch.zeros_like(far), []
        for k in range(index.shape[1]):
            gap = far - near[:, k : k + 1]
            total = total + softplus(gap).sum(1)
            share = gap.sigmoid()
            push += share
            pulls.append(-share.sum(1))
        weights = push.scatter_add(1, index, torch.stack(pulls, 1)) if pulls else push
        return weighted(total, s, weights), exists.sum(1) * negative.sum(1)
