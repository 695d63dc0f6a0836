"""The processes of one run: one, or those that torchrun has started."""

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tuplet.rows import Ranks

T = TypeVar("T")


@dataclass(frozen=True)
class Team:
    """Which of how many processes this is, and its device. The first one (`leads`) writes all files."""

    rank: int
    size: int
    device: torch.device

    @property
    def leads(self) -> bool:
        """Whether this process writes the files."""
        return self.rank == 0

    @property
    def many(self) -> bool:
        """Whether there are others."""
        return self.size > 1

    @property
    def gpus(self) -> list[torch.device]:
        """The GPU of this process, if it has one."""
        return [self.device] if self.device.type == "cuda" else []

    def from_leader(self, value: T) -> T:
        """The first process's value, in all of them."""
        if self.many:
            box: list[Any] = [value]
            dist.broadcast_object_list(box)
            return box[0]
        return value

    def of_all(self, value: T) -> list[T]:
        """The values of all processes, in all of them."""
        box: list[Any] = [value] * self.size
        if self.many:
            dist.all_gather_object(box, value)
        return box

    def rows_of_all(self, rows: Tensor) -> Tensor:
        """The rows of all processes, one process after the other."""
        if not self.many:
            return rows
        across = Ranks()
        return across.gather(rows, across.sizes(len(rows), rows.device))

    def own_share(self, count: int) -> range:
        """The part of `count` examples that this process works on."""
        return range(count * self.rank // self.size, count * (self.rank + 1) // self.size)

    @torch.no_grad()
    def align(self, module: nn.Module) -> None:
        """Give every process the first one's parameters and buffers."""
        if self.many:
            for value in module.state_dict().values():
                dist.broadcast(value, 0)

    def parallel(self, network: nn.Module) -> tuple[nn.Module, Callable[[], AbstractContextManager[Any]]]:
        """The network with its gradients averaged over the processes, and a context in which they are not yet."""
        if not self.many:
            return network, nullcontext
        parallel = nn.parallel.DistributedDataParallel(network, device_ids=self.gpus or None)
        return parallel, parallel.no_sync


@contextmanager
def team_of(device: str | None) -> Iterator[Team]:
    """Join the processes that torchrun has started, or be alone; leave them at the end if this has joined them."""
    chosen = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    if chosen.type == "cuda" and chosen.index is None:
        chosen = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    joins = int(os.environ.get("WORLD_SIZE", 1)) > 1 and not dist.is_initialized()
    if joins:
        dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
    try:
        if dist.is_available() and dist.is_initialized():
            yield Team(dist.get_rank(), dist.get_world_size(), chosen)
        else:
            yield Team(0, 1, chosen)
        if joins:
            # A process that leaves while others still talk to it would leave them waiting.
            dist.barrier()
    finally:
        if joins:
            dist.destroy_process_group()
