"""Tables for people: with lines and colour on a terminal, aligned columns and nothing else everywhere else."""

import sys
from collections.abc import Iterable, Sequence

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text


def table(columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[str] = ()) -> None:
    """Print a table; the columns named in `numbers` are aligned at their right."""
    terminal = sys.stdout.isatty()
    shown = Table(box=box.SIMPLE_HEAD if terminal else None, pad_edge=False, header_style="bold")
    for column in columns:
        shown.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    for row in rows:
        shown.add_row(*map(Text, row))
    if terminal:
        Console().print(shown)
        return
    # Elsewhere nothing is to be folded, and a file needs no spaces up to the end of the longest line.
    wide = Console(width=10_000)
    with wide.capture() as held:
        wide.print(shown)
    print("\n".join(line.rstrip() for line in held.get().splitlines()))


def percent(value: float) -> str:
    """A fraction of 1 with two decimals.

    >>> percent(0.87345)
    '87.34 %'
    """
    return f"{100 * value:.2f} %"
