"""nDCG: the metric of lists in which some members are more relevant than others."""

from typing import Any

import torch
from torch import Tensor

from tuplet.evaluation.inputs import as_gallery, as_groups, as_labels, positive_integer
from tuplet.evaluation.neighbors import Hide, nearest
from tuplet.evaluation.retrieval import mean_where_defined
from tuplet.evaluation.scores import TILE_ENTRIES, hide_columns
from tuplet.evaluation.vectors import Device, as_vectors, for_device


def relevance(labels: Tensor, members: Tensor, hierarchy: bool = False) -> Tensor:
    """Return how relevant each member (M, L) is to each query (R, L), as whole numbers (R, M).

    The relevance is the number of labels that both have; −1 is no label. In a hierarchy the labels are a class, its
    parent and so on, and the relevance is the number of levels that both share, from the root: L for the same class, 0
    for nothing.

    >>> relevance(torch.tensor([[0, 3]]), torch.tensor([[0, 3], [1, 3], [2, 4]]), hierarchy=True)
    tensor([[2, 1, 0]])
    """
    return _shared(labels[:, None], members, hierarchy)


def _shared(labels: Tensor, members: Tensor, hierarchy: bool) -> Tensor:
    """Return the relevance of each member (…, L) to the query (…, L) in the same place."""
    shape = torch.broadcast_shapes(labels.shape[:-1], members.shape[:-1])
    total = torch.zeros(shape, dtype=torch.int64, device=labels.device)
    for i, mine in enumerate(labels.unbind(-1)):
        for j, theirs in enumerate(members.unbind(-1)):
            if i == j or not hierarchy:
                total += (mine == theirs) & (mine >= 0)
    return total


def hide_same_group(
    labels: Tensor, members: Tensor, groups: Tensor, member_groups: Tensor, hierarchy: bool = False
) -> Hide:
    """Return a function that hides from each query the members that share its label and its group.

    It is for `nearest(hide=…)`. `labels` and `members` are those of `relevance`. In a hierarchy a label is shared if
    all levels are.
    """

    def hide(tile: Tensor, rows: Tensor, start: int) -> None:
        columns = slice(start, start + tile.shape[1])
        shared = relevance(labels[rows], members[columns], hierarchy)
        same = shared == labels.shape[1] if hierarchy else shared > 0
        tile[same & (groups[rows, None] == member_groups[columns])] = -torch.inf

    return hide


def ndcg_at_k(
    embeddings: Any,
    labels: Any,
    k: int = 10,
    *,
    hierarchy: bool = False,
    gallery: Any = None,
    gallery_labels: Any = None,
    groups: Any = None,
    gallery_groups: Any = None,
    metric: str = "euclidean",
    device: Device = None,
) -> float:
    """Compute the normalized discounted cumulative gain of the first k results, as a mean over queries.

    DCG is Σ relevance / log₂(rank + 1) over the first k results, and nDCG divides it by that of the best order of the
    gallery. Of members with equal scores the less relevant come first. Queries to which nothing is relevant are left
    out.

    Args:
        embeddings: (N, d) query vectors.
        labels: (N,), or (N, L) as `relevance` takes them.
        k: the number of results.
        hierarchy: the columns of the labels are levels: a class, its parent and so on.
        gallery: (M, d) vectors to search; by default the queries, each without itself.
        gallery_labels: the labels of these.
        groups: as for `recall_at_k`.
        gallery_groups: as for `recall_at_k`.
        metric: "euclidean", "cosine" or "dot".
        device: where to compute, by default where the embeddings are.

    Returns:
        A fraction of 1.

    Raises:
        ValueError: if nothing is relevant to any query.

    >>> x, labels = torch.tensor([[0.0], [1.0], [3.0]]), torch.tensor([[0, 7], [1, 7], [0, 7]])
    >>> round(ndcg_at_k(x, labels, k=2, hierarchy=True), 2)
    0.91
    """
    queries = as_vectors(embeddings, device=device)
    own = as_labels(labels, queries.count, several=True)
    members, theirs = as_gallery(gallery, gallery_labels, own, device)
    groups = as_groups(groups, gallery_groups, queries, members)
    at, k = queries.device, positive_integer(k, "k")
    own, theirs = (each.view(len(each), -1).to(at) for each in (own, theirs))
    hide = None if groups is None else hide_same_group(own, theirs, groups[0].to(at), groups[1].to(at), hierarchy)

    def match(rows: Tensor, columns: Tensor) -> Tensor:
        return _shared(own[rows], theirs[columns], hierarchy)

    found = nearest(queries, members, k, metric=metric, wrong_first=match, hide=hide)
    discount = 1 / torch.arange(2, found.indices.shape[1] + 2, device=at).double().log2()
    dcg, best = [], []
    for rows in torch.arange(queries.count, device=at).split(max(1, for_device(TILE_ENTRIES, at) // len(theirs))):
        table = relevance(own[rows], theirs, hierarchy).double()
        if hide is not None:
            hide(table, rows, 0)
        if members is None:
            hide_columns(table, rows[:, None])
        table.clamp_(min=0)
        gains = table.gather(1, found.indices[rows]).where(found.scores[rows] > -torch.inf, 0)
        dcg.append((gains * discount).sum(1).cpu())
        best.append((table.topk(found.indices.shape[1], 1).values * discount).sum(1).cpu())
    ideal = torch.cat(best)
    return mean_where_defined(torch.cat(dcg) / ideal, ideal, f"ndcg_at_{k}")
