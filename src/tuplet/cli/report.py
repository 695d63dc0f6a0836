"""`tuplet report`."""

from pathlib import Path
from typing import Annotated

import typer


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a finished run.")],
    data: Annotated[
        str | None, typer.Argument(metavar="DATA", help="The dataset of the run, if it was moved. [where it was]")
    ] = None,
) -> None:
    """Write report.html into the folder of a run: one file that needs no other files and no network.

    It shows training curves, Recall@K, similarities of pairs, a map of the test set, the worst and some typical
    queries with their results, confused classes, the weights that the loss gives to pairs, settings and versions.
    tuplet train writes the report at its end; this command writes it again.

    Examples:
      tuplet report runs/photos
      tuplet report runs/photos /elsewhere/photos      the dataset was moved
    """
    from tuplet import reports

    print(reports.write(run, data))
