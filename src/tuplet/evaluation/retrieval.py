"""Recall@K, mean average precision, MAP@R, R-precision and reciprocal rank, from the ranks of the positives.

A query's list is the whole gallery in order of score. Its j-th nearest positive (j = 1, 2, …) stands at
rank j + the number of negatives before it, where `ties` says what a negative of the same score is:

- `"pessimistic"`: before it. A system gains nothing by giving everything the same score.
- `"optimistic"`: behind it.
- `"expected"`: the mean of the metric over all orders of the tied, in closed form.
"""

import re
import warnings
from collections.abc import Sequence
from typing import Any, TypedDict, Unpack

import torch
from torch import Tensor

from tuplet.evaluation.inputs import as_labels, as_members, as_vectors, one_of, positive_integer, several
from tuplet.evaluation.ranks import Ranked, ranked

TIES = ("pessimistic", "optimistic", "expected")
LIST_METRICS = ("mean_average_precision", "map_at_r", "r_precision", "mean_reciprocal_rank")


class Options(TypedDict, total=False):
    """What every retrieval metric takes: another gallery than the queries themselves, and how to score and count."""

    gallery: Any
    gallery_labels: Any
    metric: str
    ties: str
    device: torch.device | str | None


def recall_at_k(
    embeddings: Any, labels: Any, ks: Sequence[int] = (1, 2, 4, 8), **options: Unpack[Options]
) -> dict[int, float]:
    """The share of all queries with a positive among their K nearest, for each K.

    A query without any positive is a miss. Without a gallery the queries search among themselves, each left out of its
    own list by identity, so that a copy of it counts. K beyond the gallery means the whole gallery. Options: `gallery`
    with `gallery_labels`, `metric` ("euclidean", "cosine", "dot"), `ties` and `device`.

    >>> x = torch.tensor([[0.0], [1.0], [1.5], [4.0]])
    >>> recall_at_k(x, [7, 7, 8, 8], ks=(1, 2))
    {1: 0.5, 2: 0.75}
    >>> recall_at_k(x[:1], [8], ks=(1, 2, 3), gallery=x[1:], gallery_labels=[7, 8, 8])
    {1: 0.0, 2: 1.0, 3: 1.0}
    """
    names = recall_names(ks)
    values, _ = per_query(embeddings, labels, metrics=tuple(names.values()), **options)
    return {k: values[name].mean().item() for k, name in names.items()}


def recall_names(ks: Sequence[int]) -> dict[int, str]:
    """The metric of each K.

    >>> recall_names((1, 10))
    {1: 'recall_at_1', 10: 'recall_at_10'}
    """
    return {positive_integer(k, "each k in ks"): f"recall_at_{k}" for k in several(ks, "ks")}


def mean_average_precision(embeddings: Any, labels: Any, **options: Unpack[Options]) -> float:
    """1/R Σ_j j / rank of the j-th positive, over the full list; the mean over queries that have a positive.

    R is the number of the query's positives in its gallery. Options as for
    `recall_at_k`. Queries without a positive are left out, and a warning says how many.

    >>> mean_average_precision(torch.tensor([[0.0], [1.0], [2.5], [4.5]]), [7, 7, 8, 8])
    0.875
    """
    return _mean(embeddings, labels, "mean_average_precision", options)


def map_at_r(embeddings: Any, labels: Any, **options: Unpack[Options]) -> float:
    """1/R Σ_j j / rank over the positives of rank ≤ R: average precision that looks at the first R alone.

    Stricter than R-precision, since the order within the first R counts. Options and left-out queries as for
    `mean_average_precision`.

    >>> map_at_r(torch.tensor([[0.0], [1.0], [2.5], [4.5]]), [7, 7, 8, 8])
    0.75
    """
    return _mean(embeddings, labels, "map_at_r", options)


def r_precision(embeddings: Any, labels: Any, **options: Unpack[Options]) -> float:
    """The share of positives among the first R, R being the number of the query's positives.

    Options and left-out queries as for `mean_average_precision`.

    >>> r_precision(torch.tensor([[0.0], [1.0], [2.5], [4.5]]), [7, 7, 8, 8])
    0.75
    """
    return _mean(embeddings, labels, "r_precision", options)


def mean_reciprocal_rank(embeddings: Any, labels: Any, **options: Unpack[Options]) -> float:
    """1 / rank of the nearest positive; the mean over queries that have one.

    Options and left-out queries as for `mean_average_precision`.

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
    metric: str = "euclidean",
    ties: str = "pessimistic",
    device: torch.device | str | None = None,
) -> tuple[dict[str, Tensor], Tensor]:
    """Metrics of each query in one pass, as float64 tensors on the CPU, and how many positives each query has.

    `metrics`: any of `recall_at_K` for a number K, `mean_average_precision`, `map_at_r`, `r_precision` and
    `mean_reciprocal_rank`. A query without a positive has 0 everywhere.

    >>> values, positives = per_query(torch.tensor([[0.0], [1.0], [1.5]]), [7, 7, 8], metrics=["recall_at_1"])
    >>> values["recall_at_1"].tolist(), positives.tolist()
    ([1.0, 0.0, 0.0], [1, 1, 0])
    """
    one_of(ties, TIES, "ties")
    for name in metrics:
        if name not in LIST_METRICS and not re.fullmatch(r"recall_at_[1-9]\d*", name):
            raise ValueError(
                f"metrics must be recall_at_K or one of {', '.join(LIST_METRICS)}, got {name!r}; choose of them"
            )
    queries = as_vectors(embeddings, "embeddings", device)
    query_labels = as_labels(labels, queries.count)
    members, member_labels = as_members(gallery, gallery_labels, query_labels, device)
    ks = [int(name.removeprefix("recall_at_")) for name in metrics if name.startswith("recall_at_")]
    first = len(ks) + ("mean_reciprocal_rank" in metrics) == len(metrics)
    within = None if {"mean_average_precision", "mean_reciprocal_rank"} & set(metrics) else max(ks, default=1)
    values = {name: torch.zeros(queries.count, dtype=torch.float64, device="cpu") for name in metrics}
    positives = torch.zeros_like(query_labels)
    for block in ranked(queries, query_labels, members, member_labels, metric, first, within):
        rows = block.rows.cpu()
        positives[rows] = block.positives.cpu()
        lists = _TiedLists(block, ties)
        for name in metrics:
            values[name][rows] = lists.measure(name).cpu()
    return values, positives


class _TiedLists:
    """A block of ranked positives, with the positives that tie with the same negatives as one group.

    A group of p positives and t negatives fills the ranks b + 1 … b + p + t, with a positives before it; a positive
    that ties with no negative is a group of its own. Every metric is a sum over positives of what its group gives.
    """

    def __init__(self, block: Ranked, ties: str) -> None:
        self.valid = block.valid
        self.any_tied = ties == "expected" and bool(block.tied.any())
        self.positives = block.positives.clamp(min=1)
        tied = block.tied if ties == "expected" else torch.zeros_like(block.tied)
        ahead = block.ahead + block.tied if ties == "pessimistic" else block.ahead
        place = torch.arange(tied.shape[1], device=tied.device).expand_as(tied)
        starts = torch.ones_like(tied, dtype=torch.bool)
        starts[:, 1:] = (tied[:, 1:] == 0) | (tied[:, :-1] == 0) | (ahead[:, 1:] != ahead[:, :-1])
        group = starts.cumsum(1) - 1
        size = torch.zeros_like(tied).scatter_add_(1, group, self.valid.long())
        before = torch.where(starts, place, 0).cummax(1).values
        self.p = size.gather(1, group).double()
        self.t = tied.double()
        self.a = before.double()
        self.b = self.a + ahead

    def measure(self, name: str) -> Tensor:
        """One metric of each query."""
        if name.startswith("recall_at_"):
            found = self._found_within(float(name.removeprefix("recall_at_")))
            return torch.where(self.valid[:, 0], found, 0.0)
        if name == "mean_reciprocal_rank":
            return torch.where(self.valid[:, 0], self._reciprocal_rank(), 0.0)
        total = self.p + self.t
        depth = torch.full_like(total, torch.inf) if name == "mean_average_precision" else self.positives[:, None]
        inside = torch.minimum((depth - self.b).clamp(min=0), total)
        gains = inside / total if name == "r_precision" else self._precision(inside, total)
        return torch.where(self.valid, gains, 0.0).sum(1) / self.positives

    def _found_within(self, k: float) -> Tensor:
        """The chance that the first group puts a positive within k: 1 − C(t, m) / C(t + p, m), with m = k − b left."""
        p, t, m = self.p[:, 0], self.t[:, 0], k - self.b[:, 0]
        drawn = m.clamp(min=0).minimum(t)
        log_miss = (t + 1).lgamma() - (t - drawn + 1).lgamma() - (t + p + 1).lgamma() + (t + p - drawn + 1).lgamma()
        return torch.where(m <= 0, 0.0, torch.where(m > t, 1.0, -torch.expm1(log_miss)))

    def _reciprocal_rank(self) -> Tensor:
        """Σ_i P(i) / (b + i), with P(i) = C(T − i, p − 1) / C(T, p) for a first positive at place i of T = p + t."""
        p, t, b = self.p[:, :1], self.t[:, :1], self.b[:, :1]
        total = 1 / (b + 1)
        tied = (t[:, 0] > 0).nonzero()[:, 0]
        if len(tied):
            p, t, b = p[tied], t[tied], b[tied]
            all_ways = (p + t + 1).lgamma() - (p + 1).lgamma() - (t + 1).lgamma()
            sums = torch.zeros_like(b)
            for places in torch.arange(1, int(t.max()) + 2, device=b.device, dtype=torch.float64).split(1024):
                rest = (t + 1 - places).clamp(min=0)
                chance = ((p + rest).lgamma() - p.lgamma() - (rest + 1).lgamma() - all_ways).exp()
                sums += torch.where(places <= t + 1, chance / (b + places), 0.0).sum(1, keepdim=True)
            total[tied] = sums
        return total[:, 0]

    def _precision(self, inside: Tensor, total: Tensor) -> Tensor:
        """What a positive adds to R · average precision: (positives up to it) / rank, expected over its group.

        A positive is at each place i of its group with chance 1/T, T = p + t, and has there a + 1 + (i−1)(p−1)/(T−1)
        positives up to it. Summed over i = 1 … m with h = Σ 1/(b + i):  [(a + 1)·h + (p−1)/(T−1)·(m − (b + 1)·h)] / T.
        """
        alone = (self.a + 1) / (self.b + 1) * (inside > 0)
        if not self.any_tied:
            return alone
        h = (self.b + inside + 1).digamma() - (self.b + 1).digamma()
        slope = (self.p - 1) / (total - 1).clamp(min=1)
        shared = ((self.a + 1) * h + slope * (inside - (self.b + 1) * h)) / total
        return torch.where(self.t > 0, shared, alone)


def mean_where_defined(values: Tensor, positives: Tensor, name: str) -> float:
    """The mean over queries that have a positive; one sentence if there is none."""
    if not bool((positives > 0).any()):
        raise ValueError(
            f"{name} needs a query with a positive, but none of the {len(positives)} queries shares its label with "
            "a member of the gallery other than itself; give classes of two or more, or a gallery of their classes"
        )
    return values[positives > 0].mean().item()


def _mean(embeddings: Any, labels: Any, name: str, options: Options) -> float:
    values, positives = per_query(embeddings, labels, metrics=(name,), **options)
    mean = mean_where_defined(values[name], positives, name)
    alone = int((positives == 0).sum())
    if alone:
        warnings.warn(
            f"{alone} of {len(positives)} queries have no positive in the gallery; {name} leaves them out", stacklevel=3
        )
    return mean
