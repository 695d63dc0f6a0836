"""Losses on the ranked list of a query."""

import torch
from torch import Tensor

from tuplet.losses.base import RowLoss
from tuplet.rows import masked_logsumexp, masked_mean, masked_sum


class NRALoss(RowLoss):
    """−log(s⁺ + ε) − log(1 − s⁻ + ε), with similarities from nonlinear rank approximations.

    For each query the ranks of its farthest positive and nearest negative are approximated by
    r = (D − D_min) / (D_max − D_min), the extremes over positives and negatives together, and bent by the transfer
    function w(r) = ½(2r)^α below ½, 1 − ½(2(1 − r))^α above; s = 1 − w(r). The mean over queries (Schall et al. 2019,
    equations 8 to 13). Gradients flow through D_min and D_max too; a row with D_max = D_min is undefined.

    Inputs: vectors of free length in training, made unit for testing.

    Relations: looks at the two pairs of `TripletLoss(mining="hardest")`, but scaled by the spread of the row.

    >>> loss = NRALoss(alpha=4.0)
    >>> loss(torch.tensor([[0.0], [1.0], [3.0], [4.5]]), torch.tensor([0, 0, 1, 1])).item()
    1.0792...

    Schall, Barthel, Hezel, Jung: Deep Metric Learning using Similarities from Nonlinear Rank Approximations. MMSP 2019.
    """

    geometry = "euclidean"

    def __init__(self, alpha: float = 4.0, eps: float = 1e-4) -> None:
        super().__init__()
        self.alpha, self.eps = alpha, eps

    def rows(self, s: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
        """The two pairs that matter most, placed in the spread of the row."""
        everyone, d = positive | negative, s.detach()
        # Each extreme by its place, the first of equals, so that one look gives all four.
        lowest, near = (torch.where(mask, d, torch.inf).argmin(1) for mask in (everyone, negative))
        highest, far = (torch.where(mask, d, -torch.inf).argmax(1) for mask in (everyone, positive))
        ends = s.gather(1, torch.stack([lowest, highest, far, near], 1))
        low, high, pair = ends.split([1, 1, 2], 1)
        spread = high - low
        defined = positive.any(1) & negative.any(1) & (spread[:, 0] != 0)
        rank = torch.where(defined[:, None], (pair - low) / spread.clamp_min(torch.finfo(s.dtype).tiny), 0)
        far_rank, near_rank = self.transfer(rank).unbind(1)
        return -((1 - far_rank + self.eps).log() + (near_rank + self.eps).log()), defined

    def transfer(self, r: Tensor) -> Tensor:
        """w(r), steepest at r = ½."""
        upper = r > 0.5
        low = torch.where(upper, 1 - r, r)
        if self.alpha < 1:
            # A power of 0 has no derivative then, and none is needed: the ends of a row stay its ends.
            low = torch.where(low == 0, 0, low)
        bent = (2 * low) ** self.alpha / 2
        return torch.where(upper, 1 - bent, bent)


class RankedListLoss(RowLoss):
    """L_P + L_N for each query: its list is to have positives within α − m, negatives beyond α.

    Over the non-trivial positives P* (d > α − m) and negatives N* (d < α):
    L_P = 1/|P*| Σ_{P*} (d − (α − m)),   L_N = Σ_{N*} w/Σw · (α − d),   w = e^{T(α − d)}.
    The mean over all queries (Wang et al. 2019, equations 8 to 14). Only the query moves: its list, and the weights
    w, are constants, as the authors have it; `move_gallery=True` lets both ends of a pair move.

    Inputs: unit vectors. The authors' batches have 60 classes of 3.

    Relations: `MarginLoss` has the same two boundaries and no weights; `mining.NonTrivial` is its choice of pairs
    alone.

    >>> loss = RankedListLoss(alpha=1.2, margin=0.4, temperature=10.0)
    >>> loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).item()
    0.6142...

    Wang, Hua, Kodirov, Hu, Garnier, Robertson: Ranked List Loss for Deep Metric Learning. CVPR 2019.
    """

    geometry = "euclidean"

    def __init__(
        self, alpha: float = 1.2, margin: float = 0.4, temperature: float = 10.0, move_gallery: bool = False
    ) -> None:
        super().__init__()
        self.alpha, self.margin, self.temperature, self.moves_gallery = alpha, margin, temperature, move_gallery

    def rows(self, s: Tensor, positive: Tensor, negative: Tensor) -> tuple[Tensor, Tensor]:
        """Every query counts."""
        inner = self.alpha - self.margin
        # Not those that are trivial: NaN is neither, and must not be left out.
        pull = masked_mean(s - inner, positive & ~(s <= inner))
        active = negative & ~(s >= self.alpha)
        violation = self.alpha - s
        exponent = self.temperature * violation.detach()
        share = torch.where(active, (exponent - masked_logsumexp(exponent, active)[:, None]).exp(), 0)
        push = masked_sum(share * violation, active)
        return pull + push, torch.ones_like(pull)
