"""Print tables: with lines and colour on a terminal, as aligned plain text elsewhere."""

import sys
from collections.abc import Iterable, Sequence

from tuplet.cli.terminal import visible


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: Sequence[str] = ()) -> None:
    """Print a table; the columns named in `numbers` are aligned right."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    terminal = sys.stdout.isatty()
    table = Table(box=box.SIMPLE_HEAD if terminal else None, pad_edge=False, header_style="bold")
    for column in columns:
        table.add_column(column, justify="right" if column in numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(visible(cell)) for cell in row))
    if terminal:
        Console(file=sys.__stdout__).print(table)
        return
    # In a file or a pipe: no line breaks inside a row, and no spaces at the end of a line.
    wide = Console(width=10_000)
    with wide.capture() as captured:
        wide.print(table)
    print("\n".join(line.rstrip() for line in captured.get().splitlines()))


def percent(value: float) -> str:
    """Format a fraction of 1 as a percentage with two decimals.

    >>> percent(0.87345)
    '87.34 %'
    """
    return f"{100 * value:.2f} %"
