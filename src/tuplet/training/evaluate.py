"""Measure an embedder: `tuplet.evaluate`, and the metrics of a run."""

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch
from torch import Tensor

from tuplet import data as datasets
from tuplet import evaluation
from tuplet.data import Dataset
from tuplet.data.dataset import ListedPairs
from tuplet.data.store import OnError
from tuplet.embedding import embed_store
from tuplet.models import Embedder
from tuplet.training.data import Part
from tuplet.training.distributed import World
from tuplet.training.papers import recall_ks
from tuplet.training.split import query_mask


def evaluate(
    embedder: Embedder,
    data: str | os.PathLike[str] | Dataset | torch.utils.data.Dataset[Any],
    *,
    on: Literal["test", "train", "all"] = "test",
    metric: str = "euclidean",
    bootstrap: int = 0,
    seed: int = 0,
    unreadable: OnError = "stop",
) -> dict[str, Any]:
    """Embed examples and compute every metric, as `tuplet evaluate` does.

    Args:
        embedder: from `tuplet.load`, `tuplet.train` or `tuplet.models.create`.
        data: a `Dataset`, a `torch.utils.data.Dataset` of (image or tensor, label), or anything that
            `tuplet.data.open` opens.
        on: the split to measure on.
        metric: "euclidean", "cosine" or "dot".
        bootstrap: the number of resamples for 95 % intervals; 0 is none.
        seed: that of k-means, verification and resampling.
        unreadable: stop at an image that cannot be read, or skip it.

    Returns:
        The metrics of `tuplet.evaluation.evaluate`, and those of the data's levels, several labels and pairs.

    >>> from tuplet import models
    >>> vectors = torch.utils.data.TensorDataset(torch.eye(8), torch.arange(8) // 2)
    >>> evaluate(models.create("mlp", features=8, dim=2), vectors, on="all")["queries"]
    8
    """
    opened = data if isinstance(data, Dataset) else datasets.open(data)
    return measure(embedder, choose_examples(opened, on), recall_ks(opened), metric, bootstrap, seed, unreadable)


def choose_examples(data: Dataset, on: Literal["test", "train", "all"]) -> Dataset:
    """Return the examples of a split; test examples alone, as in LFW, need no training examples beside them."""
    if on == "all":
        return replace(data, splits=None)
    return data.test_part() if on == "test" and data.splits is not None else data.split()[on == "test"]


def measure(
    embedder: Embedder,
    data: Dataset,
    ks: Sequence[int],
    metric: str,
    bootstrap: int,
    seed: int,
    unreadable: OnError,
) -> dict[str, Any]:
    """Embed all examples of a dataset and compute every metric."""
    crop = None if embedder.preprocessing is None else embedder.preprocessing.crop
    store = datasets.load(data, on_error=unreadable, crop=crop)
    vectors = embed_store(embedder, store).float().cpu()
    return all_metrics(vectors, store.data, ks, seed, metric=metric, bootstrap=bootstrap)


def embed_part(embedder: Embedder, part: Part, world: World, flip: bool = False) -> Tensor:
    """Embed a part, or its mirror images; every process embeds its share and gets all vectors."""
    own = embed_store(embedder, part.store, world.shard(len(part.store)), flip)
    return world.gather_rows(own)


def recalls(vectors: Tensor, data: Dataset, ks: Sequence[int], metric: str = "euclidean") -> dict[str, float]:
    """Return Recall@K alone, which is measured often during training."""
    queries, labels, rest = queries_and_gallery(vectors, data)
    found = evaluation.recall_at_k(queries, labels, ks=ks, metric=metric, **rest)
    return {f"recall_at_{k}": value for k, value in found.items()}


def map_at_r(vectors: Tensor, data: Dataset) -> float:
    """Return MAP@R, which is steadier than Recall@1 where there are few queries: every positive counts."""
    queries, labels, gallery = queries_and_gallery(vectors, data)
    return evaluation.map_at_r(queries, labels, **gallery)


def all_metrics(
    vectors: Tensor, data: Dataset, ks: Sequence[int], seed: int, metric: str = "euclidean", bootstrap: int = 0
) -> dict[str, Any]:
    """Return every metric, for the end of a run; those of levels, several labels and pairs where the data have them."""
    queries, labels, rest = queries_and_gallery(vectors, data)
    metrics = evaluation.evaluate(queries, labels, ks=ks, seed=seed, metric=metric, bootstrap=bootstrap, **rest)
    if data.groups is not None:
        metrics["group"] = data.groups.name
    if data.label_sets is not None:
        _, sets, rest = queries_and_gallery(vectors, data, data.label_sets)
        hierarchy = data.levels is not None
        metrics["ndcg_at_10"] = evaluation.ndcg_at_k(queries, sets, 10, hierarchy=hierarchy, metric=metric, **rest)
        above = list(data.levels or ())[1:]
        if above:
            metrics["levels"] = {name: recalls(vectors, data.at_level(name), ks, metric) for name in above}
    if data.pairs is not None:
        metrics |= _pair_metrics(vectors, data.pairs, metric)
    if data.protocol == "lfw" and len(data.classes) < len(data):
        metrics |= _identification_metrics(vectors, data.labels, metric)
    return metrics


def _pair_metrics(vectors: Tensor, pairs: ListedPairs, metric: str) -> dict[str, Any]:
    """Return the accuracy of the pairs and triplets that the data list, where both of their images are measured."""
    found: dict[str, Any] = {"pairs": len(pairs.same)}
    if len(pairs.triplets):
        a, p, n = (vectors[column] for column in pairs.triplets.to(vectors.device).T)
        nearer = evaluation.pair_scores(a, p, metric=metric) > evaluation.pair_scores(a, n, metric=metric)
        found |= {"triplets": len(nearer), "triplet_accuracy": nearer.double().mean().item()}
    has_folds = pairs.folds is not None and len(pairs.folds.unique()) > 1
    if bool(pairs.same.any()) and not bool(pairs.same.all()) and (has_folds or len(pairs.same) >= 10):
        first, second = (vectors[side.to(vectors.device)] for side in (pairs.first, pairs.second))
        scores = evaluation.pair_scores(first, second, metric=metric)
        # Pairs may be listed in the order of their kind, so the folds are dealt out.
        folds = pairs.folds if has_folds else torch.arange(len(scores)) % 10
        verified = evaluation.pair_verification(scores, pairs.same, folds)
        found |= {"pair_accuracy": verified["accuracy"], "pair_accuracy_stderr": verified["stderr"]}
        found["tar_at_far_0.01"] = evaluation.tar_at_far(scores, pairs.same, 0.01)
    return found


def _identification_metrics(vectors: Tensor, people: Tensor, metric: str) -> dict[str, Any]:
    """Return the rates of closed-set and open-set identification, and the numbers of people and probes."""
    found = evaluation.closed_and_open_set(vectors, people, far=0.01, metric=metric)
    rates = {"rank1": found.pop("rank1"), "dir_at_far_0.01": found.pop("dir_at_far")}
    # Without unknown people there is no open set.
    return {**{name: rate for name, rate in rates.items() if rate is not None}, "identification": found}


def queries_and_gallery(
    vectors: Tensor, data: Dataset, labels: Tensor | None = None
) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """Return the queries with their labels, and where the data have them the gallery and the groups of both.

    `labels` are those of the examples, by default what decides on positives (`Dataset.targets`).
    """
    labels = data.targets if labels is None else labels
    groups = None if data.groups is None else data.groups.codes
    is_query = query_mask(data)
    if is_query is None:
        return vectors, labels, {} if groups is None else {"groups": groups}
    rows = is_query.to(vectors.device)
    rest = {"gallery": vectors[~rows], "gallery_labels": labels[~is_query]}
    if groups is not None:
        rest |= {"groups": groups[is_query], "gallery_groups": groups[~is_query]}
    return vectors[rows], labels[is_query], rest
