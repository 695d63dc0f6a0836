"""Ctrl-C while a run trains: it waits for the end of the step, so that nothing that was learned is lost."""

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType


@contextmanager
def postponed(wanted: bool = True) -> Iterator[Callable[[], bool]]:
    """Whether ctrl-C was pressed, for the work inside to ask where it can stop; pressed again, it interrupts at once.

    It interrupts at once also where this is not `wanted`, where the caller has a handler of his own, and outside the
    main thread, which alone Python tells of it.

    >>> with postponed() as pressed:
    ...     pressed()
    False
    """
    found: list[int] = []

    def take_note(number: int, frame: FrameType | None) -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        found.append(number)

    usual = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if not (wanted and usual and threading.current_thread() is threading.main_thread()):
        yield lambda: False
        return
    signal.signal(signal.SIGINT, take_note)
    try:
        yield lambda: bool(found)
    finally:
        signal.signal(signal.SIGINT, signal.default_int_handler)
