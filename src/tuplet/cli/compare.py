"""`tuplet compare`."""

import re
from typing import Annotated, Any

import typer

from tuplet import training
from tuplet.cli import show
from tuplet.cli.options import with_settings
from tuplet.cli.places import usable_device
from tuplet.reports.metrics import described

#: What is shown beside Recall@K; comparison.json has all.
_OTHERS = ("map_at_r", "nmi", "f1")


def _compare(
    data: Annotated[str, typer.Argument(metavar="DATA", help="As for tuplet train.")],
    losses: Annotated[
        list[str], typer.Argument(metavar="LOSSES", help="Names of losses, or of recipes, whose loss is meant.")
    ],
    settings: dict[str, Any],
    out: Annotated[str, typer.Option(help="The folder that keeps all runs.")] = "comparison",
    recipe: Annotated[str | None, typer.Option(help="The settings that all losses share; see tuplet train.")] = None,
    seeds: Annotated[int, typer.Option(metavar="N", min=1, help="How many runs of each loss.")] = 3,
) -> None:
    """Train several losses with several seeds, all else alike, and print mean ± deviation beside the papers' numbers.

    Every run is kept in a folder of its own, so that the same command goes on after an interruption; the numbers are in
    comparison.json too. Papers' rows appear where DATA are one of their benchmarks: mind their networks.

    Examples:
      tuplet compare glyphs multi_similarity triplet npair --recipe demo
      tuplet compare cub200.csv ranked_list raw_vthm nra --steps 2000 --weights resnet50.safetensors
    """
    usable_device(settings.get("device"))
    try:
        found = training.compare(data, losses, range(seeds), out=out, recipe=recipe, **settings)
    except ValueError as error:
        # To begin one of many runs again there is no option: it would begin them all again.
        raise ValueError(re.sub("(train with )?resume=False", "delete that run's folder", str(error))) from error
    shown = described(found["rows"][0]["mean"])
    measured = [name for name in shown if name.startswith("recall_at_") or name in _OTHERS]
    titles = [shown[name][0] for name in measured]
    rows = []
    for row in found["rows"]:
        own = [_spread(row["mean"][name], row["deviation"][name]) for name in measured]
        rows.append([row["loss"], f"here, {seeds} seeds" if seeds > 1 else "here", *own])
        for printed in row["published"]:
            theirs = [show.percent(printed["metrics"][name]) if name in printed["metrics"] else "" for name in measured]
            where = f"{printed['paper']}: {printed['method']}, {printed['network']}, {printed['dim']}-d"
            rows.append(["", where, *theirs])
    show.table(["loss", "where", *titles], rows, numbers=titles)
    print(f"\nruns and numbers: {out}")


def _spread(mean: float, deviation: float | None) -> str:
    """A mean and its deviation in percent.

    >>> _spread(0.5, 0.0123), _spread(0.5, None)
    ('50.00 ± 1.23 %', '50.00 %')
    """
    return show.percent(mean) if deviation is None else f"{100 * mean:.2f} ± {100 * deviation:.2f} %"


compare = with_settings(_compare, leave_out=("loss", "loss_options", "seed"))
