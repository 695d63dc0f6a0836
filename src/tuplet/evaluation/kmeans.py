"""k-means with k-means++ seeding, on any device, for tens of thousands of points in thousands of clusters."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from tuplet.evaluation.inputs import Vectors, as_seed, as_vectors, budget, one_of, positive_integer, several
from tuplet.evaluation.scores import full_precision
from tuplet.evaluation.seeding import BLOCK_POINTS, largest_pool, plus_plus
from tuplet.progress import track

# Entries of a table of points by centres, and of the tables that seed several runs at once.
TABLE_ENTRIES = {"cpu": 1 << 22, "cuda": 1 << 27}


def kmeans(
    embeddings: Any,
    clusters: int,
    seeds: Sequence[int] = (0,),
    *,
    metric: str = "euclidean",
    iterations: int = 100,
    device: torch.device | str | None = None,
) -> Tensor:
    """The cluster of each point, once for each seed: (seeds, N) int64.

    Centres start by greedy k-means++ (Arthur and Vassilvitskii 2007), in pools: 2 + ⌊ln k⌋ points for each centre are
    drawn with chances proportional to D², the squared distance to the nearest centre so far, for up to 32 centres at
    once, and the one that leaves the least ΣD² is the next centre. Then points go to their nearest centre and centres
    to the mean of their points until nothing changes, or `iterations` times. A centre that lost all its points starts
    again at a point far from its own centre.

    All seeds draw together, and nothing waits for the device until they are done. The embeddings are held in memory,
    moved to mean 0 and scaled. `cosine` clusters them at unit length.

    >>> kmeans(torch.tensor([[0.0], [0.1], [5.0], [5.1]]), 2)
    tensor([[1, 1, 0, 0]])
    """
    vectors = as_vectors(embeddings, device=device)
    positive_integer(iterations, "iterations")
    seeds = [as_seed(seed, "each seed in seeds") for seed in several(seeds, "seeds")]
    if not seeds:
        raise ValueError("seeds must not be empty, got none; give one for each run")
    if positive_integer(clusters, "clusters") > vectors.count:
        raise ValueError(f"clusters must be at most the {vectors.count} points, got {clusters}; ask for fewer")
    with full_precision(vectors.device):
        points = _normalised(vectors, one_of(metric, ("euclidean", "cosine"), "metric"))
        draws = 2 + int(math.log(clusters))
        pool_entries = largest_pool(clusters, len(points), draws) * len(points)
        at_once = max(1, 8 * budget(TABLE_ENTRIES, points.device) // pool_entries)
        labels = []
        for start in range(0, len(seeds), at_once):
            starts = plus_plus(points, clusters, seeds[start : start + at_once], draws)
            labels += [_lloyd(points, points[chosen], iterations) for chosen in starts]
    return torch.stack(labels)


def _normalised(vectors: Vectors, metric: str) -> Tensor:
    """All points with mean 0 and elements up to 1: the clusters stay the same, and products keep their digits."""
    points = (vectors.unit_rows if metric == "cosine" else vectors.rows)(slice(None), vectors.dtype)
    points = points - points.mean(0, dtype=torch.float64).to(points.dtype)
    return points / points.abs().amax().clamp(min=torch.finfo(points.dtype).tiny)


def _lloyd(points: Tensor, centres: Tensor, iterations: int) -> Tensor:
    labels = torch.full((len(points),), -1, device=points.device)
    entries = budget(TABLE_ENTRIES, points.device)
    blocks = points.split(max(1, min(budget(BLOCK_POINTS, points.device), entries // len(centres))))
    # Tables that fit are kept from one time to the next: ever fewer centres move, and only their rows change.
    fits = len(points) * len(centres) <= entries
    kept = [points.new_empty(len(centres), len(block)) for block in blocks] if fits else None
    moved = torch.arange(len(centres), device=points.device)
    for _ in track(range(iterations), "k-means"):
        before = labels
        values, labels = _nearest(centres, moved, blocks, kept)
        if torch.equal(labels, before):
            break
        centres, earlier = _means(points, labels, values, len(centres)), centres
        moved = (centres != earlier).any(1).nonzero()[:, 0]
    return labels


def _nearest(
    centres: Tensor, moved: Tensor, blocks: Sequence[Tensor], kept: Sequence[Tensor] | None
) -> tuple[Tensor, Tensor]:
    """The highest c·x − |c|²/2 of each point, which is half of |x|² − |c − x|², and the centre c that has it."""
    centres = centres if kept is None else centres[moved]
    offsets = centres.square().sum(1, keepdim=True) / -2
    values = centres.new_empty(sum(map(len, blocks)))
    labels = torch.empty_like(values, dtype=torch.int64)
    start = 0
    for number, block in enumerate(blocks):
        table = torch.addmm(offsets, centres, block.T)
        if kept is not None:
            kept[number][moved] = table
            table = kept[number]
        stop = start + len(block)
        torch.max(table, 0, out=(values[start:stop], labels[start:stop]))
        start = stop
    return values, labels


def _means(points: Tensor, labels: Tensor, values: Tensor, clusters: int) -> Tensor:
    """The mean of each cluster's points, summed in a fixed order; an empty one takes one of the farthest points."""
    sizes = torch.bincount(labels, minlength=clusters)
    order = labels.argsort(stable=True)
    means = embedding_bag(order, points, sizes.cumsum(0) - sizes, mode="sum") / sizes.clamp(min=1)[:, None]
    empty = (sizes == 0).nonzero()[:, 0]
    if len(empty):
        distances = points.square().sum(1) - 2 * values
        means[empty] = points[distances.argsort(descending=True)[: len(empty)]]
    return means
