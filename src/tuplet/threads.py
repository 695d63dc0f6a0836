"""Map a function in threads, so that ctrl-C ends it at any moment."""

import atexit
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from queue import Empty, SimpleQueue
from threading import Lock, Thread
from typing import Generic, TypeVar

A = TypeVar("A")
B = TypeVar("B")
#: Functions that end the threads of each map that is not done.
_stops: list[Callable[[], None]] = []


@atexit.register
def _stop_all() -> None:
    """End all threads before Python does: a thread that is in torch then would abort the process."""
    while _stops:
        _stops.pop()()


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=_stops.clear)  # threads do not survive a fork


def usable_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


class _Task(Generic[A, B]):
    """An item, and a place for its result or its error."""

    def __init__(self, item: A) -> None:
        self.item = item
        self._answer: SimpleQueue[tuple[list[B], BaseException | None]] = SimpleQueue()

    def run(self, function: Callable[[A], B]) -> None:
        try:
            self._answer.put(([function(self.item)], None))
        except BaseException as error:
            self._answer.put(([], error))

    def result(self) -> B:
        """Wait for the result and return it, or raise the error."""
        results, error = self._answer.get()
        if error is None:
            return results[0]
        try:
            raise error
        finally:
            del error  # its traceback refers to this frame


def map_in_threads(
    function: Callable[[A], B], items: Iterable[A], lead: int, workers: int | None = None
) -> Iterator[B]:
    """Map a function in threads and yield the results in order, at most `lead` of them ahead of the reader.

    There is one thread for each core up to eight, or `workers` of them.

    >>> list(map_in_threads(str, range(4), lead=3))
    ['0', '1', '2', '3']
    """
    # No executor: it takes its locks by code in Python. Where ctrl-C raises an error in the midst of that, a lock stays
    # taken, and the threads that need it wait forever. These queues are C.
    tasks: SimpleQueue[_Task[A, B] | None] = SimpleQueue()
    waiting: deque[_Task[A, B]] = deque()
    # A lock of each thread, which it holds until it ends. The thread itself lists it: ctrl-C may come in the midst of
    # starting one.
    working: list[Lock] = []
    started = 0

    def stop() -> None:
        with suppress(Empty):
            while True:
                tasks.get_nowait()
        tasks.put(None)
        for lock in working:
            lock.acquire()

    def work() -> None:
        lock = Lock()
        with lock:
            working.append(lock)
            while (task := tasks.get()) is not None:
                task.run(function)
            tasks.put(None)  # for the others

    _stops.append(stop)
    try:
        for item in items:
            waiting.append(_Task(item))
            tasks.put(waiting[-1])
            if started < (workers or min(8, usable_cores())):
                started += 1
                Thread(target=work, daemon=True).start()
            if len(waiting) > lead:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
    finally:
        if stop in _stops:
            stop()
            _stops.remove(stop)
