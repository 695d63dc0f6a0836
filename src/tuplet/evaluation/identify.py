"""Closed-set and open-set identification: find the person of a probe in a gallery, or find that it is not there."""

from typing import Any

import torch
from torch import Tensor

from tuplet.evaluation.inputs import as_labels
from tuplet.evaluation.neighbors import nearest
from tuplet.evaluation.pairs import threshold_at_far
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

    Args:
        probes: (N, d) vectors to identify, as for `recall_at_k`.
        probe_labels: their classes, N integers.
        gallery: (M, d) vectors of the known classes.
        gallery_labels: their classes, M integers.
        far: the share of impostors that may be accepted.
        metric: "euclidean", "cosine" or "dot".
        device: where to compute, by default where the vectors are.

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


def closed_and_open_set(
    embeddings: Any, labels: Any, far: float = 0.01, *, metric: str = "euclidean", device: Device = None
) -> dict[str, Any]:
    """Identify people by the usual protocols of LFW (Sohn 2016, table 3, after Best-Rowden et al. 2014).

    - Closed set: the first image of every person is the gallery, and all other images are probes.
    - Open set, with the roles exchanged: the other images are the gallery, and the first ones are the probes. Those of
      people with a single image are impostors.

    Best-Rowden et al. take fewer people: others report a gallery of 4,249 images for 3,143 probes, and for the open set
    those 3,143 images of 596 people as the gallery, one probe of each and 9,494 impostors. Without their list, all
    people of LFW count here: 5,749 images for 7,484 probes, and 1,680 probes with 4,069 impostors. Do not compare the
    results with theirs. The first image is that in the order given; which one theirs is, is not confirmed.

    Args:
        embeddings: (N, d) vectors of all images, as for `recall_at_k`.
        labels: the person of each image, N integers.
        far: the share of impostors that may be accepted.
        metric: "euclidean", "cosine" or "dot".
        device: where to compute, by default where the embeddings are.

    Returns:
        `rank1` of the closed set and `dir_at_far` of the open set, as in `identification`; the numbers of
        `known_people`, of `unknown_people`, who have a single image, and of `probes` of the closed set.

    Raises:
        ValueError: if no label occurs twice.

    >>> closed_and_open_set([[0.0], [0.1], [5.0], [5.2], [9.0]], [0, 0, 1, 1, 2])
    {'rank1': 1.0, 'dir_at_far': 1.0, 'known_people': 2, 'unknown_people': 1, 'probes': 2}
    """
    vectors = as_vectors(embeddings, device=device)
    people = as_labels(labels, vectors.count)
    _, code, sizes = people.unique(return_inverse=True, return_counts=True)
    is_first = torch.zeros(len(people), dtype=torch.bool)
    is_first[code.argsort(stable=True)[sizes.cumsum(0) - sizes]] = True
    first, others = is_first.nonzero()[:, 0], (~is_first).nonzero()[:, 0]
    if not len(others):
        raise ValueError(f"none of {len(people)} labels occurs twice, so nobody can be identified; give more images")

    def identify(probes: Tensor, gallery: Tensor) -> dict[str, float | None]:
        found, members = (vectors.rows(which, vectors.dtype) for which in (probes, gallery))
        return identification(found, people[probes], members, people[gallery], far, metric=metric)

    known = int((sizes > 1).sum())
    return {
        "rank1": identify(others, first)["rank1"],
        "dir_at_far": identify(first, others)["dir_at_far"],
        "known_people": known,
        "unknown_people": len(first) - known,
        "probes": len(others),
    }
