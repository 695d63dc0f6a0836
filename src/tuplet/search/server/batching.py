"""Work for many requests together: in batches, or once for all who ask."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Generic, TypeVar

from tuplet.search.server.limits import busy

A = TypeVar("A")
B = TypeVar("B")


class Batcher(Generic[A, B]):
    """Call a function on batches of items, one batch at a time, in a thread of its own.

    Items that arrive during one batch form the next. The function gets the items, and a function that tells whether
    somebody still waits for the item at a place. It returns a result for each item, or an exception, which is raised to
    the caller with that item.

    >>> async def double_three_numbers():
    ...     double = Batcher(lambda numbers, _: [2 * n for n in numbers], max_batch=2, max_waiting=10, what="numbers")
    ...     return await asyncio.gather(double(1), double(2), double(3))
    >>> asyncio.run(double_three_numbers())
    [2, 4, 6]
    """

    def __init__(
        self,
        function: Callable[[list[A], Callable[[int], bool]], Sequence[B | Exception]],
        max_batch: int,
        max_waiting: int,
        what: str,
    ) -> None:
        self._function, self._max_batch, self._max_waiting, self._what = function, max_batch, max_waiting, what
        self._waiting: deque[tuple[A, asyncio.Future[B]]] = deque()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix=what)
        self._task: asyncio.Task[None] | None = None

    def __len__(self) -> int:
        return len(self._waiting)

    def close(self) -> None:
        """Drop what waits, and return when the thread has finished its batch."""
        self._thread.shutdown(cancel_futures=True)

    async def __call__(self, item: A) -> B:
        """Return the result for one item; refuse it if too many wait already."""
        if len(self._waiting) >= self._max_waiting:
            raise busy(self._what, self._max_waiting)
        loop = asyncio.get_running_loop()
        future: asyncio.Future[B] = loop.create_future()
        self._waiting.append((item, future))
        if self._task is None or self._task.done():
            self._task = loop.create_task(self._run_batches(loop))
        return await future

    async def _run_batches(self, loop: asyncio.AbstractEventLoop) -> None:
        while self._waiting:
            batch: list[tuple[A, asyncio.Future[B]]] = []
            while self._waiting and len(batch) < self._max_batch:
                item, future = self._waiting.popleft()
                if not future.done():  # the caller may have given up
                    batch.append((item, future))
            if not batch:
                continue
            results: Sequence[B | Exception]
            futures = [future for _, future in batch]
            try:
                results = await loop.run_in_executor(
                    self._thread,
                    self._function,
                    [item for item, _ in batch],
                    lambda place, futures=futures: not futures[place].done(),
                )
            except Exception as error:
                results = [error] * len(batch)
            for future, result in zip(futures, results, strict=True):
                if future.done():
                    continue
                if isinstance(result, Exception):
                    future.set_exception(result)
                else:
                    future.set_result(result)


class Shared(Generic[B]):
    """A result that is computed once for all who ask for it, and kept for those who ask later.

    It is computed to the end even if those who wait for it give up, and never twice at the same time.

    >>> async def ask_twice():
    ...     shared = Shared(lambda: asyncio.sleep(0.01, "the result"))
    ...     return await asyncio.gather(shared(version=1, seconds=60), shared(version=1, seconds=60))
    >>> asyncio.run(ask_twice())
    ['the result', 'the result']
    """

    def __init__(self, compute: Callable[[], Coroutine[Any, Any, B]]) -> None:
        self._compute = compute
        self._task: asyncio.Task[B] | None = None
        self._version, self._begun = 0, 0.0

    async def __call__(self, version: int, seconds: float) -> B:
        """Return the result for a version; one that is older than `seconds` or has failed is computed again."""
        while self._task is not None and not self._task.done() and self._version != version:
            await asyncio.wait([self._task])
        if self._task is None or (self._task.done() and not self._is_fresh(self._task, version, seconds)):
            self._version, self._begun = version, time.monotonic()
            self._task = asyncio.create_task(self._compute())
        return await asyncio.shield(self._task)

    def _is_fresh(self, task: asyncio.Task[B], version: int, seconds: float) -> bool:
        has_failed = task.cancelled() or task.exception() is not None
        return not has_failed and version == self._version and time.monotonic() - self._begun <= seconds
