"""Batches on the device from a store and a sampler."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import islice
from typing import TypeVar

import torch
from torch import Tensor

from tuplet.data.store import Store
from tuplet.data.stream import LEAD, StreamedImages
from tuplet.threads import map_in_threads

A = TypeVar("A")


@dataclass(frozen=True, eq=False)
class Batch:
    """Examples on the device, as `batches` yields them.

    Attributes:
        index: (N,), the numbers of the examples in the store.
        values: images (N, 3, S, S) or feature vectors (N, d).
        aspects: (N,), the true width / height of the images.
        labels: (N,); or (N, L), padded with −1, if examples have several.
    """

    index: Tensor
    values: Tensor
    aspects: Tensor
    labels: Tensor


def batches(store: Store, indices: Iterable[list[int]], device: torch.device | str) -> Iterator[Batch]:
    """Yield batches on a device, without waiting for the device.

    A store on the device is indexed there. A store in the host's memory is read by a thread, one batch ahead; streamed
    images are decoded several batches ahead, unless the sampler chooses by the model's current embeddings. So the
    sampler is ahead of the training: when you resume, load the number of batches that were trained on.

    Args:
        store: the examples.
        indices: a sampler, or other lists of numbers of examples, one list per batch.
        device: where the batches go.

    Raises:
        UnreadableImageError: a streamed image of a batch cannot be read.

    >>> from tuplet.data import from_features, load
    >>> store = load(from_features(torch.eye(4), [0, 0, 1, 1]))
    >>> next(batches(store, [[2, 0]], "cpu")).labels
    tensor([1, 0])
    """
    device = torch.empty(0, device=device).device  # "cuda" is the GPU in use
    labels = _send(store.data.targets, device)
    home = store.values.device

    def read(chosen: list[int]) -> list[Tensor]:
        index = _send(torch.tensor(chosen), home)
        return [index, _rows(store.values, index), store.aspects[index]]

    streams = isinstance(store.values, StreamedImages)
    lead = LEAD if streams and not getattr(indices, "needs_embeddings", False) else 1
    ahead = streams or home != device
    parts = map_in_threads(read, indices, lead, workers=min(2, lead)) if ahead else map(read, indices)
    for index, values, aspects in parts:
        index, values, aspects = (_send(part, device) for part in (index, values, aspects))
        yield Batch(index, values, aspects, labels[index])


def _rows(values: Tensor | StreamedImages, index: Tensor) -> Tensor:
    # Indexing with brackets copies byte by byte, `index_select` row by row: 8 times as fast for images in memory.
    return values.index_select(0, index) if isinstance(values, Tensor) else values[index]


def chunks(items: Iterable[A], size: int) -> Iterator[list[A]]:
    """Yield lists of `size` items; the last may be shorter.

    >>> list(chunks("abc", 2))
    [['a', 'b'], ['c']]
    """
    remaining = iter(items)
    while chunk := list(islice(remaining, size)):
        yield chunk


def _send(values: Tensor, device: torch.device) -> Tensor:
    """Copy to a device, from pinned memory, so that the host does not wait for the copy."""
    if values.device == device:
        return values
    pinned = values.device.type == "cpu" and device.type == "cuda"
    return (values.pin_memory() if pinned else values).to(device, non_blocking=True)
