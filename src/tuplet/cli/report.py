"""`tuplet report`."""

from pathlib import Path
from typing import Annotated

import typer

from tuplet import reports


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
) -> None:
    """Write report.html into the folder of a run: one file that needs nothing else to be looked at.

    Training curves, Recall@K, similarities of pairs, a map of the test set, the worst and some typical queries with
    what they find, confused classes, how the loss weighs pairs, settings and versions. tuplet train writes it too;
    this writes it again.

    Example:
      tuplet report runs/photos
    """
    print(reports.write(run))
