"""Concurrent requests answered together: what arrives while a batch is worked on becomes the next batch."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Generic, TypeVar

from tuplet.search.server.limits import busy

A = TypeVar("A")
B = TypeVar("B")


class Batcher(Generic[A, B]):
    """Calls `work` on lists of items in a thread of its own, one list at a time; nothing waits longer than it must.

    An error that `work` gives in the place of a result is raised to the one who asked for it.

    >>> async def three():
    ...     double = Batcher(lambda numbers: [2 * n for n in numbers], largest=2, waiting=10, what="numbers")
    ...     return await asyncio.gather(double(1), double(2), double(3))
    >>> asyncio.run(three())
    [2, 4, 6]
    """

    def __init__(
        self, work: Callable[[list[A]], Sequence[B | Exception]], largest: int, waiting: int, what: str
    ) -> None:
        self._work, self._largest, self._limit, self._what = work, largest, waiting, what
        self._waiting: deque[tuple[A, asyncio.Future[B]]] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=what)
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    async def __call__(self, item: A) -> B:
        """What `work` gives for this item; refused where too many wait already."""
        if len(self._waiting) >= self._limit:
            raise busy(self._what, self._limit)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[B] = loop.create_future()
        self._waiting.append((item, future))
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._drain(loop))
        return await future

    async def _drain(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiting:
            batch: list[tuple[A, asyncio.Future[B]]] = []
            while self._waiting and len(batch) < self._largest:
                item, future = self._waiting.popleft()
                if not future.done():  # who asked may have given up
                    batch.append((item, future))
            if not batch:
                continue
            try:
                results = await loop.run_in_executor(self._thread, self._work, [item for item, _ in batch])
            except Exception as error:
                for _, future in batch:
                    if not future.done():
                        future.set_exception(error)
            else:
                for (_, future), result in zip(batch, results, strict=True):
                    if future.done():
                        continue
                    if isinstance(result, Exception):
                        future.set_exception(result)
                    else:
                        future.set_result(result)
