"""Triplet losses: an anchor should be nearer to its positive than to its negative."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor

from tuplet.errors import did_you_mean
from tuplet.losses.base import RowLoss, view_of
from tuplet.losses.npair import ScaledLoss
from tuplet.mining import MINING, Mining, as_rule
from tuplet.rows import View, masked_max, masked_min, masked_sum, softplus, weighted
from tuplet.rows.masks import equal_labels
from tuplet.rows.rules import naming
from tuplet.sampling.base import BatchKind

#: Choices of triplets that are no rules of `tuplet.mining`.
Triplets = Literal["all", "hardest", "disjoint"]


class Choice(NamedTuple):
    """Triplets with one negative for each positive, or one for each anchor."""

    view: View
    triplets: Callable[..., tuple[Tensor, Tensor, Tensor]]
    """Function of rows and `inputs` that returns d_ap, d_an and the mask of the triplets, (R, K)."""
    inputs: tuple[Tensor, ...]


class MinedTriplets(RowLoss):
    """Base of the losses of triplets of distances; `mining` chooses the triplets. See `TripletLoss` for the choices."""

    geometry = "euclidean"

    def __init__(self, mining: Mining | str | None, max_per_class: int | None) -> None:
        super().__init__()
        choices = get_args(Triplets)
        if isinstance(mining, str) and mining not in (*choices, *MINING):
            raise ValueError(
                f"{type(self).__name__} has no mining {mining!r}; {did_you_mean(mining, (*choices, *MINING))}"
            )
        self.mining = "all" if mining is None else mining if mining in choices else as_rule(mining)
        self.max_per_class = max_per_class

    @property
    def combines_all(self) -> bool:
        """True if the triplets of an anchor are all combinations of its positives and its negatives that are kept."""
        return self.mining == "all" or (isinstance(self.mining, Mining) and not self.mining.names)

    @property
    def batch(self) -> BatchKind:  # type: ignore[override]
        """Triplets in turn for "disjoint", several examples of each class for the others."""
        return "triplets" if self.mining == "disjoint" else "classes"

    @property
    def takes_gallery(self) -> bool:  # type: ignore[override]
        """False for "disjoint", whose triplets are in the batch."""
        return self.mining != "disjoint"

    @property
    def marks_active(self) -> bool:  # type: ignore[override]
        """True for "disjoint", if the loss has a term for each triplet."""
        return self.mining == "disjoint" and type(self).term is not MinedTriplets.term

    def active(self, embeddings: Tensor, labels: Tensor, *, distributed: Any = False) -> Tensor:
        """Return a mask of the triplets of a batch, in their order, that have a loss above zero."""
        return self.term(*self.disjoint(view_of(self, embeddings, labels, distributed=distributed))) > 0

    def term(self, near: Tensor, far: Tensor) -> Tensor:
        """Return the terms of triplets with these distances d_ap and d_an."""
        raise NotImplementedError

    def all_terms(
        self, d: Tensor, positive: Tensor, negative: Tensor, index: Tensor, exists: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the sum over all triplets of each anchor, and their number, without K tables at once."""
        raise NotImplementedError

    def value(self, view: View) -> Tensor:
        """Return the mean over the chosen triplets."""
        if self.mining == "disjoint":
            return self.term(*self.disjoint(view)).mean()
        if self.combines_all:
            return view.mean(self.all_terms if view.rule is None else self._kept_terms, own=view.members())
        view, triplets, inputs = self.choice(view)

        def rows(d: Tensor, positive: Tensor, negative: Tensor, *inputs: Tensor) -> tuple[Tensor, Tensor]:
            near, far, exists = triplets(d, positive, negative, *inputs)
            return masked_sum(self.term(near, far), exists), exists.sum(1)

        return view.mean(rows, own=inputs)

    def _kept_terms(
        self, d: Tensor, positive: Tensor, negative: Tensor, index: Tensor, exists: Tensor
    ) -> tuple[Tensor, Tensor]:
        return self.all_terms(d, positive, negative, index, exists & positive.gather(1, index))

    def choice(self, view: View) -> Choice:
        """Choose triplets where not all are combined: "hardest", or those of a rule that names negatives."""
        if self.mining == "hardest":
            return Choice(view, _hardest, ())
        name = naming(self.mining, view)

        def named(d: Tensor, positive: Tensor, negative: Tensor, *inputs: Tensor) -> tuple[Tensor, Tensor, Tensor]:
            columns = name(d, positive, negative, *inputs)
            return d.gather(1, inputs[0]), d.gather(1, columns.clamp_min(0)), columns >= 0

        # The rule is applied here, where it is known which positive a negative is named for.
        return Choice(replace(view, rule=None), named, self.mining.inputs(view))

    def disjoint(self, view: View) -> tuple[Tensor, Tensor]:
        """Return d_ap and d_an of a batch that holds anchor, positive and negative in turn."""
        n = view.size
        if view.gallery is not None or n % 3:
            raise ValueError(
                f"{type(self).__name__}(mining='disjoint') needs a batch of triplets and no gallery, got {n} rows"
                f"{'' if view.gallery is None else ' and a gallery'}; pass anchor, positive, negative in turn"
            )
        anchor = torch.arange(0, n, 3, device=view.queries.device)
        if view.checks_values and view.same is equal_labels:
            labels = view.labels[anchor]
            wrong = (labels != view.labels[anchor + 1]) | (labels == view.labels[anchor + 2])
            if wrong.any():
                first = 3 * int(wrong.nonzero()[0])
                raise ValueError(
                    f"rows {first} to {first + 2} have labels {view.labels[first : first + 3].tolist()}, not those "
                    "of an anchor, a positive and a negative; use TripletSampler, or another mining"
                )
        return view.at(anchor, anchor + 1), view.at(anchor, anchor + 2)


def _hardest(d: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the farthest positive and the nearest negative of each row."""
    defined = (positive.any(1) & negative.any(1))[:, None]
    # Without a positive or a negative the distance is infinite, and would make a NaN on the way.
    near = torch.where(defined, masked_max(d, positive)[:, None], 0)
    return near, torch.where(defined, masked_min(d, negative)[:, None], 1), defined


class TripletLoss(MinedTriplets):
    """Triplet loss: [d_ap² − d_an² + m]₊, the mean over the chosen triplets (Wang et al. 2017, equation 2).

    Args:
        margin: m, by which the squared distances should differ.
        mining: which triplets to choose.
            "all" or None: every anchor, positive and negative; triplets without a loss count in the mean.
            "hardest": for each anchor its farthest positive and nearest negative (batch hard).
            "disjoint": rows 3t, 3t+1, 3t+2 of the batch are anchor, positive and negative.
            A rule of `tuplet.mining` or its name: "semi_hard" takes for each (a, p) the nearest negative with
            d_an > d_ap, else the farthest (FaceNet), and "distance_weighted" the one that it draws. Rules that do not
            choose a negative for each positive give all triplets of the pairs that they keep.
        max_per_class: the size of the largest class; if given, no synchronisation with the device is needed.

    Inputs: vectors of any length, usually unit; batches with several examples of each class, for "disjoint" those of
    `sampling.TripletSampler`. The work of "all" and "semi_hard" is O(N·K·M), their memory that of a few blocks.

    Related: `SmoothTripletLoss` is the smooth form on dot products. `TripletRatioLoss` has a ratio in place of a
    difference. `NPairLoss` compares with all negatives at once.

    >>> loss = TripletLoss(margin=0.2)
    >>> loss(torch.tensor([[0.0], [0.5], [0.6]]), torch.tensor([0, 0, 1])).item()
    0.2649...

    Schroff, Kalenichenko, Philbin: FaceNet. CVPR 2015. Hermans, Beyer, Leibe: In Defense of the Triplet Loss. 2017.
    """

    name = "triplet"

    def __init__(
        self, margin: float = 0.2, mining: Mining | str | None = "all", max_per_class: int | None = None
    ) -> None:
        super().__init__(mining, max_per_class)
        self.margin = margin

    def term(self, near: Tensor, far: Tensor) -> Tensor:
        """Return the hinge on squared distances."""
        return (near.square() - far.square() + self.margin).relu()

    def all_terms(
        self, d: Tensor, positive: Tensor, negative: Tensor, index: Tensor, exists: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Add the margin to the squared distances of positives."""
        square = d.square()
        total = active_sums(square.gather(1, index) + self.margin, exists, square, negative)
        return total, exists.sum(1) * negative.sum(1)


def active_sums(near: Tensor, exists: Tensor, far: Tensor, negative: Tensor) -> Tensor:
    """Return Σ [near − far]₊ over the positives (R, K) and the negatives (R, M) of each row, without K tables at once.

    Counts how often each value is in an active pair: such a pair adds near − far.
    """
    limits = torch.where(exists, near, -torch.inf).detach()
    there = torch.where(negative, far.detach(), torch.inf)
    push, pulls = torch.zeros_like(far), []
    for k in range(near.shape[1]):
        active = there < limits[:, k : k + 1]
        push += active
        pulls.append(active.sum(1))
    pull = torch.stack(pulls, 1) if pulls else torch.zeros_like(near)
    return (near * pull).sum(1) - (far * push).sum(1)


class SmoothTripletLoss(ScaledLoss):
    """Smooth triplet loss: log(1 + e^{x_a·x_n − x_a·x_p}), the mean over all triplets (Sohn 2016, equation 4).

    Args:
        scale: a factor of the dot products.
        max_per_class: the size of the largest class; if given, no synchronisation with the device is needed.
        hinge: take [x_a·x_n − x_a·x_p]₊ instead, of which the smooth form is an upper bound (equation 5). That paper
            assumes unit vectors there, on which it is half of `TripletLoss(margin=0)`; it has no margin.

    Inputs: vectors of free length, or unit vectors with a `scale`; batches with several examples of each class.

    Related: with two classes the terms of `NPairLoss` are of this form. `TripletLoss` is the hinge on distances.

    >>> loss = SmoothTripletLoss()
    >>> loss(torch.eye(3), torch.tensor([0, 0, 1])).item()
    0.6931...

    Sohn: Improved Deep Metric Learning with Multi-class N-pair Loss Objective. NIPS 2016.
    """

    name = "smooth_triplet"

    def __init__(self, scale: float = 1.0, max_per_class: int | None = None, hinge: bool = False) -> None:
        super().__init__(scale, max_per_class)
        self.hinge = hinge

    @property
    def normalize(self) -> Literal["eval"] | bool | None:  # type: ignore[override]
        """Return True (unit length) for the hinge, which shorter vectors would lower; else that of the scale."""
        return True if self.hinge else super().normalize

    def value(self, view: View) -> Tensor:
        """Return the mean over all triplets."""
        return view.mean(self._triplets, own=view.members())

    def _triplets(
        self, s: Tensor, positive: Tensor, negative: Tensor, index: Tensor, exists: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Sum over the positives one by one, and sum the weights on the way: K tables never live at once."""
        s = s * self.scale
        far = torch.where(negative, s.detach(), -torch.inf)
        near = torch.where(exists, s.detach().gather(1, index), torch.inf)
        total, push, pulls = torch.zeros_like(far[:, 0]), torch.zeros_like(far), []
        for k in range(index.shape[1]):
            gap = far - near[:, k : k + 1]
            total = total + (gap.relu() if self.hinge else softplus(gap)).sum(1)
            share = (gap > 0).to(gap.dtype) if self.hinge else gap.sigmoid()
            push += share
            pulls.append(-share.sum(1))
        weights = push.scatter_add(1, index, torch.stack(pulls, 1)) if pulls else push
        return weighted(total, s, weights), exists.sum(1) * negative.sum(1)
