"""Read the results of the protocol, and select and average runs."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean, stdev
from typing import Any, TypeAlias

import trials
from methods import METHODS, RECIPE_ROWS
from runs import RESULTS

Result: TypeAlias = Mapping[str, Any]
#: Results by the names of their files; trials by their own names.
Results: TypeAlias = Mapping[str, Result]


def read(folder: Path = RESULTS) -> dict[str, Result]:
    """Return the results of the protocol; files of other benchmarks are ignored."""
    choices = ("chosen_", "systems_", *(f"{name}_" for name in RECIPE_ROWS))
    kinds = ("row_", "ablation_", "curve_", "map_", "tsne_", "remeasured", "frozen_", "transfer_", *choices)
    paths = [path for path in sorted(folder.glob("*.json")) if path.name.startswith(kinds)]
    found: dict[str, Result] = {path.stem: json.loads(path.read_text()) for path in paths}
    return found | {trial["trial"]: {"kind": "trial", **trial} for trial in trials.read(folder)}


def of_kind(kind: str, dataset: str, results: Results) -> list[Result]:
    """Return the results of a kind on a dataset, ordered by seed."""
    return [result for result in results.values() if (result["kind"], result.get("dataset")) == (kind, dataset)]


def rows(dataset: str, method: str, results: Results) -> list[Result]:
    """Return the rows of a method or of a recipe (`RECIPE_ROWS`)."""
    if method in RECIPE_ROWS:
        return of_kind(method, dataset, results)
    return [run for run in of_kind("row", dataset, results) if run["method"] == method]


def choice(dataset: str, results: Results) -> Result | None:
    """Return the options that all methods share and those of each family, the systems' included; None without any."""
    if f"chosen_{dataset}" not in results:
        return None
    shared, systems = results[f"chosen_{dataset}"], results.get(f"systems_{dataset}", {"per_family": {}})
    return {**shared, "per_family": {**shared["per_family"], **systems["per_family"]}}


def recalls(runs: Sequence[Result]) -> list[float]:
    """Return Recall@1 of the runs that did not diverge."""
    return [run["metrics"]["recall_at_1"] for run in runs if "metrics" in run]


def mean_recalls(dataset: str, results: Results) -> dict[str, float]:
    """Return the mean Recall@1 of every method and recipe that was measured."""
    found = {method: recalls(rows(dataset, method, results)) for method in (*METHODS, *RECIPE_ROWS)}
    return {method: fmean(values) for method, values in found.items() if values}


def spread(values: Sequence[float]) -> str:
    r"""Return a mean in per cent, with its standard deviation if there are several values; no line breaks after ±.

    >>> spread([0.5]), spread([0.5, 0.52])
    ('50.0', '51.0 ±\xa01.4')
    """
    mean = f"{100 * fmean(values):.1f}"
    return mean if len(values) == 1 else f"{mean} ±\xa0{100 * stdev(values):.1f}"
