"""All metrics of a set of embeddings in one dictionary."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tuplet.evaluation.cluster_metrics import clustering
from tuplet.evaluation.inputs import as_labels, as_seed, positive_integer
from tuplet.evaluation.retrieval import LIST_METRICS, mean_where_defined, per_query, recall_names
from tuplet.evaluation.vectors import Device, as_vectors
from tuplet.evaluation.vrf import verification

# Numbers of negatives in table 1 of Sohn 2016.
VRF_NEGATIVES = (1, 71)


def evaluate(
    embeddings: Any,
    labels: Any,
    *,
    gallery: Any = None,
    gallery_labels: Any = None,
    groups: Any = None,
    gallery_groups: Any = None,
    ks: Sequence[int] = (1, 2, 4, 8),
    metric: str = "euclidean",
    ties: str = "pessimistic",
    runs: int = 10,
    bootstrap: int = 0,
    seed: int = 0,
    device: Device = None,
) -> dict[str, Any]:
    """Compute every metric of a set of embeddings, as a dictionary that JSON can hold.

    Args:
        embeddings: (N, d) query vectors, as a tensor, an array, a memory-mapped file or `Vectors`.
        labels: N integers; or (N, L), several for each, padded with −1.
        gallery: vectors to search; by default the queries search among themselves, each without itself.
        gallery_labels: the labels of the gallery.
        groups: integers, such as cameras; a member with a query's label and its group is left out of its list.
        gallery_groups: the groups of the gallery.
        ks: the values of K for Recall@K.
        metric: "euclidean", "cosine" or "dot".
        ties: "pessimistic", "optimistic" or "expected": where a negative stands that ties with a positive.
        runs: the number of runs of k-means on the queries, Euclidean for metric="dot"; 0 for none. Examples with
            several labels each are not clustered.
        bootstrap: the number of resamples of the queries for confidence intervals; 0 for none.
        seed: the seed of k-means, of verification and of the resamples.
        device: where to compute, by default where the embeddings are.

    Returns:
        `recall_at_1` …, `mean_average_precision`, `map_at_r`, `r_precision` and `mean_reciprocal_rank`; `nmi`, `f1` and
        `ami`; `vrf_at_1` and `vrf_at_71`, if there are enough classes and neither a separate gallery nor groups;
        `without_positive`, the number of queries that the four list metrics leave out; the sizes and settings; and with
        `bootstrap`, `intervals`, the central 95 % of each retrieval metric.

    Raises:
        ValueError: if no query has a positive.

    >>> x = torch.tensor([[0.0], [0.1], [5.0], [5.1]])
    >>> result = evaluate(x, [3, 3, 8, 8], ks=(1,), runs=1)
    >>> result["recall_at_1"], result["map_at_r"], result["nmi"], result["vrf_at_1"]
    (1.0, 1.0, 1.0, 1.0)
    """
    seed = as_seed(seed)
    runs = positive_integer(runs, "runs") if runs else 0
    bootstrap = positive_integer(bootstrap, "bootstrap") if bootstrap else 0
    vectors = as_vectors(embeddings, device=device)
    classes = as_labels(labels, vectors.count, several=True)
    members = None if gallery is None else as_vectors(gallery, "gallery", device)
    recalls = tuple(recall_names(ks).values())
    values, num_positives = per_query(
        vectors,
        classes,
        metrics=recalls + LIST_METRICS,
        gallery=members,
        gallery_labels=gallery_labels,
        groups=groups,
        gallery_groups=gallery_groups,
        metric=metric,
        ties=ties,
    )
    result: dict[str, Any] = {
        "queries": vectors.count,
        "gallery": vectors.count if members is None else members.count,
        "classes": len(classes[classes >= 0].unique()) if classes.ndim == 2 else len(classes.unique()),
        "dim": vectors.dim,
        "without_positive": int((num_positives == 0).sum()),
        "metric": metric,
        "ties": ties,
        "seed": seed,
        "runs": runs,
    }
    result |= {name: values[name].mean().item() for name in recalls}
    result |= {name: mean_where_defined(values[name], num_positives, name) for name in LIST_METRICS}
    if runs and classes.ndim == 1:
        result |= clustering(vectors, classes, runs, seed, metric="cosine" if metric == "cosine" else "euclidean")
    for negatives in VRF_NEGATIVES:
        if members is None and groups is None and classes.ndim == 1 and negatives < result["classes"]:
            result[f"vrf_at_{negatives}"] = verification(vectors, classes, negatives, seed, metric=metric)["vrf"]
    if bootstrap:
        result["bootstrap"] = bootstrap
        result["intervals"] = _intervals(values, num_positives, recalls, bootstrap, seed)
    return result


def _intervals(
    values: dict[str, Tensor], num_positives: Tensor, recalls: tuple[str, ...], resamples: int, seed: int
) -> dict[str, list[float]]:
    """Return the 2.5th and 97.5th percentile of each mean over queries drawn with replacement.

    A resample in which no query has a positive has no mean, and is drawn again.
    """
    count = len(num_positives)
    table = torch.stack(list(values.values()), 1)
    # Recall divides by all queries drawn, the other metrics by the queries that have a positive.
    counts = torch.stack([(num_positives > 0) | (name in recalls) for name in values], 1).double()
    generator = torch.Generator().manual_seed(seed)
    means: list[Tensor] = []
    while len(means) < resamples:
        drawn = torch.randint(count, (count,), generator=generator, device="cpu")
        times = torch.bincount(drawn, minlength=count).double()
        if (counted := times @ counts).all():
            means.append((times @ table) / counted)
    bounds = torch.stack(means).quantile(table.new_tensor([0.025, 0.975]), dim=0)
    return {name: bounds[:, i].tolist() for i, name in enumerate(values)}
