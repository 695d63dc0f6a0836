"""`tuplet demo`."""

import shutil
import sys
from pathlib import Path
from shlex import quote
from typing import Annotated

import torch
import typer

import tuplet
from tuplet import data as datasets
from tuplet import models, reports
from tuplet.cli import show
from tuplet.data import Dataset
from tuplet.models import Embedder
from tuplet.training import Run
from tuplet.training.examples import embed
from tuplet.training.folder import EVALUATION, RunFolder
from tuplet.training.testing import recalls

_KS = (1, 2, 4, 8)


def demo(
    out: Annotated[str, typer.Option(help="The folder of the run.")] = "demo",
) -> None:
    """Train on drawn characters, test on characters that the network has never seen, and write a report.

    Some three hundred characters are drawn in sixteen fonts each, distorted, noisy and in colour. Half of them are for
    training. The others show what was learned: how often the nearest picture shows the same character, for the pixels
    themselves, for the network before training, and for the network after it.

    Example:
      tuplet demo
    """
    # The network is so small that threads would wait for each other longer than they work, above all on a busy machine.
    torch.set_num_threads(1)
    print("Drawing characters and training on half of them …", flush=True)
    glyphs = datasets.open("glyphs")
    run = tuplet.train(glyphs, out, recipe="demo")
    print("Testing on the other half, and writing the report …\n", flush=True)
    found = baselines(run.embedder, glyphs)
    RunFolder(run.folder).write_json(EVALUATION, {**run.metrics, "baselines": found})
    report = reports.write(run.folder, glyphs)
    _print_result(run, found, report)


def baselines(trained: Embedder, glyphs: Dataset) -> dict[str, dict[str, float]]:
    """Recall@K of the unseen characters by their pixels, and by the network as it was before it learned."""
    store = datasets.load(glyphs.split()[1])
    untrained = embed(_untrained(trained), store, range(len(store)))
    vectors = {"raw pixels": store.values.flatten(1).float(), "untrained network": untrained}
    return {name: recalls(each, store.data, _KS) for name, each in vectors.items()}


def _untrained(trained: Embedder) -> Embedder:
    """An embedder like this one with random weights."""
    c = trained.config
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return models.create(
            c.architecture,
            dim=c.dim,
            levels=c.levels,
            pooling=c.pooling,
            normalize=c.normalize,
            preprocessing=c.preprocessing,
            **c.options,
        )


def _print_result(run: Run, baselines: dict[str, dict[str, float]], report: Path) -> None:
    rows = {**baselines, "trained network": run.metrics}
    show.table(
        ["Recall on unseen characters", *(f"@{k}" for k in _KS)],
        [[name, *(show.percent(found[f"recall_at_{k}"]) for k in _KS)] for name, found in rows.items()],
        numbers=[f"@{k}" for k in _KS],
    )
    best = max(found["recall_at_1"] for found in baselines.values())
    gain = 100 * (run.metrics["recall_at_1"] - best)
    print(f"\nTraining gained {gain:.1f} points of Recall@1 over the better of the other two.")
    print(f"The report is {report}: open it in a browser.\n\nThree commands to try next:")
    me, folder, other = how_called(), quote(str(run.folder)), quote(f"{run.folder}_triplet")
    tries = {
        f"{me} evaluate {folder}": "every metric of this run",
        f"{me} train glyphs --recipe demo --loss triplet --out {other}": "the same with another loss",
        f"{me} train PHOTOS --out my_run": "your own pictures: a folder with one folder a class",
    }
    for command, about in tries.items():
        print(f"  {command.ljust(max(map(len, tries)))}  # {about}")


def how_called() -> str:
    """What to type to call this program again: `make demo` calls one that is on nobody's path."""
    if Path(sys.argv[0]).name == "__main__.py":
        return "python -m tuplet"
    return "tuplet" if shutil.which("tuplet") else quote(sys.argv[0])
