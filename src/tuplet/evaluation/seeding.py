"""Where k-means starts: greedy k-means++ whose candidates come in pools, so that matrix products are large."""

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from tuplet import counter
from tuplet.evaluation.inputs import budget
from tuplet.progress import track

# Centres from one pool, at most, and entries of its table of draws by points: the same on every device, since they
# decide what is drawn.
POOL_CENTRES = 32
POOL_ENTRIES = 1 << 25
# How many of a pool are looked at again for each centre.
LEADERS = 4
# Points in one product with candidates or centres: a CPU multiplies by many more at two thirds of the speed.
BLOCK_POINTS = {"cpu": 768, "cuda": 1 << 22}


def plus_plus(points: Tensor, clusters: int, seeds: Sequence[int], draws: int) -> Tensor:
    """The points that each run starts from: (runs, clusters) indices.

    Pools of points are drawn with chances proportional to D², the squared distance to the nearest centre so far,
    `draws` of them for each centre that the pool is to give. Each centre is the one of its pool that takes most from
    ΣD². That is counted for all of them when they are drawn; for each centre again, it is taken to fall with the
    point's own D², and counted for the leaders alone.

    >>> plus_plus(torch.tensor([[0.0], [0.0], [5.0]]), 2, seeds=[0], draws=2).sort().values
    tensor([[1, 2]])
    """
    runs, count = len(seeds), len(points)
    each_seed = torch.tensor(seeds, device=points.device)[:, None]
    squares = points.square().sum(1)
    chosen = torch.empty(runs, clusters, dtype=torch.int64, device=points.device)
    # Farther than any point is from any other: the first centre may be any of them.
    nearest = (4 * squares.amax()).expand(runs, count)
    space = points.new_empty(runs * largest_pool(clusters, count, draws) * count)
    for start, size in track(list(pools(clusters, count, draws)), "seeding k-means"):
        pool = _drawn(nearest, min(count, size * draws), each_seed, start)
        table = space[: pool.numel() * count].view(runs, -1, count)
        for run in range(runs):  # one by one, so that others do not change a run's rounding
            _fill(table[run], points, squares, pool[run], nearest[run])
        gains = nearest.sum(1, keepdim=True) - table.sum(2)
        drawn_at = nearest.gather(1, pool).clamp(min=torch.finfo(points.dtype).tiny)
        for centre in range(start, start + size):
            hopes = gains * (nearest.gather(1, pool) / drawn_at)
            leaders = hopes.topk(min(LEADERS, pool.shape[1]), 1).indices
            rows = _rows(table, leaders)
            torch.minimum(rows, nearest[:, None], out=rows)
            best = rows.sum(2).argmin(1, keepdim=True)
            chosen[:, centre] = pool.gather(1, leaders.gather(1, best))[:, 0]
            nearest = _rows(rows, best)[:, 0].clamp_(min=0)
            # A product leaves a rounding where the distance is 0, and that must not be drawn again.
            nearest.scatter_(1, chosen[:, centre : centre + 1], 0.0)
    return chosen


def pools(clusters: int, count: int, draws: int) -> Iterator[tuple[int, int]]:
    """The first centre of each pool and the number of its centres: few while each of them changes D² much.

    >>> list(pools(30, 1000, draws=5))[-4:]
    [(20, 2), (22, 2), (24, 3), (27, 3)]
    """
    most = max(1, min(POOL_CENTRES, POOL_ENTRIES // (draws * count)))
    start = 0
    while start < clusters:
        size = max(1, min(most, start // 8, clusters - start))
        yield start, size
        start += size


def largest_pool(clusters: int, count: int, draws: int) -> int:
    """The points of the largest pool."""
    return min(count, draws * max(size for _, size in pools(clusters, count, draws)))


def _drawn(nearest: Tensor, size: int, seeds: Tensor, turn: int) -> Tensor:
    """`size` different points for each run, as if drawn one after another with chances proportional to D².

    They are those whose clocks ring first, a clock after an exponential time of rate D² (Efraimidis and Spirakis 2006).
    """
    uniform = counter.uniform(seeds, turn, torch.arange(nearest.shape[1], device=nearest.device))
    return (uniform.double().log_().neg_() / nearest).topk(size, 1, largest=False).indices


def _rows(table: Tensor, which: Tensor) -> Tensor:
    """Rows of each run's table: (runs, m, N) for (runs, m) indices. On a CPU `gather` takes several times as long."""
    first = torch.arange(len(table), device=table.device)[:, None] * table.shape[1]
    return table.flatten(0, 1).index_select(0, (first + which).flatten()).view(*which.shape, -1)


def _fill(table: Tensor, points: Tensor, squares: Tensor, pool: Tensor, nearest: Tensor) -> None:
    """What D² of each point would be with each of the pool as a centre: min(D², |c|² + |x|² − 2·c·x)."""
    candidates, lengths = points[pool], squares[pool, None]
    width = budget(BLOCK_POINTS, points.device)
    for start in range(0, len(points), width):
        block = slice(start, start + width)
        distances = torch.addmm(squares[block], candidates, points[block].T, alpha=-2).add_(lengths)
        torch.minimum(distances, nearest[block], out=table[:, block])
