"""`tuplet report`."""

from pathlib import Path
from shlex import quote
from typing import Annotated

import typer


def report(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run.")],
    data: Annotated[
        str | None, typer.Argument(metavar="DATA", help="The dataset of the run, if it was moved. [where it was]")
    ] = None,
) -> None:
    """Write report.html into the folder of a run: one file that needs no other files and no network.

    It shows training curves, Recall@K, similarities of pairs, a map of the test set, the worst and some typical
    queries with their results, confused classes, the weights that the loss gives to pairs, settings and versions.
    tuplet train writes the report at its end; this command writes it again, or for a run that is still training.

    Examples:
      tuplet report runs/photos
      tuplet report runs/photos /elsewhere/photos             the dataset was moved
      tuplet train photos/ --model dinov2_small --steps 0     the report of a model without training
    """
    from tuplet import models, reports

    if not run.exists() and str(run) in {**models.ARCHITECTURES, **models.ALIASES}:
        command = f"tuplet train {quote(data or 'DATA')} --model {run} --steps 0"
        raise FileNotFoundError(f"{run} is a model, not a run; for its report without training: {command}")
    print(reports.write(run, data))
