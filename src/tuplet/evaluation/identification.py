"""Who is it? Search in a gallery of known people or classes: closed set, open set, and by a vote of neighbours."""

from typing import Any

import torch

from tuplet.evaluation.inputs import as_labels, as_members, as_vectors, positive_integer
from tuplet.evaluation.ranks import TILE_ENTRIES
from tuplet.evaluation.topk import nearest
from tuplet.evaluation.verification import threshold_at_far


def identification(
    probes: Any,
    probe_labels: Any,
    gallery: Any,
    gallery_labels: Any,
    far: float = 0.01,
    *,
    metric: str = "euclidean",
    device: torch.device | str | None = None,
) -> dict[str, float | None]:
    """Closed-set rank-1 accuracy, and the open-set detection and identification rate (DIR) at a false-alarm rate.

    A probe whose label is in the gallery is genuine, any other is an impostor. `rank1`: the share of genuine probes
    whose nearest member has their label. `dir_at_far`: the share of genuine probes for which that holds and whose
    score is above the threshold that at most the share `far` of the impostors exceed with their nearest member.
    (Sohn 2016, section 4.3, after Best-Rowden et al. 2014.) Ties count against the system. `dir_at_far` is None where
    there is no impostor to set a threshold.

    >>> gallery, probes = [[0.0], [10.0]], [[0.2], [9.0], [5.5], [14.0]]
    >>> identification(probes, [1, 2, 3, 4], gallery, [1, 2], far=0.5)
    {'rank1': 1.0, 'dir_at_far': 1.0}
    """
    probes, members = as_vectors(probes, "probes", device), as_vectors(gallery, "gallery", device)
    labels = as_labels(probe_labels, probes.count, "probe_labels")
    known = as_labels(gallery_labels, members.count, "gallery_labels")
    genuine = torch.isin(labels, known)
    if not bool(genuine.any()):
        raise ValueError(
            f"identification needs a probe whose label is in the gallery, got none of {probes.count}; "
            "give a gallery of the probes' classes"
        )
    found = nearest(probes, members, 1, metric=metric, wrong_first=(labels, known))
    score, right = found.scores[:, 0].cpu(), known[found.indices[:, 0].cpu()] == labels
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
    device: torch.device | str | None = None,
) -> float:
    """Accuracy of the k-nearest-neighbour classifier (Sohn 2016, section 4.1): a majority vote of the k nearest.

    Without a gallery each example is classified by all the others. Ties count against the system: of equally near
    members those of other classes vote first, and a vote that only ties is lost.

    >>> recognition([[0.0], [0.2], [0.3], [9.0]], [1, 1, 1, 2], k=2)
    0.75
    """
    queries = as_vectors(embeddings, device=device)
    truth = as_labels(labels, queries.count)
    members, known = as_members(gallery, gallery_labels, truth, device)
    found = nearest(queries, members, positive_integer(k, "k"), metric=metric, wrong_first=(truth, known))
    classes, code = known.unique(return_inverse=True)
    size = max(1, TILE_ENTRIES["cpu"] // len(classes))
    wins = 0
    for voters, label in zip(code[found.indices.cpu()].split(size), truth.split(size), strict=True):
        votes = voters.new_zeros(len(voters), len(classes))
        votes.scatter_add_(1, voters, torch.ones_like(voters))
        right = classes == label[:, None]
        wins += int((torch.where(right, votes, 0).amax(1) > torch.where(right, 0, votes).amax(1)).sum())
    return wins / queries.count
