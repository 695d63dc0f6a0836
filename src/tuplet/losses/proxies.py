"""Proxy losses: the gallery, or the queries, are learned vectors, one for each class."""

from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from tuplet.losses.base import RowLoss, check_one_positive
from tuplet.rows import View, masked_logsumexp, masked_sum, softplus
from tuplet.rows.checks import check_device
from tuplet.rows.masks import equal_labels


def _proxies(num_classes: int, dim: int) -> nn.Parameter:
    """Random directions of about unit length."""
    if num_classes < 1 or dim < 1:
        raise ValueError(f"proxies need num_classes and dim of at least 1, got num_classes={num_classes} and dim={dim}")
    return nn.Parameter(torch.randn(num_classes, dim) / dim**0.5)


def _beside(view: View, proxies: Tensor, name: str) -> tuple[Tensor, Tensor]:
    """The proxies and their labels, fit to stand beside the batch of a view."""
    if view.gallery is not None:
        raise ValueError(f"{name} has its proxies for a gallery and takes no other; leave gallery= out")
    if view.queries.shape[1] != proxies.shape[1]:
        raise ValueError(
            f"{name} was made for dim={proxies.shape[1]}, got embeddings of dimension {view.queries.shape[1]}; "
            "make the loss with the model's dimension"
        )
    check_device(f"{name} is", proxies.device, "embeddings", view.queries.device)
    if view.checks_values and view.same is equal_labels:
        wrong = (view.labels < 0) | (view.labels >= proxies.shape[0])
        if wrong.any():
            raise ValueError(
                f"{name} has classes 0 to {proxies.shape[0] - 1}, got label {int(view.labels[wrong][0])}; "
                "number the classes from 0, or make the loss with more of them"
            )
    return view.learned(proxies).to(view.dtype), torch.arange(proxies.shape[0], device=view.labels.device)


def _looking_at(proxies: Tensor, view: View, name: str) -> View:
    """The batch of a view with the proxies for its gallery, one for each example."""
    gallery, labels = _beside(view, proxies, name)
    view = replace(view, gallery=gallery, gallery_labels=labels, member=False)
    if view.same is not equal_labels:
        check_one_positive(view, name, "use ProxyAnchorLoss for several classes an example")
    return view


class ProxyNCALoss(RowLoss):
    """−log( e^{−d(x, p_y)} / Σ_{z≠y} e^{−d(x, p_z)} ), the mean over queries (Wang et al. 2019, equation 5).

    One proxy p a class, the positive one left out of the denominator. d is the squared Euclidean distance, as its
    authors have it, or the plain one with `squared=False`, as the ranked list paper prints it.

    Inputs: unit vectors; labels 0 … num_classes − 1. `proxies` (num_classes, dim) is a parameter: give
    `loss.parameters()` to the optimiser, usually with a larger rate.

    Relations: `NCALoss` over proxies; `SoftmaxLoss` has products, biases, and the positive in the denominator.

    >>> loss = ProxyNCALoss(num_classes=3, dim=2)
    >>> loss(torch.zeros(2, 2), torch.tensor([0, 2])).isfinite().item()
    True

    Movshovitz-Attias, Toshev, Leung, Ioffe, Singh: No Fuss Distance Metric Learning using Proxies. ICCV 2017.
    """

    geometry = "euclidean"

    def __init__(self, num_classes: int, dim: int, squared: bool = True) -> None:
        super().__init__()
        self.proxies, self.squared = _proxies(num_classes, dim), squared

    def arrange(self, view: View) -> View:
        """The proxies are the gallery."""
        return _looking_at(self.proxies, view, "ProxyNCALoss")

    def rows(self, s: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
        """Near the own proxy, far from the others."""
        d = s.square() if self.squared else s
        return masked_sum(d, positive) + masked_logsumexp(-d, negative), positive.any(1) & negative.any(1)


class SoftmaxLoss(RowLoss):
    """Cross-entropy of x·wᵀ + b, the mean over queries.

    The classifier that metric learning is measured against. `proxies` (num_classes, dim) are its weights w, `bias`
    its b.

    Inputs: vectors of free length; labels 0 … num_classes − 1.

    >>> loss = SoftmaxLoss(num_classes=4, dim=2)
    >>> loss(torch.zeros(2, 2), torch.tensor([0, 2])).item()
    1.3862...

    Sohn: Improved Deep Metric Learning with Multi-class N-pair Loss Objective. NIPS 2016, which compares with it.
    """

    def __init__(self, num_classes: int, dim: int) -> None:
        super().__init__()
        self.proxies, self.bias = _proxies(num_classes, dim), nn.Parameter(torch.zeros(num_classes))

    def arrange(self, view: View) -> View:
        """The proxies are the gallery."""
        return _looking_at(self.proxies, view, "SoftmaxLoss")

    def value(self, view: View) -> Tensor:
        """The rows, with the biases as inputs since they learn."""
        return view.mean(self._classes, other=(self.bias,))

    def _classes(self, s: Tensor, positive: Tensor, negative: Tensor, bias: Tensor) -> tuple[Tensor, Tensor]:
        logits = s + bias
        return softplus(masked_logsumexp(logits, negative) - masked_sum(logits, positive)), positive.any(1)


def _present(view: View) -> Tensor:
    """How many of the proxies that are the queries have an example."""
    if view.same is equal_labels:
        return torch.zeros_like(view.labels).scatter_(0, view.there_labels, 1).sum()
    with torch.no_grad():
        return view.total(lambda s, positive, negative: (s[:, 0], positive.any(1)))[1]


class ProxyAnchorLoss(RowLoss):
    """log[1 + Σ_P e^{−α(s − δ)}] + log[1 + Σ_N e^{α(s + δ)}] for each proxy, s the dot product.

    The proxies, made unit, are the queries, and the batch is their gallery. The first term is the mean over the classes
    in the batch, the second over all classes. δ is `margin`.

    Inputs: unit vectors; labels 0 … num_classes − 1. `proxies` (num_classes, dim) is a parameter: give
    `loss.parameters()` to the optimiser, usually with a rate a hundred times the model's.

    Relations: `RAWLoss` seen from the proxies. Its `weights` have a row for each proxy and a column for each example.

    >>> loss = ProxyAnchorLoss(num_classes=3, dim=2)
    >>> loss(torch.eye(2), torch.tensor([0, 2])).isfinite().item()
    True

    Kim, Kim, Cho, Kwak: Proxy Anchor Loss for Deep Metric Learning. CVPR 2020.
    """

    def __init__(self, num_classes: int, dim: int, alpha: float = 32.0, margin: float = 0.1) -> None:
        super().__init__()
        self.proxies, self.alpha, self.margin = _proxies(num_classes, dim), alpha, margin

    def arrange(self, view: View) -> View:
        """The proxies are the queries."""
        proxies, labels = _beside(view, self.proxies, "ProxyAnchorLoss")
        return replace(
            view,
            queries=normalize(proxies),
            labels=labels,
            gallery=view.queries,
            gallery_labels=view.labels,
            member=False,
        )

    def value(self, view: View) -> Tensor:
        """Two means with counts of their own, so each proxy brings its share of both."""
        total, _ = view.total(self._anchors, shared=(_present(view).clamp_min(1),))
        return total

    def _anchors(self, s: Tensor, positive: Tensor, negative: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
        pull = softplus(masked_logsumexp(-self.alpha * (s - self.margin), positive))
        push = softplus(masked_logsumexp(self.alpha * (s + self.margin), negative))
        return pull / present + push / self.proxies.shape[0], torch.ones_like(pull)
