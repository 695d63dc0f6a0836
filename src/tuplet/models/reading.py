"""Pictures in batches: files are decoded by a few threads while the network works."""

from collections.abc import Callable, Iterator, Sequence
from typing import TypeVar

import torch
from torch import Tensor

from tuplet.data.batches import ahead

T = TypeVar("T")


def batches(
    sources: Sequence[T], decode: Callable[[T], Tensor], batch_size: int, workers: int | None = None
) -> Iterator[Tensor]:
    """The decoded pictures, `batch_size` at a time; the next batches are decoded while the caller uses one."""
    batch: list[Tensor] = []
    for image in ahead(decode, sources, 2 * batch_size, workers):
        batch.append(image)
        if len(batch) == batch_size:
            yield torch.stack(batch)
            batch = []
    if batch:
        yield torch.stack(batch)
