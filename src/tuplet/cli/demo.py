"""`tuplet demo`."""

import shutil
import sys
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING, Annotated

import typer

from tuplet.cli.errors import kept_with, when_stopped
from tuplet.cli.tables import percent, print_table

if TYPE_CHECKING:
    from tuplet.data import Dataset
    from tuplet.training import Run

_KS = (1, 2, 4, 8)


def demo(
    out: Annotated[str, typer.Option(help="The folder of the run.")] = "demo",
) -> None:
    """Train on drawn characters, test on characters that the network has never seen, and write a report.

    About three hundred characters are drawn in sixteen fonts each, distorted, noisy and in colour. Half of the
    characters are used for training. On the other half the demo measures Recall@K: how often the nearest images show
    the same character. It compares raw pixels, the network before training and the network after training.

    Example:
      tuplet demo
    """
    import torch

    import tuplet
    from tuplet import data, reports
    from tuplet.training.folder import CHECKPOINT, EVALUATION, RunFolder

    # The network is so small that several threads are slower than one, above all on a busy machine.
    torch.set_num_threads(1)
    print("Drawing characters and training on half of them …", flush=True)
    glyphs = data.open("glyphs")
    with when_stopped(lambda: kept_with(Path(out, CHECKPOINT))):
        run = tuplet.train(glyphs, out, recipe="demo")
    print("Testing on the other half and writing the report …\n", flush=True)
    baselines = {"raw pixels": measure_pixels(glyphs)}
    RunFolder(run.folder).write_json(EVALUATION, {**run.metrics, "baselines": baselines})
    report = reports.write(run.folder, glyphs)
    _print_result(run, {**baselines, "untrained network": run.metrics["start"]}, report)


def measure_pixels(glyphs: "Dataset") -> dict[str, float]:
    """Return Recall@K of the raw pixels on the unseen characters."""
    import torch

    from tuplet import data
    from tuplet.training.evaluate import recalls

    store = data.load(glyphs.split()[1])
    return recalls(store.values[torch.arange(len(store))].flatten(1).float(), store.data, _KS)


def _print_result(run: "Run", baselines: dict[str, dict[str, float]], report: Path) -> None:
    rows = {**baselines, "trained network": run.metrics}
    print_table(
        ["Recall on unseen characters", *(f"@{k}" for k in _KS)],
        [[name, *(percent(metrics[f"recall_at_{k}"]) for k in _KS)] for name, metrics in rows.items()],
        numbers=[f"@{k}" for k in _KS],
    )
    best = max(metrics["recall_at_1"] for metrics in baselines.values())
    gain = 100 * (run.metrics["recall_at_1"] - best)
    print(f"\nTraining gained {gain:.1f} points of Recall@1 over the better of the two baselines.")
    print(f"The report is {report}: open it in a browser.\n\nThree commands to try next:")
    program, folder, other = program_name(), quote(str(run.folder)), quote(f"{run.folder}_triplet")
    commands = {
        f"{program} evaluate {folder}": "every metric of this run",
        f"{program} train glyphs --recipe demo --loss triplet --out {other}": "the same with another loss",
        f"{program} train PHOTOS --out my_run": "your own images: a folder with one folder per class",
    }
    for command, about in commands.items():
        print(f"  {command.ljust(max(map(len, commands)))}  # {about}")


def program_name() -> str:
    """Return what the user types to call this program; `make demo` runs one that is not on the PATH."""
    if Path(sys.argv[0]).name == "__main__.py":
        return "python -m tuplet"
    return "tuplet" if shutil.which("tuplet") else quote(sys.argv[0])
