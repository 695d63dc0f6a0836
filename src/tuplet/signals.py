"""Ctrl-C, and SIGTERM, which `docker stop`, `kill` and Slurm send: end at once, raise, or finish the current step."""

import _thread
import logging
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from types import FrameType
from typing import Any, NoReturn

_logger = logging.getLogger("tuplet")


#: The signals that have raised an exception, in the block of `raise_on_signals`.
_raised: list[int] = []


def interrupt(number: int, frame: FrameType | None) -> NoReturn:
    """Handle ctrl-C as Python does: raise KeyboardInterrupt."""
    _raised.append(number)
    raise KeyboardInterrupt


def terminate(number: int, frame: FrameType | None) -> NoReturn:
    """Handle SIGTERM like ctrl-C: raise SystemExit with the code 143, so that locks and files are closed.

    >>> terminate(signal.SIGTERM, None)
    Traceback (most recent call last):
    SystemExit: 143
    """
    _raised.append(number)
    raise SystemExit(128 + number)


#: The handlers of Python, and those that raise KeyboardInterrupt for ctrl-C and SystemExit for SIGTERM.
_PYTHONS: dict[int, Any] = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
RAISING: dict[int, Callable[..., NoReturn]] = {signal.SIGINT: interrupt, signal.SIGTERM: terminate}


def _quit(number: int, frame: FrameType | None) -> NoReturn:
    """End the process at once: nothing has begun, or all is done."""
    os.write(2, b"tuplet: stopped\n")
    os._exit(128 + number)


def quit_on_signals() -> None:
    """Let ctrl-C and SIGTERM end this process at once, with a word instead of a traceback.

    A signal that is ignored, as by `nohup`, stays ignored.
    """
    for number, handler in _PYTHONS.items():
        if signal.getsignal(number) is handler:
            signal.signal(number, _quit)


@contextmanager
def raise_on_signals() -> Iterator[None]:
    """Let ctrl-C raise KeyboardInterrupt and SIGTERM raise SystemExit inside this block.

    It changes nothing in a process that has not called `quit_on_signals`, such as one that calls a command from Python.
    """
    _raised.clear()
    usual = {number: handler for number, handler in RAISING.items() if signal.getsignal(number) is _quit}
    with _handled(usual), _repeat_ignored_stops(), restore_stop():
        yield


@contextmanager
def _repeat_ignored_stops() -> Iterator[None]:
    """Handle a signal again, a moment later, where Python ignored what it raised.

    It does so in `__del__` and in callbacks, some of which run at every import.
    """
    before = sys.unraisablehook

    def repeat(ignored: Any) -> None:
        if _raised and isinstance(ignored.exc_value, KeyboardInterrupt | SystemExit):
            threading.Timer(0.01, _thread.interrupt_main, _raised[-1:]).start()
        else:
            before(ignored)

    sys.unraisablehook = repeat
    try:
        yield
    finally:
        sys.unraisablehook = before


@contextmanager
def restore_stop() -> Iterator[None]:
    """Raise what a signal raised, where another error has taken its place.

    Code in C can do that: `torch.asarray` calls back into Python, and reports any exception there as a ValueError.
    """
    try:
        yield
    except Exception:
        if _raised:
            RAISING[_raised[-1]](_raised[-1], None)
        raise


@contextmanager
def postpone_signals() -> Iterator[None]:
    """Handle ctrl-C and SIGTERM after this block instead of inside it.

    Python loses what they raise in the midst of a fork, and torch cannot clean up after a loader that is half made.

    >>> with postpone_signals():
    ...     print("no KeyboardInterrupt in here")
    no KeyboardInterrupt in here
    """
    received: list[int] = []
    with ExitStack() as stack:
        if threading.current_thread() is threading.main_thread():
            usual = [number for number in RAISING if callable(signal.getsignal(number))]
            stack.enter_context(_handled(dict.fromkeys(usual, lambda number, frame: received.append(number))))
        yield
    if received:
        signal.raise_signal(received[0])


@contextmanager
def delay_signals(enabled: bool = True) -> Iterator[Callable[[], int]]:
    """Yield a function that returns the signal that asked to stop, or 0, instead of stopping at once.

    The second signal stops at once. So does the first one if this is not `enabled`, if the caller has installed another
    handler, and in threads, since Python passes signals to the main thread only.

    >>> with delay_signals() as interrupted:
    ...     interrupted()
    0
    """
    received: list[int] = []
    with ExitStack() as stack:

        def note(number: int, frame: FrameType | None) -> None:
            stack.close()  # the next signal finds the handlers of before
            received.append(number)
            _logger.info("stopping after this step, with a checkpoint; once more stops at once")

        if enabled and threading.current_thread() is threading.main_thread():
            usual = [n for n in RAISING if signal.getsignal(n) in (_PYTHONS[n], RAISING[n])]
            stack.enter_context(_handled(dict.fromkeys(usual, note)))
        yield lambda: received[0] if received else 0


@contextmanager
def _handled(handlers: Mapping[int, Any]) -> Iterator[None]:
    """Install handlers inside this block."""
    before = {number: signal.signal(number, handler) for number, handler in handlers.items()}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
