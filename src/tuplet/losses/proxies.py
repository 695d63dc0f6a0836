"""Proxy losses: the gallery, or the queries, are learned vectors, one or more for each class."""

from collections.abc import Callable
from dataclasses import replace

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.functional import normalize

from tuplet.errors import above_zero, at_least
from tuplet.losses.base import RowLoss, check_one_positive
from tuplet.losses.sharded import hold, sharded_softmax
from tuplet.rows import ProcessGroup, View, masked_logsumexp, masked_mean, masked_sum, softplus
from tuplet.rows.checks import check_device
from tuplet.rows.masks import equal_labels

#: Vectors that are drawn at once, since a process that keeps its share has no memory for all.
_DRAWN = 16 * 1024


class ProxyLoss(RowLoss):
    """Base of the losses with proxies: the parameter `proxies` is the gallery of the batch.

    A loss with several proxies for each class gives their number and sets it as `centers`. With `sharded` each process
    holds the proxies of its share of the classes, `shard`, alone.
    """

    takes_gallery = False
    proxies: nn.Parameter
    shard: range

    def __init__(self, num_classes: int, dim: int, centers: int = 1, sharded: bool = False) -> None:
        super().__init__()
        at_least(1, num_classes=num_classes, dim=dim, centers=centers)
        self.num_classes, self.sharded = num_classes, sharded
        self.shard, self._processes = range(num_classes), 1
        if sharded and dist.is_available() and dist.is_initialized():
            group = ProcessGroup()
            self.shard, self._processes = range(*group.shares(num_classes)[group.rank]), group.world
        own = range(self.shard.start * centers, self.shard.stop * centers)
        self.proxies = nn.Parameter(_random_directions(num_classes * centers, dim, own))

    def arrange(self, view: View) -> View:
        """Make the proxies the gallery, with the proxies of one class as positives of each query."""
        gallery, labels = self.labelled_proxies(view)
        view = replace(view, gallery=gallery, gallery_labels=labels, member=False)
        if view.same is not equal_labels:
            firsts = replace(view, gallery=gallery[:: self.centers], gallery_labels=labels[:: self.centers])
            check_one_positive(firsts, type(self).__name__, "use ProxyAnchorLoss for examples of several classes")
        return view

    def labelled_proxies(self, view: View) -> tuple[Tensor, Tensor]:
        """Return the proxies and their labels, after a check that they fit the batch."""
        name, proxies = type(self).__name__, self.proxies
        if view.gallery is not None:
            raise ValueError(f"{name} compares with its proxies and takes no gallery; leave gallery= out")
        if self.num_classes < self._processes:
            raise ValueError(
                f"{name} has {self.num_classes} classes for {self._processes} processes; leave sharded= out"
            )
        processes = 1 if view.group is None else view.group.world
        if self.sharded and processes != self._processes:
            raise ValueError(
                f"{name} divides its classes among {self._processes} processes and gets the batches of {processes}; "
                "make it after init_process_group, and call it with distributed=True"
            )
        if view.queries.shape[1] != proxies.shape[1]:
            raise ValueError(
                f"{name} was made with dim={proxies.shape[1]}, got embeddings of dimension {view.queries.shape[1]}; "
                "make the loss with the model's dimension"
            )
        check_device(f"{name} is", proxies.device, "embeddings", view.queries.device)
        if view.checks_values and view.same is equal_labels:
            wrong = (view.labels < 0) | (view.labels >= self.num_classes)
            if wrong.any():
                raise ValueError(
                    f"{name} has classes 0 to {self.num_classes - 1}, got label {int(view.labels[wrong][0])}; "
                    "number the classes from 0, or make the loss with more classes"
                )
        labels = torch.arange(proxies.shape[0], device=view.labels.device) // self.centers + self.shard.start
        return self.held(view, proxies).to(view.dtype), labels

    def held(self, view: View, parameter: Tensor) -> Tensor:
        """Return a parameter for a view: one that every process holds, or the share of this process."""
        return hold(parameter, view) if self.sharded else view.learned(parameter)


class ProxyNCALoss(ProxyLoss):
    """Proxy-NCA loss: −log(e^{−d(x, p_y)} / Σ_{z≠y} e^{−d(x, p_z)}), the mean over queries.

    The proxy of the own class, p_y, is left out of the denominator (Wang et al. 2019, equation 5).

    With K < num_classes proxies, the proxy p(u) of an example u is the nearest of the K (equation 4). A query x then
    has the positives u and the negatives z of its batch, each in the place of its proxy: the mean over u of
    −log(e^{−d(x, p(u))} / Σ_z e^{−d(x, p(z))}). A proxy counts once for each z that it stands for, as the equation is
    printed; it is not confirmed if its authors count it once. The nearest proxies are constant in the gradient.

    Args:
        num_classes: the number of classes.
        dim: the dimension of the embeddings.
        squared: d is the squared Euclidean distance; False for the distance itself, as the ranked list paper prints it.
        proxies: K, the number of proxies; None for one of each class.

    Inputs: unit vectors; any batches (for K < num_classes with several examples of each class), labels 0 …
    num_classes − 1. `proxies` is a parameter: give `loss.parameters()` to the optimizer, usually with a larger learning
    rate.

    Related: `NCALoss` over proxies. `SoftmaxLoss` has products, biases, and the positive in the denominator.

    >>> loss = ProxyNCALoss(num_classes=3, dim=2)
    >>> loss(torch.zeros(2, 2), torch.tensor([0, 2])).isfinite().item()
    True

    Movshovitz-Attias, Toshev, Leung, Ioffe, Singh: No Fuss Distance Metric Learning using Proxies. ICCV 2017.
    """

    name, geometry, normalize = "proxy_nca", "euclidean", True

    def __init__(self, num_classes: int, dim: int, squared: bool = True, proxies: int | None = None) -> None:
        super().__init__(num_classes, dim)
        if proxies is not None and not 1 <= proxies <= num_classes:
            raise ValueError(f"proxies is {proxies}; give a number from 1 to num_classes={num_classes}, or None")
        self.squared = squared
        if proxies is not None:
            self.proxies = nn.Parameter(self.proxies.detach()[:proxies].clone())

    def arrange(self, view: View) -> View:
        """Make the proxies the gallery: that of each class, or that of each example of the batch."""
        if len(self.proxies) == self.num_classes:
            return super().arrange(view)
        proxies, numbers = self.labelled_proxies(view)
        with torch.no_grad():
            # Their labels say nothing here.
            to_all = replace(view, labels=view.positions, same=equal_labels, gallery=proxies, gallery_labels=numbers)
            nearest = replace(to_all, member=False).each(lambda d, positive, negative: d.argmin(1))
        return replace(view, gallery=proxies.index_select(0, nearest), gallery_labels=view.labels)

    def rows(self, d: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
        """Return the term of each query that has a positive and a negative proxy."""
        d = d.square() if self.squared else d
        return masked_mean(d, positive) + masked_logsumexp(-d, negative), positive.any(1) & negative.any(1)


class ClassifierLoss(ProxyLoss):
    """Base of the softmax losses: the cross-entropy of one logit for each class, the mean over queries.

    A subclass defines `logits(s, positive, negative, *inputs)`. It returns for each query the logarithm of the sum over
    the other classes, the logit of its own class, and if it has a class.
    """

    logits: Callable[..., tuple[Tensor, Tensor, Tensor]]

    def value(self, view: View, *inputs: Tensor) -> Tensor:
        """Return the mean over queries; `inputs` are parameters with a row for each class, which `logits` gets."""
        if self.sharded and view.group is not None:
            held = [self.held(view, x) for x in inputs]
            return sharded_softmax(view, view.group, self.logits, self.term, held)
        return view.mean(self.rows, other=inputs)

    def rows(self, s: Tensor, positive: Tensor, negative: Tensor, *inputs: Tensor) -> tuple[Tensor, Tensor]:
        """Return the cross-entropy of each query that has a class."""
        push, own, defined = self.logits(s, positive, negative, *inputs)
        return self.term(push, own), defined

    def term(self, push: Tensor, own: Tensor) -> Tensor:
        """Return the cross-entropy, given the first two of `logits`."""
        return softplus(push - own)


class SoftmaxLoss(ClassifierLoss):
    """Softmax loss: the cross-entropy of x·wᵀ + b, the mean over queries.

    This is the classifier that metric learning is compared with.

    Args:
        num_classes: the number of classes.
        dim: the dimension of the embeddings.
        sharded: divide the classes among the processes, for millions of them: see `CosFaceLoss`.

    Inputs: vectors of any length; any batches, labels 0 … num_classes − 1. `proxies` (num_classes, dim) are its weights
    w and `bias` is b: give `loss.parameters()` to the optimizer.

    Related: `ProxyNCALoss` has distances instead of products, and no bias.

    >>> loss = SoftmaxLoss(num_classes=4, dim=2)
    >>> loss(torch.zeros(2, 2), torch.tensor([0, 2])).item()
    1.3862...

    Sohn: Improved Deep Metric Learning with Multi-class N-pair Loss Objective. NIPS 2016, which compares with it.
    """

    name, normalize = "softmax", "eval"

    def __init__(self, num_classes: int, dim: int, sharded: bool = False) -> None:
        super().__init__(num_classes, dim, sharded=sharded)
        self.bias = nn.Parameter(torch.zeros(len(self.shard)))

    @torch.no_grad()
    def classify(self, embeddings: Tensor) -> Tensor:
        """Return the class of each row: that of the largest x·wᵀ + b."""
        if self.sharded:
            raise ValueError("each process has a share of the classes; make the loss with sharded=False to classify")
        return (embeddings @ self.proxies.T + self.bias).argmax(1)

    def value(self, view: View, *inputs: Tensor) -> Tensor:
        """Return the mean over queries, with the biases as an input, so that they get gradients."""
        return super().value(view, self.bias, *inputs)

    def logits(self, s: Tensor, positive: Tensor, negative: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Add the biases."""
        logits = s + bias
        return masked_logsumexp(logits, negative), masked_sum(logits, positive), positive.any(1)


class ProxyAnchorLoss(ProxyLoss):
    """Proxy-Anchor loss: log[1 + Σ_P e^{−α(s − δ)}] + log[1 + Σ_N e^{α(s + δ)}] for each proxy, s the dot product.

    The proxies, made unit, are the queries and the batch is their gallery. The first term is averaged over the classes
    in the batch, the second over all classes.

    Args:
        num_classes: the number of classes.
        dim: the dimension of the embeddings.
        alpha: α, the steepness of both terms.
        margin: δ, the distance of both boundaries from 0.

    Inputs: unit vectors; any batches, labels 0 … num_classes − 1. `proxies` is a parameter: give `loss.parameters()` to
    the optimizer, usually with a learning rate a hundred times that of the model.

    Related: `RAWLoss` seen from the proxies. Its `weights` have a row for each proxy and a column for each example.

    >>> loss = ProxyAnchorLoss(num_classes=3, dim=2)
    >>> loss(torch.eye(2), torch.tensor([0, 2])).isfinite().item()
    True

    Kim, Kim, Cho, Kwak: Proxy Anchor Loss for Deep Metric Learning. CVPR 2020.
    """

    name, normalize = "proxy_anchor", True

    def __init__(self, num_classes: int, dim: int, alpha: float = 32.0, margin: float = 0.1) -> None:
        super().__init__(num_classes, dim)
        above_zero(alpha=alpha)
        self.alpha, self.margin = alpha, margin

    def arrange(self, view: View) -> View:
        """Make the proxies the queries and the batch their gallery."""
        proxies, labels = self.labelled_proxies(view)
        x, y = view.queries, view.labels
        return replace(view, queries=normalize(proxies), labels=labels, gallery=x, gallery_labels=y, member=False)

    def value(self, view: View) -> Tensor:
        """Return both means. They have counts of their own, so each proxy brings its share of both."""
        total, _ = view.total(self._anchors, shared=(_classes_in_batch(view).clamp_min(1),))
        return total

    def _anchors(self, s: Tensor, positive: Tensor, negative: Tensor, present: Tensor) -> tuple[Tensor, Tensor]:
        pull = softplus(masked_logsumexp(-self.alpha * (s - self.margin), positive))
        push = softplus(masked_logsumexp(self.alpha * (s + self.margin), negative))
        return pull / present + push / self.proxies.shape[0], torch.ones_like(pull)


def _random_directions(count: int, dim: int, kept: range) -> Tensor:
    """Draw `count` vectors of about unit length and return those in `kept`; `kept` does not change their values."""
    drawn = torch.empty(len(kept), dim)
    for first in range(0, count, _DRAWN):
        block = torch.randn(min(_DRAWN, count - first), dim)
        start, stop = max(first, kept.start), min(first + len(block), kept.stop)
        if start < stop:
            drawn[start - kept.start : stop - kept.start] = block[start - first : stop - first]
    return drawn.div_(dim**0.5)


def _classes_in_batch(view: View) -> Tensor:
    """Return the number of queries, which are proxies, that have an example in the gallery."""
    if view.same is equal_labels:
        return torch.zeros_like(view.labels).scatter_(0, view.column_labels, 1).sum()
    with torch.no_grad():
        return view.total(lambda s, positive, negative: (s[:, 0], positive.any(1)))[1]
