"""Measure an embedder on any data: `tuplet.evaluate`."""

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Literal

import torch

from tuplet import data as datasets
from tuplet.data import Dataset
from tuplet.data.store import OnError
from tuplet.embedding import embed_store
from tuplet.models import Embedder
from tuplet.training.evaluate import all_metrics
from tuplet.training.papers import recall_ks


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
