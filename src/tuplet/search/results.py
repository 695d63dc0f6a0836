"""The results of a search: hits, their order, and the removal of near-duplicates."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, overload

import numpy as np
import torch
from torch import Tensor

from tuplet import cancel
from tuplet.search.snapshot import Snapshot

#: Takes n and the numbers of some queries; returns the scores and rows (queries, ≤ n) of the n nearest of each, nearest
#: first. Missing results have row −1.
SearchFunction = Callable[[int, np.ndarray], tuple[np.ndarray, np.ndarray]]

#: The most results to examine for ones that are not near-duplicates.
MAX_CANDIDATES = 10_000
#: Results to compare at a time; often the first block is enough.
DISTINCT_BLOCK = 256
#: Beyond every score of float32 vectors; its square is finite.
FAR = 1e150


@dataclass(frozen=True)
class Hit:
    """One search result.

    Attributes:
        id: the id of the item.
        score: the cosine, the dot product or minus the distance; higher is nearer.
        metadata: the metadata of the item.
    """

    id: str
    score: float
    metadata: dict[str, Any] = field(default_factory=dict)

    @property
    def label(self) -> Any:
        """The `label` of the metadata, or None."""
        return self.metadata.get("label")


class SearchResults(Sequence[list[Hit]]):
    """The hits of each query, nearest first. Ids and metadata are read when a query's hits are accessed.

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


def top(scores: np.ndarray, rows: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the k highest scores of each query and their rows, in order; among equals the lower row first.

    >>> top(np.array([[0.5, 0.9, 0.9]]), np.array([[1, 7, 3]]), k=2)
    (array([[0.9, 0.9]]), array([[3, 7]]))
    """
    order = np.lexsort((rows, -scores))[:, :k]
    return np.take_along_axis(scores, order, 1), np.take_along_axis(rows, order, 1)


def distinct_results(
    search: SearchFunction, queries: int, k: int, available: int, vectors: np.ndarray, metric: str, threshold: float
) -> tuple[np.ndarray, np.ndarray]:
    """Return the k nearest without near-duplicates: no two of them score `threshold` or more with one another.

    The nearest of several near-duplicates stays. Searches farther for the queries that have fewer than k results, until
    `MAX_CANDIDATES` were examined.
    """
    available = min(available, max(MAX_CANDIDATES, k))
    width = min(4 * k, available)
    found_scores, found_rows = np.full((queries, k), -1.0), np.full((queries, k), -1, np.int64)
    unfinished = np.arange(queries)
    while len(unfinished):
        scores, rows = search(width, unfinished)
        kept = [first_distinct(vectors[row[row >= 0]], metric, threshold, k) for row in rows]
        for query, places, score, row in zip(unfinished, kept, scores, rows, strict=True):
            found_scores[query, : len(places)], found_rows[query, : len(places)] = score[places], row[places]
        if width >= available:
            break
        unfinished = unfinished[[len(places) < k for places in kept]]
        width = min(4 * width, available)
    return found_scores, found_rows


def first_distinct(vectors: np.ndarray, metric: str, threshold: float, k: int) -> list[int]:
    """Return the positions of the first k vectors that score below `threshold` with every one kept before them.

    >>> first_distinct(np.array([[0.0], [0.1], [1.0]]), "euclidean", threshold=-0.5, k=2)
    [0, 2]
    """
    kept, kept_vectors = [], torch.empty(0, vectors.shape[1], dtype=torch.float64)
    for start in range(0, len(vectors), DISTINCT_BLOCK):
        cancel.check()
        block = torch.from_numpy(vectors[start : start + DISTINCT_BLOCK]).double()
        places = torch.arange(len(block))[_is_distinct(block, kept_vectors, metric, threshold)]
        while len(places):  # the first that is left is distinct
            one, places = places[:1], places[1:]
            kept.append(start + int(one))
            if len(kept) == k:
                return kept
            kept_vectors = torch.cat([kept_vectors, block[one]])
            places = places[_is_distinct(block[places], block[one], metric, threshold)]
    return kept


def _is_distinct(vectors: Tensor, others: Tensor, metric: str, threshold: float) -> Tensor:
    """Return for each of some float64 vectors whether it scores below `threshold` with all others.

    A score that rounding cannot tell from the threshold counts as equal to it, so that a threshold of 1 leaves out
    copies.
    """
    products, squares, other_squares = vectors @ others.T, vectors.square().sum(1)[:, None], others.square().sum(1)
    lengths = (squares * other_squares).sqrt()
    threshold = min(max(threshold, -FAR), FAR)
    scale: Tensor | float
    if metric == "euclidean":  # both squared
        excess = 2 * products - squares - other_squares - threshold * abs(threshold)
        scale = squares + other_squares + threshold**2
    elif metric == "cosine":
        excess = torch.where(lengths > 0, products / lengths, 0.0) - threshold
        scale = 1 + abs(threshold)
    else:
        excess, scale = products - threshold, lengths + abs(threshold)
    return (excess < -8 * (vectors.shape[1] + 8) * torch.finfo(torch.float64).eps * scale).all(1)
