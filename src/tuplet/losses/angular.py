"""Angular losses: bound the angle at the negative of a triplet."""

from collections.abc import Callable
from math import radians, tan
from typing import Any

from torch import Tensor

from tuplet.losses.base import RowLoss
from tuplet.losses.npair import NPairAllLoss
from tuplet.rows import View, masked_logsumexp, masked_sum, softplus


def _over_pairs(view: View, rows: Callable[..., Any]) -> Tensor:
    """The mean of a row function over all positive pairs, each a query of its own."""
    pairs, exists, near = view.pairs()
    return pairs.mean(rows, own=(exists, near))


class AngularLoss(RowLoss):
    """log[1 + Σ_n exp(4 tan²α (x_a + x_p)·x_n − 2(1 + tan²α) x_a·x_p)] (Wang et al. 2017, equation 8).

    One term for each ordered positive pair (a, p), with the negatives of a; the mean over all of them. α in degrees.

    Inputs: vectors as they come: the authors derive it for unit length and train without normalising. On unit vectors
    the exponents are small for small α. Batches of any shape; the authors' have two per class. Takes `max_per_class`,
    the size of the largest class, and then needs no synchronisation with the device.

    Relations: the smooth form of `AngularHingeLoss`; `NPairAngularLoss` adds it to `NPairAllLoss`.

    >>> import torch
    >>> loss = AngularLoss(alpha=45.0)
    >>> loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).item()
    1.0986...

    Wang, Zhou, Wen, Liu, Lin: Deep Metric Learning with Angular Loss. ICCV 2017.
    """

    def __init__(self, alpha: float = 45.0, max_per_class: int | None = None) -> None:
        super().__init__()
        self.alpha, self.max_per_class = alpha, max_per_class

    def value(self, view: View) -> Tensor:
        """Every positive pair is a query x_a + x_p."""
        return _over_pairs(view.whole(), self._pairs)

    def _pairs(
        self, s: Tensor, positive: Tensor, negative: Tensor, exists: Tensor, near: Tensor
    ) -> tuple[Tensor, Tensor]:
        t = tan(radians(self.alpha)) ** 2
        return softplus(masked_logsumexp(4 * t * s, negative) - 2 * (1 + t) * near), exists


class AngularHingeLoss(RowLoss):
    """[‖x_a − x_p‖² − 4 tan²α ‖x_n − (x_a + x_p)/2‖²]₊, the mean over all triplets (Wang et al. 2017, equation 6).

    Positive where the angle at n, under which the circle around a and p appears, exceeds α (degrees).

    Inputs: vectors of any length; the angle does not change with the scale. Takes `max_per_class`, the size of the
    largest class, and then needs no synchronisation with the device.

    Relations: `AngularLoss` is its smooth form over all negatives at once; `TripletLoss` bounds distances instead.

    >>> import torch
    >>> loss = AngularHingeLoss(alpha=45.0)
    >>> loss(torch.tensor([[0.0, 1.0], [0.0, -1.0], [0.5, 0.0]]), torch.tensor([0, 0, 1])).item()
    3.0...

    Wang, Zhou, Wen, Liu, Lin: Deep Metric Learning with Angular Loss. ICCV 2017.
    """

    geometry = "euclidean"

    def __init__(self, alpha: float = 45.0, max_per_class: int | None = None) -> None:
        super().__init__()
        self.alpha, self.max_per_class = alpha, max_per_class

    def value(self, view: View) -> Tensor:
        """Every positive pair is a query at its middle."""
        return _over_pairs(view, self._pairs)

    def _pairs(
        self, d: Tensor, positive: Tensor, negative: Tensor, exists: Tensor, near: Tensor
    ) -> tuple[Tensor, Tensor]:
        t = tan(radians(self.alpha)) ** 2
        hinge = (near.square()[:, None] - 4 * t * d.square()).relu()
        return masked_sum(hinge, negative), exists * negative.sum(1)


class NPairAngularLoss(RowLoss):
    """N-pair and angular loss together: `NPairAllLoss` + weight · `AngularLoss` (Wang et al. 2017, equation 9).

    Inputs: vectors of free length, two per class as the authors have it, or any batch. Takes `max_per_class`.

    >>> import torch
    >>> loss = NPairAngularLoss(alpha=45.0, weight=2.0)
    >>> loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).item()
    3.2958...

    Wang, Zhou, Wen, Liu, Lin: Deep Metric Learning with Angular Loss. ICCV 2017.
    """

    def __init__(self, alpha: float = 45.0, weight: float = 2.0, max_per_class: int | None = None) -> None:
        super().__init__()
        self.npair, self.angular, self.weight = NPairAllLoss(), AngularLoss(alpha), weight
        self.max_per_class = max_per_class

    def value(self, view: View) -> Tensor:
        """Both losses of one view."""
        view = view.whole()
        return self.npair.value(view) + self.weight * self.angular.value(view)
