"""`tuplet report`."""

from pathlib import Path
from typing import Annotated

import typer

from tuplet import reports


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
    data: Annotated[
        str | None, typer.Argument(metavar="DATA", help="Where the run's data are now. [where they were]")
    ] = None,
) -> None:
    """Write report.html into the folder of a run: one file that needs nothing else to be looked at.

    Training curves, Recall@K, similarities of pairs, a map of the test set, the worst and some typical queries with
    what they find, confused classes, how the loss weighs pairs, settings and versions. tuplet train writes it too;
    this writes it again.

    Examples:
      tuplet report runs/photos
      tuplet report runs/photos /elsewhere/photos      the data were moved
    """
    print(reports.write(run, data))
