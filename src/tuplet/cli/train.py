"""`tuplet train`."""

import os
from pathlib import Path
from typing import Annotated, Any

import typer

import tuplet
from tuplet import data as datasets
from tuplet import reports
from tuplet.cli.evaluate import print_metrics
from tuplet.cli.options import with_settings
from tuplet.cli.places import usable_device


def _train(
    data: Annotated[
        str, typer.Argument(metavar="DATA", help="A folder, a tar, a .csv or .parquet table, a features file, glyphs.")
    ],
    settings: dict[str, Any],
    out: Annotated[str | None, typer.Option(help="The folder of the run. [runs/ and the name of the data]")] = None,
    recipe: Annotated[
        str | None, typer.Option(help="A paper's settings: ranked_list, npair_angular, raw_vthm, nra, npair; or demo.")
    ] = None,
    resume: Annotated[bool, typer.Option(help="Go on with the run that is in the folder, or begin again.")] = True,
) -> None:
    """Train an embedder, test it on classes that it has not seen, and write a report.

    DATA is a folder with one folder of pictures a class; a table with the columns path and label; the official copy
    of CUB-200-2011, Cars196, Stanford Online Products, In-Shop or Omniglot; vectors in a .npy, .npz or .safetensors
    file; or the word glyphs. Half of the classes are for testing, unless the data come with splits of their own.

    The same command goes on after an interruption, exactly as if there had been none.

    Examples:
      tuplet train photos/
      tuplet train photos/ --out birds --weights resnet50.safetensors --steps 2000 --batch-size 128
      tuplet train cub200.csv --recipe ranked_list --model resnet50 --weights resnet50.safetensors
      tuplet train features.npz --loss proxy_anchor --loss-options alpha=32,margin=0.1
      torchrun --nproc-per-node 2 -m tuplet train photos/ --precision bfloat16
    """
    folder = Path("runs") / (Path(data).name.split(".")[0] or "data") if out is None else out
    usable_device(settings.get("device"))
    opened = datasets.open(data)
    run = tuplet.train(opened, folder, recipe=recipe, resume=resume, **settings)
    if os.environ.get("RANK", "0") != "0":
        return
    report = reports.write(run.folder, opened)
    print_metrics(run.metrics)
    print(f"report: {report}\nmodel:  {run.folder / 'best'}")


train = with_settings(_train)
