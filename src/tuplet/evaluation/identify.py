"""Find the class of a query in a gallery: closed-set and open-set identification, and k-nearest-neighbour votes."""

from typing import Any

import torch

from tuplet.evaluation.inputs import as_gallery, as_labels
from tuplet.evaluation.neighbors import nearest
from tuplet.evaluation.pairs import threshold_at_far
from tuplet.evaluation.scores import TILE_ENTRIES
from tuplet.evaluation.vectors import Device, as_vectors


def identification(
    probes: Any,
    probe_labels: Any,
    gallery: Any,
    gallery_labels: Any,
    far: float = 0.01,
    *,
    metric: str = "euclidean",
    device: Device = None,
) -> dict[str, float | None]:
    """Compute closed-set rank-1 accuracy and the open-set detection and identification rate (DIR).

    A probe whose label is in the gallery is genuine, any other is an impostor. The threshold is the lowest score that
    at most the share `far` of the impostors exceed with their nearest member (Sohn 2016, section 4.3, after Best-Rowden
    et al. 2014). Ties count against the system.

    Returns:
        `rank1`: the share of genuine probes whose nearest member has their label. `dir_at_far`: the share of genuine
        probes for which that holds and whose score is above the threshold; None if there is no impostor.

    Raises:
        ValueError: if no probe is genuine.

    >>> gallery, probes = [[0.0], [10.0]], [[0.2], [9.0], [5.5], [14.0]]
    >>> identification(probes, [1, 2, 3, 4], gallery, [1, 2], far=0.5)
    {'rank1': 1.0, 'dir_at_far': 1.0}
    """
    probes, members = as_vectors(probes, "probes", device), as_vectors(gallery, "gallery", device)
    labels = as_labels(probe_labels, probes.count, "probe_labels")
    member_labels = as_labels(gallery_labels, members.count, "gallery_labels")
    genuine = torch.isin(labels, member_labels)
    if not bool(genuine.any()):
        raise ValueError(
            f"identification needs a probe whose label is in the gallery, got none of {probes.count}; "
            "give a gallery of the probes' classes"
        )
    found = nearest(probes, members, 1, metric=metric, wrong_first=(labels, member_labels))
    score, right = found.scores[:, 0].cpu(), member_labels[found.indices[:, 0].cpu()] == labels
    rank1 = right[genuine].double().mean().item()
    if bool(genuine.all()):
        return {"rank1": rank1, "dir_at_far": None}
    detected = score > threshold_at_far(score[~genuine].numpy(), far)
    return {"rank1": rank1, "dir_at_far": (right & detected)[genuine].double().mean().item()}


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
    those of other classes vote first, and a tied vote is lost. `k` neighbours vote; the other arguments are those of
    `recall_at_k`.

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
