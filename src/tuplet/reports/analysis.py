"""Analyse the vectors of a run: search results, similarities of pairs and confused classes."""

from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from tuplet.evaluation import nearest, per_query, relevance
from tuplet.evaluation.ndcg import hide_same_group
from tuplet.reports.run import FinishedRun

#: The number of results that are shown for a query.
RESULTS = 5
#: Limits of the similarity histograms, enough for smooth curves: queries, each against the whole gallery, and pairs.
HISTOGRAM_QUERIES, HISTOGRAM_PAIRS = 1000, 10_000_000
#: The fewest and the most bins of a histogram; between them twice the cube root of the number of pairs (Rice's rule).
MIN_BINS, MAX_BINS = 8, 100
#: Bins to find out which of two pairs is more similar.
ORDER_BINS = 1000


@dataclass(frozen=True, eq=False)
class Retrieval:
    """The search results of a run, one row per query.

    `queries` (Q,) and `results` (Q, 5) are rows of the run's vectors; `correct` (Q, 5) is True where a result has the
    class of its query; `first_correct` (Q,) is the rank of the first correct result, or 0 if there is none.
    """

    queries: Tensor
    results: Tensor
    correct: Tensor
    first_correct: Tensor
    map_at_r: Tensor

    def worst(self, labels: Tensor, count: int) -> list[int]:
        """Return the queries with the largest rank of the first correct result, at most one per class."""
        rank = torch.where(self.first_correct > 0, self.first_correct, torch.iinfo(torch.int64).max)
        order = self.map_at_r.argsort(stable=True)
        order = order[rank[order].argsort(descending=True, stable=True)]
        return self._one_per_class(order[rank[order] > 1], labels, count)

    def typical(self, labels: Tensor, count: int) -> list[int]:
        """Return the queries closest to the median of MAP@R, at most one per class."""
        distance = (self.map_at_r - self.map_at_r.median()).abs()
        return self._one_per_class(distance.argsort(stable=True), labels, count)

    def _one_per_class(self, order: Tensor, labels: Tensor, count: int) -> list[int]:
        chosen: dict[int, int] = {}
        for query, label in zip(order.tolist(), labels[self.queries[order]].tolist(), strict=True):
            chosen.setdefault(label, query)
            if len(chosen) == count:
                break
        return list(chosen.values())


def retrieve(run: FinishedRun) -> Retrieval:
    """Search the gallery with every query, by the metric of the evaluation."""
    queries, gallery = run.queries_and_gallery()
    metric = run.metrics.get("metric", "euclidean")
    x, labels = run.embeddings[queries], run.labels[queries]
    others, other_labels = run.embeddings[gallery], run.labels[gallery]
    separate = not torch.equal(queries, gallery)
    targets = run.targets
    mine, theirs = run.groups_of(queries), run.groups_of(gallery)
    scores, columns = nearest(
        x,
        others if separate else None,
        RESULTS,
        metric=metric,
        wrong_first=(labels, other_labels),
        hide=hide_same_group(targets[queries], targets[gallery], mine, theirs) if run.has_groups else None,
    )
    values, positives = per_query(
        x,
        targets[queries],
        metrics=("mean_reciprocal_rank", "map_at_r"),
        gallery=others if separate else None,
        gallery_labels=targets[gallery] if separate else None,
        groups=mine if run.has_groups else None,
        gallery_groups=theirs if run.has_groups and separate else None,
        metric=metric,
    )
    # A query with fewer members than results has nothing, −1, in the last places.
    results = torch.where(scores > -torch.inf, gallery[columns], -1)
    correct = torch.stack([_same(targets[queries], targets[results[:, i]]) for i in range(results.shape[1])], 1)
    first = torch.where(positives > 0, 1 / values["mean_reciprocal_rank"].clamp(min=1e-12), 0).round().long()
    return Retrieval(queries, results, correct & (results >= 0), first, values["map_at_r"])


def _same(labels: Tensor, others: Tensor) -> Tensor:
    """Return whether each row of `labels` (N, L) shares a label with the same row of `others`."""
    return ((labels[:, :, None] == others[:, None, :]) & (labels >= 0)[:, :, None]).flatten(1).any(1)


@dataclass(frozen=True, eq=False)
class Similarities:
    """Histograms of the cosine similarities of positive and of negative pairs over the same bins, each of sum 1.

    `edges` (bins + 1,) are the limits of the bins. `order` is the probability that a positive pair is more similar
    than a negative pair; pairs in one of `ORDER_BINS` bins count half.
    """

    edges: Tensor
    positive: Tensor
    negative: Tensor
    order: float


def similarities(run: FinishedRun) -> Similarities:
    """Compare up to `HISTOGRAM_QUERIES` evenly spaced queries with the whole gallery."""
    queries, gallery = run.queries_and_gallery()
    count = min(len(queries), HISTOGRAM_QUERIES, -(-HISTOGRAM_PAIRS // len(gallery)))
    chosen = queries[torch.linspace(0, len(queries) - 1, count).round().long()]
    vectors = normalize(run.embeddings, dim=1)
    table = (vectors[chosen] @ vectors[gallery].T).clamp(-1, 1)
    different = chosen[:, None] != gallery
    same = relevance(run.targets[chosen], run.targets[gallery]) > 0
    if run.has_groups:
        different &= ~(same & (run.groups_of(chosen)[:, None] == run.groups_of(gallery)))
    low, high = (float(x) for x in table[different].aminmax())
    high = max(high, low + 1e-3)
    fewest = min(int((different & kind).sum()) for kind in (same, ~same))
    bins = min(max(round(2 * fewest ** (1 / 3)), MIN_BINS), MAX_BINS)

    def histograms(bins: int) -> tuple[Tensor, Tensor]:
        counts = [torch.histc(table[different & kind], bins, low, high).double() for kind in (same, ~same)]
        positive, negative = (count / count.sum().clamp(min=1) for count in counts)
        return positive, negative

    positive, negative = histograms(ORDER_BINS)
    order = float((positive * (negative.cumsum(0) - negative / 2)).sum())
    positive, negative = histograms(bins)
    return Similarities(torch.linspace(low, high, bins + 1), positive, negative, order)


@dataclass(frozen=True)
class Confusion:
    """Two classes, the number of their queries whose nearest is of the other, all their queries, and a case."""

    first: int
    second: int
    times: int
    queries: int
    example: tuple[int, int]


def confusions(run: FinishedRun, retrieval: Retrieval, count: int) -> list[Confusion]:
    """Return the pairs of classes that are confused most often."""
    wrong = (~retrieval.correct[:, 0] & (retrieval.results[:, 0] >= 0)).nonzero()[:, 0]
    rows, others = retrieval.queries[wrong].tolist(), retrieval.results[wrong, 0].tolist()
    times: Counter[tuple[int, int]] = Counter()
    example: dict[tuple[int, int], tuple[int, int]] = {}
    for row, other in zip(rows, others, strict=True):
        a, b = int(run.labels[row]), int(run.labels[other])
        pair = (min(a, b), max(a, b))
        times[pair] += 1
        example.setdefault(pair, (row, other) if a == pair[0] else (other, row))
    sizes = Counter(run.labels[retrieval.queries].tolist())
    return [Confusion(a, b, n, sizes[a] + sizes[b], example[a, b]) for (a, b), n in times.most_common(count)]
