"""Literal loop versions of the losses of cosines, which make their vectors unit themselves."""

import math

import torch

from losses.oracle_rows import dot, hinge, log_one_plus, log_sum, mean, rows, total


def cosine(u, v):
    return dot(u, v) / (torch.linalg.vector_norm(u) * torch.linalg.vector_norm(v))


def angle(u, v):
    """Return the angle; its gradient is 0 where it is 0."""
    if torch.equal(u, v):
        return ((u - v) * 0).sum()
    return torch.acos(cosine(u, v))


def cross_entropy(scores, y):
    return log_sum(scores) - scores[y]


def by_class(proxies, centers):
    """Return the list of centres of each class."""
    return [list(proxies[c : c + centers]) for c in range(0, len(proxies), centers)]


def cosface(x, labels, proxies, scale=64.0, margin=0.35):
    """Cross-entropy of scale · (s_c − margin·[c = y]); mean over queries."""
    terms = []
    for q, y in zip(x, labels.tolist(), strict=True):
        scores = [scale * (cosine(q, w) - margin * (c == y)) for c, w in enumerate(proxies)]
        terms.append(cross_entropy(scores, y))
    return mean(terms, x)


def arcface(x, labels, proxies, scale=64.0, margin=0.5, centers=1):
    """Cross-entropy of scale · cos(θ_y + margin) and scale · s_c, θ to the nearest centre; mean over queries.

    Where θ_y + margin > π, s_y − margin·sin(margin) takes the place of its cosine.
    """
    terms = []
    for q, y in zip(x, labels.tolist(), strict=True):
        scores = []
        for c, own in enumerate(by_class(proxies, centers)):
            nearest = max(own, key=lambda w: cosine(q, w).item())
            score, theta = cosine(q, nearest), angle(q, nearest)
            if c == y:
                beyond = theta + margin > math.pi
                score = score - margin * math.sin(margin) if beyond else torch.cos(theta + margin)
            scores.append(scale * score)
        terms.append(cross_entropy(scores, y))
    return mean(terms, x)


def soft_triple(x, labels, proxies, centers=10, scale=20.0, gamma=0.1, margin=0.01, tau=0.2):
    """Cross-entropy of scale · (S_c − margin·[c = y]), S_c = Σ_k softmax_k(s_ck/γ) s_ck; mean over queries.

    With it tau × the mean over the unordered pairs of centres of a class of √(2 − 2 cos).
    """
    classes, terms = by_class(proxies, centers), []
    for q, y in zip(x, labels.tolist(), strict=True):
        scores = []
        for c, own in enumerate(classes):
            s = torch.stack([cosine(q, w) for w in own])
            share = torch.exp(s / gamma) / torch.exp(s / gamma).sum()
            scores.append(scale * ((share * s).sum() - margin * (c == y)))
        terms.append(cross_entropy(scores, y))
    apart = [torch.sqrt(2 - 2 * cosine(w[t], w[s])) for w in classes for t in range(centers) for s in range(t)]
    return mean(terms, x) + tau * mean(apart, x)


def supcon(x, labels, temperature=0.1, **options):
    """−1/|P| Σ_P (s_ip/τ − log Σ_{j≠i} e^{s_ij/τ}); mean over the queries with a positive."""
    terms = []
    for q, P, N in rows(x, labels, **options):
        if P:
            others = log_sum([cosine(q, v) / temperature for v in P + N])
            terms.append(-mean([cosine(q, p) / temperature - others for p in P], x))
    return mean(terms, x)


def circle(x, labels, margin=0.4, scale=80.0, **options):
    """softplus(log Σ_N e^{γ [s+m]₊ (s−m)} + log Σ_P e^{−γ [1+m−s]₊ (s−1+m)}); mean over the queries that have both.

    The brackets [·]₊ are constants.
    """
    terms = []
    for q, P, N in rows(x, labels, **options):
        if P and N:
            near, far = [cosine(q, p) for p in P], [cosine(q, n) for n in N]
            pull = log_sum([-scale * hinge(1 + margin - s).detach() * (s - 1 + margin) for s in near])
            push = log_sum([scale * hinge(s + margin).detach() * (s - margin) for s in far])
            terms.append(log_one_plus([push + pull]))
    return mean(terms, x)


def smooth_ap(x, labels, temperature=0.01, **options):
    """1 − 1/|P| Σ_p (1 + Σ_{q∈P, q≠p} σ((s_q − s_p)/τ)) / (1 + Σ_{j≠p} σ((s_j − s_p)/τ)).

    The mean over the queries with a positive.
    """
    terms = []
    for q, P, N in rows(x, labels, **options):
        near, far = [cosine(q, p) for p in P], [cosine(q, n) for n in N]
        precisions = []
        for k, s in enumerate(near):
            positives = [torch.sigmoid((t - s) / temperature) for l, t in enumerate(near) if l != k]
            negatives = [torch.sigmoid((t - s) / temperature) for t in far]
            precisions.append((1 + total(positives, x)) / (1 + total(positives + negatives, x)))
        if P:
            terms.append(1 - mean(precisions, x))
    return mean(terms, x)


def tuplet_margin(x, labels, margin=0.1, scale=64.0, **options):
    """log(1 + Σ_N e^{scale · (s_an − cos(θ_ap − margin))}) for every ordered (a, p); mean over them.

    Without negatives the term is log 1: it counts, with 0.
    """
    terms = []
    for a, P, N in rows(x, labels, **options):
        for p in P:
            near = torch.cos(angle(a, p) - margin)
            terms.append(log_one_plus([scale * (cosine(a, n) - near) for n in N]))
    return mean(terms, x)
