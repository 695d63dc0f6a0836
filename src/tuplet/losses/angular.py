"""Angular losses: bound the angle at the negative of a triplet."""

from math import radians, tan

from torch import Tensor

from tuplet.losses.base import Normalize, RowLoss
from tuplet.losses.npair import NPairAllLoss
from tuplet.rows import View, masked_logsumexp, masked_sum, softplus


class AngularLoss(RowLoss):
    """Angular loss: log[1 + Σ_n exp(4 tan²α (x_a + x_p)·x_n − 2(1 + tan²α) x_a·x_p)].

    One term for each ordered positive pair (a, p), with all negatives n of a. The value is the mean over all pairs
    (Wang et al. 2017, equation 8).

    Args:
        alpha: α, the bound of the angle at the negative, in degrees.
        max_per_class: the size of the largest class; if given, no synchronisation with the device is needed.

    Inputs: vectors of any length; batches with several examples of each class. The authors derive the loss for unit
    vectors and train without normalising, with two examples of each class. On unit vectors the exponents are small for
    small α.

    Related: the smooth form of `AngularHingeLoss`. `NPairAngularLoss` adds it to `NPairAllLoss`.

    >>> import torch
    >>> loss = AngularLoss(alpha=45.0)
    >>> loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).item()
    1.0986...

    Wang, Zhou, Wen, Liu, Lin: Deep Metric Learning with Angular Loss. ICCV 2017.
    """

    name = "angular"
    normalize: Normalize = "eval"

    def __init__(self, alpha: float = 45.0, max_per_class: int | None = None) -> None:
        super().__init__()
        if not 0 < alpha < 90:
            raise ValueError(f"alpha is {alpha}; give an angle in degrees, above 0 and below 90")
        self.alpha, self.max_per_class = alpha, max_per_class

    def value(self, view: View) -> Tensor:
        """Return the mean over all positive pairs. The query of a pair is x_a + x_p."""
        return self._mean_over_pairs(view.with_table())

    def _mean_over_pairs(self, view: View) -> Tensor:
        pairs, exists, near = view.pairs()
        return pairs.mean(self._pairs, own=(exists, near))

    def _pairs(
        self, s: Tensor, positive: Tensor, negative: Tensor, exists: Tensor, near: Tensor, /
    ) -> tuple[Tensor, Tensor]:
        t = tan(radians(self.alpha)) ** 2
        return softplus(masked_logsumexp(4 * t * s, negative) - 2 * (1 + t) * near), exists


class AngularHingeLoss(AngularLoss):
    """Angular hinge loss: [‖x_a − x_p‖² − 4 tan²α ‖x_n − (x_a + x_p)/2‖²]₊.

    The mean over all triplets (Wang et al. 2017, equation 6). A term is above zero if the circle around a and p is
    seen from n under an angle larger than α.

    Args:
        alpha: α, the bound of the angle at the negative, in degrees.
        max_per_class: the size of the largest class; if given, no synchronisation with the device is needed.

    Inputs: vectors of any length, since the angle does not change with the scale; batches with several examples of each
    class.

    Related: `AngularLoss` is its smooth form over all negatives at once. `TripletLoss` bounds distances instead.

    >>> import torch
    >>> loss = AngularHingeLoss(alpha=45.0)
    >>> loss(torch.tensor([[0.0, 1.0], [0.0, -1.0], [0.5, 0.0]]), torch.tensor([0, 0, 1])).item()
    3.0...

    Wang, Zhou, Wen, Liu, Lin: Deep Metric Learning with Angular Loss. ICCV 2017.
    """

    name, geometry, normalize = "angular_hinge", "euclidean", None

    def value(self, view: View) -> Tensor:
        """Return the mean over all triplets. The query of a positive pair is its middle."""
        return self._mean_over_pairs(view)

    def _pairs(
        self, d: Tensor, positive: Tensor, negative: Tensor, exists: Tensor, near: Tensor
    ) -> tuple[Tensor, Tensor]:
        t = tan(radians(self.alpha)) ** 2
        hinge = (near.square()[:, None] - 4 * t * d.square()).relu()
        return masked_sum(hinge, negative), exists * negative.sum(1)


class NPairAngularLoss(RowLoss):
    """N-pair and angular loss together: `NPairAllLoss` + weight · `AngularLoss` (Wang et al. 2017, equation 9).

    Args:
        alpha: α of the angular loss, in degrees.
        weight: the weight of the angular loss.
        max_per_class: the size of the largest class; if given, no synchronisation with the device is needed.

    Inputs: vectors of free length; batches with several examples of each class. The authors take two.

    Related: the sum of `NPairAllLoss` and `AngularLoss`, computed from one table; `SumLoss` adds any losses.

    >>> import torch
    >>> loss = NPairAngularLoss(alpha=45.0, weight=2.0)
    >>> loss(torch.eye(4), torch.tensor([0, 0, 1, 1])).item()
    3.2958...

    Wang, Zhou, Wen, Liu, Lin: Deep Metric Learning with Angular Loss. ICCV 2017.
    """

    name, normalize = "npair_angular", "eval"

    def __init__(self, alpha: float = 45.0, weight: float = 2.0, max_per_class: int | None = None) -> None:
        super().__init__()
        self.npair, self.angular, self.weight = NPairAllLoss(), AngularLoss(alpha), weight
        self.max_per_class = max_per_class

    def value(self, view: View) -> Tensor:
        """Return the weighted sum of both losses."""
        view = view.with_table()
        return self.npair.value(view) + self.weight * self.angular.value(view)
