"""k-means with greedy k-means++ starts, on any device, for tens of thousands of points in thousands of clusters."""

import math
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag

from tuplet import rng
from tuplet.evaluation.inputs import as_list, as_seed, one_of, positive_integer
from tuplet.evaluation.scores import full_precision
from tuplet.evaluation.vectors import Device, Vectors, as_vectors, for_device
from tuplet.progress import track

# Most entries of a table of points by centres; the starts of several runs may take eight times as many.
TABLE_ENTRIES = {"cpu": 1 << 22, "cuda": 1 << 27}
# Points in one product with candidates or centres: with many more, a CPU multiplies at two thirds of the speed.
BLOCK_POINTS = {"cpu": 768, "cuda": 1 << 22}
# Most centres from one pool, and most entries of its table of draws by points. They are the same on every device,
# because they decide which points are drawn.
POOL_CENTRES = 32
POOL_ENTRIES = 1 << 25
# How many members of a pool are compared again for each centre.
LEADERS = 4


def kmeans(
    embeddings: Any,
    clusters: int,
    seeds: Sequence[int] = (0,),
    *,
    metric: str = "euclidean",
    iterations: int = 100,
    device: Device = None,
) -> Tensor:
    """Return the cluster of each point, once for each seed: (seeds, N) int64.

    Centres start by greedy k-means++ (Arthur and Vassilvitskii 2007), in pools: 2 + ⌊ln k⌋ points for each centre are
    drawn with chances proportional to D², the squared distance to the nearest centre so far, for up to 32 centres at
    once, and the point that leaves the least ΣD² is the next centre. Then points go to their nearest centre and centres
    to the mean of their points, until nothing changes. A centre without points restarts at a point far from its own.
    The embeddings are held in memory. The clusters of a seed do not depend on the other seeds.

    Args:
        embeddings: (N, d) vectors, as for `recall_at_k`.
        clusters: k, the number of clusters.
        seeds: one run for each.
        metric: "euclidean", or "cosine", which scales the vectors to length 1.
        iterations: the largest number of rounds.
        device: where to compute, by default where the embeddings are.

    >>> kmeans(torch.tensor([[0.0], [0.1], [5.0], [5.1]]), 2)
    tensor([[1, 1, 0, 0]])
    """
    vectors = as_vectors(embeddings, device=device)
    positive_integer(iterations, "iterations")
    seeds = [as_seed(seed, "each seed in seeds") for seed in as_list(seeds, "seeds")]
    if not seeds:
        raise ValueError("seeds must not be empty; give one for each run")
    if positive_integer(clusters, "clusters") > vectors.count:
        raise ValueError(f"clusters must be at most the {vectors.count} points, got {clusters}; ask for fewer")
    with full_precision(vectors.device):
        points = _normalised(vectors, one_of(metric, ("euclidean", "cosine"), "metric"))
        draws = 2 + int(math.log(clusters))
        pool_entries = _largest_pool(clusters, len(points), draws) * len(points)
        runs = max(1, 8 * for_device(TABLE_ENTRIES, points.device) // pool_entries)
        labels = []
        for first in range(0, len(seeds), runs):
            starts = plus_plus(points, clusters, seeds[first : first + runs], draws)
            labels += [_lloyd(points, points[chosen], iterations) for chosen in starts]
    return torch.stack(labels)


def _normalised(vectors: Vectors, metric: str) -> Tensor:
    """Move the points to mean 0 and scale them to elements up to 1: the clusters are the same, with less rounding."""
    points = (vectors.unit_rows if metric == "cosine" else vectors.rows)(slice(None), vectors.dtype)
    points = points - points.mean(0, dtype=torch.float64).to(points.dtype)
    return points / points.abs().amax().clamp(min=torch.finfo(points.dtype).tiny)


def plus_plus(points: Tensor, clusters: int, seeds: Sequence[int], draws: int) -> Tensor:
    """Return the points that each run starts from: (runs, clusters) indices.

    A pool holds `draws` points for each of its centres, drawn with chances proportional to D². The next centre is the
    member of the pool that reduces ΣD² most. That reduction is computed for all members when they are drawn; later it
    is estimated from the change of the member's own D², and computed again for the leaders alone.

    >>> plus_plus(torch.tensor([[0.0], [0.0], [5.0]]), 2, seeds=[0], draws=2).sort().values
    tensor([[1, 2]])
    """
    runs, count = len(seeds), len(points)
    seed = torch.tensor(seeds, device=points.device)[:, None]
    run = torch.arange(runs, device=points.device)[:, None]
    squares = points.square().sum(1)
    chosen = torch.empty(runs, clusters, dtype=torch.int64, device=points.device)
    # Farther than any point is from any other: the first centre may be any of them.
    nearest = (4 * squares.amax()).expand(runs, count)
    memory = points.new_empty(runs * _largest_pool(clusters, count, draws) * count)
    for start, size in track(list(pools(clusters, count, draws)), "seeding k-means"):
        pool = _draw(nearest, min(count, size * draws), seed, start)
        table = memory[: pool.numel() * count].view(runs, -1, count)
        for i in range(runs):  # one by one, so that other runs do not change the rounding of this one
            _fill(table[i], points, squares, pool[i], nearest[i])
        gains = nearest.sum(1, keepdim=True) - table.sum(2)
        drawn_at = nearest.gather(1, pool).clamp(min=torch.finfo(points.dtype).tiny)
        for centre in range(start, start + size):
            estimates = gains * (nearest.gather(1, pool) / drawn_at)
            leaders = estimates.topk(min(LEADERS, pool.shape[1]), 1).indices
            rows = table[run, leaders]
            torch.minimum(rows, nearest[:, None], out=rows)
            best = rows.sum(2).argmin(1, keepdim=True)
            chosen[:, centre] = pool.gather(1, leaders.gather(1, best))[:, 0]
            nearest = rows[run[:, 0], best[:, 0]].clamp_(min=0)
            # The rounding of a product may leave the centre's own D² above 0; it must not be drawn again.
            nearest.scatter_(1, chosen[:, centre : centre + 1], 0.0)
    return chosen


def pools(clusters: int, count: int, draws: int) -> Iterator[tuple[int, int]]:
    """Yield the first centre and the number of centres of each pool: few at first, when each centre changes D² much.

    >>> list(pools(30, 1000, draws=5))[-4:]
    [(20, 2), (22, 2), (24, 3), (27, 3)]
    """
    most = max(1, min(POOL_CENTRES, POOL_ENTRIES // (draws * count)))
    start = 0
    while start < clusters:
        size = max(1, min(most, start // 8, clusters - start))
        yield start, size
        start += size


def _largest_pool(clusters: int, count: int, draws: int) -> int:
    return min(count, draws * max(size for _, size in pools(clusters, count, draws)))


def _draw(nearest: Tensor, size: int, seeds: Tensor, turn: int) -> Tensor:
    """Draw `size` different points for each run, one after another, with chances proportional to D².

    They are the `size` smallest of exponential random times with rates D² (Efraimidis and Spirakis 2006).
    """
    uniform = rng.uniform(seeds, turn, torch.arange(nearest.shape[1], device=nearest.device))
    return (uniform.double().log_().neg_() / nearest).topk(size, 1, largest=False).indices


def _fill(table: Tensor, points: Tensor, squares: Tensor, pool: Tensor, nearest: Tensor) -> None:
    """Write D² of each point with each member c of the pool as a new centre: min(D², |c|² + |x|² − 2·c·x)."""
    candidates, lengths = points[pool], squares[pool, None]
    width = for_device(BLOCK_POINTS, points.device)
    for start in range(0, len(points), width):
        block = slice(start, start + width)
        distances = torch.addmm(squares[block], candidates, points[block].T, alpha=-2).add_(lengths)
        torch.minimum(distances, nearest[block], out=table[:, block])


def _lloyd(points: Tensor, centres: Tensor, iterations: int) -> Tensor:
    """Return the cluster of each point after Lloyd's iterations."""
    labels = torch.full((len(points),), -1, device=points.device)
    entries = for_device(TABLE_ENTRIES, points.device)
    blocks = points.split(max(1, min(for_device(BLOCK_POINTS, points.device), entries // len(centres))))
    # Tables that fit into memory are kept between rounds: fewer and fewer centres move, and only their rows change.
    fits = len(points) * len(centres) <= entries
    kept = [points.new_empty(len(centres), len(block)) for block in blocks] if fits else None
    moved = torch.arange(len(centres), device=points.device)
    for _ in track(range(iterations), "k-means"):
        before = labels
        values, labels = _assign(centres, moved, blocks, kept)
        if torch.equal(labels, before):
            break
        centres, before_move = _means(points, labels, values, len(centres)), centres
        moved = (centres != before_move).any(1).nonzero()[:, 0]
    return labels


def _assign(
    centres: Tensor, moved: Tensor, blocks: Sequence[Tensor], kept: Sequence[Tensor] | None
) -> tuple[Tensor, Tensor]:
    """Return for each point x the highest c·x − |c|²/2, which is (|x|² − |c − x|²)/2, and the centre c that has it."""
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
    """Return the mean of each cluster, summed in a fixed order; an empty one gets one of the farthest points."""
    sizes = torch.bincount(labels, minlength=clusters)
    order = labels.argsort(stable=True)
    means = embedding_bag(order, points, sizes.cumsum(0) - sizes, mode="sum") / sizes.clamp(min=1)[:, None]
    empty = (sizes == 0).nonzero()[:, 0]
    if len(empty):
        distances = points.square().sum(1) - 2 * values
        means[empty] = points[distances.argsort(descending=True)[: len(empty)]]
    return means
