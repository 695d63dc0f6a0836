"""Re-ranking by k-reciprocal neighbours: two vectors are near if they have the same neighbours."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from tuplet.evaluation.inputs import as_gallery, as_groups, as_labels, one_of, positive_integer
from tuplet.evaluation.neighbors import Nearest, nearest
from tuplet.evaluation.positives import ClassMembers
from tuplet.evaluation.retrieval import mean_where_defined, recall_names
from tuplet.evaluation.scores import TILE_ENTRIES, ScoreTables, tile_shape
from tuplet.evaluation.vectors import Device, Vectors, as_vectors, for_device
from tuplet.progress import track

#: How many results are put into a new order unless more are needed.
DEPTH = 100


def rerank(
    queries: Any,
    gallery: Any = None,
    k: int = DEPTH,
    *,
    k1: int = 20,
    k2: int = 6,
    weight: float = 0.3,
    metric: str = "euclidean",
    device: Device = None,
) -> Nearest:
    """Find the k nearest members of the gallery and order them again, by k-reciprocal neighbours.

    This is k-reciprocal encoding (Zhong et al., CVPR 2017). Two vectors are k-reciprocal neighbours if each is among
    the k nearest of the other. Every vector is described by weights on its reciprocal neighbours, averaged over its
    nearest vectors. The new distance of two vectors is (1 − weight) · J + weight · d: J is the Jaccard distance of
    their descriptions, and d the squared distance of the vectors (for "cosine" 2 − 2 cos), divided by the largest one
    of the query.

    It uses the neighbours of the queries among themselves too, so the result of a query depends on the other queries.
    Its memory is that of the descriptions, some hundred numbers for each vector, and of one block.

    Args:
        queries: (N, d) vectors, as for `nearest`.
        gallery: (M, d) vectors; None if the queries search among themselves, each without itself.
        k: how many results are found and put into a new order. With all members as k, it is that of the paper.
        k1: the number of neighbours that may be reciprocal.
        k2: the number of vectors, itself included, over which a description is averaged; 1 for none.
        weight: the share of the original distance, from 0 to 1; λ in the paper.
        metric: "euclidean" or "cosine".
        device: where to compute, by default where the vectors are.

    Returns:
        Minus the new distances, and the rows of the gallery, nearest first.

    The nearest of 0.8 is 1.15, but that has nearer neighbours of its own:

    >>> x = torch.tensor([[0.0], [0.4], [0.8], [1.15], [1.2], [1.3]])
    >>> nearest(x, k=2).indices[2].tolist(), rerank(x, k=2, k1=2, k2=1).indices[2].tolist()
    ([3, 1], [1, 3])
    """
    one_of(metric, ("euclidean", "cosine"), "metric")
    if not 0 <= weight <= 1:
        raise ValueError(f"weight must be from 0 to 1, got {weight!r}; 1 keeps the original order")
    k1, k2 = positive_integer(k1, "k1"), positive_integer(k2, "k2")
    q = as_vectors(queries, "queries", device)
    g = None if gallery is None else as_vectors(gallery, "gallery", device)
    found = nearest(q, g, k, metric=metric)
    original = found.scores.square() if metric == "euclidean" else 2 - 2 * found.scores
    union = q if g is None else Vectors(torch.cat([q.tensor.to(q.device), g.tensor.to(q.device)]), "vectors")
    tables = ScoreTables(union, union, metric)  # in float64: what is farthest must not depend on rounding
    near = nearest(union, k=max(k1, k2 - 1), metric=metric).indices
    near = torch.cat([torch.arange(union.count, device=near.device)[:, None], near], 1)  # each is its own nearest
    farthest = _farthest(tables)
    described = _describe(tables, near[:, : k1 + 1], farthest)
    if k2 > 1:
        described = _average(described, near[:, :k2])
    new = weight * original / farthest[: q.count, None]
    for rows in _blocks(q.count, union.count + found.indices.shape[1]):
        candidates = found.indices[rows] + (0 if g is None else q.count)
        new[rows] += (1 - weight) * _jaccard(described, rows, candidates)
    scores, order = (-new).sort(dim=1, descending=True, stable=True)
    return Nearest(scores, found.indices.gather(1, order))


def reranked_metrics(
    embeddings: Any,
    labels: Any,
    ks: Sequence[int] = (1, 2, 4, 8),
    *,
    gallery: Any = None,
    gallery_labels: Any = None,
    groups: Any = None,
    gallery_groups: Any = None,
    metric: str = "euclidean",
    device: Device = None,
) -> dict[str, float]:
    """Compute Recall@K and MAP@R after re-ranking.

    Results are those of `rerank`, enough of them for every K and R. A negative with the same new distance as a positive
    comes before it. Arguments as for `recall_at_k`; MAP@R leaves out queries without a positive.

    >>> x = torch.tensor([[0.0], [0.1], [5.0], [5.1]])
    >>> reranked_metrics(x, [3, 3, 8, 8], ks=(1,))
    {'recall_at_1': 1.0, 'map_at_r': 1.0}
    """
    names = recall_names(ks)
    queries = as_vectors(embeddings, "embeddings", device)
    query_labels = as_labels(labels, queries.count, several=True)
    members, member_labels = as_gallery(gallery, gallery_labels, query_labels, device)
    groups = as_groups(groups, gallery_groups, queries, members)
    of_class = ClassMembers(query_labels, member_labels, members is None, groups)
    # Members that share label and group are left out of a list, so as many more are found.
    found = rerank(queries, members, max(DEPTH, max(names) + int(of_class.size.max())), metric=metric, device=device)
    recalls, precisions = torch.zeros(len(names)).double(), torch.zeros(queries.count).double()
    num_positives = torch.zeros(queries.count, dtype=torch.int64)
    for rows in _blocks(queries.count, found.indices.shape[1] * max(1, int(of_class.size.max()))):
        rows = rows.cpu()
        listed, scores = found.indices[rows].cpu(), found.scores[rows].cpu()
        same = of_class.of(rows)
        valid = of_class.positives(rows, same)
        num_positives[rows] = valid.sum(1)
        shares = (listed[:, :, None] == same[:, None, :]).any(2)
        hits = (listed[:, :, None] == same.where(valid, -1)[:, None, :]).any(2)
        # Sort by score, negatives first among equal ones, and those that are left out last.
        order = hits.byte().argsort(dim=1, stable=True)
        order = order.gather(1, scores.gather(1, order).argsort(dim=1, descending=True, stable=True))
        order = order.gather(1, (shares & ~hits).gather(1, order).byte().argsort(dim=1, stable=True))
        ranked = hits.gather(1, order)
        recalls += torch.stack([ranked[:, :k].any(1).sum() for k in names])
        places = torch.arange(1, ranked.shape[1] + 1)
        inside = ranked & (places <= num_positives[rows, None])
        precisions[rows] = (inside * ranked.cumsum(1) / places.double()).sum(1) / num_positives[rows].clamp(min=1)
    result = dict(zip(names.values(), (recalls / queries.count).tolist(), strict=True))
    return {**result, "map_at_r": mean_where_defined(precisions, num_positives, "map_at_r")}


def _blocks(count: int, width: int) -> Iterator[Tensor]:
    """Yield blocks of row numbers, so small that a table of so many columns fits into memory."""
    size = max(1, TILE_ENTRIES["cpu"] // max(1, width))
    yield from track(torch.arange(count).split(size), "re-ranking")


def _squared(tables: ScoreTables, rows: Tensor, columns: Tensor) -> Tensor:
    """Return the squared distance of pairs of vectors; of unit vectors for "cosine"."""
    exact = tables.exact(rows, columns)
    return -exact if tables.metric == "euclidean" else 2 - 2 * exact


def _farthest(tables: ScoreTables) -> Tensor:
    """Return the largest squared distance of each vector, or 1 where all are 0."""
    count = tables.queries.count
    found = torch.empty(count, dtype=torch.int64, device=tables.device)
    height, _ = tile_shape(count, count, tables.queries.dim, tables.device)
    for rows in torch.arange(count, device=tables.device).split(height):
        lowest = torch.full((len(rows),), torch.inf, dtype=tables.dtype, device=tables.device)
        for start, tile in tables.tiles(tables.query_block(rows)):
            values, columns = tile.min(1)
            found[rows] = torch.where(values < lowest, columns + start, found[rows])
            lowest = torch.minimum(lowest, values)
    distances = _squared(tables, torch.arange(count, device=tables.device), found)
    return torch.where(distances > 0, distances, 1.0)


class _Descriptions(NamedTuple):
    """Sparse rows: those of vector i are `columns` and `values` from `starts[i]` to `starts[i + 1]`."""

    starts: Tensor
    columns: Tensor
    values: Tensor

    @classmethod
    def of(cls, rows: Tensor, columns: Tensor, values: Tensor, count: int) -> Self:
        """Make them from entries that are sorted by row."""
        return cls(torch.searchsorted(rows, torch.arange(count + 1, device=rows.device)), columns, values)

    def entries(self, vectors: Tensor) -> tuple[Tensor, Tensor]:
        """Return all entries of some vectors, each with the place of its vector among them."""
        sizes = self.starts[vectors + 1] - self.starts[vectors]
        place = torch.arange(len(vectors), device=vectors.device).repeat_interleave(sizes)
        first = self.starts[vectors] - sizes.cumsum(0) + sizes
        return place, torch.arange(len(place), device=vectors.device) + first[place]


def _describe(tables: ScoreTables, near: Tensor, farthest: Tensor) -> _Descriptions:
    """Return the description of each vector, of sum 1: weights e^−d on its reciprocal neighbours.

    The reciprocal neighbours of a reciprocal neighbour, among half as many, are added if more than two thirds of them
    are reciprocal neighbours already.
    """
    count, width = near.shape
    half = near[:, : round((width - 1) / 2) + 1]
    is_reciprocal, is_half = _reciprocal(near), _reciprocal(half)
    pairs = []
    size = max(1, for_device(TILE_ENTRIES, near.device) // (width * width * half.shape[1]))
    for rows in torch.arange(count, device=near.device).split(size):
        own, mask = near[rows], is_reciprocal[rows]
        theirs, valid = half[own], is_half[own] & mask[:, :, None]
        known = ((theirs[..., None] == own[:, None, None, :]) & mask[:, None, None, :]).any(3) & valid
        added = valid & (3 * known.sum(2) > 2 * valid.sum(2))[:, :, None]
        both = torch.cat([own, theirs.flatten(1)], 1)
        row, place = torch.cat([mask, added.flatten(1)], 1).nonzero(as_tuple=True)
        pairs.append((rows[row] * count + both[row, place]).unique())
    row, column = (keys := torch.cat(pairs)) // count, keys % count
    values = torch.exp(-_squared(tables, row, column) / farthest[row])
    sums = values.new_zeros(count).index_add_(0, row, values)
    return _Descriptions.of(row, column, values / sums[row], count)


def _reciprocal(near: Tensor) -> Tensor:
    """Return which of the neighbours of each vector have it among as many neighbours of their own."""
    rows = torch.arange(len(near), device=near.device)
    size = max(1, for_device(TILE_ENTRIES, near.device) // near.shape[1] ** 2)
    return torch.cat([(near[near[block]] == block[:, None, None]).any(2) for block in rows.split(size)])


def _average(described: _Descriptions, near: Tensor) -> _Descriptions:
    """Return the mean of the descriptions of the given neighbours of each vector."""
    count, width = near.shape
    pair, entry = described.entries(near.flatten())
    keys, place = (pair // width * count + described.columns[entry]).unique(return_inverse=True)
    values = described.values.new_zeros(len(keys)).index_add_(0, place, described.values[entry] / width)
    return _Descriptions.of(keys // count, keys % count, values, count)


def _jaccard(described: _Descriptions, rows: Tensor, candidates: Tensor) -> Tensor:
    """Return the Jaccard distance 1 − Σ min / Σ max of each query's description and those of its candidates."""
    queries = described.values.new_zeros(len(rows), len(described.starts) - 1)
    query, entry = described.entries(rows.to(queries.device))
    queries[query, described.columns[entry]] = described.values[entry]
    pair, entry = described.entries(candidates.flatten())
    smaller = torch.minimum(queries[pair // candidates.shape[1], described.columns[entry]], described.values[entry])
    shared = queries.new_zeros(candidates.numel()).index_add_(0, pair, smaller).view_as(candidates)
    return 1 - shared / (2 - shared)  # each description has the sum 1
