"""SoftTriple: a softmax over classes that have several centres each."""

import torch
from torch import Tensor

from tuplet.errors import above_zero
from tuplet.losses.cosine import CosineProxyLoss
from tuplet.rows import View


class SoftTripleLoss(CosineProxyLoss):
    """SoftTriple loss: the cross-entropy of scale · (S_c − margin·[c = y]), S_c = Σ_k softmax_k(s_ck/γ) s_ck.

    s_ck is the cosine of the query and centre k of class c. The mean over queries, and tau × the mean over the pairs of
    centres of a class of √(2 − 2 cos), their distance, which lets a class join centres that it does not need.

    Args:
        num_classes: the number of classes.
        dim: the dimension of the embeddings.
        centers: centres of each class. Rows c·centers to (c + 1)·centers − 1 of `proxies` are those of class c.
        scale: a factor of the similarities.
        gamma: γ; the smaller, the more the nearest centre of a class counts.
        margin: what the similarity of the own class is lowered by.
        tau: the weight of the mean distance of centres. The authors divide the sum over unordered pairs by the number
            of ordered ones: their 0.2 is 0.1 here.

    Inputs: vectors of any length, made unit inside; any batches, labels 0 … num_classes − 1. `proxies` is a parameter:
    give `loss.parameters()` to the optimizer, usually with a learning rate a hundred times that of the model.

    Related: `ArcFaceLoss` takes the largest cosine of a class with several centres. With one centre this is
    `CosFaceLoss`.

    >>> loss = SoftTripleLoss(num_classes=3, dim=2)
    >>> loss(torch.eye(2), torch.tensor([0, 2])).isfinite().item()
    True

    Qian, Shang, Sun, Hu, Li, Jin: SoftTriple Loss: Deep Metric Learning Without Triplet Sampling. ICCV 2019.
    """

    name = "soft_triple"

    def __init__(
        self,
        num_classes: int,
        dim: int,
        centers: int = 10,
        scale: float = 20.0,
        gamma: float = 0.1,
        margin: float = 0.01,
        tau: float = 0.2,
    ) -> None:
        super().__init__(num_classes, dim, centers)
        above_zero(scale=scale, gamma=gamma)
        self.centers, self.scale, self.gamma, self.margin, self.tau = centers, scale, gamma, margin, tau

    def value(self, view: View, *inputs: Tensor) -> Tensor:
        """Return the mean over queries and the weighted distance of centres."""
        value = super().value(view, *inputs)
        if self.tau == 0 or self.centers == 1:
            return value
        classes = view.column_vectors.unflatten(0, (-1, self.centers))
        # Differences, not products: centres that join are close.
        apart = torch.cdist(classes, classes, compute_mode="donot_use_mm_for_euclid_dist")
        return value + self.tau * apart.sum() / (len(classes) * self.centers * (self.centers - 1))

    def of_class(self, s: Tensor) -> Tensor:
        """Return the mean of the cosines of a class, weighted by their softmax."""
        return ((s / self.gamma).softmax(2) * s).sum(2)
