"""Losses on the ranked list of a query."""

import torch
from torch import Tensor

from tuplet.errors import above_zero
from tuplet.losses.base import RowLoss
from tuplet.rows import masked_logsumexp, masked_mean, masked_sum


class NRALoss(RowLoss):
    """Nonlinear rank approximation loss: −log(s⁺ + ε) − log(1 − s⁻ + ε), the mean over queries.

    s = 1 − w(r) is the similarity of the farthest positive or of the nearest negative of a query. Its rank is
    approximated by r = (D − D_min) / (D_max − D_min), with the extremes over positives and negatives together. The
    transfer function is w(r) = ½(2r)^α below ½ and 1 − ½(2(1 − r))^α above (Schall et al. 2019, equations 8 to 13).
    Gradients flow through D_min and D_max too. A row with D_max = D_min is undefined.

    Args:
        alpha: α, the steepness of the transfer function.
        eps: ε, which keeps the logarithms finite.

    Inputs: vectors of free length in training, made unit for testing; batches with several examples of each class. The
    authors use `sampling.NGroupSampler`.

    Related: `TripletLoss(mining="hardest")` uses the same two pairs, not scaled by the spread of the row.

    >>> loss = NRALoss(alpha=4.0)
    >>> loss(torch.tensor([[0.0], [1.0], [3.0], [4.5]]), torch.tensor([0, 0, 1, 1])).item()
    1.0792...

    Schall, Barthel, Hezel, Jung: Deep Metric Learning using Similarities from Nonlinear Rank Approximations. MMSP 2019.
    """

    name, geometry, normalize = "nra", "euclidean", "eval"

    def __init__(self, alpha: float = 4.0, eps: float = 1e-4) -> None:
        super().__init__()
        above_zero(alpha=alpha)
        self.alpha, self.eps = alpha, eps

    def rows(self, d: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
        """Return the term of each query, from the ranks of its farthest positive and nearest negative."""
        pairs, constant = positive | negative, d.detach()
        # Extremes by their positions, the first of equals, so that one gather gives all four.
        lowest, near = (torch.where(mask, constant, torch.inf).argmin(1) for mask in (pairs, negative))
        highest, far = (torch.where(mask, constant, -torch.inf).argmax(1) for mask in (pairs, positive))
        ends = d.gather(1, torch.stack([lowest, highest, far, near], 1))
        low, high, positive_end, negative_end = ends.unbind(1)
        spread = high - low
        defined = positive.any(1) & negative.any(1) & (spread != 0)
        # 1 − w(r) is w(1 − r), and loses no digits this way.
        above = torch.stack([high - positive_end, negative_end - low], 1)
        above = torch.where(defined[:, None], above / spread.clamp_min(torch.finfo(d.dtype).tiny)[:, None], 0)
        # A pair that is an end of its row, or ties with one, stays there: its slopes, of up to 1/ε, would cancel up to
        # rounding only.
        chosen = torch.stack([positive_end, negative_end], 1)
        is_end = (chosen == low[:, None]) | (chosen == high[:, None])
        above = torch.where(is_end, above.detach(), above)
        return -(self.transfer(above) + self.eps).log().sum(1), defined

    def transfer(self, r: Tensor) -> Tensor:
        """Return w(r), which is steepest at r = ½."""
        upper = r > 0.5
        low = torch.where(upper, 1 - r, r)
        if self.alpha < 1:
            # A power of 0 has no finite derivative then. None is needed: the ends of a row stay its ends.
            low = torch.where(low == 0, 0, low)
        bent = (2 * low) ** self.alpha / 2
        return torch.where(upper, 1 - bent, bent)


class RankedListLoss(RowLoss):
    """Ranked list loss: L_P + L_N for each query, the mean over all queries.

    L_P = 1/|P*| Σ_{P*} (d − (α − m)) over the non-trivial positives P*, those with d > α − m.
    L_N = Σ_{N*} w/Σw · (α − d), w = e^{T(α − d)}, over the non-trivial negatives N*, those with d < α.
    (Wang et al. 2019, equations 8 to 14.)

    Args:
        alpha: α, the distance beyond which negatives should lie.
        margin: m; positives should lie within α − m.
        temperature: T; the larger, the more the nearest negatives weigh.
        move_gallery: let both vectors of a pair move. The authors move the query alone and hold its list constant.

    Inputs: unit vectors; batches with several examples of each class. The authors take 60 classes of 3.

    Related: `MarginLoss` has the same two boundaries without weights. `mining.NonTrivial` chooses the same pairs.

    >>> loss = RankedListLoss(alpha=1.2, margin=0.4, temperature=10.0)
    >>> loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).item()
    0.6142...

    Wang, Hua, Kodirov, Hu, Garnier, Robertson: Ranked List Loss for Deep Metric Learning. CVPR 2019.
    """

    name, geometry, normalize = "ranked_list", "euclidean", True

    def __init__(
        self, alpha: float = 1.2, margin: float = 0.4, temperature: float = 10.0, move_gallery: bool = False
    ) -> None:
        super().__init__()
        if not 0 <= temperature < torch.inf:
            raise ValueError(f"temperature is {temperature}; it must be at least 0 and finite")
        self.alpha, self.margin, self.temperature, self.moves_gallery = alpha, margin, temperature, move_gallery

    def rows(self, d: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
        """Return the term of each query; every query counts."""
        inner = self.alpha - self.margin
        # "Not trivial" instead of "non-trivial": NaN must not be left out.
        pull = masked_mean(d - inner, positive & ~(d <= inner))
        active = negative & ~(d >= self.alpha)
        violation = self.alpha - d
        exponent = self.temperature * violation.detach()
        share = torch.where(active, (exponent - masked_logsumexp(exponent, active)[:, None]).exp(), 0)
        push = masked_sum(share * violation, active)
        return pull + push, torch.ones_like(pull)
