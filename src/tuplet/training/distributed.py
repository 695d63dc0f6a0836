"""The processes of a run: one, or those that torchrun started."""

import atexit
import gc
import logging
import os
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tuplet.errors import OptionError, first_line, opt
from tuplet.models import Embedder
from tuplet.progress import silent
from tuplet.rows import ProcessGroup

T = TypeVar("T")
_logger = logging.getLogger("tuplet")
#: Seconds that other processes wait with an error. torchrun checks its processes every 0.1 s and ends them sooner.
ERROR_DELAY = 5.0
#: Seconds that a process waits for another, unless TUPLET_TIMEOUT is set. The main one may evaluate alone for long.
TIMEOUT = 1800
#: Text in the message of every connection error of gloo, which has no error type of its own.
_GLOO = "gloo/transport"


@dataclass(frozen=True)
class World:
    """The rank of this process, the number of processes, and the device. The main process has rank 0."""

    rank: int
    size: int
    device: torch.device

    @property
    def is_main(self) -> bool:
        """True in the process that writes the files."""
        return self.rank == 0

    @property
    def is_distributed(self) -> bool:
        """True if there is more than one process."""
        return self.size > 1

    @property
    def gpus(self) -> list[torch.device]:
        """The GPU of this process, or an empty list."""
        return [self.device] if self.device.type == "cuda" else []

    @contextmanager
    def quiet(self) -> Iterator[None]:
        """Show progress, messages and warnings in the main process only."""
        if self.is_main:
            yield
            return
        before = _logger.disabled
        with silent(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            _logger.disabled = True
            try:
                yield
            finally:
                _logger.disabled = before

    def broadcast(self, value: T) -> T:
        """Return the value of the main process in all processes."""
        if self.is_distributed:
            box: list[Any] = [value]
            dist.broadcast_object_list(box)
            return box[0]
        return value

    def gather_objects(self, value: T) -> list[T]:
        """Return the values of all processes in all processes, in order of rank."""
        box: list[Any] = [value] * self.size
        if self.is_distributed:
            dist.all_gather_object(box, value)
        return box

    def gather_rows(self, rows: Tensor) -> Tensor:
        """Return the rows of all processes in all processes, in order of rank."""
        if not self.is_distributed:
            return rows
        group = ProcessGroup()
        return group.gather(rows, group.sizes(rows=rows))

    def sum(self, values: Tensor) -> Tensor:
        """Return the sum over all processes."""
        if self.is_distributed:
            dist.all_reduce(values)
        return values

    def collect_rows(self, rows: Tensor) -> Tensor:
        """Return in the main process the rows of all, on the CPU and in order of rank; in others their own rows.

        One share at a time is sent, so that the device of the main process needs no memory for all.
        """
        counts = self.gather_objects(len(rows))
        if not self.is_main:
            dist.send(rows.contiguous(), 0)
            return rows
        parts = [rows.cpu()]
        for rank, count in enumerate(counts[1:], 1):
            part = rows.new_empty(count, *rows.shape[1:])
            dist.recv(part, rank)
            parts.append(part.cpu())
        return torch.cat(parts)

    def divide_rows(self, rows: Tensor | None, own: Tensor) -> Tensor:
        """Return this process's share of rows that the main process has; it has the shape and the device of `own`."""
        counts = self.gather_objects(len(own))
        if not self.is_main:
            share = torch.empty_like(own)
            dist.recv(share, 0)
            return share
        assert rows is not None
        first, *others = rows.split(counts)
        for rank, share in enumerate(others, 1):
            dist.send(share.to(self.device), rank)
        return first

    def share(self, indices: Sequence[int]) -> Sequence[int]:
        """Return the examples, of those at `indices`, that this process works on."""
        return indices[len(indices) * self.rank // self.size : len(indices) * (self.rank + 1) // self.size]

    def barrier(self) -> None:
        """Wait for all processes."""
        if self.is_distributed:
            dist.barrier()

    @torch.no_grad()
    def broadcast_module(self, module: nn.Module) -> None:
        """Copy the main process's parameters and buffers to all processes."""
        if self.is_distributed:
            for value in module.state_dict().values():
                dist.broadcast(value, 0)

    def data_parallel(self, network: Embedder) -> tuple[nn.Module, Callable[[], AbstractContextManager[Any]]]:
        """Wrap a network so that its gradients are averaged over the processes.

        Returns:
            The network, and a context manager inside of which gradients are not exchanged yet.
        """
        # A frozen network has no gradients. The loss averages the gradients of its own parameters.
        if not self.is_distributed or not any(p.requires_grad for p in network.parameters()):
            return network, nullcontext
        # Searching for unused parameters costs time in every step, so only backbones that may have some do it.
        unused = network.backbone.may_hide_unused(network.config.levels)
        parallel = nn.parallel.DistributedDataParallel(
            network, device_ids=self.gpus or None, find_unused_parameters=unused
        )
        return parallel, parallel.no_sync


@contextmanager
def main_raises_first() -> Iterator[None]:
    """Delay errors in all processes but the main one, so that an error that all of them have is printed once.

    torchrun ends the other processes as soon as the main one fails. If only another process fails, its error is printed
    after the delay.
    """
    try:
        yield
    except Exception as error:
        if os.environ.get("RANK", "0") != "0":
            time.sleep(ERROR_DELAY)
        lost = _lost_process(error)
        if lost is not None:
            raise lost from error
        raise


def _lost_process(error: Exception) -> OSError | None:
    """Return an error of the connection to another process as one sentence; None for any other error."""
    if not isinstance(error, dist.DistError) and not (isinstance(error, RuntimeError) and _GLOO in str(error)):
        return None
    if "timed out" in str(error).lower():
        return TimeoutError(
            f"another process of this run did not answer within {_timeout():,g} s; look whether it was stopped, "
            "or set TUPLET_TIMEOUT to more seconds, then call again to continue from the last checkpoint"
        )
    return ConnectionError(
        "another process of this run ended; see its own message, and call again to go on from the last checkpoint"
    )


def usable_device(name: str | None) -> torch.device:
    """Return the device of that name, or a GPU or the CPU without a name; raise an error if it cannot be used.

    "cuda" is the GPU that torchrun has assigned to this process, or the first one.

    >>> usable_device("cpu")
    device(type='cpu')
    """
    try:
        device = torch.device(name or ("cuda" if torch.cuda.is_available() else "cpu"))
        if device.type == "cuda" and device.index is None:
            device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", 0)))
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:  # torch has no such device, or is built without it
        reason = first_line(error).rstrip(".")
        raise OptionError(
            f"{opt('device')} is {name!r}, which cannot be used: {reason}", "use cpu, or leave it out"
        ) from error
    return device


def join_processes(device: str | None) -> World:
    """Join the processes that torchrun started, if there are any.

    The process group lives until the process ends: torch cannot reliably create it a second time.
    """
    chosen = usable_device(device)
    if chosen.type not in ("cpu", "cuda"):
        raise OptionError(f"{opt('device')} is {device!r}, unsupported in training", "use cpu, cuda or cuda:1")
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    if int(os.environ.get("WORLD_SIZE", 1)) > 1 and not dist.is_initialized():
        backend = "nccl" if chosen.type == "cuda" else "gloo"
        dist.init_process_group(backend, timeout=timedelta(seconds=_timeout()))
        atexit.register(_leave)
    if dist.is_available() and dist.is_initialized():
        return World(dist.get_rank(), dist.get_world_size(), chosen)
    return World(0, 1, chosen)


def _timeout() -> float:
    given = os.environ.get("TUPLET_TIMEOUT", str(TIMEOUT))
    try:
        seconds = float(given)
        if not 0 < seconds < 1e9:
            raise ValueError
    except ValueError:
        raise ValueError(f"TUPLET_TIMEOUT is {given!r}; it must be a number of seconds above 0") from None
    return seconds


def _leave() -> None:
    # DistributedDataParallel is part of a reference cycle, and its threads must end before the process group does.
    gc.collect()
    dist.destroy_process_group()
