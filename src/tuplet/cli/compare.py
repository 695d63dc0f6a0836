"""`tuplet compare`."""

from typing import Annotated, Any

import typer

from tuplet.cli.catalog import complete
from tuplet.cli.flags import Boxes, Columns, Pattern, open_options
from tuplet.cli.options import Recipe, add_training_options
from tuplet.cli.tables import percent, print_table


def _compare(
    data: Annotated[str, typer.Argument(metavar="DATA", help="As for tuplet train.")],
    losses: Annotated[
        list[str],
        typer.Argument(
            metavar="LOSSES",
            help="Names of losses, or of recipes, which stand for their loss.",
            autocompletion=complete("losses", "recipes"),
        ),
    ],
    settings: dict[str, Any],
    out: Annotated[str, typer.Option(help="The folder of all runs.")] = "comparison",
    recipe: Recipe = None,
    seeds: Annotated[int, typer.Option(metavar="N", min=1, help="The number of runs of each loss.")] = 3,
    columns: Columns = None,
    pattern: Pattern = None,
    boxes: Boxes = False,
) -> None:
    """Train several losses with several seeds and print mean ± standard deviation beside the papers' numbers.

    All other settings are the same for every loss. The row "untrained" is the model before training. Every run is kept
    in its own folder, so after an interruption the same command continues. comparison.json has all numbers,
    comparison.html shows them. Papers' rows appear if DATA is one of their benchmarks: note that their networks may
    differ.

    Examples:
      tuplet compare glyphs multi_similarity triplet npair --recipe demo
      tuplet compare cub200.csv ranked_list raw_vthm nra --steps 2000 --weights resnet50.safetensors
    """
    from tuplet import data as datasets
    from tuplet import reports, training
    from tuplet.cli.runs import usable_device
    from tuplet.reports.comparison import shown_metrics

    usable_device(settings.get("device"))
    opened = datasets.open(data, **open_options(columns, pattern, boxes))
    comparison = training.compare(opened, losses, range(seeds), out=out, recipe=recipe, **settings)
    names = shown_metrics(comparison["rows"])
    titles = list(names.values())
    rows = []
    for row in comparison["rows"]:
        values = [_mean_and_std(row["mean"][n], row["std"][n]) if n in row["mean"] else "" for n in names]
        rows.append([row["loss"], f"here, {seeds} seeds" if len(row["runs"]) > 1 else "here", *values])
        for published in row.get("published", ()):
            metrics = published["metrics"]
            values = [percent(metrics[name]) if name in metrics else "" for name in names]
            source = f"{published['paper']}: {published['method']}, {published['network']}, {published['dim']}-d"
            rows.append(["", source, *values])
    print_table(["loss", "where", *titles], rows, numbers=titles)
    print(f"\npage: {reports.write_comparison(out)}\nruns and numbers: {out}")


def _mean_and_std(mean: float, std: float | None) -> str:
    """Format a mean and its standard deviation in percent.

    >>> _mean_and_std(0.5, 0.0123), _mean_and_std(0.5, None)
    ('50.00 ± 1.23 %', '50.00 %')
    """
    return percent(mean) if std is None else f"{100 * mean:.2f} ± {100 * std:.2f} %"


compare = add_training_options(_compare, leave_out=("loss", "loss_options", "seed"))
# There is no flag to start one of many runs again: it would start all of them again.
compare.instead = {"resume": "delete that run's folder"}  # type: ignore[attr-defined]
