"""Stop long work that nobody waits for any more: it checks between its blocks."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_is_cancelled: ContextVar[Callable[[], bool] | None] = ContextVar("is_cancelled", default=None)


class CancelledError(Exception):
    """The work was stopped because nobody waits for its result."""


@contextmanager
def cancel_when(is_cancelled: Callable[[], bool]) -> Iterator[None]:
    """Stop the work inside this block, at its next `check`, once the function returns True.

    >>> with cancel_when(lambda: True):
    ...     check()
    Traceback (most recent call last):
    tuplet.cancel.CancelledError: nobody waits for the result
    """
    before = _is_cancelled.set(is_cancelled)
    try:
        yield
    finally:
        _is_cancelled.reset(before)


def check() -> None:
    """Raise `CancelledError` if the work was cancelled; call it between blocks that take milliseconds."""
    is_cancelled = _is_cancelled.get()
    if is_cancelled is not None and is_cancelled():
        raise CancelledError("nobody waits for the result")
