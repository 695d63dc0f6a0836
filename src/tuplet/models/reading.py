"""Pictures in batches: files are decoded by a few threads while the network works."""

import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

T = TypeVar("T")
R = TypeVar("R")


def ahead(function: Callable[[T], R], items: Iterable[T], workers: int, lead: int) -> Iterator[R]:
    """`map` in threads, in order, never more than `lead` results ahead of the reader.

    >>> list(ahead(str, range(4), workers=2, lead=3))
    ['0', '1', '2', '3']
    """
    waiting: deque[Future[R]] = deque()
    with ThreadPoolExecutor(workers) as pool:
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


def batches(
    sources: Sequence[T], decode: Callable[[T], Tensor], batch_size: int, workers: int | None = None
) -> Iterator[Tensor]:
    """The decoded pictures, `batch_size` at a time; the next batches are decoded while the caller uses one."""
    workers = workers or min(8, os.cpu_count() or 1)
    batch: list[Tensor] = []
    for image in ahead(decode, sources, workers, lead=2 * batch_size):
        batch.append(image)
        if len(batch) == batch_size:
            yield torch.stack(batch)
            batch = []
    if batch:
        yield torch.stack(batch)
