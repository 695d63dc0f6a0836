"""Measure six rows of each dataset again with today's code, and print them beside the stored results.

    TUPLET_DATA=folder python benchmarks/remeasure.py --out folder [--processes 5] [--limit-seconds 540]

Each row has the options of its stored result and seed 0. Several processes share the work, the longest rows first.
Results are written to --out as they are measured, so the same command continues where it stopped; remeasured.json there
holds the table, which docs/results.md shows once the file is copied to benchmarks/results (`make results`).
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean
from typing import Any

import torch

import common
from methods import DATASETS, row_title
from runs import RESULTS, Job, Runner, write

ROWS = ("npair", "npair_angular", "raw_vthm", "nra", "rll_h", "best")
_COLUMNS = {"recall_at_1": "R@1", "map_at_r": "MAP@R", "nmi": "NMI"}


def stored(dataset: str, row: str) -> dict[str, Any]:
    """Return the stored result of a row with seed 0."""
    return json.loads((RESULTS / f"row_{dataset}_{row}_0.json").read_text())


def jobs(datasets: list[str]) -> list[Job]:
    """Return the rows of the datasets with the options of their stored results, the longest first."""
    found = []
    for dataset in datasets:
        for row in ROWS:
            old = stored(dataset, row)
            job = Job(f"row_{dataset}_{row}_0", old["kind"], dataset, old["method"], old["options"], {"seed": 0})
            found.append((old["seconds"], job))
    return [job for _, job in sorted(found, key=lambda pair: pair[0], reverse=True)]


def compare(out: Path, datasets: list[str]) -> str:
    """Write remeasured.json and return a table of old values, new values and differences in per cent."""
    head = ["dataset", "row", *(f"{title}: old, new, difference" for title in _COLUMNS.values()), "seconds"]
    lines, rows = [f"| {' | '.join(head)} |", "| " + " | ".join(["---"] * len(head)) + " |"], []
    for dataset in datasets:
        for row in ROWS:
            old, path = stored(dataset, row), out / f"row_{dataset}_{row}_0.json"
            new: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {"error": "not measured"}
            if "error" in new:
                cells = [new["error"], *["–"] * len(_COLUMNS)]
            else:
                pairs = [(100 * old["metrics"][name], 100 * new["metrics"][name]) for name in _COLUMNS]
                cells = [f"{a:.2f}, {b:.2f}, {b - a:+.2f}" for a, b in pairs] + [f"{new['seconds']:.0f}"]
                values = {"old": old["metrics"]["recall_at_1"], "new": new["metrics"]["recall_at_1"]}
                rows.append({"dataset": dataset, "row": row, **values, "device": new["device"]})
            lines.append(f"| {' | '.join([dataset, row_title(row), *cells])} |")
    if rows:
        write(out / "remeasured.json", {"kind": "remeasured", "versions": common.versions(), "rows": rows})
        mean = fmean(100 * (row["new"] - row["old"]) for row in rows)
        size = fmean(abs(100 * (row["new"] - row["old"])) for row in rows)
        lines += [
            "",
            f"R@1 of {len(rows)} rows: mean difference {mean:+.2f}, mean absolute difference {size:.2f} points.",
        ]
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--dataset", choices=sorted(set(DATASETS) - {"glyphs"}), nargs="+", default=["cub200", "cars196"]
    )
    parser.add_argument("--processes", type=int, default=5)
    parser.add_argument("--limit-seconds", type=float, default=540.0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--compile", action="store_true", help="faster runs, after a minute for each kind of network")
    parser.add_argument("--cache", type=Path, help="folder for decoded images (5 GB; default: in the temporary folder)")
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    out, started = arguments.out, time.monotonic()
    cache = arguments.cache or Path(tempfile.gettempdir(), "tuplet_decoded")
    if arguments.worker:
        runner = Runner(out, arguments.limit_seconds, arguments.device, arguments.compile, cache, known=())
        for job in jobs(arguments.dataset):
            runner.reached(job)
        return
    if "TUPLET_DATA" not in os.environ:
        parser.error("set TUPLET_DATA to the folder with the images and the weights")
    decoder = Runner(out, float("inf"), "cpu", cache=cache, known=())
    for job in jobs(arguments.dataset):
        decoder.load_data(job.dataset, job.options)  # decoded once, into the cache that all processes read
    print(f"{time.monotonic() - started:6.0f} s  images are decoded", flush=True)
    left = str(max(0.0, arguments.limit_seconds - (time.monotonic() - started)))
    command = [sys.executable, *sys.argv, "--worker", "--limit-seconds", left]
    workers = [subprocess.Popen(command) for _ in range(arguments.processes)]
    for worker in workers:
        try:
            worker.wait(max(0.0, arguments.limit_seconds - (time.monotonic() - started)))
        except subprocess.TimeoutExpired:
            worker.kill()
    print(compare(out, arguments.dataset))


if __name__ == "__main__":
    main()
