"""Several embeddings of one example as one: levels and models side by side, views averaged."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tuplet.evaluation.inputs import as_vectors, one_of


def concatenate(embeddings: Sequence[Any], weights: Sequence[float] | None = None) -> Tensor:
    """Levels of one model (L, M and H of paper 004) or several models as one embedding: (N, d₁ + d₂ + …).

    Each part is multiplied by √w, so that dot products and squared distances of the whole are the weighted sums
    Σ w·(that of the part). Parts come as they are; give unit vectors where each should count by its weight alone.

    >>> concatenate([torch.ones(1, 2), torch.ones(1, 1)], weights=[1.0, 4.0])
    tensor([[1., 1., 2.]])
    """
    parts = _parts(embeddings)
    if weights is None:
        weights = [1.0] * len(parts)
    if len(weights) != len(parts) or min(weights) < 0:
        raise ValueError(f"weights must be {len(parts)} numbers from 0 up, got {list(weights)}; give one for each part")
    return torch.cat([part * weight**0.5 for part, weight in zip(parts, weights, strict=True)], 1)


def average_views(views: Sequence[Any], metric: str = "cosine") -> Tensor:
    """Several views of each example (flips, crops) as one vector, to be compared with metric="dot".

    The dot product of two such vectors is the similarity averaged over all combinations of a view of the one and a view
    of the other (paper 001, section 4), since the mean of all u·v is mean(u)·mean(v). With `cosine` each view is made
    unit first; the mean is left as it is, for making it unit would no longer be that average.

    >>> average_views([torch.tensor([[2.0, 0.0]]), torch.tensor([[0.0, 3.0]])])
    tensor([[0.5000, 0.5000]])
    """
    one_of(metric, ("cosine", "dot"), "metric")
    parts = _parts(views)
    if len({part.shape[1] for part in parts}) > 1:
        raise ValueError(
            f"views must have one dimension, got {[part.shape[1] for part in parts]}; embed with one model"
        )
    if metric == "cosine":
        parts = [torch.nn.functional.normalize(part, dim=1) for part in parts]
    return torch.stack(parts).mean(0)


def _parts(embeddings: Sequence[Any]) -> list[Tensor]:
    vectors = [as_vectors(part, f"embeddings[{i}]") for i, part in enumerate(embeddings)]
    if len({v.count for v in vectors}) != 1:
        raise ValueError(f"embeddings must have one row for each example, got {[v.count for v in vectors]} rows")
    dtype = torch.float64 if any(v.dtype == torch.float64 for v in vectors) else torch.float32
    return [v.rows(slice(None), dtype) for v in vectors]
