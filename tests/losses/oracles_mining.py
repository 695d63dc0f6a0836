"""Literal loop versions of the mining rules.

Each takes a table of similarities or distances and the boolean tables of positives and negatives (`pair_masks`), and
returns the boolean tables (positives kept, negatives kept): the `kept` of the loss oracles.
"""

import math

import torch

from losses.oracle_rows import distance, dot, sets


def pair_masks(x, labels, gallery=None, **options):
    """Return the boolean tables of P and N."""
    positive = torch.zeros(len(x), len(x if gallery is None else gallery), dtype=torch.bool)
    negative = positive.clone()
    for i, (P, N) in enumerate(sets(x, labels, gallery, **options)):
        positive[i, P] = True
        negative[i, N] = True
    return positive, negative


def dot_table(x, gallery=None):
    return torch.stack([torch.stack([dot(q, v) for v in (x if gallery is None else gallery)]) for q in x]).detach()


def distance_table(x, gallery=None):
    return torch.stack([torch.stack([distance(q, v) for v in (x if gallery is None else gallery)]) for q in x]).detach()


def as_distance(similarity):
    """Return √(2 − 2s), 0 if s is above 1: the distance that rules compute from the table of a dot loss."""
    return torch.sqrt(torch.clamp(2 - 2 * similarity, min=0))


def valid_triplet(similarity, positive, negative, epsilon=0.1):
    """Unified view, 5.1: negatives with s > s_ip − ε, positives with s < s_in + ε.

    p is the least similar of P, n the most similar of N.
    """
    keep_positive, keep_negative = torch.zeros_like(positive), torch.zeros_like(negative)
    for i, (P, N) in enumerate(index_lists(positive, negative)):
        if not (P and N):
            continue
        hardest_positive = min(similarity[i, j] for j in P)
        hardest_negative = max(similarity[i, j] for j in N)
        for j in P:
            keep_positive[i, j] = similarity[i, j] < hardest_negative + epsilon
        for j in N:
            keep_negative[i, j] = similarity[i, j] > hardest_positive - epsilon
    return keep_positive, keep_negative


def semi_hard(farness, positive, negative):
    """All positives; for each the nearest negative farther than it, else the farthest negative.

    `farness` is a distance, or anything that falls with similarity, such as −s. Of ties the lowest index is kept.
    """
    keep_negative = torch.zeros_like(negative)
    for i, (P, N) in enumerate(index_lists(positive, negative)):
        for p in P:
            farther = [j for j in N if farness[i, j] > farness[i, p]]
            if farther:
                keep_negative[i, min(farther, key=lambda j: farness[i, j].item())] = True
            elif N:
                keep_negative[i, max(N, key=lambda j: farness[i, j].item())] = True
    return positive.clone(), keep_negative


def non_trivial(distances, positive, negative, alpha=1.2, margin=0.4):
    """Ranked list: positives with d > α − m, negatives with d < α."""
    keep_positive, keep_negative = torch.zeros_like(positive), torch.zeros_like(negative)
    for i, (P, N) in enumerate(index_lists(positive, negative)):
        for j in P:
            keep_positive[i, j] = distances[i, j] > alpha - margin
        for j in N:
            keep_negative[i, j] = distances[i, j] < alpha
    return keep_positive, keep_negative


def distance_weighted_probabilities(distances, negative, dim, cutoff=0.5, far=1.4):
    """Return for each query i the probability that one draw takes negative j; 0 in a row without negatives.

    ∝ 1/q(max(d, cutoff)) among the negatives with d < far, uniform over all of them if none is that near;
    q(d) = d^{n−2} (1 − d²/4)^{(n−3)/2}. The kept table is the union of one draw per positive, so negative j of a query
    with k positives is kept with probability 1 − (1 − p_ij)^k.
    """
    assert max(cutoff, far) <= 2, "q is a density of distances on the unit sphere, none of which is above 2"
    table = torch.zeros_like(distances)
    for i, (_, N) in enumerate(index_lists(negative, negative)):
        near = [j for j in N if distances[i, j] < far]
        if not near:
            for j in N:
                table[i, j] = 1 / len(N)
            continue
        logs = []
        for j in near:
            d = max(distances[i, j].item(), cutoff)
            logs.append(-(dim - 2) * math.log(d) - (dim - 3) / 2 * math.log(1 - d * d / 4))
        # 1/q overflows in high dimensions; only the ratios matter.
        weights = [math.exp(log - max(logs)) for log in logs]
        for j, weight in zip(near, weights, strict=True):
            table[i, j] = weight / sum(weights)
    return table


def index_lists(positive, negative):
    """Yield for each row the indices that are set in each table."""
    for row_p, row_n in zip(positive, negative, strict=True):
        yield row_p.nonzero().flatten().tolist(), row_n.nonzero().flatten().tolist()
