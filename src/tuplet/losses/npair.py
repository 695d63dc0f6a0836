"""N-pair losses: one positive against many negatives at once."""

from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from tuplet.losses.base import RowLoss, check_one_positive
from tuplet.rows import View, masked_logsumexp, masked_sum, softplus
from tuplet.rows.masks import equal_labels


class NPairLoss(RowLoss):
    """log(1 + Σ_{j≠i} e^{x_i·x_j⁺ − x_i·x_i⁺}), the mean over N pairs of N classes (Sohn 2016, equation 7).

    The batch has exactly two examples of each class: the first occurrence is the query x_i, the second its positive
    x_i⁺, and the other classes' seconds are its negatives. With a gallery, every row of the batch is a query, and the
    gallery holds one positive for each query label. variant="ovo" is Σ_{j≠i} log(1 + e^{x_i·x_j⁺ − x_i·x_i⁺})
    (equation 8). `symmetric` takes the mean with the roles swapped (footnote 2). `norm_penalty` times the mean
    squared length of all the vectors used is added (section 3.2.2).

    Inputs: vectors of free length, or unit vectors with a `scale` that multiplies the products: without one the loss of
    unit vectors cannot fall far. `sampling.NPairSampler` makes such batches.

    Relations: with unit vectors and a scale this is what others call InfoNCE; `NPairAllLoss` takes batches of any
    shape.

    >>> loss = NPairLoss()
    >>> loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).item()
    0.6931...

    Sohn: Improved Deep Metric Learning with Multi-class N-pair Loss Objective. NIPS 2016.
    """

    def __init__(
        self,
        variant: Literal["mc", "ovo"] = "mc",
        symmetric: bool = False,
        norm_penalty: float = 0.0,
        scale: float = 1.0,
    ) -> None:
        super().__init__()
        if variant not in ("mc", "ovo"):
            raise ValueError(f"NPairLoss has no variant {variant!r}; choose 'mc' or 'ovo'")
        self.variant, self.symmetric, self.norm_penalty, self.scale = variant, symmetric, norm_penalty, scale

    def value(self, view: View) -> Tensor:
        """Firsts against seconds, and the other way round if symmetric."""
        there = view.select(*_pairs(view)) if view.gallery is None else view
        ways = (there, _swapped(there)) if self.symmetric else (there,)
        # Pairs of equal labels have been looked at; who is alike by another comparison, or in a gallery, has not.
        if view.gallery is not None or view.same is not equal_labels:
            for way in ways:
                check_one_positive(way, "NPairLoss", "use NPairAllLoss for batches and galleries of any shape")
        value, *turned = (way.mean(self.rows) for way in ways)
        if turned:
            value = (value + turned[0]) / 2
        if self.norm_penalty:
            value = value + self.norm_penalty * _mean_square(view)
        return value

    def rows(self, s: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
        """One positive a row."""
        s = s * self.scale
        near = masked_sum(s, positive)
        if self.variant == "mc":
            total = softplus(masked_logsumexp(s, negative) - near)
        else:
            total = masked_sum(softplus(s - near[:, None]), negative)
        return total, positive.any(1)


def _pairs(view: View) -> tuple[Tensor, Tensor]:
    """The first and the second example of each class."""
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
    return order[0::2], order[1::2]


def _filled(view: View) -> Tensor | slice:
    """Which of the gallery there are: all, unless it is a memory."""
    return slice(None) if view.valid is None else view.valid


def _mean_square(view: View) -> Tensor:
    """The mean squared length of the vectors used. A gallery is that of all processes, and counts once."""

    def squares(vectors: Tensor) -> Tensor:
        each = vectors.to(view.dtype).square().sum(1)
        return torch.stack([each.sum(), torch.ones_like(each).sum()])

    used = squares(view.queries)
    if view.gallery is not None:
        there = squares(view.gallery[_filled(view)])
        used = view.ranks.sum(used + there / view.ranks.world) if view.ranks else used + there
    return used[0] / used[1]


def _swapped(view: View) -> View:
    """The gallery as queries, the queries as gallery: those of all processes."""
    there, here, labels = _filled(view), view.queries, view.labels
    if view.ranks and not view.split:
        sizes = view.ranks.sizes(view.size, here.device)
        here, labels = view.ranks.gather(here, sizes), view.ranks.gather(labels, sizes)
    return replace(
        view,
        queries=view.there[there],
        labels=view.there_labels[there],
        gallery=here,
        gallery_labels=labels,
        valid=None,
        table=None if view.table is None else view.table.T[there],
    )


class NPairAllLoss(RowLoss):
    """log[1 + Σ_n e^{x_a·x_n − x_a·x_p}] over every (a, p), with all negatives n of a (Wang et al. 2017, equation 10).

    The mean over all ordered positive pairs (a, p).

    Inputs: vectors of free length, or unit vectors with a `scale` that multiplies the products; batches of any shape.
    It takes `max_per_class` as the other losses of positive pairs do, and has no need of it.

    Relations: on an N-pair batch each example is a query once, and meets both examples of each other class, where
    `NPairLoss` lets firsts meet seconds only.

    >>> loss = NPairAllLoss()
    >>> loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).item()
    1.0986...

    Wang, Zhou, Wen, Liu, Lin: Deep Metric Learning with Angular Loss. ICCV 2017.
    """

    def __init__(self, scale: float = 1.0, max_per_class: int | None = None) -> None:
        super().__init__()
        self.scale, self.max_per_class = scale, max_per_class

    def rows(self, s: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
        """One sum over negatives serves all the positives of a query."""
        s = s * self.scale
        push = masked_logsumexp(s, negative)
        return masked_sum(softplus(push[:, None] - s), positive), positive.sum(1)


class NCALoss(RowLoss):
    """−log(Σ_P e^{x_i·x_j} / Σ_{j≠i} e^{x_i·x_j}), the mean over queries (Sohn 2016, equation 9).

    Neighbourhood components analysis with several positives: the probability that a random neighbour is of one's class.

    Inputs: vectors of free length, or unit vectors with a `scale` that multiplies the products.

    Relations: with one positive a query it is `NPairAllLoss`. `ProxyNCALoss` looks at proxies instead.

    >>> loss = NCALoss()
    >>> loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).item()
    1.0986...

    Goldberger, Roweis, Hinton, Salakhutdinov: Neighbourhood Components Analysis. NIPS 2004.
    """

    def __init__(self, scale: float = 1.0) -> None:
        super().__init__()
        self.scale = scale

    def rows(self, s: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
        """As log(1 + Σ_N/Σ_P), which neither under- nor overflows."""
        s, defined = s * self.scale, positive.any(1)
        # Without positives and negatives it is −∞ less −∞.
        gap = torch.where(defined, masked_logsumexp(s, negative) - masked_logsumexp(s, positive), 0)
        return softplus(gap), defined
