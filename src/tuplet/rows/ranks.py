"""Rows over the processes of `torch.distributed`.

Every process holds the whole batch after a gather, walks its own share of the queries, and sums totals and counts with
the others. What flows back is the exact adjoint of that, so the mean over processes of the gradients (what
DistributedDataParallel forms) is the gradient of one process holding the whole batch.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


class _Gather(torch.autograd.Function):
    """All ranks' rows in rank order; back comes to each the sum over ranks of what flowed into its own."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, sizes: Sequence[int], group: Any) -> Tensor:
        ctx.group, ctx.sizes = group, sizes
        # Collectives take equal shapes: pad to the largest, then cut the padding off.
        padded = _padded(x, max(sizes))
        parts = [torch.empty_like(padded) for _ in sizes]
        # As bytes: labels may be of a type that a backend does not know.
        dist.all_gather([part.view(torch.uint8) for part in parts], padded.view(torch.uint8), group=group)
        return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)])

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        parts = [_padded(part, max(ctx.sizes)) for part in gradient.split(ctx.sizes)]
        own = torch.empty_like(parts[0])
        dist.reduce_scatter(own, parts, group=ctx.group)
        return own[: ctx.sizes[dist.get_rank(ctx.group)]], None, None


def _padded(x: Tensor, size: int) -> Tensor:
    """A copy of the rows with as many of zeros after them as are missing."""
    padded = x.new_zeros(size, *x.shape[1:])
    padded[: x.shape[0]] = x
    return padded


class _Sum(torch.autograd.Function):
    """Σ over ranks. Every rank back-propagates the same value, so the sum of what comes back is world size times it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.world = dist.get_world_size(group)
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient * ctx.world, None


class _MeanBack(torch.autograd.Function):
    """Identity on a parameter that every rank holds; back comes the mean over ranks, inside DDP and outside it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        gradient = gradient.contiguous() / dist.get_world_size(ctx.group)
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class Ranks:
    """The processes whose batches make one batch."""

    def __init__(self, group: Any = None) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise ValueError(
                "ranks=True needs torch.distributed, which is not initialised; "
                "call torch.distributed.init_process_group first, or leave ranks out"
            )
        self.group = group
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)

    def sizes(self, n: int, device: torch.device) -> list[int]:
        """How many rows each rank brings. The one host synchronisation of a call over ranks."""
        mine = torch.tensor([n], device=device)
        parts = [torch.empty_like(mine) for _ in range(self.world)]
        dist.all_gather(parts, mine, group=self.group)
        return torch.cat(parts).tolist()

    def shares(self, n: int) -> list[tuple[int, int]]:
        """How n rows, all of which every rank holds, are divided among the ranks' work."""
        return [(n * rank // self.world, n * (rank + 1) // self.world) for rank in range(self.world)]

    def gather(self, x: Tensor, sizes: Sequence[int]) -> Tensor:
        """All ranks' rows in rank order."""
        return _Gather.apply(x, tuple(sizes), self.group)

    def sum(self, x: Tensor) -> Tensor:
        """Σ over ranks."""
        return _Sum.apply(x, self.group)

    def parameter(self, x: Tensor) -> Tensor:
        """A parameter of the loss, of which every rank holds the same copy."""
        return _MeanBack.apply(x, self.group)
