"""Exact search of a snapshot: the evaluator's own blocked top-k, among the rows that may be found."""

import numpy as np
import torch

from tuplet.evaluation import nearest
from tuplet.evaluation.scores import direct, similarity
from tuplet.progress import silent
from tuplet.search.snapshot import Snapshot

#: A filter that leaves fewer than one row in so many is answered from a copy of those rows.
FEW = 8


def search(
    snapshot: Snapshot, queries: np.ndarray, k: int, allowed: np.ndarray | None, first: int = 0
) -> tuple[np.ndarray, np.ndarray]:
    """Scores and rows (n, ≤ k) of the nearest from the row `first` on; all are allowed where `allowed` is None."""
    metric = snapshot.manifest.metric
    allowed = None if allowed is None else allowed[first:]
    with silent():
        if allowed is not None and int(allowed.sum()) * FEW < len(allowed):
            rows = first + np.flatnonzero(allowed)
            found = nearest(queries, snapshot.vectors[rows], k, metric=metric)
            return found.scores.numpy(), rows[found.indices.numpy()]
        among = None if allowed is None else torch.from_numpy(allowed)
        found = nearest(queries, snapshot.gallery(first), k, metric=metric, among=among)
        return found.scores.numpy(), first + found.indices.numpy()


def scores(snapshot: Snapshot, queries: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """The scores of each query's own rows (n, k), the very numbers that `search` gives them; −∞ where a row is −1."""
    metric, there = snapshot.manifest.metric, rows >= 0
    found = np.full(rows.shape, -np.inf)
    own = torch.from_numpy(queries[np.nonzero(there)[0]]).double()
    members = torch.from_numpy(snapshot.vectors[rows[there]]).double()
    found[there] = similarity(direct(own, members, metric), metric).numpy()
    return found
