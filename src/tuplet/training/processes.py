"""The processes of one run: one, or those that torchrun has started."""

import atexit
import gc
import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tuplet.models import Embedder
from tuplet.progress import silent
from tuplet.rows import Ranks

T = TypeVar("T")
#: Seconds in which torchrun, which looks every tenth of one, has long ended what is left of a failed run.
WAIT = 5.0


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

    @contextmanager
    def one_voice(self) -> Iterator[None]:
        """Progress and warnings from the first process alone."""
        if self.leads:
            yield
            return
        with silent(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield

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

    def meet(self) -> None:
        """Wait for all the others."""
        if self.many:
            dist.barrier()

    @torch.no_grad()
    def align(self, module: nn.Module) -> None:
        """Give every process the first one's parameters and buffers."""
        if self.many:
            for value in module.state_dict().values():
                dist.broadcast(value, 0)

    def parallel(self, network: Embedder) -> tuple[nn.Module, Callable[[], AbstractContextManager[Any]]]:
        """The network with its gradients averaged over the processes, and a context in which they are not yet."""
        # A network that is frozen whole has no gradients; those of the loss the loss itself averages.
        if not self.many or not any(p.requires_grad for p in network.parameters()):
            return network, nullcontext
        # Looking for them in each step costs time, so it is done for these alone.
        unread = network.backbone.hides_unread(network.config.levels)
        parallel = nn.parallel.DistributedDataParallel(
            network, device_ids=self.gpus or None, find_unused_parameters=unread
        )
        return parallel, parallel.no_sync


@contextmanager
def first_speaks() -> Iterator[None]:
    """Let the first process speak of an error that all have: torchrun then ends the others, which wait for it.

    A process that fails alone speaks after a while.
    """
    try:
        yield
    except Exception:
        if os.environ.get("RANK", "0") != "0":
            time.sleep(WAIT)
        raise


def join(device: str | None) -> Team:
    """Join the processes that torchrun has started, unless that is done already, or be alone.

    The processes stay together until they end: torch cannot reliably form their group a second time.
    """
    there = torch.cuda.is_available()
    try:
        chosen = torch.device(device or ("cuda" if there else "cpu"))
    except RuntimeError as error:
        raise ValueError(f"device is {device!r}, which torch does not know; use cpu, cuda or cuda:1") from error
    if chosen.type not in ("cpu", "cuda"):
        raise ValueError(f"device is {device!r}, which training does not know; use cpu, cuda or cuda:1")
    if chosen.type == "cuda" and not there:
        raise ValueError(f"device is {device!r} and torch finds no GPU here; use cpu, or leave it out")
    if chosen.type == "cuda":
        own = int(os.environ.get("LOCAL_RANK", 0)) if chosen.index is None else chosen.index
        chosen = torch.device("cuda", own)
        torch.cuda.set_device(chosen)
    if int(os.environ.get("WORLD_SIZE", 1)) > 1 and not dist.is_initialized():
        dist.init_process_group("nccl" if chosen.type == "cuda" else "gloo")
        atexit.register(_leave)
    if dist.is_available() and dist.is_initialized():
        return Team(dist.get_rank(), dist.get_world_size(), chosen)
    return Team(0, 1, chosen)


def _leave() -> None:
    # What averages the gradients lies in a cycle, and its threads must have ended before the group does.
    gc.collect()
    dist.destroy_process_group()
