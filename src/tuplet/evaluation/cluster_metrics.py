"""Agreement of clusters with classes: NMI, AMI and pairwise F1, all from the contingency table."""

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tuplet.evaluation.inputs import as_labels, as_seed, positive_integer
from tuplet.evaluation.k_means import kmeans
from tuplet.evaluation.vectors import Device, as_vectors


def clustering(
    embeddings: Any, labels: Any, runs: int = 10, seed: int = 0, *, metric: str = "euclidean", device: Device = None
) -> dict[str, float]:
    """Cluster embeddings by k-means with as many clusters as classes, and compare the clusters with the classes.

    Args:
        embeddings: (N, d) vectors, as for `recall_at_k`.
        labels: N integers.
        runs: the number of runs, with the seeds `seed`, `seed + 1`, ….
        seed: the first seed.
        metric: "euclidean" or "cosine".
        device: where to compute, by default where the embeddings are.

    Returns:
        `nmi`, `f1` and `ami`, each the mean over the runs.

    >>> x = torch.tensor([[0.0], [0.1], [5.0], [5.1]])
    >>> clustering(x, [3, 3, 8, 8], runs=2)
    {'nmi': 1.0, 'f1': 1.0, 'ami': 1.0}
    """
    vectors = as_vectors(embeddings, device=device)
    classes = as_labels(labels, vectors.count)
    seeds = [as_seed(seed) + run for run in range(positive_integer(runs, "runs"))]
    scores = [
        (nmi(classes, found), pairwise_f1(classes, found), ami(classes, found))
        for found in kmeans(vectors, len(classes.unique()), seeds, metric=metric).cpu()
    ]
    means = (math.fsum(values) / len(values) for values in zip(*scores, strict=True))
    return dict(zip(("nmi", "f1", "ami"), means, strict=True))


def nmi(labels: Any, clusters: Any) -> float:
    """Compute normalised mutual information: I(U; V) / mean(H(U), H(V)), with the arithmetic mean as in scikit-learn.

    It is 1 if both put everything into one group, and 0 if only one of them does.

    Args:
        labels: the class of each point, as integers.
        clusters: the cluster of each point, as integers.

    >>> round(nmi([0, 0, 1, 1], [5, 5, 5, 9]), 4)
    0.3437
    """
    table = _Contingency.of(labels, clusters)
    if len(table.rows) == len(table.columns) == 1:
        return 1.0
    return min(1.0, max(0.0, table.information() / table.mean_entropy()))


def ami(labels: Any, clusters: Any) -> float:
    """Compute adjusted mutual information: (I − E[I]) / (mean(H(U), H(V)) − E[I]).

    E[I] is the mean of I over all ways to deal clusters of the same sizes to the same classes. So a random clustering
    has an AMI of about 0, whatever the number of clusters. Limits are as in scikit-learn. Arguments as for `nmi`.

    >>> round(ami([0, 0, 1, 1, 2, 2], [5, 5, 5, 9, 9, 9]), 4)
    0.2988
    """
    table = _Contingency.of(labels, clusters)
    if len(table.rows) == 1 or len(table.columns) == 1:
        return float(len(table.rows) == len(table.columns))
    expected = table.expected_information()
    eps = torch.finfo(torch.float64).eps
    gain, most = (
        min(value, -eps) if value < 0 else max(value, eps)
        for value in (table.information() - expected, table.mean_entropy() - expected)
    )
    return min(1.0, gain / most)


def pairwise_f1(labels: Any, clusters: Any) -> float:
    """Compute F1 of the pairs: 2·TP / (pairs within clusters + pairs within classes), TP being the pairs within both.

    It is 1 if neither has any pair: where every point is alone in its class and in its cluster, the two partitions are
    the same, and scikit-learn's `rand_score` and `adjusted_rand_score` are 1 too. If only one of them has pairs, it is
    0. Arguments as for `nmi`.

    >>> pairwise_f1([0, 0, 1, 1], [5, 5, 5, 9])
    0.4
    >>> pairwise_f1([0, 1, 2], [7, 8, 9]), pairwise_f1([0, 1, 2], [7, 7, 9])
    (1.0, 0.0)
    """
    table = _Contingency.of(labels, clusters)
    shared, in_classes, in_clusters = (int((n * (n - 1) // 2).sum()) for n in (table.cells, table.rows, table.columns))
    return 2 * shared / (in_classes + in_clusters) if in_classes + in_clusters else 1.0


class _Contingency(NamedTuple):
    """Sizes of the classes, of the clusters, and of their intersections that are not empty."""

    rows: Tensor  # the size of each class
    columns: Tensor  # the size of each cluster
    cells: Tensor  # the size of each intersection of a class and a cluster
    cell_rows: Tensor  # the class size of each cell
    cell_columns: Tensor  # the cluster size of each cell

    @classmethod
    def of(cls, labels: Any, clusters: Any) -> "_Contingency":
        if len(labels) == 0:
            raise ValueError("labels must not be empty; give a label and a cluster for each point")
        a = as_labels(labels, len(labels))
        b = as_labels(clusters, len(labels), "clusters")
        _, a, rows = a.unique(return_inverse=True, return_counts=True)
        _, b, columns = b.unique(return_inverse=True, return_counts=True)
        key, cells = (a * len(columns) + b).unique(return_counts=True)
        return cls(rows, columns, cells, rows[key // len(columns)], columns[key % len(columns)])

    @property
    def total(self) -> int:
        return int(self.rows.sum())

    def information(self) -> float:
        """Return I = Σ n/N · log(N·n / (a·b)) over the cells."""
        n, a, b = self.cells.double(), self.cell_rows.double(), self.cell_columns.double()
        return float((n / self.total * (n.log() - a.log() - b.log() + math.log(self.total))).sum())

    def mean_entropy(self) -> float:
        shares = (self.rows.double() / self.total, self.columns.double() / self.total)
        return sum(float(-(p * p.log()).sum()) for p in shares) / 2

    def expected_information(self) -> float:
        """Return E[I] = Σ_ab Σ_n n/N · log(N·n / (a·b)) · P(n).

        P(n) is the hypergeometric chance that n of the a members of a class fall into a cluster of b. A term depends on
        the sizes alone, and N points have at most √(2N) different sizes.
        """
        total = self.total
        log_factorial = torch.arange(1, total + 2, dtype=torch.float64, device="cpu").lgamma()
        sizes_b, times_b = self.columns.unique(return_counts=True)
        expected = 0.0
        for a, times_a in zip(*(column.tolist() for column in self.rows.unique(return_counts=True)), strict=True):
            for n in torch.arange(1, min(a, int(sizes_b.max())) + 1, device="cpu").split(4096):
                b = sizes_b[:, None]
                possible = (n <= b) & (n >= a + b - total)
                left_b, left = (b - n).clamp(min=0), (total - a - b + n).clamp(min=0)
                log_ways = log_factorial[a] + log_factorial[b] + log_factorial[total - a] + log_factorial[total - b]
                log_ways = log_ways - log_factorial[total] - log_factorial[n] - log_factorial[a - n]
                chance = (log_ways - log_factorial[left_b] - log_factorial[left]).exp()
                gain = n.double() / total * (n.double().log() - b.double().log() + math.log(total) - math.log(a))
                expected += times_a * float((torch.where(possible, gain * chance, 0.0).sum(1) * times_b).sum())
        return expected
