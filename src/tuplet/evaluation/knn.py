"""Accuracy of the k-nearest-neighbour classifier."""

from typing import Any

import torch

from tuplet.evaluation.inputs import as_gallery, as_labels
from tuplet.evaluation.neighbors import nearest
from tuplet.evaluation.scores import TILE_ENTRIES
from tuplet.evaluation.vectors import Device, as_vectors


def recognition(
    embeddings: Any,
    labels: Any,
    k: int = 1,
    *,
    gallery: Any = None,
    gallery_labels: Any = None,
    metric: str = "euclidean",
    device: Device = None,
) -> float:
    """Compute the accuracy of the k-nearest-neighbour classifier, a majority vote (Sohn 2016, section 4.1).

    Without a gallery, each example is classified by all others. Ties count against the system: of equally near members
    those of other classes vote first, and a tied vote is lost.

    Args:
        embeddings: (N, d) vectors to classify, as for `recall_at_k`.
        labels: their classes, N integers.
        k: the number of neighbours that vote.
        gallery: (M, d) vectors that vote; by default the embeddings themselves.
        gallery_labels: their classes, M integers.
        metric: "euclidean", "cosine" or "dot".
        device: where to compute, by default where the embeddings are.

    Returns:
        A fraction of 1.

    >>> recognition([[0.0], [0.2], [0.3], [9.0]], [1, 1, 1, 2], k=2)
    0.75
    """
    queries = as_vectors(embeddings, device=device)
    true_labels = as_labels(labels, queries.count)
    members, member_labels = as_gallery(gallery, gallery_labels, true_labels, device)
    found = nearest(queries, members, k, metric=metric, wrong_first=(true_labels, member_labels))
    classes, code = member_labels.unique(return_inverse=True)
    size = max(1, TILE_ENTRIES["cpu"] // len(classes))
    wins = 0
    for voters, label in zip(code[found.indices.cpu()].split(size), true_labels.split(size), strict=True):
        votes = voters.new_zeros(len(voters), len(classes))
        votes.scatter_add_(1, voters, torch.ones_like(voters))
        right = classes == label[:, None]
        wins += int((torch.where(right, votes, 0).amax(1) > torch.where(right, 0, votes).amax(1)).sum())
    return wins / queries.count
