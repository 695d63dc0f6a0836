"""Results that the papers print for their benchmarks; `papers.csv` holds the rows."""

import csv
from functools import cache
from importlib.resources import files
from typing import NamedTuple

from tuplet.data import Dataset

#: The K of Recall@K in the papers' tables; 1, 2, 4, 8 for all other datasets.
_KS = {
    **dict.fromkeys(("cub200", "cars196"), (1, 2, 4, 8, 16, 32)),
    "sop": (1, 10, 100, 1000),
    "inshop": (1, 10, 20, 30, 40, 50),
}

#: Number of classes and of examples of each benchmark, by which it is recognised.
_SIZES = {
    "cub200": (200, 11_788),
    "cars196": (196, 16_185),
    "sop": (22_634, 120_053),
    "inshop": (7_982, 52_712),
}


class Published(NamedTuple):
    """Hold a row of a paper's table; its metrics (Recall@K, NMI, F1) are fractions of 1."""

    paper: str
    method: str
    network: str
    dim: int
    metrics: dict[str, float]


def benchmark(data: Dataset) -> str | None:
    """Return the name of a benchmark, recognised by its classes and, to within 1 %, its examples; None for other data.

    >>> import torch
    >>> from tuplet.data import from_features
    >>> benchmark(from_features(torch.zeros(11_788, 1), torch.arange(11_788) % 200))
    'cub200'
    """
    for name, (classes, examples) in _SIZES.items():
        if len(data.classes) == classes and abs(len(data) - examples) <= examples / 100:
            return name
    return None


def recall_ks(data: Dataset) -> tuple[int, ...]:
    """Return the K of Recall@K to measure on a dataset: the K of the papers' tables."""
    return _KS.get(benchmark(data) or "", (1, 2, 4, 8))


def published(name: str | None, loss: str) -> list[Published]:
    """Return the rows that the papers print for a loss on a benchmark.

    Args:
        name: the benchmark, as `benchmark` names it; None has no rows.
        loss: the name of a loss, of a recipe, or of a row in `docs/results_details.md`.

    >>> [row.metrics["recall_at_1"] for row in published("cub200", "ranked_list")]
    [0.613, 0.574]
    """
    return [row for benchmark, names, row in published_rows() if benchmark == name and loss in names]


@cache
def published_rows() -> list[tuple[str, list[str], Published]]:
    """Return all rows, each with its benchmark and the names of the loss."""
    with (files("tuplet.training") / "papers.csv").open(encoding="utf-8") as lines:
        return [_row(**line) for line in csv.DictReader(lines)]


def _row(
    benchmark: str, names: str, paper: str, method: str, network: str, dim: str, **percents: str
) -> tuple[str, list[str], Published]:
    # Rounded, since 57.4 / 100 is not the float that 0.574 is.
    metrics = {name: round(float(percent) / 100, 6) for name, percent in percents.items() if percent}
    return benchmark, names.split(), Published(paper, method, network, int(dim), metrics)
