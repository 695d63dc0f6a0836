"""Measure evaluation beside pytorch-metric-learning's AccuracyCalculator: time, peak memory, and the values.

    python benchmarks/evaluation.py [--device cuda] [--size cub,sop] [--only recall]

Random clustered unit vectors of 512 dimensions: as many and in as many classes as the test half of CUB-200-2011 (5,924
in 100) and of Stanford Online Products (60,502 in 11,316). On a CPU each task runs in a process of its own, one library
after the other, and a fifth of SOP's classes stands for all of them in the tasks that would take minutes. A complete
run writes benchmarks/results/evaluation_DEVICE.json and the table of docs/evaluation.md; it takes five minutes on
one core (OMP_NUM_THREADS=1).
"""

import argparse
import time
import warnings
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from typing import Any

import torch
from torch import Tensor

import common
from common import number
from tuplet import evaluation as ev

try:
    import faiss  # noqa: F401  (its evaluator imports it only when called)
    from pytorch_metric_learning.utils.accuracy_calculator import AccuracyCalculator
except ImportError:
    AccuracyCalculator = None

SIZES = {"cub": (5_924, 100, 0.29), "sop": (60_502, 11_316, 0.44), "sop/5": (12_100, 2_263, 0.44)}
#: The size that is measured instead if a task would take too long.
PARTS = {"cub": "cub", "sop": "sop/5"}
DIM = 512
#: A task is repeated while its runs take less than this in total, in seconds.
LONG = 10.0
Run = Callable[[Tensor, Tensor], dict[str, float]]


def data(size: str, device: str) -> tuple[Tensor, Tensor]:
    """Return points around random class centres, two or more for each class."""
    count, classes, signal = SIZES[size]
    generator = torch.Generator().manual_seed(0)
    rest = torch.randint(classes, (count - 2 * classes,), generator=generator)
    labels = torch.cat([torch.arange(classes).repeat(2), rest])[torch.randperm(count, generator=generator)]
    centres = torch.randn(classes, DIM, generator=generator)
    points = signal * centres[labels] + torch.randn(count, DIM, generator=generator)
    return torch.nn.functional.normalize(points, dim=1).to(device), labels.to(device)


def retrieval(*names: str) -> Run:
    def run(x: Tensor, y: Tensor) -> dict[str, float]:
        values, positives = ev.per_query(x, y, metrics=names)
        return {name: values[name][positives > 0].mean().item() for name in names}

    return run


def recall(*ks: int) -> Run:
    return lambda x, y: {f"recall_at_{k}": value for k, value in ev.recall_at_k(x, y, ks).items()}


def calculator(k: int | str | None, **names: str) -> Run:
    """Return the peer's metrics under our names."""

    def run(x: Tensor, y: Tensor) -> dict[str, float]:
        found = AccuracyCalculator(include=tuple(names.values()), k=k, device=x.device).get_accuracy(x, y)
        return {ours: found[theirs] for ours, theirs in names.items()}

    return run


@dataclass
class Task:
    """The same metrics by both libraries; `left_out` is the reason if the peer is not measured."""

    name: str
    sizes: tuple[str, ...]
    ours: Run
    peer: Run | None = None
    left_out: str = ""
    part_on_cpu: bool = False


_SOME = {"recall_at_1": "precision_at_1", "map_at_r": "mean_average_precision_at_r", "r_precision": "r_precision"}
_ALL = {
    **_SOME,
    "mean_average_precision": "mean_average_precision",
    "mean_reciprocal_rank": "mean_reciprocal_rank",
}
TASKS = [
    Task("R@1, mAP, MAP@R, R-precision, MRR", ("cub",), retrieval(*_ALL), calculator(None, **_ALL)),
    Task(
        "R@1, mAP, MAP@R, R-precision, MRR",
        ("sop",),
        retrieval(*_ALL),
        left_out="holds every list: 44 GB of distances and indices for all of SOP, and more for each metric",
        part_on_cpu=True,
    ),
    Task("R@1, MAP@R, R-precision", ("cub", "sop"), retrieval(*_SOME), calculator("max_bin_count", **_SOME)),
    Task("R@1, 2, 4, 8", ("cub",), recall(1, 2, 4, 8), left_out="has R@1 alone"),
    Task("R@1, 10, 100, 1000", ("sop",), recall(1, 10, 100, 1000), left_out="has R@1 alone"),
    Task(
        "k-means, one run: NMI, F1, AMI (peer: NMI)",
        ("cub", "sop"),
        lambda x, y: ev.clustering(x, y, runs=1),
        calculator(None, nmi="NMI"),
        part_on_cpu=True,
    ),
]


def measure(index: int, size: str, device: str) -> dict[str, Any]:
    """Measure one task at one size: the peak memory of a first run, then the best time of several."""
    warnings.simplefilter("ignore")
    task = TASKS[index]
    sides: dict[str, Run] = {"ours": task.ours}
    if task.peer is not None and AccuracyCalculator is not None:
        sides["peer"] = task.peer
    row: dict[str, Any] = {"task": task.name, "size": size, "left_out": task.left_out}
    few = torch.nn.functional.normalize(torch.randn(64, DIM), dim=1).to(device), (torch.arange(64) % 4).to(device)
    x, y = data(size, device)
    for side, run in sides.items():
        run(*few)
        (taken, values), peak = common.peak_extra(partial(timed, run, x, y), device)
        times = [taken]
        while sum(times) + times[-1] < LONG and len(times) < 5:
            times.append(timed(run, x, y)[0])
        row[side] = {"seconds": min(times), "mib": peak / 2**20, "values": values}
    return row


def timed(run: Run, x: Tensor, y: Tensor) -> tuple[float, dict[str, float]]:
    """Return the seconds and the values of a run; reading the values waits for the GPU."""
    start = time.perf_counter()
    values = run(x, y)
    return time.perf_counter() - start, values


def report(rows: list[dict[str, Any]], device: str, versions: dict[str, str]) -> str:
    peer = versions.get("pytorch-metric-learning")
    with_peer = peer and AccuracyCalculator is not None
    lines = [
        f"### {common.machine(device)}",
        "",
        f"torch {versions['torch']}, float32, d = {DIM}. "
        + (
            f"Ours / pytorch-metric-learning {peer} = how many times as much the latter takes; memory beyond the "
            "embeddings, at its peak. sop/5: a fifth of SOP's classes, for what takes minutes with all of them."
            if with_peer
            else "Ours alone: pytorch-metric-learning or faiss is not installed."
        ),
        "",
    ]
    cells = []
    for row in rows:
        values = ", ".join(f"{value:.4f}" for value in row["ours"]["values"].values())
        if "peer" in row:
            values += " / " + ", ".join(f"{value:.4f}" for value in row["peer"]["values"].values())
        cells.append([row["size"], row["task"], cell(row, "seconds"), cell(row, "mib"), values])
    return "\n".join([*lines, common.table(["size", "metrics", "seconds", "MiB", "values"], cells)])


def cell(row: dict[str, Any], unit: str) -> str:
    ours = row["ours"][unit]
    if "peer" not in row:
        return number(ours) + (f" / {row['left_out']}" if row["left_out"] and unit == "seconds" else "")
    times = row["peer"][unit] / ours
    return f"{number(ours)} / {number(row['peer'][unit])} = **{times:.{1 if times >= 1 else 2}f}×**"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["cpu", "cuda"], default="cpu")
    parser.add_argument("--size", default="cub,sop")
    parser.add_argument("--only", default="", help="tasks with this word in their names; nothing is written")
    arguments = parser.parse_args()
    sizes, device = arguments.size.split(","), arguments.device
    if unknown := set(sizes) - set(PARTS):
        parser.error(f"--size takes {', '.join(PARTS)}, got {', '.join(unknown)}")
    jobs = [
        (index, PARTS[size] if task.part_on_cpu and device == "cpu" else size, device)
        for size in sizes
        for index, task in enumerate(TASKS)
        if size in task.sizes and arguments.only.lower() in task.name.lower()
    ]
    if device == "cuda":
        rows = [measure(*job) for job in jobs]
    else:
        with ProcessPoolExecutor(1, mp_context=get_context("spawn"), max_tasks_per_child=1) as pool:
            rows = list(pool.map(measure, *zip(*jobs, strict=True)))
    versions = common.versions("pytorch-metric-learning", "faiss-cpu")
    print(text := report(rows, device, versions))
    if not arguments.only and sizes == list(PARTS):
        common.save(f"evaluation_{device}", {"machine": common.machine(device), "versions": versions, "rows": rows})
        common.write_between("evaluation.md", f"evaluation on {device}", text)


if __name__ == "__main__":
    main()
