"""What there is to see in the vectors of a run: who finds whom, how alike pairs are, which classes are confused."""

from collections import Counter
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from tuplet.evaluation import nearest, per_query
from tuplet.reports.run import Run

#: How many of the nearest are looked at.
SHOWN = 5
#: Queries of the similarity histograms, each against the whole gallery, and pairs altogether: enough for smooth curves.
HISTOGRAM_QUERIES, HISTOGRAM_PAIRS = 1000, 10_000_000
BINS = 100


@dataclass(frozen=True, eq=False)
class Search:
    """What each query found. All tensors have a row for each query, and name rows of the run's vectors.

    `found` (Q, 5) are the nearest, `right` whether they are of the query's class, `first_right` is the rank of the
    nearest that is (0: there is none), `goodness` the query's share of MAP@R.
    """

    queries: Tensor
    found: Tensor
    right: Tensor
    first_right: Tensor
    goodness: Tensor

    def worst(self, labels: Tensor, count: int) -> list[int]:
        """The queries whose first right answer comes last, one of each class."""
        rank = torch.where(self.first_right > 0, self.first_right, torch.iinfo(torch.int64).max)
        order = self.goodness.argsort(stable=True)
        order = order[rank[order].argsort(descending=True, stable=True)]
        return self._one_per_class(order[rank[order] > 1], labels, count)

    def typical(self, labels: Tensor, count: int) -> list[int]:
        """The queries nearest to the median of MAP@R, one of each class."""
        distance = (self.goodness - self.goodness.median()).abs()
        return self._one_per_class(distance.argsort(stable=True), labels, count)

    def _one_per_class(self, order: Tensor, labels: Tensor, count: int) -> list[int]:
        chosen: dict[int, int] = {}
        for query, label in zip(order.tolist(), labels[self.queries[order]].tolist(), strict=True):
            chosen.setdefault(label, query)
            if len(chosen) == count:
                break
        return list(chosen.values())


def search(run: Run) -> Search:
    """Search with every query, by the metric of the evaluation."""
    queries, gallery = run.sides()
    metric = run.metrics.get("metric", "euclidean")
    q, labels = run.embeddings[queries], run.labels[queries]
    among, among_labels = run.embeddings[gallery], run.labels[gallery]
    other = not torch.equal(queries, gallery)
    _, columns = nearest(q, among if other else None, SHOWN, metric=metric, wrong_first=(labels, among_labels))
    values, positives = per_query(
        q,
        labels,
        metrics=("mean_reciprocal_rank", "map_at_r"),
        gallery=among if other else None,
        gallery_labels=among_labels if other else None,
        metric=metric,
    )
    found = gallery[columns]
    first = torch.where(positives > 0, 1 / values["mean_reciprocal_rank"].clamp(min=1e-12), 0).round().long()
    return Search(queries, found, run.labels[found] == labels[:, None], first, values["map_at_r"])


@dataclass(frozen=True, eq=False)
class Similarities:
    """Histograms of the cosine similarities of positive and of negative pairs, each of sum 1, over the same bins.

    `edges` (B + 1,) bound the bins. `order` is the share of positive pairs that are more alike than a random negative
    pair, pairs of one bin counting half.
    """

    edges: Tensor
    positive: Tensor
    negative: Tensor
    order: float


def similarities(run: Run) -> Similarities:
    """Compare up to `HISTOGRAM_QUERIES` queries, evenly chosen, with the whole gallery."""
    queries, gallery = run.sides()
    count = min(len(queries), HISTOGRAM_QUERIES, -(-HISTOGRAM_PAIRS // len(gallery)))
    chosen = queries[torch.linspace(0, len(queries) - 1, count).round().long()]
    vectors = normalize(run.embeddings, dim=1)
    table = (vectors[chosen] @ vectors[gallery].T).clamp(-1, 1)
    apart = chosen[:, None] != gallery
    same = run.labels[chosen, None] == run.labels[gallery]
    low, high = (float(x) for x in table[apart].aminmax())
    high = max(high, low + 1e-3)
    counts = [torch.histc(table[apart & kind], BINS, low, high).double() for kind in (same, ~same)]
    positive, negative = (count / count.sum().clamp(min=1) for count in counts)
    order = float((positive * (negative.cumsum(0) - negative / 2)).sum())
    return Similarities(torch.linspace(low, high, BINS + 1), positive, negative, order)


@dataclass(frozen=True)
class Confusion:
    """Two classes that find each other: how often, of how many queries, and the first case, a row of each."""

    first: int
    second: int
    times: int
    queries: int
    example: tuple[int, int]


def confusions(run: Run, found: Search, count: int) -> list[Confusion]:
    """The pairs of classes whose queries have one of the other as nearest most often."""
    wrong = (~found.right[:, 0]).nonzero()[:, 0]
    rows, others = found.queries[wrong].tolist(), found.found[wrong, 0].tolist()
    times: Counter[tuple[int, int]] = Counter()
    example: dict[tuple[int, int], tuple[int, int]] = {}
    for row, other in zip(rows, others, strict=True):
        a, b = int(run.labels[row]), int(run.labels[other])
        pair = (min(a, b), max(a, b))
        times[pair] += 1
        example.setdefault(pair, (row, other) if a == pair[0] else (other, row))
    sizes = Counter(run.labels[found.queries].tolist())
    return [Confusion(a, b, n, sizes[a] + sizes[b], example[a, b]) for (a, b), n in times.most_common(count)]
