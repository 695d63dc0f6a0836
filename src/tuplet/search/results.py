"""What a search finds, and finding it without near-duplicates."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np
import torch

from tuplet.evaluation.scores import direct, similarity
from tuplet.search.snapshot import Snapshot

#: Gives scores and rows of the n nearest, both (queries, ≤ n), nearest first; beyond what was found a row is −1.
Look = Callable[[int], tuple[np.ndarray, np.ndarray]]

#: How many results are looked at, at most, to find some that are not near-duplicates.
FARTHEST = 10_000
#: How many are compared with one at a time: often the first few are enough.
UNLIKE_BLOCK = 256


@dataclass(frozen=True)
class Hit:
    """One thing found: its id, how near it is (higher is nearer), and what was stored with it."""

    id: str
    score: float
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> Any:
        """The metadata's `label`, where it has one."""
        return self.metadata.get("label")


class Found(Sequence[list[Hit]]):
    """The hits of each query, nearest first. Ids and metadata are read when a query's hits are asked for.

    `scores` and `rows` are arrays (queries, k); where fewer than k were found, the remaining rows are −1.
    """

    def __init__(self, snapshot: Snapshot, scores: np.ndarray, rows: np.ndarray) -> None:
        self.snapshot, self.scores, self.rows = snapshot, scores, rows

    def __len__(self) -> int:
        return len(self.rows)

    @overload
    def __getitem__(self, query: int) -> list[Hit]: ...
    @overload
    def __getitem__(self, query: slice) -> list[list[Hit]]: ...
    def __getitem__(self, query: int | slice) -> list[Hit] | list[list[Hit]]:
        if isinstance(query, slice):
            return [self[i] for i in range(*query.indices(len(self)))]
        rows = self.rows[query]
        found = rows >= 0
        pairs = zip(self.snapshot.items(rows[found]), self.scores[query][found].tolist(), strict=True)
        return [Hit(item.pop("id"), score, item) for item, score in pairs]


def ordered(scores: np.ndarray, rows: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """The k highest scores of each query and their rows, in order; of equals the lower row first.

    >>> ordered(np.array([[0.5, 0.9, 0.9]]), np.array([[1, 7, 3]]), k=2)
    (array([[0.9, 0.9]]), array([[3, 7]]))
    """
    order = np.lexsort((rows, -scores))[:, :k]
    each = np.arange(len(rows))[:, None]
    return scores[each, order], rows[each, order]


def distinct_results(
    look: Look, k: int, available: int, vectors: np.ndarray, metric: str, threshold: float
) -> tuple[np.ndarray, np.ndarray]:
    """The k nearest of which no two score `threshold` or more with one another: of near-duplicates the nearest stays.

    Looks farther until every query has k, or until the `FARTHEST` were looked at.
    """
    available = min(available, max(FARTHEST, k))
    width = min(4 * k, available)
    while True:
        scores, rows = look(width)
        kept = [unlike(vectors[row[row >= 0]], metric, threshold, k) for row in rows]
        if width >= available or all(len(places) == k for places in kept):
            break
        width = min(4 * width, available)
    padded = np.full((2, len(rows), k), -1.0)
    for i, places in enumerate(kept):
        padded[0, i, : len(places)], padded[1, i, : len(places)] = scores[i, places], rows[i, places]
    return padded[0], padded[1].astype(np.int64)


def unlike(vectors: np.ndarray, metric: str, threshold: float, k: int) -> list[int]:
    """Places of the first k of the vectors (n, d) of which none scores `threshold` or more with one before it.

    >>> unlike(np.array([[0.0], [0.1], [1.0]]), "euclidean", threshold=-0.5, k=2)
    [0, 2]
    """
    kept: list[int] = []
    for start in range(0, len(vectors), UNLIKE_BLOCK):
        places = np.arange(start, min(start + UNLIKE_BLOCK, len(vectors)))
        known = iter(kept.copy())
        while len(places) and len(kept) < k:
            one = next(known, None)
            if one is None:  # nobody else stands before the first that is left
                one, places = int(places[0]), places[1:]
                kept.append(one)
            others = torch.from_numpy(vectors[places]).double()
            same = torch.from_numpy(vectors[one]).double().expand_as(others)
            places = places[(similarity(direct(same, others, metric), metric) < threshold).numpy()]
    return kept
