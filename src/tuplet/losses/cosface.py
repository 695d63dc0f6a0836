"""CosFace: a softmax over class vectors, with a margin on the cosine."""

from tuplet.errors import above_zero
from tuplet.losses.cosine import CosineProxyLoss


class CosFaceLoss(CosineProxyLoss):
    """CosFace loss: the cross-entropy of scale · (s_c − margin·[c = y]), the mean over queries.

    s_c is the cosine of the query and the vector of class c.

    Args:
        num_classes: the number of classes.
        dim: the dimension of the embeddings.
        scale: a factor of the cosines.
        margin: what the cosine of the own class is lowered by.
        sharded: divide the classes among the processes of `torch.distributed`, for millions of them. Each process holds
            the vectors of the classes `loss.shard` alone, and the softmax is exact over all. Make it after
            `init_process_group`, in every process with the same seed, and call it with `distributed=True`.
            `parameters()` and `state_dict` are those of one process: they get its own gradient, which is not to be
            averaged. `tuplet.train` does all of this, given `loss_options={"sharded": True}`.

    Inputs: vectors of any length, made unit inside; any batches, labels 0 … num_classes − 1. `proxies` is a parameter:
    give `loss.parameters()` to the optimizer.

    Related: `ArcFaceLoss` has its margin on the angle. `SoftmaxLoss` has products, biases and no margin.

    >>> import torch
    >>> loss = CosFaceLoss(num_classes=3, dim=2)
    >>> loss(torch.eye(2), torch.tensor([0, 2])).isfinite().item()
    True

    Wang, Wang, Zhou, Ji, Gong, Zhou, Li, Liu: CosFace: Large Margin Cosine Loss for Deep Face Recognition. CVPR 2018.
    """

    name = "cosface"

    def __init__(
        self, num_classes: int, dim: int, scale: float = 64.0, margin: float = 0.35, sharded: bool = False
    ) -> None:
        super().__init__(num_classes, dim, sharded=sharded)
        above_zero(scale=scale)
        self.scale, self.margin = scale, margin
