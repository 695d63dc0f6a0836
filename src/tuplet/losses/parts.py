"""Losses over the parts of an embedding: cascades, boosting and ensembles."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear, relu

from tuplet.errors import above_zero
from tuplet.losses.base import RowLoss
from tuplet.losses.batchwise import refuse_gallery
from tuplet.rows import View, masked_sum, softplus
from tuplet.rows.geometry import widest


class PartsLoss(RowLoss):
    """Base of the losses over parts: called as `loss([part, …], labels)`, each part (N, width).

    One tensor (N, d) is an embedding of a single part. A subclass defines `value_of_parts`. The options of the call are
    those of `RowLoss.forward`, but for a gallery, which such a loss does not take.
    """

    joint = True
    takes_gallery = False
    weighs_pairs = False
    normalize = True

    def __init__(self) -> None:
        super().__init__()
        self.part_widths: tuple[int, ...] = ()

    def forward(self, parts: Tensor | Sequence[Tensor], labels: Tensor, **options: Any) -> Tensor:  # type: ignore[override]
        """Return the loss of a batch, a scalar."""
        parts = [parts] if isinstance(parts, Tensor) else list(parts)
        matrices = all(isinstance(part, Tensor) and part.ndim == 2 for part in parts)
        if not matrices or len({len(part) for part in parts}) != 1:
            kinds = [f"{type(part).__name__} {tuple(np.shape(part))}" for part in parts[:4]]
            raise ValueError(
                f"parts must be a list of tensors (N, width) with one N, got [{', '.join(kinds)}]; give one for each"
            )
        self.part_widths = tuple(part.shape[1] for part in parts)
        return super().forward(torch.cat(parts, 1), labels, **options)

    def value(self, view: View) -> Tensor:
        """Return the loss of a view whose queries are all parts, one after another."""
        refuse_gallery(self, view)
        return self.value_of_parts(view, list(view.queries.split(self.part_widths, 1)))

    def value_of_parts(self, view: View, parts: list[Tensor]) -> Tensor:
        """Return the loss, given the parts of the queries; `replace(view, queries=part)` is the view of one."""
        raise NotImplementedError(f"{type(self).__name__} must define value_of_parts(view, parts)")


class HDCLoss(PartsLoss):
    """Hard-aware cascade: Σ_k L_k, each part k learning from the pairs that the part before finds hard.

    L_k is the sum over the kept pairs of d² on positives and weight · [m − d²]₊ on negatives, divided by the number of
    kept pairs whose term is above zero. The first part keeps all pairs. Of those, part k + 1 keeps the hardest by the
    distances of part k, positives and negatives apart: the share `shares[k + 1]` of all, ties included.

    Args:
        shares: the share of all pairs that each part keeps, falling. The authors' last one may be a share of the pairs
            before it; their code takes it of all.
        margin: m, the squared distance beyond which a negative is not pushed.
        weight: the weight of the negatives, as in the released code. Try 1 too: there are many more negatives than
            positives, and on Cars196 it was far better (docs/results_details.md).
        cascade: False for the released code, in which each part keeps its own hardest pairs of all.

    Inputs: unit vectors; as many parts as shares, or fewer, from low to high layers; batches with several examples of
    each class. It holds tables of the whole batch, O(N²), and takes no gallery.

    Related: `ABELoss` has the same terms over all pairs, in every part. `ContrastiveLoss` has one part and [m − d]₊².

    >>> loss = HDCLoss()
    >>> low, high = torch.eye(4), torch.eye(4).flip(1)
    >>> loss([low, high], torch.tensor([0, 0, 1, 1])).item()
    3.99...

    Yuan, Yang, Zhang: Hard-Aware Deeply Cascaded Embedding. ICCV 2017.
    """

    name, geometry = "hdc", "euclidean"

    def __init__(
        self,
        shares: Sequence[float] = (1.0, 0.5, 0.2),
        margin: float = 1.0,
        weight: float = 10.0,
        cascade: bool = True,
    ) -> None:
        super().__init__()
        if not shares or not all(0 < share <= 1 for share in shares) or list(shares) != sorted(shares, reverse=True):
            raise ValueError(f"shares is {shares!r}; give shares above 0 up to 1 that do not rise, such as [1, 0.5]")
        self.shares, self.margin, self.weight, self.cascade = tuple(shares), margin, weight, cascade

    def value_of_parts(self, view: View, parts: list[Tensor]) -> Tensor:
        """Choose the pairs of each part without gradient, then sum over them."""
        if len(parts) > len(self.shares):
            raise ValueError(f"there are {len(parts)} parts and {len(self.shares)} shares; give a share for each part")
        kept: Tensor | None = None
        total = view.queries.new_zeros((), dtype=view.dtype)
        for k, part in enumerate(parts):
            sub = replace(view, queries=part)
            if not self.cascade:
                kept = self._hardest(sub, None, self.shares[k])
            sums, count = sub.total(self.rows, own=() if kept is None else (kept,))
            total = total + sums / (count + (count == 0)).to(sums.dtype)
            if self.cascade and k + 1 < len(parts):
                kept = self._hardest(sub, kept, self.shares[k + 1])
        return total

    def rows(self, d: Tensor, positive: Tensor, negative: Tensor, *kept: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum over the kept pairs of each query, and how many of them are above zero."""
        square = d.square()
        terms = torch.where(positive, square, self.weight * (self.margin - square).relu())
        pairs = (positive | negative) & kept[0] if kept else positive | negative
        return masked_sum(terms, pairs), (pairs & ~(terms.detach() <= 0)).sum(1)

    @torch.no_grad()
    def _hardest(self, view: View, kept: Tensor | None, share: float) -> Tensor:
        """Return a mask (N, N) of the hardest pairs among the kept ones: a share of all pairs of either kind."""
        tables = view.each(lambda d, positive, negative: torch.stack([d, positive.to(d), negative.to(d)], 1))
        # Rounding must not tell (i, j) from (j, i).
        d, positive, negative = (tables[:, 0] + tables[:, 0].T) / 2, tables[:, 1] > 0, tables[:, 2] > 0
        found = torch.zeros_like(positive)
        for mask, hardness in ((positive, d), (negative, -d)):
            among = mask if kept is None else mask & kept
            # Among all pairs in order of hardness, the one at this place is the last that is kept.
            place = (share * mask.sum(dtype=widest(mask.device)) - 1e-9).ceil().long().clamp(1, mask.numel())
            order = torch.where(among, hardness, -torch.inf).flatten().sort(descending=True).values
            found |= among & ~(hardness < order[place - 1])
        return found


class BIERLoss(PartsLoss):
    """Boosted independent embeddings: binomial deviance of each part, on pairs that the parts before got wrong.

    With the activation a = α (s − β) c of a pair, c = 1 on positives and −C on negatives, a part's loss is the mean of
    w · log(1 + e^{−a}) over the positive pairs plus that over the negative ones; the value is the mean over the M
    parts. w is 1 for the first part. For part m + 1 it is σ(−A_m), constant in the gradient, with
    A_m = (1 − η_m) A_{m−1} + η_m a_m, η_m = 2/(m + 1) (Opitz et al. 2017): pairs that all parts so far get right weigh
    little.

    With `adversarial` (A-BIER, Opitz et al. 2018) the value also has −diversity · Σ mean((g_i ⊙ R_ij(g_j))²) over all
    pairs of parts i < j. R_ij is a learned layer of 512 ReLUs and a linear one, g a part times the root of its width.
    The gradient is reversed where it enters the parts: R learns to find part i in part j, and the parts learn to
    prevent it. norm_weight times mean((‖w‖² − 1)²) + [‖b‖² − 1]₊ over all rows w and biases b keeps R in bounds.

    Args:
        adversarial: add the term of A-BIER.
        widths: the widths of the parts, which R needs; `tuplet.train` fills them in.
        alpha: α, the steepness.
        beta: β, the boundary between positive and negative similarities.
        negative_cost: C, the factor of the steepness on negatives.
        released: the weights of the authors' code: w = σ(−A) · (1 on positives, 2 on negatives), A from 0.5, then
            A += 0.06 a; and each example counts as a positive pair with itself, which adds nothing but its count.
        diversity: the weight of the adversarial term.
        norm_weight: the weight of the bounds on R: the product of the authors' two weights, 1e5 and 5e-5.

    Inputs: unit vectors; batches with several examples of each class. Parts come from
    `models.create(..., heads=(96, 160, 256))`, with `part_weights=(96, 160, 256)` for the test. Give its parameters,
    those of R, to the optimizer. It takes no gallery.

    The authors compute the adversarial term before the parts are made unit and from constant features, and hold the
    rows of the heads at unit length; here a part has one length, which needs no such bound. ICCV's BIER starts from
    heads that differ; here heads of several widths start orthogonal.

    Related: `BinomialDevianceLoss` is the loss of one part, by rows.

    >>> loss = BIERLoss()
    >>> loss([torch.eye(4), torch.eye(4)], torch.tensor([0, 0, 1, 1])).item()
    1.1...

    Opitz, Waltner, Possegger, Bischof: BIER, Boosting Independent Embeddings Robustly. ICCV 2017. Deep Metric Learning
    with BIER. 2018.
    """

    name, geometry = "bier", "dot"

    def __init__(
        self,
        adversarial: bool = False,
        widths: Sequence[int] = (96, 160, 256),
        alpha: float = 2.0,
        beta: float = 0.5,
        negative_cost: float = 25.0,
        released: bool = False,
        diversity: float = 5e-5,
        norm_weight: float = 5.0,
    ) -> None:
        super().__init__()
        above_zero(alpha=alpha, negative_cost=negative_cost)
        self.alpha, self.beta, self.negative_cost, self.released = alpha, beta, negative_cost, released
        self.adversarial, self.diversity, self.norm_weight = adversarial, diversity, norm_weight
        self.widths = tuple(widths)
        pairs = combinations(widths, 2) if adversarial else ()
        self.regressors = nn.ModuleList(
            nn.Sequential(nn.Linear(large, 512), nn.ReLU(), nn.Linear(512, small)) for small, large in pairs
        )

    def value_of_parts(self, view: View, parts: list[Tensor]) -> Tensor:
        """Add the parts' losses, each with the parts before as constants that weigh its pairs."""
        total = view.queries.new_zeros((), dtype=view.dtype)
        before: list[Tensor] = []
        for part in parts:
            sub = replace(view, queries=part)
            sums = sub.sum(self._sums, own=tuple(before), other=tuple(x + 0 for x in before))
            numbers = sums[2:].detach()
            total = total + (sums[:2] / (numbers + (numbers == 0))).sum() / len(parts)
            before.append(part.detach().to(view.dtype))
        return total + self._adversarial(view, parts) if self.adversarial else total

    def _sums(self, s: Tensor, positive: Tensor, negative: Tensor, *before: Tensor) -> Tensor:
        """Return Σ w · log(1 + e^{−a}) over positive and over negative pairs of a block, and the numbers of both."""
        cost = torch.where(positive, 1.0, -self.negative_cost).to(s.dtype)
        terms = softplus(-self._activation(s, cost))
        if before:
            terms = terms * self._weights(cost, before)
        pairs = positive.sum() + (s.shape[0] if self.released else 0), negative.sum()
        return torch.stack([masked_sum(terms, positive).sum(), masked_sum(terms, negative).sum(), *pairs])

    def _activation(self, s: Tensor, cost: Tensor) -> Tensor:
        return self.alpha * (s - self.beta) * cost

    def _weights(self, cost: Tensor, before: Sequence[Tensor]) -> Tensor:
        """Return the boosting weights of a block, given the earlier parts of its queries, then those of the gallery."""
        count = len(before) // 2
        sum_so_far = torch.full_like(cost, 0.5 if self.released else 0.0)
        for m, (here, there) in enumerate(zip(before[:count], before[count:], strict=True), start=1):
            activation = self._activation(here @ there.T, cost)
            rate = 2 / (m + 1)
            mixed = (1 - rate) * sum_so_far + rate * activation
            sum_so_far = sum_so_far + 0.06 * activation if self.released else mixed
        weights = (-sum_so_far).sigmoid()
        return weights * torch.where(cost < 0, 2.0, 1.0) if self.released else weights

    def _adversarial(self, view: View, parts: list[Tensor]) -> Tensor:
        """Return what the regressors find of each part in the larger ones, negative, and their bounds."""
        if self.part_widths != self.widths:
            raise ValueError(f"parts have the widths {self.part_widths}, not {self.widths}; make BIERLoss with widths=")
        g = [_Reversed.apply(part.to(view.dtype) * math.sqrt(part.shape[1])) for part in parts]
        total = view.queries.new_zeros((), dtype=view.dtype)
        for (small, large), regressor in zip(combinations(g, 2), self.regressors, strict=True):
            layers = list(regressor.parameters())
            # No similarity is needed, but the engine keeps autocast out of the backward pass too.
            found = replace(view, queries=parts[0]).sum(_found, own=(small, large), shared=layers)
            total = total - self.diversity * found / small.numel()
            w1, b1, w2, b2 = (view.learned(parameter).to(view.dtype) for parameter in layers)
            for w, b in ((w1, b1), (w2, b2)):
                bounds = (w.square().sum(1) - 1).square().mean() + relu(b.square().sum() - 1)
                total = total + self.norm_weight * bounds
        return total


def _found(
    s: Tensor,
    positive: Tensor,
    negative: Tensor,
    small: Tensor,
    large: Tensor,
    w1: Tensor,
    b1: Tensor,
    w2: Tensor,
    b2: Tensor,
) -> Tensor:
    """Return Σ (g_i ⊙ R(g_j))² over the queries of a block."""
    return (small * linear(relu(linear(large, w1, b1)), w2, b2)).square().sum()


class _Reversed(torch.autograd.Function):
    """The identity, with the gradient reversed."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        return -gradient


class ABELoss(PartsLoss):
    """Attention-based ensemble: Σ_m L_m + weight · L_div over the parts of all learners.

    L_m is the mean over all pairs of d² on positives and [m − d²]₊ on negatives, in part m. L_div is the sum over the
    examples and over pairs of learners p < q of [m_div − d²(x_p, x_q)]₊: the learners' vectors of one example should
    lie apart.

    Args:
        margin: m, the squared distance beyond which a negative is not pushed.
        divergence_margin: m_div, the squared distance beyond which two learners are not pushed apart.
        weight: the weight of the divergence; 1 was the best of the authors' values, and much smaller ones much worse.
            The divergence is a sum, and L_m is a mean: in our runs 1 / (examples · pairs of learners) learned far
            better.

    Inputs: unit vectors; batches with several examples of each class, in place of the authors' pairs. Parts have one
    width and come from `models.create(..., attention=8)`. It takes no gallery.

    Related: `ContrastiveLoss` has [m − d]₊² on negatives.

    >>> loss = ABELoss()
    >>> loss([torch.eye(4), torch.eye(4)], torch.tensor([0, 0, 1, 1])).item()
    5.33...

    Kim, Goyal, Chawla, Lee, Kwon: Attention-based Ensemble for Deep Metric Learning. ECCV 2018.
    """

    name, geometry = "abe", "euclidean"

    def __init__(self, margin: float = 1.0, divergence_margin: float = 1.0, weight: float = 1.0) -> None:
        super().__init__()
        self.margin, self.divergence_margin, self.weight = margin, divergence_margin, weight

    def value_of_parts(self, view: View, parts: list[Tensor]) -> Tensor:
        """Add the contrastive losses of the parts and their divergence."""
        if len({part.shape[1] for part in parts}) > 1:
            raise ValueError(
                f"parts have the widths {self.part_widths}, but ABELoss compares parts of one width; "
                "make the model with attention=, or with heads= of one width"
            )
        total = view.queries.new_zeros((), dtype=view.dtype)
        for part in parts:
            total = total + replace(view, queries=part).mean(self.rows)
        if len(parts) > 1:
            x = torch.stack(parts).to(view.dtype)
            first, second = torch.triu_indices(len(parts), len(parts), 1, device=x.device)
            apart = (x[first] - x[second]).square().sum(2)
            total = total + self.weight * relu(self.divergence_margin - apart).sum()
        return total

    def rows(self, d: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
        """Return the sum over the pairs of each query and their number."""
        square, pairs = d.square(), positive | negative
        return masked_sum(torch.where(positive, square, (self.margin - square).relu()), pairs), pairs.sum(1)
