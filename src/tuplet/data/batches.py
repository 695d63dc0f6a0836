"""From a store and a sampler to batches on the device."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from tuplet.data.store import Store

A = TypeVar("A")
B = TypeVar("B")


@dataclass(frozen=True, eq=False)
class Batch:
    """Examples on the device: their numbers in the store, values, aspects and labels, each with N entries."""

    index: Tensor
    values: Tensor
    aspects: Tensor
    labels: Tensor


def batches(store: Store, indices: Iterable[list[int]], device: torch.device | str) -> Iterator[Batch]:
    """The batches that a sampler's lists of indices name, on the device, without waiting for it.

    A store on the device is indexed there. One in the host's memory is read by a thread one batch ahead; the sampler is
    then one batch ahead of the training too, perhaps in the next epoch: see how samplers are resumed.

    >>> from tuplet.data import from_features, load
    >>> store = load(from_features(torch.eye(4), [0, 0, 1, 1]))
    >>> next(batches(store, [[2, 0]], "cpu")).labels
    tensor([1, 0])
    """
    device = torch.empty(0, device=device).device  # "cuda" is the GPU in use
    labels = _send(store.data.labels, device)
    home = store.values.device

    def read(chosen: list[int]) -> list[Tensor]:
        index = _send(torch.tensor(chosen), home)
        return [index, store.values[index], store.aspects[index]]

    parts = map(read, indices) if home == device else ahead(read, indices, lead=1, workers=1)
    for index, values, aspects in parts:
        index, values, aspects = (_send(part, device) for part in (index, values, aspects))
        yield Batch(index, values, aspects, labels[index])


def ahead(function: Callable[[A], B], items: Iterable[A], lead: int, workers: int | None = None) -> Iterator[B]:
    """`map` in threads, one a core up to eight, in order, never more than `lead` results ahead of the reader.

    >>> list(ahead(str, range(4), lead=3))
    ['0', '1', '2', '3']
    """
    waiting: deque[Future[B]] = deque()
    with ThreadPoolExecutor(workers or min(8, os.cpu_count() or 1)) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) > lead:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


def _send(values: Tensor, device: torch.device) -> Tensor:
    """Copy to a device; from pinned memory, so that the host need not wait until the device has taken it."""
    if values.device == device:
        return values
    pinned = values.device.type == "cpu" and device.type == "cuda"
    return (values.pin_memory() if pinned else values).to(device, non_blocking=True)
