"""Combine several embeddings of each example: concatenate levels or models, average views."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tuplet.evaluation.inputs import one_of
from tuplet.evaluation.vectors import Vectors, as_vectors


def concatenate(embeddings: Sequence[Any], weights: Sequence[float] | None = None) -> Tensor:
    """Concatenate levels of one model (L, M and H of the ranked list paper) or several models.

    Each part is multiplied by √w, so that dot products and squared distances of the result are the weighted sums of
    those of the parts. The parts are not normalised: give unit vectors if each should count by its weight alone.

    Args:
        embeddings: the parts, each (N, d) with any d.
        weights: w of each part; 1 by default.

    >>> concatenate([torch.ones(1, 2), torch.ones(1, 1)], weights=[1.0, 4.0])
    tensor([[1., 1., 2.]])
    """
    vectors = _same_examples(embeddings)
    weights = [1.0] * len(vectors) if weights is None else weights
    if len(weights) != len(vectors) or not all(0 <= w < math.inf for w in weights):
        raise ValueError(f"weights must be {len(vectors)} numbers from 0 up, got {list(weights)}")
    return torch.cat([v.rows(slice(None), v.dtype) * w**0.5 for v, w in zip(vectors, weights, strict=True)], 1)


def average_views(views: Sequence[Any], metric: str = "cosine") -> Tensor:
    """Average several views of each example (flips, crops) into one vector, to be compared with metric="dot".

    The mean of all u·v is mean(u)·mean(v). So the dot product of two results is the similarity averaged over all
    combinations of a view of the one and a view of the other (Sohn 2016, section 4). With metric="cosine" each view is
    scaled to length 1 first; the mean is not, as it would no longer give that average. "dot" scales nothing.

    Args:
        views: vectors (N, d) of each view.
        metric: "cosine" or "dot", the similarity to average.

    >>> average_views([torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 3.0]])])
    tensor([[0.5000, 0.5000]])
    """
    one_of(metric, ("cosine", "dot"), "metric")
    vectors = _same_examples(views)
    if len({v.dim for v in vectors}) > 1:
        raise ValueError(
            f"views must have the same dimension, got {[v.dim for v in vectors]}; embed them with one model"
        )
    return torch.stack([(v.unit_rows if metric == "cosine" else v.rows)(slice(None), v.dtype) for v in vectors]).mean(0)


def _same_examples(embeddings: Sequence[Any]) -> list[Vectors]:
    vectors = [as_vectors(part, f"embeddings[{i}]") for i, part in enumerate(embeddings)]
    if len({v.count for v in vectors}) != 1:
        raise ValueError(
            f"embeddings must all have one row for each example, got {[v.count for v in vectors]} rows; "
            "embed the same examples"
        )
    return vectors
