"""Verification rate (VRF) of Sohn 2016: one positive against negatives of other classes."""

from typing import Any

import torch
from torch import Tensor

from tuplet import rng
from tuplet.evaluation.inputs import as_labels, as_seed, positive_integer
from tuplet.evaluation.positives import ClassMembers
from tuplet.evaluation.scores import ScoreTables
from tuplet.evaluation.vectors import Device, as_vectors
from tuplet.progress import track


def verification(
    embeddings: Any,
    labels: Any,
    negatives: int = 71,
    seed: int = 0,
    *,
    metric: str = "euclidean",
    device: Device = None,
) -> dict[str, float | int]:
    """Compute VRF: how often a positive is nearer to the query than n negatives from n other classes.

    Each query that has a positive is one trial. One of its positives, n of the other classes and one example of each
    are drawn with equal chances. The draw depends only on the seed and the query's position. A tie is a failure.

    Args:
        embeddings: (N, d) vectors, as for `recall_at_k`.
        labels: N integers.
        negatives: n, the number of negatives.
        seed: the seed of the draws.
        metric: "euclidean", "cosine" or "dot".
        device: where to compute, by default where the embeddings are.

    Returns:
        `vrf`, a fraction of 1, and `trials`, the number of queries that have a positive.

    Raises:
        ValueError: if there are too few classes, or no class has two examples.

    >>> verification(torch.tensor([[0.0], [0.1], [5.0], [5.1]]), [3, 3, 8, 8], negatives=1)
    {'vrf': 1.0, 'trials': 4}
    """
    vectors = as_vectors(embeddings, device=device)
    classes, code = as_labels(labels, vectors.count).unique(return_inverse=True)
    seed = as_seed(seed)
    if len(classes) == 1:
        raise ValueError("verification needs negatives of another class, but there is only one class")
    if positive_integer(negatives, "negatives") >= len(classes):
        raise ValueError(
            f"negatives must be below the number of classes, got negatives={negatives} for {len(classes)} classes; "
            f"give at most {len(classes) - 1}"
        )
    tables = ScoreTables(vectors, vectors, metric)
    members = ClassMembers(code, code, own=True)
    queries = (members.size > 1).nonzero()[:, 0]
    if len(queries) == 0:
        raise ValueError(f"verification needs a class with two examples, but all {len(classes)} classes have one")
    wins = 0
    for rows in track(queries.split(4096), "verifying"):
        drawn = torch.cat([_draw_positive(rows, members, seed), _draw_negatives(rows, code, negatives, seed)], 1)
        rows = rows[:, None].expand_as(drawn)
        exact = tables.exact(rows.flatten().to(vectors.device), drawn.flatten().to(vectors.device)).view_as(drawn)
        wins += int((exact[:, 0] > exact[:, 1:].amax(1)).sum())
    return {"vrf": wins / len(queries), "trials": len(queries)}


def _draw(below: Tensor | int, *keys: int | Tensor) -> Tensor:
    """Return an integer in 0 … below − 1 for each combination of the keys, from 46 random bits."""
    high, low = (rng.uniform(*keys, part).double() for part in range(2))
    return ((high + (low - 0.5) * 2.0**-23) * below).long()


def _draw_positive(rows: Tensor, members: ClassMembers, seed: int) -> Tensor:
    """Return another member of each query's class: (R, 1) indices."""
    start, others = members.start[rows], members.size[rows] - 1
    pick = members.order[start + _draw(others, seed, 0, rows)]
    # The draw is among all members but the last; the query itself, if drawn, is replaced by the last.
    return torch.where(pick == rows, members.order[start + others], pick)[:, None]


def _draw_negatives(rows: Tensor, code: Tensor, negatives: int, seed: int) -> Tensor:
    """Return one example of each of n different classes other than the query's: (R, n) indices.

    Floyd's sampling: for j rising to the last of the other classes, one of the classes 0 … j is drawn; if it was drawn
    before, j is taken instead.
    """
    order, sizes = code.argsort(stable=True), torch.bincount(code)
    others = len(sizes) - 1
    chosen = rows.new_empty(len(rows), 0)
    for j in range(others - negatives, others):
        pick = _draw(j + 1, seed, 1, rows, j)[:, None]
        chosen = torch.cat([chosen, torch.where((chosen == pick).any(1, keepdim=True), j, pick)], 1)
    chosen += chosen >= code[rows, None]
    example = _draw(sizes[chosen], seed, 2, rows[:, None], torch.arange(negatives, device=rows.device))
    return order[(sizes.cumsum(0) - sizes)[chosen] + example]
