"""What the numbers of an evaluation are called, and what each says in plain words."""

from collections.abc import Mapping
from typing import Any

_MEANINGS = {
    "mean_average_precision": (
        "mAP",
        "How well the whole list is ordered: 100\xa0% means that all right answers come first",
    ),
    "map_at_r": (
        "MAP@R",
        "How full of right answers the first R places are, earlier ones counting more; R is how many exist",
    ),
    "r_precision": ("R-precision", "The share of right answers in the first R places; R is how many exist"),
    "mean_reciprocal_rank": ("MRR", "The mean of 1 / rank of the first right answer"),
    "nmi": ("NMI", "How much k-means clusters and true classes tell about each other"),
    "ami": ("AMI", "As NMI, less what chance would give"),
    "f1": ("F1", "How well k-means puts pairs of one class together and keeps others apart"),
}


def described(metrics: Mapping[str, Any]) -> dict[str, tuple[str, float, str]]:
    """Each metric of an evaluation: its title, its value and a sentence, in the order of the evaluation.

    >>> described({"queries": 4, "recall_at_1": 0.75})["recall_at_1"]
    ('Recall@1', 0.75, '3 of 4 queries have one of their own class as nearest')
    >>> described({"queries": 4, "mirrored": {"recall_at_1": 1.0}})["mirrored_recall_at_1"][:2]
    ('Recall@1, mirrored', 1.0)
    """
    queries = metrics.get("queries", 0)
    result = {}
    for name, value in metrics.items():
        if name in _MEANINGS:
            title, meaning = _MEANINGS[name]
        elif name.startswith("recall_at_"):
            title, meaning = _recall(int(name.removeprefix("recall_at_")), value, queries)
        elif name.startswith("vrf_at_"):
            count = name.removeprefix("vrf_at_")
            rivals = "one of another class" if count == "1" else f"{count} of other classes"
            title, meaning = f"VRF@{count}", f"How often one of the same class is nearer than {rivals}"
        else:
            continue
        result[name] = (title, float(value), meaning)
    for k, value in recalls(metrics.get("mirrored", {})).items():
        title, meaning = _recall(k, value, queries)
        averaged = "by vectors averaged with those of the mirror images"
        result[f"mirrored_recall_at_{k}"] = (f"{title}, mirrored", value, f"{meaning}, {averaged}")
    return result


def _recall(k: int, value: float, queries: int) -> tuple[str, str]:
    where = "as nearest" if k == 1 else f"among the {k} nearest"
    return f"Recall@{k}", f"{round(value * queries):,} of {queries:,} queries have one of their own class {where}"


def recalls(metrics: Mapping[str, Any]) -> dict[int, float]:
    """Recall@K by K, in order.

    >>> recalls({"recall_at_2": 0.5, "recall_at_1": 0.25})
    {1: 0.25, 2: 0.5}
    """
    found = {
        int(name.removeprefix("recall_at_")): value for name, value in metrics.items() if name.startswith("recall_at_")
    }
    return dict(sorted(found.items()))
