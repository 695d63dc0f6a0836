"""Literal loop versions of the losses whose term is a pair or a whole row."""

import math

import torch

from losses.oracle_rows import distance, dot, hinge, log_one_plus, log_sum, mean, rows, sets, squared, total


def contrastive(x, labels, margin=1.0, **options):
    """N-pair (1): d² on positives, max(0, m − d)² on negatives; mean over all ordered pairs."""
    terms = []
    for q, P, N in rows(x, labels, **options):
        terms += [squared(q, p) for p in P]
        terms += [hinge(margin - distance(q, n)) ** 2 for n in N]
    return mean(terms, x)


def cosine_contrastive(x, labels, threshold=0.5, kept=None, **options):
    """Unified view (5): Σ_N [s − λ]₊ − Σ_P s; with mining Σ_N̂ s − Σ_P̂ s. Mean over all queries."""
    terms = []
    for q, P, N in rows(x, labels, kept=kept, **options):
        push = [hinge(dot(q, n) - threshold) if kept is None else dot(q, n) for n in N]
        terms.append(total(push, x) - total([dot(q, p) for p in P], x))
    return mean(terms, x)


def binomial_deviance(x, labels, alpha=2.0, beta=50.0, threshold=0.5, **options):
    """Unified view (12): mean over P of log[1 + e^{α(λ−s)}] + mean over N of log[1 + e^{β(s−λ)}]; over all queries."""
    terms = []
    for q, P, N in rows(x, labels, **options):
        pull = [log_one_plus([alpha * (threshold - dot(q, p))]) for p in P]
        push = [log_one_plus([beta * (dot(q, n) - threshold)]) for n in N]
        terms.append(mean(pull, x) + mean(push, x))
    return mean(terms, x)


def raw(x, labels, alpha=2.0, beta=50.0, threshold=0.5, **options):
    """Unified view (17): (1/α) log[1 + Σ_P e^{−α(s−λ)}] + (1/β) log[1 + Σ_N e^{β(s−λ)}]; mean over all queries."""
    terms = []
    for q, P, N in rows(x, labels, **options):
        pull = log_one_plus([-alpha * (dot(q, p) - threshold) for p in P]) / alpha
        push = log_one_plus([beta * (dot(q, n) - threshold) for n in N]) / beta
        terms.append(pull + push)
    return mean(terms, x)


def generalized_lifted(x, labels, margin=1.0, scale=1.0, **options):
    """Unified view (9): [log Σ_P e^{−s} + log Σ_N e^{λ+s}]₊; mean over the queries that have both."""
    terms = []
    for q, P, N in rows(x, labels, **options):
        if P and N:
            pull, push = [-scale * dot(q, p) for p in P], [margin + scale * dot(q, n) for n in N]
            terms.append(hinge(log_sum(pull) + log_sum(push)))
    return mean(terms, x)


def lifted_structure(x, labels, margin=1.0, gallery=None, gallery_labels=None, same=None):
    """NRA (3): 1/(2|P|) Σ over unordered positive pairs of [log(Σ_{N_i} e^{m−d} + Σ_{N_j} e^{m−d}) + d_ij]₊².

    A pair neither end of which has a negative is undefined and no part of |P|. With a gallery a pair is a query and a
    member, and the negatives of both ends are those in the gallery.
    """
    lists = list(sets(x, labels, gallery, gallery_labels, same))
    members, ends = x, lists
    if gallery is not None:
        members, ends = gallery, list(sets(gallery, gallery_labels, same=same))
    terms = []
    for i, (positives, negatives) in enumerate(lists):
        for j in [j for j in positives if gallery is not None or i < j]:
            pushes = [margin - distance(x[i], members[k]) for k in negatives]
            pushes += [margin - distance(members[j], members[l]) for l in ends[j][1]]
            if pushes:
                terms.append(hinge(log_sum(pushes) + distance(x[i], members[j])) ** 2)
    return mean(terms, x) / 2


def nca(x, labels, scale=1.0, **options):
    """N-pair (9): −log(Σ_P e^{x_i·x_j} / Σ_{P∪N} e^{x_i·x_j}); mean over the queries with a positive.

    Without negatives the quotient is 1: such a query counts, with 0.
    """
    terms = []
    for q, P, N in rows(x, labels, **options):
        if P:
            terms.append(log_sum([scale * dot(q, v) for v in P + N]) - log_sum([scale * dot(q, p) for p in P]))
    return mean(terms, x)


def transfer(rank, alpha):
    """NRA (10)."""
    return 0.5 * (2 * rank) ** alpha if rank < 0.5 else 1 - 0.5 * (2 * (1 - rank)) ** alpha


def nra(x, labels, alpha=4.0, eps=1e-4, **options):
    """NRA (13): −log(s⁺ + ε) − log(1 − s⁻ + ε); mean over the queries with both kinds and D_max > D_min.

    D_min and D_max run over P ∪ N, and the gradient flows through them. Ties: see `by_vector`.
    """
    terms = []
    for q, P, N in rows(x, labels, **options):
        if not (P and N):
            continue
        positive, negative = [distance(q, p) for p in P], [distance(q, n) for n in N]
        nearest, farthest = min(positive + negative), max(positive + negative)
        if nearest == farthest:
            continue
        hardest_positive = 1 - transfer((max(positive) - nearest) / (farthest - nearest), alpha)
        hardest_negative = 1 - transfer((min(negative) - nearest) / (farthest - nearest), alpha)
        terms.append(-torch.log(hardest_positive + eps) - torch.log(1 - hardest_negative + eps))
    return mean(terms, x)


def ranked_list(x, labels, alpha=1.2, margin=0.4, temperature=10.0, move_gallery=False, **options):
    """Ranked list (13): mean of d − (α−m) over P* + Σ_{N*} w/Σw · (α − d), w = e^{T(α−d)}; mean over all queries.

    P* = {d > α − m}, N* = {d < α}. The weights are constants, and so is the gallery unless `move_gallery`.
    """
    terms = []
    for q, P, N in rows(x, labels, **options):
        if not move_gallery:
            P, N = [p.detach() for p in P], [n.detach() for n in N]
        far = [d for d in (distance(q, p) for p in P) if d > alpha - margin]
        near = [d for d in (distance(q, n) for n in N) if d < alpha]
        weights = [math.exp(temperature * (alpha - d.item())) for d in near]
        push = [w / sum(weights) * (alpha - d) for w, d in zip(weights, near, strict=True)]
        terms.append(mean([d - (alpha - margin) for d in far], x) + total(push, x))
    return mean(terms, x)


def margin_loss(x, labels, beta=1.2, margin=0.2, **options):
    """[m + d − β]₊ on positives, [m − d + β]₊ on negatives; sum ÷ number of ordered pairs whose term is above zero.

    `beta` may be a tensor that learns.
    """
    terms = []
    for q, P, N in rows(x, labels, **options):
        terms += [margin + distance(q, p) - beta for p in P]
        terms += [margin - distance(q, n) + beta for n in N]
    return mean([term for term in terms if term > 0], x)


def histogram(x, labels, bins=151, gallery=None, **options):
    """Σ_r h⁻_r · Σ_{q≤r} h⁺_q over unordered pairs, or all pairs with a gallery; 0 when either kind is absent.

    The histograms have `bins` nodes from −1 to 1, and a similarity, clamped to that range, is shared between the two
    nodes beside it in proportion. The value is continuous, the gradient is not: where a similarity is on a node (−1 and
    1 too) it is that of one side, and nothing says which.
    """
    members = x if gallery is None else gallery
    step = 2 / (bins - 1)
    positive, negative = [], []
    for i, lists in enumerate(sets(x, labels, gallery, **options)):
        for kind, chosen in zip((positive, negative), lists, strict=True):
            kind += [torch.clamp(dot(x[i], members[j]), -1, 1) for j in chosen if gallery is not None or i < j]
    if not (positive and negative):
        return mean([], x)

    def heights(similarities):
        nodes = [x.sum() * 0 for _ in range(bins)]
        for s in similarities:
            left = min(math.floor((s.item() + 1) / step), bins - 2)
            share = (s - (-1 + left * step)) / step
            nodes[left] = nodes[left] + (1 - share) / len(similarities)
            nodes[left + 1] = nodes[left + 1] + share / len(similarities)
        return nodes

    h_positive, h_negative = heights(positive), heights(negative)
    return total([h_negative[r] * sum(h_positive[: r + 1]) for r in range(bins)], x)


def proxy_nca(x, labels, proxies, squared_distance=True):
    """Ranked list (5): −log(e^{−d(x, p_y)} / Σ_{z≠y} e^{−d(x, p_z)}), d squared or plain; mean over queries.

    With one class alone the denominator is empty, and nothing is defined.
    """
    measure = squared if squared_distance else distance
    terms = []
    for q, y in zip(x, labels.tolist(), strict=True):
        others = [-measure(q, proxies[z]) for z in range(len(proxies)) if z != y]
        if others:
            terms.append(measure(q, proxies[y]) + log_sum(others))
    return mean(terms, x)


def softmax(x, labels, proxies, bias):
    """Cross-entropy of x·wᵀ + b; mean over queries."""
    terms = []
    for q, y in zip(x, labels.tolist(), strict=True):
        scores = [dot(q, w) + b for w, b in zip(proxies, bias, strict=True)]
        terms.append(log_sum(scores) - scores[y])
    return mean(terms, x)


def proxy_anchor(x, labels, proxies, alpha=32.0, margin=0.1):
    """Mean over the classes present of log[1 + Σ_P e^{−α(s−δ)}] + mean over all classes of log[1 + Σ_N e^{α(s+δ)}].

    s is the dot product of the proxy, made unit, and x as it comes.
    """
    pulls, pushes = [], []
    for c, proxy in enumerate(proxies):
        unit = proxy / torch.linalg.vector_norm(proxy)
        positives = [-alpha * (dot(unit, q) - margin) for q, y in zip(x, labels.tolist(), strict=True) if y == c]
        negatives = [alpha * (dot(unit, q) + margin) for q, y in zip(x, labels.tolist(), strict=True) if y != c]
        if positives:
            pulls.append(log_one_plus(positives))
        pushes.append(log_one_plus(negatives))
    return mean(pulls, x) + mean(pushes, x)
