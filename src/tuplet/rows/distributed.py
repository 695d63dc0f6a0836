"""Rows over the processes of `torch.distributed`.

Every process gathers the whole batch, works on its own share of the queries, and sums totals and counts with the
others. The backward pass is the exact adjoint of that, so the mean over processes of the gradients (which
DistributedDataParallel computes) is the gradient of one process with the whole batch.
"""

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

#: All types, in the same order in every process.
_DTYPES = sorted({each for each in vars(torch).values() if isinstance(each, torch.dtype)}, key=str)


class _Gather(torch.autograd.Function):
    """Gather the rows of all ranks; backward gives each rank the sum over ranks of the gradients of its own rows."""

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
    """Return a copy of the rows, followed by rows of zeros up to `size`."""
    padded = x.new_zeros(size, *x.shape[1:])
    padded[: x.shape[0]] = x
    return padded


class _Sum(torch.autograd.Function):
    """Sum over ranks. All ranks back-propagate the same value, so the sum of their gradients is world size times it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.world = dist.get_world_size(group)
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return gradient * ctx.world, None


class _LogSumExp(torch.autograd.Function):
    """log Σ e^x over ranks. As for `_Sum`, each rank's gradient is its own times the number of ranks."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        largest = x.clone()
        dist.all_reduce(largest, dist.ReduceOp.MAX, group=group)
        # Without any term the largest is −∞, and a difference would be NaN.
        base = torch.where(largest == -torch.inf, 0, largest)
        total = (x - base).exp()
        dist.all_reduce(total, group=group)
        total = total.log() + base
        share = torch.where(total == -torch.inf, 0, (x - total).exp())
        ctx.save_for_backward(share * dist.get_world_size(group))
        return total

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (share,) = ctx.saved_tensors
        return gradient * share, None


class _MeanBack(torch.autograd.Function):
    """Return a parameter that every rank holds; backward averages its gradient over ranks, inside DDP and outside."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, group: Any) -> Tensor:
        ctx.group = group
        return x.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        gradient = gradient.contiguous() / dist.get_world_size(ctx.group)
        dist.all_reduce(gradient, group=ctx.group)
        return gradient, None


class ProcessGroup:
    """The processes whose batches together make one batch; `group` is that of `torch.distributed`, None for all."""

    def __init__(self, group: Any = None) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise ValueError(
                "distributed=True needs torch.distributed, which is not initialised; "
                "call torch.distributed.init_process_group first, or leave distributed out"
            )
        self.group = group
        self.rank, self.world = dist.get_rank(group), dist.get_world_size(group)

    def sizes(self, **tensors: Tensor) -> list[int]:
        """Return the number of rows of each rank. This is the one host synchronisation of a distributed call.

        Args:
            **tensors: tensors with a row for each vector, by the names that an error gives them.

        Raises:
            ValueError: the rows of two ranks differ in width or type, for which a backend would end the process.
        """
        given = list(tensors.values())
        kinds = [number for x in given for number in (_DTYPES.index(x.dtype), x.ndim, math.prod(x.shape[1:]))]
        mine = torch.tensor([len(given[0]), *kinds], device=given[0].device)
        parts = [torch.empty_like(mine) for _ in range(self.world)]
        dist.all_gather(parts, mine, group=self.group)
        sizes, *all_kinds = torch.stack(parts).T.tolist()
        for n, name in enumerate(tensors):
            # Type, dimensions and width of this tensor: three rows with a number for each rank.
            first, *others = zip(*all_kinds[3 * n : 3 * n + 3], strict=True)
            for rank, other in enumerate(others, 1):
                if other != first:
                    raise ValueError(
                        f"{name} are {_in_words(*first)} in process 0 and {_in_words(*other)} in process {rank}; "
                        "use one model and one precision in all processes"
                    )
        return sizes

    def shares(self, n: int) -> list[tuple[int, int]]:
        """Divide n rows, which every rank holds, among the ranks: return a range for each."""
        return [(n * rank // self.world, n * (rank + 1) // self.world) for rank in range(self.world)]

    def gather(self, x: Tensor, sizes: Sequence[int]) -> Tensor:
        """Return the rows of all ranks, in rank order."""
        return _Gather.apply(x, tuple(sizes), self.group)

    def sum(self, x: Tensor) -> Tensor:
        """Return the sum over ranks."""
        return _Sum.apply(x, self.group)

    def logsumexp(self, x: Tensor) -> Tensor:
        """Return log Σ e^x over ranks, elementwise."""
        return _LogSumExp.apply(x, self.group)

    def parameter(self, x: Tensor) -> Tensor:
        """Return a parameter of the loss, of which every rank holds the same copy, with its gradient averaged."""
        return _MeanBack.apply(x, self.group)


def _in_words(dtype: int, ndim: int, width: int) -> str:
    return f"{_DTYPES[dtype]} of {ndim} dimension{'s' * (ndim != 1)} with {width:,} number{'s' * (width != 1)} a row"
