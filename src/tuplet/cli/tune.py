"""`tuplet tune`."""

import shlex
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Annotated, Any

import typer

from tuplet.cli.arguments import Boxes, Columns, Data, Pattern, open_options
from tuplet.cli.errors import kept_with, when_stopped
from tuplet.cli.flags import flag, format_value
from tuplet.cli.options import Config, Recipe, add_training_options, read_options
from tuplet.cli.tables import percent, print_table

#: Trials that the table shows; the page has all of them.
_SHOWN = 10


def _tune(
    data: Data,
    settings: dict[str, Any],
    out: Annotated[
        str | None, typer.Option(help="The folder of the tuning. [runs/ and the name of the data, with _tuning]")
    ] = None,
    trials: Annotated[
        int, typer.Option(metavar="N", min=1, help="The number of trials, those of earlier calls included.")
    ] = 40,
    minutes: Annotated[
        float | None, typer.Option(metavar="NUMBER", help="Begin no trial that would end after this time.")
    ] = None,
    seeds: Annotated[
        int, typer.Option(metavar="N", min=1, help="The number of seeds that decide between the best trials.")
    ] = 3,
    recipe: Recipe = None,
    resume: Annotated[
        bool, typer.Option(help="Continue the tuning in the folder, or start again.", rich_help_panel="Run")
    ] = True,
    columns: Columns = None,
    pattern: Pattern = None,
    boxes: Boxes = False,
    config: Config = None,
) -> None:
    """Search for good options of tuplet train, and print the command that trains with them.

    Optuna chooses loss, learning rate, steps, images of a class in a batch, and for images augmentation, the learning
    rate of new layers and frozen layers, as far as they suit DATA, the model and the device. Options that you give are
    not searched. All trials are measured on validation classes; the test split stays unused until you train with the
    command that is printed.

    The first trial has the defaults. Trials that are worse than half of the earlier ones are stopped early. At the end
    the best trials and the first one are trained with further seeds, and the best mean wins. tuning.html shows every
    trial and what mattered, tuning.json has all numbers, and study.db is Optuna's own file.

    After an interruption the same command continues; finished trials are not repeated. More --trials continue a
    finished tuning.

    Examples:
      tuplet tune photos/
      tuplet tune photos/ --trials 100 --minutes 240
      tuplet tune features.npz --loss proxy_anchor --trials 20
    """
    from tuplet import data as datasets
    from tuplet import reports, training
    from tuplet.cli.runs import default_folder
    from tuplet.reports.tuning import describe, gain_over_first, metric_title, ranked
    from tuplet.training.tuning import STUDY

    folder = default_folder(data, "_tuning") if out is None else out
    opened = datasets.open(data, **open_options(columns, pattern, boxes))
    recipe, fixed = read_options(config, recipe, settings)
    options = {"minutes": minutes, "seeds": seeds, "recipe": recipe, "resume": resume, **fixed}
    with when_stopped(lambda: kept_with(Path(folder, STUDY))):
        found = training.tune(opened, folder, trials, **options)
    words = ["tuplet", "train", data, "--out", str(default_folder(data, "_tuned")), *(["--boxes"] if boxes else [])]
    sources = {"recipe": recipe, "columns": columns, "pattern": pattern, "config": config}
    command = _command(words, {k: v for k, v in sources.items() if v is not None} | settings | found["best"]["options"])
    page = reports.write_tuning(folder, command)
    title, score = metric_title(found), percent(fmean(found["best"]["scores"]))
    rows = [
        [str(row["trial"]), " ".join(map(percent, row["scores"])), describe(row["options"], found["space"])]
        for row in ranked(found)[:_SHOWN]
    ]
    print_table(["trial", title, "options"], rows, numbers=["trial"])
    if found["importance"]:
        print("\nwhat mattered: " + ", ".join(f"{k} {percent(v)}" for k, v in found["importance"].items()))
    print(f"\n{title} {score}: {gain_over_first(found)}\npage: {page}\ntrain with the best options:\n{command}")


def _command(words: list[str], options: Mapping[str, Any]) -> str:
    """Return a command as the user would type it.

    >>> _command(["tuplet", "train", "my photos"], {"lr": 1e-4, "augment": {"area": [0.3, 1.0]}, "freeze_to": None})
    "tuplet train 'my photos' --lr 0.0001 --augment 'area=[0.3,1.0]' --freeze-to none"
    """
    pairs = [text for name, value in options.items() for text in (flag(name), format_value(value))]
    return shlex.join([*words, *pairs])


tune = add_training_options(_tune, leave_out=("test_on", "final"))
