"""Literal loop versions of the losses whose term is a triplet, an (anchor, positive) pair or a tuplet."""

import math

from losses.oracle_rows import dot, hinge, log_one_plus, mean, rows, sets, squared


def triplet(x, labels, margin=0.2, mining="all", **options):
    """Angular (2): [d_ap² − d_an² + m]₊; mean over the triplets that `mining` chooses.

    Among tied distances the lowest index is chosen; the value is the same for all, for the gradient see `by_vector`.
    """
    if mining == "disjoint":
        triples = [(x[t], x[t + 1], x[t + 2]) for t in range(0, len(x), 3)]
    else:
        choose = {"all": all_triplets, "semi_hard": semi_hard_triplets, "hardest": hardest_triplets}[mining]
        triples = [triple for q, P, N in rows(x, labels, **options) for triple in choose(q, P, N)]
    return mean([hinge(squared(a, p) - squared(a, n) + margin) for a, p, n in triples], x)


def all_triplets(a, P, N):
    return [(a, p, n) for p in P for n in N]


def semi_hard_triplets(a, P, N):
    """For each positive the nearest negative that is farther than it, else the farthest negative."""
    chosen = []
    for p in P:
        farther = [n for n in N if squared(a, n) > squared(a, p)]
        if farther:
            chosen.append((a, p, min(farther, key=lambda n: squared(a, n).item())))
        elif N:
            chosen.append((a, p, max(N, key=lambda n: squared(a, n).item())))
    return chosen


def hardest_triplets(a, P, N):
    """The farthest positive and the nearest negative."""
    if not (P and N):
        return []
    farthest = max(P, key=lambda p: squared(a, p).item())
    nearest = min(N, key=lambda n: squared(a, n).item())
    return [(a, farthest, nearest)]


def smooth_triplet(x, labels, scale=1.0, **options):
    """N-pair (4): log(1 + e^{x_a·x_n − x_a·x_p}); mean over all triplets."""
    terms = []
    for a, P, N in rows(x, labels, **options):
        terms += [log_one_plus([scale * (dot(a, n) - dot(a, p))]) for p in P for n in N]
    return mean(terms, x)


def npair_all(x, labels, scale=1.0, **options):
    """Angular (10): log[1 + Σ_n e^{x_a·x_n − x_a·x_p}] for every ordered (a, p); mean over them.

    Without negatives the term is log 1: it counts, with 0.
    """
    terms = []
    for a, P, N in rows(x, labels, **options):
        terms += [log_one_plus([scale * (dot(a, n) - dot(a, p)) for n in N]) for p in P]
    return mean(terms, x)


def npair(x, labels, variant="mc", symmetric=False, norm_penalty=0.0, scale=1.0, gallery=None, gallery_labels=None):
    """N-pair (7) "mc", (8) "ovo", and "triplet": pairs 2t and 2t + 1 are each other's only negative.

    In a batch of two per class the first of each is the query, the second its positive. A gallery holds exactly one
    positive for each query's label; all its other members are negatives. Swapped, each positive is a query among the
    former queries. `norm_penalty` is on the mean squared norm of queries and gallery together.
    """
    if gallery is None:
        twin = [P for P, _ in sets(x, labels)]
        assert all(len(P) == 1 for P in twin), "a batch of exactly two per class"
        firsts = [i for i, (j,) in enumerate(twin) if i < j]
        seconds = [twin[i][0] for i in firsts]
        queries, query_labels, members, member_labels = x[firsts], labels[firsts], x[seconds], labels[seconds]
    else:
        queries, query_labels, members, member_labels = x, labels, gallery, gallery_labels

    def one_way(queries, query_labels, members, member_labels):
        terms = []
        for i, (q, P, N) in enumerate(rows(queries, query_labels, gallery=members, gallery_labels=member_labels)):
            assert len(P) <= 1, "one positive per query label"
            if variant == "triplet":
                partner = i + 1 if i % 2 == 0 else i - 1
                N = [members[partner]] if partner < len(members) else []
            for p in P if N or variant != "triplet" else []:
                exponents = [scale * (dot(q, n) - dot(q, p)) for n in N]
                if variant != "ovo":
                    terms.append(log_one_plus(exponents))
                else:
                    terms.append(sum((log_one_plus([z]) for z in exponents), x.sum() * 0))
        return mean(terms, x)

    value = one_way(queries, query_labels, members, member_labels)
    if symmetric:
        value = (value + one_way(members, member_labels, queries, query_labels)) / 2
    used = [dot(v, v) for v in [*queries, *members]]
    return value + norm_penalty * mean(used, x)


def angular_hinge(x, labels, alpha=45.0, **options):
    """Angular (6): [‖x_a − x_p‖² − 4 tan²α ‖x_n − (x_a + x_p)/2‖²]₊, α in degrees; mean over all triplets."""
    tan2 = math.tan(math.radians(alpha)) ** 2
    terms = []
    for a, P, N in rows(x, labels, **options):
        terms += [hinge(squared(a, p) - 4 * tan2 * squared(n, (a + p) / 2)) for p in P for n in N]
    return mean(terms, x)


def angular(x, labels, alpha=45.0, **options):
    """Angular (8): log[1 + Σ_n e^f], f = 4 tan²α (x_a + x_p)·x_n − 2(1 + tan²α) x_a·x_p; mean over all ordered (a, p).

    Without negatives the term is log 1: it counts, with 0.
    """
    tan2 = math.tan(math.radians(alpha)) ** 2
    terms = []
    for a, P, N in rows(x, labels, **options):
        terms += [log_one_plus([4 * tan2 * dot(a + p, n) - 2 * (1 + tan2) * dot(a, p) for n in N]) for p in P]
    return mean(terms, x)


def npair_angular(x, labels, alpha=45.0, weight=2.0, **options):
    """Angular (9)."""
    return npair_all(x, labels, **options) + weight * angular(x, labels, alpha, **options)
