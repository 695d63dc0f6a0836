"""Ctrl-C and SIGTERM during training: finish the step first, so that a checkpoint can be written."""

import logging
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

from tuplet.signals import terminate

_logger = logging.getLogger("tuplet")
#: The signals, and the handlers that a process has unless it installs others: Python's, and the command line's.
_USUAL: dict[int, tuple[Any, ...]] = {
    signal.SIGINT: (signal.default_int_handler,),
    signal.SIGTERM: (signal.SIG_DFL, terminate),
}


@contextmanager
def delay_interrupt(enabled: bool = True) -> Iterator[Callable[[], int]]:
    """Yield a function that returns the signal that asked to stop, or 0, instead of stopping at once.

    The signals are that of ctrl-C and SIGTERM, which `docker stop` and Slurm send. The second one stops at once. So
    does the first one if this is not `enabled`, if the caller has installed another handler, and in threads, since
    Python passes signals to the main thread only.

    >>> with delay_interrupt() as interrupted:
    ...     interrupted()
    0
    """
    received: list[int] = []

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def note(number: int, frame: FrameType | None) -> None:
        restore()
        received.append(number)
        _logger.info("stopping after this step, with a checkpoint; once more stops at once")

    before = {
        number: signal.getsignal(number)
        for number, usual in _USUAL.items()
        if enabled and threading.current_thread() is threading.main_thread() and signal.getsignal(number) in usual
    }
    for number in before:
        signal.signal(number, note)
    try:
        yield lambda: received[0] if received else 0
    finally:
        restore()


def stop(number: int) -> None:
    """Raise KeyboardInterrupt for ctrl-C, and SystemExit with code 143 for SIGTERM."""
    if number == signal.SIGTERM:
        raise SystemExit(128 + number)
    raise KeyboardInterrupt
