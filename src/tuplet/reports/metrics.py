"""Titles and plain explanations of the metrics of an evaluation."""

from collections.abc import Mapping
from typing import Any

_MEANINGS = {
    "mean_average_precision": ("mAP", "The quality of the whole ranking: 100\xa0% if all correct results come first"),
    "map_at_r": ("MAP@R", "Average precision of the first R results; R is the number of correct ones that exist"),
    "r_precision": ("R-precision", "The share of correct results among the first R; R is the number that exist"),
    "mean_reciprocal_rank": ("MRR", "The mean of 1 / rank of the first correct result"),
    "ndcg_at_10": ("nDCG@10", "The first ten results against the best order: a shared label or level counts each"),
    "pair_accuracy": (
        "Pair accuracy",
        "The share of listed pairs that one threshold decides correctly, in ten folds",
    ),
    "tar_at_far_0.01": ("TAR@1%", "The share of listed same pairs accepted when 1\xa0% of the different ones are"),
    "rank1": ("Rank-1", "Closed set: the share of probes whose nearest face is of their person, among one of each"),
    "dir_at_far_0.01": (
        "DIR@1%",
        "Open set: the share of known people named correctly when 1\xa0% of the unknown are named",
    ),
    "triplet_accuracy": ("Triplet accuracy", "The share of listed triplets whose positive is nearer than the negative"),
    "classifier_accuracy": (
        "Classifier",
        "The share of images that the loss's own classifier, of the last step, names correctly",
    ),
    "nmi": ("NMI", "Normalized mutual information of k-means clusters and true classes"),
    "ami": ("AMI", "As NMI, corrected for chance"),
    "f1": ("F1", "F-measure of the pairs that k-means puts into one cluster, against the pairs of one class"),
}


def describe_metrics(metrics: Mapping[str, Any]) -> dict[str, tuple[str, float, str]]:
    """Return the title, the value and an explanation of each metric, in the order of the evaluation.

    >>> describe_metrics({"queries": 4, "recall_at_1": 0.75})["recall_at_1"]
    ('Recall@1', 0.75, '3 of 4 queries have an example of their class as nearest')
    >>> describe_metrics({"queries": 4, "flip_test": {"recall_at_1": 1.0}})["mirrored_recall_at_1"][:2]
    ('Recall@1, mirrored', 1.0)
    """
    queries = metrics.get("queries", 0)
    result = {}
    for name, value in metrics.items():
        if name in _MEANINGS:
            title, meaning = _MEANINGS[name]
            if name == "pair_accuracy" and "pair_accuracy_stderr" in metrics:
                meaning += f"; standard error {100 * metrics['pair_accuracy_stderr']:.2f} points"
        elif name.startswith("recall_at_"):
            title, meaning = _recall(int(name.removeprefix("recall_at_")), value, queries)
        elif name.startswith("vrf_at_"):
            count = name.removeprefix("vrf_at_")
            others = "one of another class" if count == "1" else f"{count} of other classes"
            title, meaning = (
                f"VRF@{count}",
                f"The share of trials in which an example of the same class is nearer than {others}",
            )
        else:
            continue
        result[name] = (title, float(value), meaning)
    for level, found in metrics.get("levels", {}).items():
        for k, value in recalls(found).items():
            title, meaning = _recall(k, value, queries, f"{level} class")
            result[f"{level}_recall_at_{k}"] = (f"{title}, {level}", value, meaning)
    for k, value in recalls(metrics.get("flip_test", {})).items():
        title, meaning = _recall(k, value, queries)
        averaged = "with vectors averaged over the image and its mirror image"
        result[f"mirrored_recall_at_{k}"] = (f"{title}, mirrored", value, f"{meaning}, {averaged}")
    if "reranked" in metrics:
        reranked = describe_metrics({"queries": queries, **metrics["reranked"]})
        for name, (title, value, meaning) in reranked.items():
            result[f"reranked_{name}"] = (f"{title}, re-ranked", value, f"{meaning}, after re-ranking")
    return result


def _recall(k: int, value: float, queries: int, what: str = "class") -> tuple[str, str]:
    where = "as nearest" if k == 1 else f"among the {k} nearest"
    return f"Recall@{k}", f"{round(value * queries):,} of {queries:,} queries have an example of their {what} {where}"


def describe_gain(metrics: Mapping[str, Any]) -> str | None:
    """Return what training gained in Recall@1, with its interval; None if the start was not measured.

    A run of no steps, and one that kept its start, gained nothing.

    >>> gain = {"recall_at_1": 0.0125, "interval": [-0.004, 0.03], "confidence": 0.95}
    >>> print(describe_gain({"recall_at_1": 0.75, "start": {"recall_at_1": 0.7375}, "gain": gain}))
    Recall@1 before training 73.8 % → after 75.0 %: +1.2 points (95 % interval: -0.4 to +3.0, so it may be chance)
    """
    start, gain = metrics.get("start"), metrics.get("gain")
    if not start or not gain:
        return None
    if metrics.get("step") == 0:
        return f"Recall@1 {100 * start['recall_at_1']:.1f} % is that of the model before training"
    low, high = (100 * value for value in gain["interval"])
    chance = ", so it may be chance" if low <= 0 <= high else ""
    interval = f"{100 * gain['confidence']:g} % interval: {low:+.1f} to {high:+.1f}{chance}"
    return (
        f"Recall@1 before training {100 * start['recall_at_1']:.1f} % → after {100 * metrics['recall_at_1']:.1f} %: "
        f"{100 * gain['recall_at_1']:+.1f} points ({interval})"
    )


def recalls(metrics: Mapping[str, Any]) -> dict[int, float]:
    """Return Recall@K by K, in order.

    >>> recalls({"recall_at_2": 0.5, "recall_at_1": 0.25})
    {1: 0.25, 2: 0.5}
    """
    found = {
        int(name.removeprefix("recall_at_")): value for name, value in metrics.items() if name.startswith("recall_at_")
    }
    return dict(sorted(found.items()))
