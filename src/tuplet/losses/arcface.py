"""ArcFace: a softmax over class vectors, with a margin on the angle."""

from math import cos, pi, sin

import torch
from torch import Tensor

from tuplet.errors import above_zero
from tuplet.losses.cosine import CosineProxyLoss, sine


class ArcFaceLoss(CosineProxyLoss):
    """ArcFace loss: the cross-entropy of scale · cos(θ_y + margin) for the own class y and scale · s_c for the others.

    s_c is the cosine of the query and the vector of class c, θ_y the angle to that of its own class. If θ_y + margin
    is above π, s_y − margin·sin(margin) takes the place of its cosine. The mean over queries.

    Args:
        num_classes: the number of classes.
        dim: the dimension of the embeddings.
        scale: a factor of the cosines.
        margin: what the angle to the own class is widened by, in radians.
        centers: vectors for each class; s_c is the largest of their cosines. Rows c·centers to (c + 1)·centers − 1 of
            `proxies` are those of class c. The authors take 3 for labels with errors.
        sharded: divide the classes among the processes, for millions of them: see `CosFaceLoss`.

    Inputs: vectors of any length, made unit inside; any batches, labels 0 … num_classes − 1. `proxies` is a parameter:
    give `loss.parameters()` to the optimizer.

    Related: `CosFaceLoss` has its margin on the cosine. `SoftTripleLoss` joins the centres of a class smoothly.

    >>> loss = ArcFaceLoss(num_classes=3, dim=2, centers=2)
    >>> loss(torch.eye(2), torch.tensor([0, 2])).isfinite().item()
    True

    Deng, Guo, Xue, Zafeiriou: ArcFace: Additive Angular Margin Loss for Deep Face Recognition. CVPR 2019. Deng, Guo,
    Liu, Gong, Zafeiriou: Sub-center ArcFace. ECCV 2020.
    """

    name = "arcface"

    def __init__(
        self,
        num_classes: int,
        dim: int,
        scale: float = 64.0,
        margin: float = 0.5,
        centers: int = 1,
        sharded: bool = False,
    ) -> None:
        super().__init__(num_classes, dim, centers, sharded)
        above_zero(scale=scale)
        if not 0 <= margin <= pi:
            raise ValueError(f"margin is {margin}; give radians from 0 to π: 0.5 is 28.6 degrees")
        self.scale, self.margin, self.centers = scale, margin, centers

    def with_margin(self, s: Tensor) -> Tensor:
        """Return cos(θ + margin), or the straight line beyond π."""
        wider = s * cos(self.margin) - sine(s) * sin(self.margin)
        return torch.where(s < -cos(self.margin), s - self.margin * sin(self.margin), wider)
