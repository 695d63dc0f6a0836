"""Several embeddings of one example as one: levels and models side by side, views averaged."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tuplet.evaluation.inputs import Vectors, as_vectors, one_of


def concatenate(embeddings: Sequence[Any], weights: Sequence[float] | None = None) -> Tensor:
    """Levels of one model (L, M and H of the ranked list paper) or several models as one embedding: (N, d₁ + d₂ + …).

    Each part is multiplied by √w, so that dot products and squared distances of the whole are the weighted sums
    Σ w·(that of the part). Parts come as they are; give unit vectors where each should count by its weight alone.

    >>> concatenate([torch.ones(1, 2), torch.ones(1, 1)], weights=[1.0, 4.0])
    tensor([[1., 1., 2.]])
    """
    vectors = _same_examples(embeddings)
    weights = [1.0] * len(vectors) if weights is None else weights
    if len(weights) != len(vectors) or not all(0 <= w < math.inf for w in weights):
        raise ValueError(f"weights must be {len(vectors)} numbers from 0 up, got {list(weights)}; give one for each")
    return torch.cat([v.rows(slice(None), v.dtype) * w**0.5 for v, w in zip(vectors, weights, strict=True)], 1)


def average_views(views: Sequence[Any], metric: str = "cosine") -> Tensor:
    """Several views of each example (flips, crops) as one vector, to be compared with metric="dot".

    The dot product of two such vectors is the similarity averaged over all combinations of a view of the one and a view
    of the other (Sohn 2016, section 4), since the mean of all u·v is mean(u)·mean(v). With `cosine` each view is made
    unit first; the mean is left as it is, for making it unit would no longer be that average.

    >>> average_views([torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 3.0]])])
    tensor([[0.5000, 0.5000]])
    """
    one_of(metric, ("cosine", "dot"), "metric")
    vectors = _same_examples(views)
    if len({v.dim for v in vectors}) > 1:
        raise ValueError(f"views must have one dimension, got {[v.dim for v in vectors]}; embed with one model")
    return torch.stack([(v.unit_rows if metric == "cosine" else v.rows)(slice(None), v.dtype) for v in vectors]).mean(0)


def _same_examples(embeddings: Sequence[Any]) -> list[Vectors]:
    vectors = [as_vectors(part, f"embeddings[{i}]") for i, part in enumerate(embeddings)]
    if len({v.count for v in vectors}) != 1:
        raise ValueError(
            f"embeddings must have one row for each example, got {[v.count for v in vectors]} rows; "
            "give several of the same examples"
        )
    return vectors
