"""Ctrl-C and SIGTERM during a command: it ends with exit code 130 or 143, and can say what is kept."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any, NoReturn

#: The signal of ctrl-C, and the one that `docker stop`, `kill` and Slurm send; the handlers that Python gives them.
_DEFAULTS: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}


def terminate(number: int, frame: FrameType | None) -> NoReturn:
    """Handle SIGTERM like ctrl-C: raise SystemExit with the code 143, so that locks and files are closed.

    >>> terminate(signal.SIGTERM, None)
    Traceback (most recent call last):
    SystemExit: 143
    """
    raise SystemExit(128 + number)


def _quit(number: int, frame: FrameType | None) -> NoReturn:
    """End the process at once: nothing has begun, or all is done."""
    os.write(2, b"tuplet: stopped\n")
    os._exit(128 + number)


def quit_on_signals() -> None:
    """Let ctrl-C and SIGTERM end this process at once, with a word instead of a traceback.

    A signal that is ignored, as by `nohup`, stays ignored.
    """
    for number, default in _DEFAULTS.items():
        if signal.getsignal(number) is default:
            signal.signal(number, _quit)


@contextmanager
def raise_on_signals() -> Iterator[None]:
    """Let ctrl-C raise KeyboardInterrupt and SIGTERM raise SystemExit inside this block.

    It changes nothing in a process that has not called `quit_on_signals`, such as one that calls a command from Python.
    """
    handlers: dict[int, Callable[..., Any]] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: terminate}
    ours = [number for number in handlers if signal.getsignal(number) is _quit]
    for number in ours:
        signal.signal(number, handlers[number])
    try:
        yield
    finally:
        for number in ours:
            signal.signal(number, _quit)
