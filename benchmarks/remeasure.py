"""Measure six rows of each dataset again with today's code, and print them beside the stored results.

    TUPLET_DATA=folder python benchmarks/remeasure.py --out folder [--limit-seconds 540]

Each row has the options of its stored result and seed 0. Several processes with the same --out share the work, the
longest rows first. Results are written to --out as they are measured, so the same command continues where it stopped;
remeasured.json there holds the table, which docs/results_details.md shows once the file is copied to benchmarks/results
(`make results`).
"""

import argparse
import json
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
    cells, rows = [], []
    for dataset in datasets:
        for row in ROWS:
            old, path = stored(dataset, row), out / f"row_{dataset}_{row}_0.json"
            new: dict[str, Any] = json.loads(path.read_text()) if path.is_file() else {"error": "not measured"}
            found = [new.get("error", ""), *["–"] * len(_COLUMNS)]
            if "error" not in new:
                pairs = [(100 * old["metrics"][name], 100 * new["metrics"][name]) for name in _COLUMNS]
                found = [f"{a:.2f}, {b:.2f}, {b - a:+.2f}" for a, b in pairs] + [f"{new['seconds']:.0f}"]
                values = {"old": old["metrics"]["recall_at_1"], "new": new["metrics"]["recall_at_1"]}
                rows.append({"dataset": dataset, "row": row, **values, "device": new["device"]})
            cells.append([dataset, row_title(row), *found])
    head = ["dataset", "row", *(f"{title}: old, new, difference" for title in _COLUMNS.values()), "seconds"]
    text = common.table(head, cells)
    if rows:
        write(out / "remeasured.json", {"kind": "remeasured", "versions": common.versions(), "rows": rows})
        differences = [100 * (row["new"] - row["old"]) for row in rows]
        mean, size = fmean(differences), fmean(map(abs, differences))
        text += f"\n\nR@1 of {len(rows)} rows: mean difference {mean:+.2f}, mean absolute difference {size:.2f} points."
    return text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument(
        "--dataset", choices=sorted(set(DATASETS) - {"glyphs"}), nargs="+", default=["cub200", "cars196"]
    )
    parser.add_argument("--limit-seconds", type=float, default=540.0)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--compile", action="store_true", help="faster runs, after a minute for each kind of network")
    parser.add_argument("--cache", type=Path, help="a folder that keeps the decoded images for all processes")
    arguments = parser.parse_args()
    runner = Runner(
        arguments.out, arguments.limit_seconds, arguments.device, arguments.compile, arguments.cache, known=()
    )
    for job in jobs(arguments.dataset):
        runner.reached(job)
    print(compare(arguments.out, arguments.dataset))


if __name__ == "__main__":
    main()
