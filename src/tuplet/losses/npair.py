"""N-pair losses: one positive against many negatives at once."""

from dataclasses import replace
from typing import Literal, get_args

import torch
from torch import Tensor

from tuplet.errors import above_zero
from tuplet.losses.base import RowLoss, check_one_positive
from tuplet.losses.batchwise import refuse_gallery
from tuplet.rows import View, masked_logsumexp, masked_sum, softplus
from tuplet.rows.masks import equal_labels

Variant = Literal["mc", "ovo", "triplet"]


class ScaledLoss(RowLoss):
    """Base of the losses of products without a boundary, which need vectors of free length or a `scale`."""

    def __init__(self, scale: float = 1.0, max_per_class: int | None = None) -> None:
        super().__init__()
        above_zero(scale=scale)
        self.scale, self.max_per_class = scale, max_per_class

    @property
    def normalize(self) -> Literal["eval"] | None:  # type: ignore[override]
        """Return "eval" (free length in training) without a scale, None (any length) with one."""
        return "eval" if self.scale == 1.0 else None


class NPairLoss(ScaledLoss):
    """N-pair loss: log(1 + Σ_{j≠i} e^{x_i·x_j⁺ − x_i·x_i⁺}), the mean over N pairs of N classes.

    The batch has exactly two examples of each class. The first one is the query x_i, the second one its positive x_i⁺,
    and the second ones of the other classes are its negatives (Sohn 2016, equation 7). With a gallery, every row of the
    batch is a query, and the gallery holds one positive for each query label.

    Args:
        variant: "mc" for the equation above, or "ovo" for Σ_{j≠i} log(1 + e^{x_i·x_j⁺ − x_i·x_i⁺}) (equation 8).
            "triplet" for that paper's triplet baseline (section 4): pairs 2t and 2t + 1 of the batch, in its order,
            form two triplets, log(1 + e^{x_i·x_j⁺ − x_i·x_i⁺}) with the positive of the other pair as the negative.
        symmetric: take the mean with the roles of first and second examples exchanged (footnote 2).
        norm_penalty: the weight of the mean squared length of all vectors used, which is added (section 3.2.2).
        scale: a factor of the dot products.

    Inputs: vectors of free length, or unit vectors with a `scale`; two examples of each class, as
    `sampling.NPairSampler` draws them. Without a scale the loss of unit vectors cannot fall far.

    Related: with unit vectors and a scale it is known as InfoNCE. `NPairAllLoss` takes batches of any shape.

    >>> loss = NPairLoss()
    >>> loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).item()
    0.6931...

    Sohn: Improved Deep Metric Learning with Multi-class N-pair Loss Objective. NIPS 2016.
    """

    name, batch = "npair", "pairs"
    # A memory bank holds many positives of a query.
    takes_gallery = False

    def __init__(
        self, variant: Variant = "mc", symmetric: bool = False, norm_penalty: float = 0.0, scale: float = 1.0
    ) -> None:
        super().__init__(scale)
        if variant not in get_args(Variant):
            raise ValueError(f"variant is {variant!r}; it must be 'mc', 'ovo' or 'triplet'")
        self.variant, self.symmetric, self.norm_penalty = variant, symmetric, norm_penalty

    def value(self, view: View) -> Tensor:
        """Return the mean over the first examples as queries, and over the second ones if symmetric."""
        if self.variant == "triplet":
            refuse_gallery(self, view)
        ways = self._ways(view)
        # `_pairs` has checked equal labels. Another comparison or a gallery is still to be checked.
        if view.gallery is not None or view.same is not equal_labels:
            for way in ways:
                check_one_positive(way, "NPairLoss", "use NPairAllLoss for batches and galleries of any shape")
        value, *swapped = (self._mean(way) for way in ways)
        if swapped:
            value = (value + swapped[0]) / 2
        if self.norm_penalty:
            value = value + self.norm_penalty * _mean_square(view)
        return value

    def rows(self, s: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
        """Return the term of each query that has its positive."""
        s = s * self.scale
        near = masked_sum(s, positive)
        if self.variant == "ovo":
            total = masked_sum(softplus(s - near[:, None]), negative)
        else:
            total = softplus(masked_logsumexp(s, negative) - near)
        return total, positive.any(1)

    def _ways(self, view: View) -> list[View]:
        """Return the view of queries and their positives, and if symmetric that with the roles exchanged."""
        if view.gallery is not None:
            return [view, _swapped(view)] if self.symmetric else [view]
        first, second = _pairs(view)
        there = view.select(first, second)
        return [there, view.select(second, first)] if self.symmetric else [there]

    def _mean(self, view: View) -> Tensor:
        if self.variant != "triplet":
            return view.mean(self.rows)
        place = torch.arange(view.size, device=view.labels.device)
        return view.mean(self._triplets, own=(place ^ 1,), other=(place,))

    def _triplets(
        self, s: Tensor, positive: Tensor, negative: Tensor, partner: Tensor, place: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Return the term of each query, with the other pair as its only negative; an odd pair has none."""
        negative = negative & (place == partner[:, None])
        total, defined = self.rows(s, positive, negative)
        return total, defined & negative.any(1)


def _pairs(view: View) -> tuple[Tensor, Tensor]:
    """Return the indices of the first and of the second example of each class, in the order of the first ones."""
    labels = view.labels
    if labels.ndim != 1 or labels.shape[0] % 2:
        raise ValueError(
            f"NPairLoss needs exactly two examples of each class, got labels of shape {tuple(labels.shape)}; "
            "use NPairSampler, or NPairAllLoss for batches of any shape"
        )
    order = labels.argsort(stable=True)
    if view.checks_values:
        classes, counts = labels.unique(return_counts=True)
        if (counts != 2).any():
            odd = int((counts != 2).nonzero()[0])
            raise ValueError(
                f"NPairLoss needs exactly two examples of each class, but class {classes[odd].item()} has "
                f"{int(counts[odd])}; use NPairSampler, or NPairAllLoss for batches of any shape"
            )
    first, second = order[0::2], order[1::2]
    place = first.argsort()
    return first[place], second[place]


def _filled(view: View) -> Tensor | slice:
    """Return the gallery members that exist: all of them, unless the gallery is a memory bank."""
    return slice(None) if view.valid is None else view.valid


def _mean_square(view: View) -> Tensor:
    """Return the mean squared length of the vectors used. A gallery is the same in all processes and counts once."""

    def squares(vectors: Tensor) -> Tensor:
        each = vectors.to(view.dtype).square().sum(1)
        return torch.stack([each.sum(), torch.ones_like(each).sum()])

    used = squares(view.queries)
    if view.gallery is not None:
        there = squares(view.gallery[_filled(view)])
        used = view.group.sum(used + there / view.group.world) if view.group else used + there
    return used[0] / used[1]


def _swapped(view: View) -> View:
    """Exchange the queries, those of all processes, and a given gallery."""
    there, here, labels = _filled(view), view.queries, view.labels
    if view.group:
        sizes = view.group.sizes(embeddings=here, labels=labels)
        here, labels = view.group.gather(here, sizes), view.group.gather(labels, sizes)
    return replace(
        view,
        queries=view.column_vectors[there],
        labels=view.column_labels[there],
        gallery=here,
        gallery_labels=labels,
        valid=None,
        table=None if view.table is None else view.table.T[there],
    )


class NPairAllLoss(ScaledLoss):
    """N-pair loss over all pairs: log[1 + Σ_n e^{x_a·x_n − x_a·x_p}] for every (a, p), with all negatives n of a.

    The mean over all ordered positive pairs (a, p) (Wang et al. 2017, equation 10).

    Args:
        scale: a factor of the dot products.
        max_per_class: accepted as in the other losses of positive pairs, and not needed.

    Inputs: vectors of free length, or unit vectors with a `scale`; batches with several examples of each class.

    Related: on the same batch, `NPairLoss` compares first examples with second ones only. Here each example is a query,
    and both examples of each other class are negatives.

    >>> loss = NPairAllLoss()
    >>> loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).item()
    1.0986...

    Wang, Zhou, Wen, Liu, Lin: Deep Metric Learning with Angular Loss. ICCV 2017.
    """

    name = "npair_all"

    def rows(self, s: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum over the positives of each query. All of them share one sum over negatives."""
        s = s * self.scale
        push = masked_logsumexp(s, negative)
        return masked_sum(softplus(push[:, None] - s), positive), positive.sum(1)


class NCALoss(ScaledLoss):
    """Neighbourhood components analysis: −log(Σ_P e^{x_i·x_j} / Σ_{j≠i} e^{x_i·x_j}), the mean over queries.

    The fraction is the probability that a random neighbour is of the same class (Sohn 2016, equation 9).

    Args:
        scale: a factor of the dot products.

    Inputs: vectors of free length, or unit vectors with a `scale`; batches with several examples of each class.

    Related: equal to `NPairAllLoss` if each query has one positive. `ProxyNCALoss` compares with proxies instead.

    >>> loss = NCALoss()
    >>> loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).item()
    1.0986...

    Goldberger, Roweis, Hinton, Salakhutdinov: Neighbourhood Components Analysis. NIPS 2004.
    """

    name = "nca"

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__(scale)

    def rows(self, s: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
        """Return log(1 + Σ_N/Σ_P) for each query that has positives, which neither under- nor overflows."""
        s, defined = s * self.scale, positive.any(1)
        # Without positives and negatives the difference is −∞ − (−∞).
        gap = torch.where(defined, masked_logsumexp(s, negative) - masked_logsumexp(s, positive), 0)
        return softplus(gap), defined
