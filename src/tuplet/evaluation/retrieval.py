"""Recall@K, mean average precision, MAP@R, R-precision and mean reciprocal rank, from the ranks of the positives.

A query's list is its whole gallery in order of score. The rank of its j-th nearest positive is j + the number of
negatives before it. `ties` says where a negative with the same score stands:

- `"pessimistic"`: before the positive. A system gains nothing by giving everything the same score.
- `"optimistic"`: after it.
- `"expected"`: the metric is the mean over all orders of the tied members, in closed form.
"""

import re
from collections.abc import Sequence
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor

from tuplet.errors import refuse_unknown, warn
from tuplet.evaluation.inputs import as_gallery, as_groups, as_labels, as_list, one_of, positive_integer
from tuplet.evaluation.positives import RankedPositives
from tuplet.evaluation.ranking import rank_positives
from tuplet.evaluation.vectors import Device, as_vectors

TIES = ("pessimistic", "optimistic", "expected")
LIST_METRICS = ("mean_average_precision", "map_at_r", "r_precision", "mean_reciprocal_rank")


class RetrievalOptions(TypedDict, total=False):
    """The options of every retrieval metric; `recall_at_k` explains them."""

    gallery: Any
    gallery_labels: Any
    groups: Any
    gallery_groups: Any
    metric: str
    ties: str
    device: Device


def recall_at_k(
    embeddings: Any, labels: Any, ks: Sequence[int] = (1, 2, 4, 8), **options: Unpack[RetrievalOptions]
) -> dict[int, float]:
    """Compute the share of all queries with a positive among their K nearest gallery members.

    A query without any positive is a miss. A K beyond the gallery means the whole gallery.

    Args:
        embeddings: (N, d) query vectors, as a tensor, an array, a memory-mapped file or `Vectors`.
        labels: N integers; or (N, L), several for each, padded with −1: a positive shares any of them.
        ks: the values of K.
        **options: `gallery` and `gallery_labels`, the members to search; without them the queries search among
            themselves, each without itself. `groups` and `gallery_groups`: integers, such as cameras; a member with a
            query's label and its group is left out of the query's list, as re-identification does. `metric`:
            "euclidean" (default), "cosine" or "dot". `ties`: "pessimistic" (default), "optimistic" or "expected".
            `device`: where to compute, by default where the embeddings are.

    Returns:
        The recall for each K, as a fraction of 1.

    >>> x = torch.tensor([[0.0], [1.0], [1.5], [4.0]])
    >>> recall_at_k(x, [7, 7, 8, 8], ks=(1, 2))
    {1: 0.5, 2: 0.75}
    >>> recall_at_k(x[:1], [8], ks=(1, 2, 3), gallery=x[1:], gallery_labels=[7, 8, 8])
    {1: 0.0, 2: 1.0, 3: 1.0}
    """
    refuse_unknown("recall_at_k", options, ("ks", *RetrievalOptions.__annotations__))
    names = recall_names(ks)
    values, _ = per_query(embeddings, labels, metrics=tuple(names.values()), **options)
    return {k: values[name].mean().item() for k, name in names.items()}


def recall_names(ks: Sequence[int]) -> dict[int, str]:
    """Return the name of the metric for each K.

    >>> recall_names((1, 10))
    {1: 'recall_at_1', 10: 'recall_at_10'}
    """
    return {positive_integer(k, "each k in ks"): f"recall_at_{k}" for k in as_list(ks, "ks")}


def mean_average_precision(embeddings: Any, labels: Any, **options: Unpack[RetrievalOptions]) -> float:
    """Compute 1/R Σ_j j / (rank of the j-th positive) over the full list, R being the number of positives of the query.

    The value is the mean over the queries that have a positive. Others are left out, and a warning gives their number.
    Arguments as for `recall_at_k`.

    Raises:
        ValueError: if no query has a positive.

    >>> mean_average_precision(torch.tensor([[0.0], [1.0], [2.5], [4.5]]), [7, 7, 8, 8])
    0.875
    """
    return _mean(embeddings, labels, "mean_average_precision", options)


def map_at_r(embeddings: Any, labels: Any, **options: Unpack[RetrievalOptions]) -> float:
    """Compute 1/R Σ_j j / rank over the positives of rank ≤ R: average precision of the first R members of the list.

    It is stricter than R-precision, since the order within the first R counts. Arguments, queries without a positive
    and errors as for `mean_average_precision`.

    >>> map_at_r(torch.tensor([[0.0], [1.0], [2.5], [4.5]]), [7, 7, 8, 8])
    0.75
    """
    return _mean(embeddings, labels, "map_at_r", options)


def r_precision(embeddings: Any, labels: Any, **options: Unpack[RetrievalOptions]) -> float:
    """Compute the share of positives among the first R members, R being the number of positives of the query.

    Arguments, queries without a positive and errors as for `mean_average_precision`.

    >>> r_precision(torch.tensor([[0.0], [1.0], [2.5], [4.5]]), [7, 7, 8, 8])
    0.75
    """
    return _mean(embeddings, labels, "r_precision", options)


def mean_reciprocal_rank(embeddings: Any, labels: Any, **options: Unpack[RetrievalOptions]) -> float:
    """Compute 1 / rank of the nearest positive, as a mean over the queries that have one.

    Arguments, queries without a positive and errors as for `mean_average_precision`.

    >>> mean_reciprocal_rank(torch.tensor([[0.0], [1.0], [2.5], [4.5]]), [7, 7, 8, 8])
    0.875
    """
    return _mean(embeddings, labels, "mean_reciprocal_rank", options)


def per_query(
    embeddings: Any,
    labels: Any,
    *,
    metrics: Sequence[str],
    gallery: Any = None,
    gallery_labels: Any = None,
    groups: Any = None,
    gallery_groups: Any = None,
    metric: str = "euclidean",
    ties: str = "pessimistic",
    device: Device = None,
) -> tuple[dict[str, Tensor], Tensor]:
    """Compute metrics of each query, all in one pass.

    `metrics` are names: "recall_at_K" for any number K, "mean_average_precision", "map_at_r", "r_precision" or
    "mean_reciprocal_rank". The other arguments are those of `recall_at_k`.

    Returns:
        The values of each metric, as float64 tensors on the CPU, and the number of positives of each query. A query
        without a positive has the value 0.

    >>> values, positives = per_query(torch.tensor([[0.0], [1.0], [1.5]]), [7, 7, 8], metrics=["recall_at_1"])
    >>> values["recall_at_1"].tolist(), positives.tolist()
    ([1.0, 0.0, 0.0], [1, 1, 0])
    """
    one_of(ties, TIES, "ties")
    for name in metrics:
        if name not in LIST_METRICS and not re.fullmatch(r"recall_at_[1-9]\d*", name):
            raise ValueError(f"metrics must be recall_at_K or one of {', '.join(LIST_METRICS)}, got {name!r}")
    queries = as_vectors(embeddings, "embeddings", device)
    query_labels = as_labels(labels, queries.count, several=True)
    members, member_labels = as_gallery(gallery, gallery_labels, query_labels, device)
    ks = [int(name.removeprefix("recall_at_")) for name in metrics if name.startswith("recall_at_")]
    nearest_only = not {"mean_average_precision", "map_at_r", "r_precision"} & set(metrics)
    depth = None if {"mean_average_precision", "mean_reciprocal_rank"} & set(metrics) else max(ks, default=1)
    values = {name: torch.zeros(queries.count, dtype=torch.float64, device="cpu") for name in metrics}
    num_positives = torch.zeros(queries.count, dtype=torch.int64, device="cpu")
    groups = as_groups(groups, gallery_groups, queries, members)
    for block in rank_positives(queries, query_labels, members, member_labels, metric, nearest_only, depth, groups):
        rows = block.queries.cpu()
        num_positives[rows] = block.num_positives.cpu()
        tied = _TiedGroups(block, ties)
        for name in metrics:
            values[name][rows] = tied.measure(name).cpu()
    return values, num_positives


class _TiedGroups:
    """A block of ranked positives, where the positives that tie with the same negatives form a group.

    A group of p positives and t negatives fills the ranks b + 1 … b + p + t, and a positives come before it. A positive
    that ties with no negative is a group of its own. Every metric is a sum over positives of a term of their group.
    """

    def __init__(self, block: RankedPositives, ties: str) -> None:
        self.valid = block.valid
        self.any_tied = ties == "expected" and bool(block.tied.any())
        self.num_positives = block.num_positives.clamp(min=1)
        tied = block.tied if ties == "expected" else torch.zeros_like(block.tied)
        ahead = block.ahead + block.tied if ties == "pessimistic" else block.ahead
        index = torch.arange(tied.shape[1], device=tied.device).expand_as(tied)
        starts = torch.ones_like(tied, dtype=torch.bool)
        starts[:, 1:] = (tied[:, 1:] == 0) | (tied[:, :-1] == 0) | (ahead[:, 1:] != ahead[:, :-1])
        group = starts.cumsum(1) - 1
        size = torch.zeros_like(tied).scatter_add_(1, group, self.valid.long())
        self.p = size.gather(1, group).double()
        self.t = tied.double()
        self.a = torch.where(starts, index, 0).cummax(1).values.double()
        self.b = self.a + ahead

    def measure(self, name: str) -> Tensor:
        """Return one metric of each query."""
        if name.startswith("recall_at_"):
            return torch.where(self.valid[:, 0], self._recall(float(name.removeprefix("recall_at_"))), 0.0)
        if name == "mean_reciprocal_rank":
            return torch.where(self.valid[:, 0], self._reciprocal_rank(), 0.0)
        total = self.p + self.t
        depth = torch.full_like(total, torch.inf) if name == "mean_average_precision" else self.num_positives[:, None]
        inside = torch.minimum((depth - self.b).clamp(min=0), total)
        terms = inside / total if name == "r_precision" else self._precision(inside, total)
        return torch.where(self.valid, terms, 0.0).sum(1) / self.num_positives

    def _recall(self, k: float) -> Tensor:
        """Return the chance that the first group puts a positive within k: 1 − C(t, m) / C(t + p, m), m = k − b."""
        p, t, m = self.p[:, 0], self.t[:, 0], k - self.b[:, 0]
        drawn = m.clamp(min=0).minimum(t)
        log_miss = (t + 1).lgamma() - (t - drawn + 1).lgamma() - (t + p + 1).lgamma() + (t + p - drawn + 1).lgamma()
        return torch.where(m <= 0, 0.0, torch.where(m > t, 1.0, -torch.expm1(log_miss)))

    def _reciprocal_rank(self) -> Tensor:
        """Return Σ_i P(i) / (b + i), P(i) = C(T − i, p − 1) / C(T, p) for a first positive at place i of T = p + t."""
        p, t, b = self.p[:, :1], self.t[:, :1], self.b[:, :1]
        result = 1 / (b + 1)
        tied = (t[:, 0] > 0).nonzero()[:, 0]
        if len(tied):
            p, t, b = p[tied], t[tied], b[tied]
            log_orders = (p + t + 1).lgamma() - (p + 1).lgamma() - (t + 1).lgamma()
            sums = torch.zeros_like(b)
            for i in torch.arange(1, int(t.max()) + 2, device=b.device, dtype=torch.float64).split(1024):
                rest = (t + 1 - i).clamp(min=0)
                chance = ((p + rest).lgamma() - p.lgamma() - (rest + 1).lgamma() - log_orders).exp()
                sums += torch.where(i <= t + 1, chance / (b + i), 0.0).sum(1, keepdim=True)
            result[tied] = sums
        return result[:, 0]

    def _precision(self, inside: Tensor, total: Tensor) -> Tensor:
        """Return the term of each positive in R · average precision: the expected (positives up to it) / rank.

        A positive is at place i of its group with chance 1/T, T = p + t, and has then a + 1 + (i−1)(p−1)/(T−1)
        positives up to it. Summed over i = 1 … m with h = Σ 1/(b + i):  [(a + 1)·h + (p−1)/(T−1)·(m − (b + 1)·h)] / T.
        """
        alone = (self.a + 1) / (self.b + 1) * (inside > 0)
        if not self.any_tied:
            return alone
        h = (self.b + inside + 1).digamma() - (self.b + 1).digamma()
        slope = (self.p - 1) / (total - 1).clamp(min=1)
        shared = ((self.a + 1) * h + slope * (inside - (self.b + 1) * h)) / total
        return torch.where(self.t > 0, shared, alone)


def mean_where_defined(values: Tensor, num_positives: Tensor, name: str) -> float:
    """Return the mean over queries that have a positive; raise ValueError if there is none."""
    if not bool((num_positives > 0).any()):
        raise ValueError(
            f"{name} needs a query with a positive, but none of the {len(num_positives)} queries shares its label with "
            "a member of the gallery other than itself (with groups: of another group); give classes of two or more, "
            "or a gallery of their classes"
        )
    return values[num_positives > 0].mean().item()


def _mean(embeddings: Any, labels: Any, name: str, options: RetrievalOptions) -> float:
    refuse_unknown(name, options, RetrievalOptions.__annotations__)
    values, num_positives = per_query(embeddings, labels, metrics=(name,), **options)
    mean = mean_where_defined(values[name], num_positives, name)
    if without := int((num_positives == 0).sum()):
        warn(f"{without} of {len(num_positives)} queries have no positive in the gallery; {name} leaves them out")
    return mean
