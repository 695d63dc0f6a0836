"""`tuplet compare`."""

from pathlib import Path
from typing import Annotated, Any

import typer

from tuplet.cli.arguments import Boxes, Columns, Data, Pattern, open_options
from tuplet.cli.catalog import complete
from tuplet.cli.errors import NOTHING_KEPT, when_stopped
from tuplet.cli.options import Recipe, add_training_options
from tuplet.cli.tables import print_table


def _compare(
    data: Data,
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
    from tuplet.reports.comparison import shown_metrics, table_rows

    opened = datasets.open(data, **open_options(columns, pattern, boxes))
    with when_stopped(lambda: _kept(out, len(losses) * seeds)):
        comparison = training.compare(opened, losses, range(seeds), out=out, recipe=recipe, **settings)
    titles = shown_metrics(comparison["rows"])
    lines = table_rows(comparison["rows"], list(titles), digits=2)
    rows = [[cell.replace("\xa0", " ") for cell in cells] for cells, _ in lines]
    print_table(["loss", "where", *titles.values()], rows, numbers=list(titles.values()))
    print(f"\npage: {reports.write_comparison(out)}\nruns and numbers: {out}")


def _kept(folder: str, runs: int) -> str:
    """Say what a stopped comparison leaves."""
    from tuplet.training.folder import CHECKPOINT, EVALUATION

    done, begun = (len(list(Path(folder).glob(f"*/seed_*/{name}"))) for name in (EVALUATION, CHECKPOINT))
    if not begun:
        return NOTHING_KEPT
    return f"; {folder} has {done} of {runs} runs, and the same command continues from the last checkpoint"


compare = add_training_options(_compare, leave_out=("loss", "loss_options", "seed"))
# There is no flag to start one of many runs again: it would start all of them again.
compare.instead = {"resume": "delete that run's folder"}  # type: ignore[attr-defined]
