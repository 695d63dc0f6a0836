"""How good an embedder is on some examples of a run."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from tuplet import evaluation
from tuplet.data import Dataset
from tuplet.models import Embedder
from tuplet.training.examples import Part, embed
from tuplet.training.processes import Team


def vectors_of(embedder: Embedder, part: Part, team: Team, mirror: bool = False) -> Tensor:
    """The embeddings of a part, or of its mirror images; every process makes its share and gets all of them."""
    own = embed(embedder, part.store, team.own_share(len(part.store)), mirror=mirror)
    return team.rows_of_all(own)


def recalls(vectors: Tensor, data: Dataset, ks: Sequence[int], metric: str = "euclidean") -> dict[str, float]:
    """Recall@K: what is measured again and again during training."""
    queries, labels, gallery = _sides(vectors, data)
    found = evaluation.recall_at_k(queries, labels, ks=ks, metric=metric, **gallery)
    return {f"recall_at_{k}": value for k, value in found.items()}


def everything(
    vectors: Tensor, data: Dataset, ks: Sequence[int], seed: int, metric: str = "euclidean", bootstrap: int = 0
) -> dict[str, Any]:
    """Every metric, for the end of a run."""
    queries, labels, gallery = _sides(vectors, data)
    return evaluation.evaluate(queries, labels, ks=ks, seed=seed, metric=metric, bootstrap=bootstrap, **gallery)


def _sides(vectors: Tensor, data: Dataset) -> tuple[Tensor, Tensor, dict[str, Any]]:
    """The queries with their labels, and the gallery where the data come with one of its own."""
    if data.splits is None or "query" not in data.splits:
        return vectors, data.labels, {}
    query = torch.tensor([split == "query" for split in data.splits])
    there = query.to(vectors.device)
    return vectors[there], data.labels[query], {"gallery": vectors[~there], "gallery_labels": data.labels[~query]}
