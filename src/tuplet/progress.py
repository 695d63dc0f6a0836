"""Progress bars for long work: on a terminal with rate and time left, silent everywhere else."""

import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TypeVar

T = TypeVar("T")
_silent: ContextVar[bool] = ContextVar("silent", default=False)


@contextmanager
def silent() -> Iterator[None]:
    """Show no bars inside this block: for a part of work that has a bar already, or for one request of many."""
    before = _silent.set(True)
    try:
        yield
    finally:
        _silent.reset(before)


def track(items: Iterable[T], what: str, total: int | None = None) -> Iterator[T]:
    """Yield `items` and, if standard error is a terminal, show a progress bar there.

    Args:
        items: the work.
        what: the text beside the bar.
        total: the number of items, if they have no length.

    >>> list(track(range(3), "counting"))
    [0, 1, 2]
    """
    if _silent.get() or not sys.stderr.isatty():
        yield from items
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TimeRemainingColumn
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            return Text(_rate(task.speed) if task.speed else "", style="progress.data.speed")

    columns = ("{task.description}", BarColumn(), MofNCompleteColumn(), Rate(), TimeRemainingColumn())
    with Progress(*columns, console=Console(file=sys.__stderr__), transient=True) as bar:
        yield from bar.track(items, description=what, total=total)


def _rate(speed: float) -> str:
    """Return a speed, or the time of one item if that is longer than a second.

    >>> _rate(1234.5), _rate(0.08)
    ('1,234.5/s', '12.5 s each')
    """
    return f"{speed:,.1f}/s" if speed >= 1 else f"{1 / speed:,.1f} s each"
