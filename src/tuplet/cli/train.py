"""`tuplet train`."""

import json
import os
import shlex
from pathlib import Path
from typing import Annotated, Any

import typer

from tuplet.cli.arguments import Boxes, Columns, Pattern, open_options
from tuplet.cli.catalog import complete_words
from tuplet.cli.errors import kept_with, when_stopped
from tuplet.cli.options import Config, Recipe, add_training_options, read_options


def _train(
    data: Annotated[
        str,
        typer.Argument(metavar="DATA", help="A folder, a tar, a .csv or .parquet table, a file of features, glyphs."),
    ],
    settings: dict[str, Any],
    out: Annotated[
        str | None, typer.Option(metavar="FOLDER", help="The folder of the run. [runs/ and the name of the data]")
    ] = None,
    recipe: Recipe = None,
    resume: Annotated[
        bool, typer.Option(help="Continue the run in the folder, or start again.", rich_help_panel="Run")
    ] = True,
    columns: Columns = None,
    pattern: Pattern = None,
    boxes: Boxes = False,
    log: Annotated[
        list[str] | None,
        typer.Option(
            help="Also log to wandb or mlflow; may be repeated.",
            rich_help_panel="Run",
            autocompletion=complete_words(("wandb", "mlflow")),
        ),
    ] = None,
    config: Config = None,
    print_config: Annotated[bool, typer.Option("--print-config", help="Print all options as JSON and stop.")] = False,
) -> None:
    """Train an embedder, test it on classes that it has not seen, and write a report.

    DATA is a folder with one folder of images per class; a table with the columns path and label; the official copy
    of CUB-200-2011, Cars196, Stanford Online Products, In-Shop or Omniglot; vectors in a .npy, .npz or .safetensors
    file; or the word glyphs. Half of the classes are used for testing, unless the data come with splits, and a fifth
    of the others selects the best checkpoint.

    The model before training is measured too. Without --model and --weights the best pretrained weights on this
    machine are used. Below, defaults are in brackets. If there are few images or no GPU, other defaults are chosen
    for options such as --steps, --lr and --freeze-to; a line says which.

    After an interruption (ctrl-C, SIGTERM or a crash) the same command continues exactly as if there had been none.

    Examples:
      tuplet train photos/
      tuplet train photos/ --steps 0                        only measure the model before training
      tuplet train photos/ --test-share 0.2 --final true    test on a fifth, then train on all classes
      tuplet train cats_and_dogs/ --split images            few classes: hold out images, not classes
      tuplet train list.csv --columns path=file,label=species
      tuplet train photos/ --out birds --weights resnet50.safetensors --steps 2000 --batch-size 128
      tuplet train cub200.csv --recipe ranked_list --model resnet50 --weights resnet50.safetensors
      tuplet train features.npz --loss proxy_anchor --loss-options alpha=32,margin=0.1
      tuplet train photos/ --config run.yaml --lr 1e-5
      torchrun --nproc-per-node 2 -m tuplet train photos/ --precision bfloat16
    """
    import tuplet
    from tuplet import data as datasets
    from tuplet import reports
    from tuplet.cli.evaluate import print_metrics
    from tuplet.cli.runs import default_folder
    from tuplet.training.checkpoint import plain_settings
    from tuplet.training.folder import CHECKPOINT
    from tuplet.training.resolve import resolve_settings

    opened = datasets.open(data, **open_options(columns, pattern, boxes))
    recipe, settings = read_options(config, recipe, settings)
    if print_config:
        print(json.dumps(plain_settings(resolve_settings(recipe, settings, opened)), indent=2, ensure_ascii=False))
        return
    folder = default_folder(data) if out is None else out
    with when_stopped(lambda: kept_with(Path(folder, CHECKPOINT))):
        run = tuplet.train(opened, folder, recipe=recipe, resume=resume, callbacks=log or (), **settings)
    if os.environ.get("RANK", "0") != "0":
        return
    print_metrics(run.metrics)
    print(f"before training: {run.metrics['start']['model']}", flush=True)
    with when_stopped(lambda: f"; the result is in {run.folder}, and the same command writes the report"):
        report = reports.write(run.folder, opened)  # takes seconds: after the result
    model = run.folder / "final" if settings.get("final") else run.folder
    print(f"report: {report}\nmodel:  {model / 'best'}")
    if opened.images is not None:
        words = ["tuplet", "index", str(model), data, "-o", f"{run.folder}.index"]
        words += [
            word for flag, text in (("--columns", columns), ("--pattern", pattern)) if text for word in (flag, text)
        ]
        print(f"search: {shlex.join(words)}")


train = add_training_options(_train)
