"""Literal loop versions of the losses of the systems that the papers compare with."""

import math

import torch

from losses.oracle_rows import distance, dot, hinge, log_sum, mean, rows, sets, squared, total
from losses.oracles_tuples import all_triplets, hardest_triplets, semi_hard_triplets


def chosen_triplets(x, labels, mining, **options):
    """The list of (a, p, n), as vectors."""
    if mining == "disjoint":
        return [(x[t], x[t + 1], x[t + 2]) for t in range(0, len(x), 3)]
    choose = {"all": all_triplets, "semi_hard": semi_hard_triplets, "hardest": hardest_triplets}[mining]
    return [triple for q, P, N in rows(x, labels, **options) for triple in choose(q, P, N)]


def triplet_ratio(x, labels, margin=0.2, mining="all", **options):
    """Harwood: [1 − d_an / (d_ap + m)]₊; mean over the chosen triplets."""
    triplets = chosen_triplets(x, labels, mining, **options)
    return mean([hinge(1 - distance(a, n) / (distance(a, p) + margin)) for a, p, n in triplets], x)


def global_loss(x, labels, weight=1.0, margin=0.01, mining="all", **options):
    """Kumar: var(e⁺) + var(e⁻) + λ[mean(e⁺) − mean(e⁻) + t]₊, e = d²/4, over the triplets; 0 without one."""
    triplets = chosen_triplets(x, labels, mining, **options)
    if not triplets:
        return total([], x)
    near = torch.stack([squared(a, p) / 4 for a, p, n in triplets])
    far = torch.stack([squared(a, n) / 4 for a, p, n in triplets])
    variances = near.var(correction=0) + far.var(correction=0)
    return variances + weight * hinge(near.mean() - far.mean() + margin)


def hinge_triplet(x, labels, scale=1.0, **options):
    """N-pair (5): [x_a·x_n − x_a·x_p]₊; mean over all triplets."""
    triplets = chosen_triplets(x, labels, "all", **options)
    return mean([hinge(scale * dot(a, n) - scale * dot(a, p)) for a, p, n in triplets], x)


def spectral_clustering(x, labels):
    """Law: k − tr(Y⁺ F F⁺ Y), by matrices, with autograd through the pseudo-inverse."""
    classes = sorted(set(labels.tolist()))
    Y = torch.stack([(labels == c).double() for c in classes], dim=1)
    rtol = 1e-15 * max(x.shape)
    return len(classes) - torch.trace(torch.linalg.pinv(Y) @ x @ torch.linalg.pinv(x, rtol=rtol) @ Y)


def nmi(first, second):
    """I/√(H·H) of two lists; 1 where both have one group, 0 where one has."""
    n = len(first)

    def share(pairs):
        return [pairs.count(value) / n for value in set(pairs)]

    def entropy(shares):
        return -sum(p * math.log(p) for p in shares)

    one, other, both = share(list(first)), share(list(second)), share(list(zip(first, second, strict=True)))
    if len(one) == 1 or len(other) == 1:
        return float(len(one) == len(other))
    return (entropy(one) + entropy(other) - entropy(both)) / math.sqrt(entropy(one) * entropy(other))


def first_best(candidates, score):
    """The first candidate whose score is the largest, or equal to it but for rounding."""
    scores = [score(c) for c in candidates]
    best = max(scores)
    return next(c for c, s in zip(candidates, scores, strict=True) if s >= best - 1e-9 * (1 + abs(best)))


def nearest_medoids(table, medoids):
    """The medoid that each row is put to: the nearest, of equals the first."""
    return [min(medoids, key=lambda j: (table[i][j], medoids.index(j))) for i in range(len(table))]


def facility_score(table, labels, medoids, gamma):
    """F(X, S) + γ(1 − NMI)."""
    put = nearest_medoids(table, medoids)
    return -sum(table[i][j] for i, j in enumerate(put)) + gamma * (1 - nmi(labels, put))


def facility_medoids(table, labels, gamma, rounds):
    """Greedy search, then refinement."""
    n, medoids = len(table), []
    while len(medoids) < len(set(labels)):
        free = [j for j in range(n) if j not in medoids]
        medoids.append(first_best(free, lambda j: facility_score(table, labels, [*medoids, j], gamma)))
    for _ in range(rounds):
        put = nearest_medoids(table, medoids)
        clusters = [[i for i in range(n) if put[i] == medoid] for medoid in medoids]
        for k, members in enumerate(clusters):

            def score(j, k=k, members=members):
                moved = nearest_medoids(table, [*medoids[:k], j, *medoids[k + 1 :]])
                return -sum(table[i][j] for i in members) + gamma * (1 - nmi(labels, moved))

            medoids[k] = first_best(members, score)
    return medoids


def facility_location(x, labels, gamma=1.0, rounds=5):
    """Song: [max_S (F(X, S) + γ(1 − NMI)) − F̃]₊, S found greedily and refined."""
    labels, n = labels.tolist(), len(x)
    table = [[distance(x[i], x[j]).item() for j in range(n)] for i in range(n)]
    put = nearest_medoids(table, facility_medoids(table, labels, gamma, rounds))
    found = total([-distance(x[i], x[j]) for i, j in enumerate(put)], x) + gamma * (1 - nmi(labels, put))
    true = total([], x)
    for c in set(labels):
        members = [i for i in range(n) if labels[i] == c]
        medoid = first_best(members, lambda j, members=members: -sum(table[i][j] for i in members))
        true = true + total([-distance(x[i], x[medoid]) for i in members], x)
    return hinge(found - true)


def pddm_score(loss, x, y):
    """S = w_s·ReLU(W_c [u'; v'] + b_c) + b_s for one pair; unit vectors of length 0 are 0."""

    def unit(v):
        length = torch.linalg.vector_norm(v)
        return v / length if length > 1e-12 else v * 0

    def layer(module, v):
        return module.weight @ v + module.bias

    u = unit(torch.relu(layer(loss.difference, unit((x - y).abs()))))
    v = unit(torch.relu(layer(loss.mean, unit((x + y) / 2))))
    return layer(loss.similarity, torch.relu(layer(loss.both, torch.cat([u, v]))))[0]


def pddm(x, labels, loss, alpha=0.5, beta=1.0, weight=0.5, detach=False, same=None):
    """Huang: the double-header hinges on S and on d² over the hardest quadruplet of the batch."""
    held = x.detach() if detach else x
    n, lists = len(x), list(sets(x, labels, same=same))
    S = [[pddm_score(loss, held[i], held[j]) for j in range(n)] for i in range(n)]
    pairs = [(i, j) for i in range(n) for j in lists[i][0]]
    value = total([], x) + total([p.sum() * 0 for p in loss.parameters()], x)
    if not pairs:
        return value
    i, j = min(pairs, key=lambda pair: S[pair[0]][pair[1]].item())
    for end in (i, j):
        if lists[end][1]:
            far = max(lists[end][1], key=lambda k: S[end][k].item())
            value = value + hinge(alpha + S[end][far] - S[i][j])
            value = value + weight * hinge(beta + squared(x[i], x[j]) - squared(x[end], x[far]))
    return value


def proxy_nca_dynamic(x, labels, proxies, squared_distance=True):
    """Ranked list (4), (5): every positive u and negative z of a query is replaced by the nearest of the proxies."""
    measure = squared if squared_distance else distance
    nearest = [min(range(len(proxies)), key=lambda k: squared(v, proxies[k]).item()) for v in x]
    terms = []
    for i, (P, N) in enumerate(sets(x, labels)):
        if P and N:
            denominator = log_sum([-measure(x[i], proxies[nearest[z]]) for z in N])
            terms.append(mean([measure(x[i], proxies[nearest[u]]) for u in P], x) + denominator)
    return mean(terms, x)


def lifted_structure_mined(x, labels, rule, margin=1.0, gallery=None, **options):
    """The lifted structure loss with P and N of every row as `rule(x, labels, …)` keeps them; mean over (i, j)."""
    lists = rule(x, labels, gallery=gallery, **options)
    members, ends = x, lists
    if gallery is not None:
        labels = options.pop("gallery_labels")
        members, ends = gallery, rule(gallery, labels, gallery=None, **options)
    terms = []
    for i, (P, N) in enumerate(lists):
        for j in P:
            pushes = [margin - distance(x[i], members[k]) for k in N]
            pushes += [margin - distance(members[j], members[l]) for l in ends[j][1]]
            if pushes:
                terms.append(hinge(log_sum(pushes) + distance(x[i], members[j])) ** 2)
    return mean(terms, x) / 2


def class_tree(x, labels, levels=16):
    """Return d_l by level, s by class, and for each level the set of linked classes of each class, all by loops."""
    classes = sorted(set(labels.tolist()))
    of = {c: [v for v, y in zip(x.detach(), labels.tolist(), strict=True) if y == c] for c in classes}

    def mean_of(values):
        return sum(values) / len(values) if values else 0.0

    spread = {
        c: mean_of([squared(u, v).item() for i, u in enumerate(V) for j, v in enumerate(V) if i != j])
        for c, V in of.items()
    }
    start = mean_of([spread[c] for c in classes if len(of[c]) > 1])
    thresholds = [start + level * max(4 - start, 0) / levels for level in range(levels + 1)]
    apart = {(a, b): mean_of([squared(u, v).item() for u in of[a] for v in of[b]]) for a in classes for b in classes}
    joined = []
    for level, threshold in enumerate(thresholds):
        groups = {c: {c} for c in classes}
        for a, b in apart:
            if level == levels or apart[a, b] <= threshold + 1e-9:
                both = groups[a] | groups[b]
                for c in both:
                    groups[c] = both
        joined.append(groups)
    return thresholds, spread, joined


def hierarchical_triplet(x, labels, beta=0.1):
    """Ge: ½ [d_ap² − d_an² + β + d_H − s]₊ with the tree of the batch itself; mean over all triplets."""
    thresholds, spread, joined = class_tree(x, labels)
    terms = []
    for i, (P, N) in enumerate(sets(x, labels)):
        a = labels[i].item()
        for p in P:
            for n in N:
                level = next(k for k, groups in enumerate(joined) if labels[n].item() in groups[a])
                margin = beta + thresholds[level] - spread[a]
                terms.append(hinge(squared(x[i], x[p]) - squared(x[i], x[n]) + margin) / 2)
    return mean(terms, x)


def pair_lists(x, labels, **options):
    """Return the lists of ordered positive and of ordered negative pairs."""
    each = list(enumerate(sets(x, labels, **options)))
    return [(i, j) for i, (P, _) in each for j in P], [(i, j) for i, (_, N) in each for j in N]


def hdc(parts, labels, shares=(1.0, 0.5, 0.2), margin=1.0, weight=10.0, cascade=True, **options):
    """Yuan: pairs fall through the parts; positive d², negative 10 [1 − d²]₊; sum ÷ number above zero; parts add."""
    value, kept = total([], parts[0]), None
    everything = pair_lists(parts[0], labels, **options)

    def hardest(x, kept, share):
        found = []
        for pairs, every, sign in zip(kept, everything, (1, -1), strict=True):
            hardness = {(i, j): sign * squared(x[i], x[j]).item() for i, j in pairs}
            count = math.ceil(share * len(every) - 1e-9)
            least = sorted(hardness.values(), reverse=True)[:count][-1] if pairs else 0
            found.append([pair for pair in pairs if hardness[pair] >= least - 1e-12])
        return found

    for k, x in enumerate(parts):
        if not cascade:
            kept = hardest(x, everything, shares[k])
        elif k:
            kept = hardest(parts[k - 1], kept, shares[k])
        else:
            kept = everything
        terms = [squared(x[i], x[j]) for i, j in kept[0]]
        terms += [weight * hinge(margin - squared(x[i], x[j])) for i, j in kept[1]]
        active = [term for term in terms if term > 0]
        value = value + (sum(active) / len(active) if active else 0)
    return value


def abe(parts, labels, margin=1.0, divergence_margin=1.0, weight=1.0, **options):
    """Kim: mean over pairs of d² or [m − d²]₊ in each part, and the sum of [m_div − d²]₊ between parts."""
    value = total([], parts[0])
    positives, negatives = pair_lists(parts[0], labels, **options)
    for x in parts:
        terms = [squared(x[i], x[j]) for i, j in positives]
        terms += [hinge(margin - squared(x[i], x[j])) for i, j in negatives]
        value = value + mean(terms, x)
    for p in range(len(parts)):
        for q in range(p + 1, len(parts)):
            for u, v in zip(parts[p], parts[q], strict=True):
                value = value + weight * hinge(divergence_margin - squared(u, v))
    return value


def bier(parts, labels, loss, released=False, **options):
    """Opitz: binomial deviance weighted by what the parts before got wrong; and what the regressors find."""
    value = total([], parts[0])
    for m, x in enumerate(parts):
        for pairs, cost, factor, extra in zip(
            pair_lists(x, labels, **options), (1, -25), (1, 2), (len(x), 0), strict=True
        ):
            for i, j in pairs:
                acc = 0.5 if released else 0.0
                for k in range(m):
                    act = 2 * (dot(parts[k][i], parts[k][j]).item() - 0.5) * cost
                    eta = 2 / (k + 2)
                    acc = acc + 0.06 * act if released else (1 - eta) * acc + eta * act
                w = 1.0
                if m:
                    w = torch.sigmoid(torch.tensor(-acc, dtype=x.dtype)).item() * (factor if released else 1)
                term = torch.nn.functional.softplus(-2 * (dot(x[i], x[j]) - 0.5) * cost)
                value = value + w * term / (len(pairs) + (extra if released else 0)) / len(parts)
    if loss.adversarial:
        # A vector whose gradient is reversed.
        g = [(2 * x.detach() - x) * x.shape[1] ** 0.5 for x in parts]
        pairs = [(i, j) for i in range(len(g)) for j in range(i + 1, len(g))]
        for (i, j), (first, _, second) in zip(pairs, loss.regressors, strict=True):
            found = second(torch.relu(first(g[j])))
            value = value - loss.diversity * ((g[i] * found) ** 2).mean()
            for layer in (first, second):
                lengths = (layer.weight**2).sum(1)
                bounds = ((lengths - 1) ** 2).mean() + hinge((layer.bias**2).sum() - 1)
                value = value + loss.norm_weight * bounds
    return value
