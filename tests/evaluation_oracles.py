"""Retrieval metrics as literal loops over Python floats."""

import itertools
import math


def score(a, b, metric):
    """Return the score of two vectors; higher is nearer."""
    a, b = [float(v) for v in a], [float(v) for v in b]
    if metric == "euclidean":
        return -sum((x - y) ** 2 for x, y in zip(a, b, strict=True))
    product = sum(x * y for x, y in zip(a, b, strict=True))
    if metric == "dot":
        return product
    lengths = math.sqrt(sum(x * x for x in a)) * math.sqrt(sum(y * y for y in b))
    return product / lengths if lengths else 0.0


def scored_list(query, label, own, gallery, gallery_labels, metric):
    """Return (score, is positive) of every gallery member but the query itself."""
    return [
        (score(query, member, metric), bool(label == gallery_labels[j])) for j, member in enumerate(gallery) if j != own
    ]


def orders(scored, ties):
    """Return every order of the list that the rule for ties allows, as lists of "is positive"."""
    if ties == "pessimistic":
        return [[right for _, right in sorted(scored, key=lambda item: (-item[0], item[1]))]]
    if ties == "optimistic":
        return [[right for _, right in sorted(scored, key=lambda item: (-item[0], not item[1]))]]
    groups = [
        list(g) for _, g in itertools.groupby(sorted(scored, key=lambda item: -item[0]), key=lambda item: item[0])
    ]
    return [
        [right for group in choice for _, right in group]
        for choice in itertools.product(*[list(itertools.permutations(group)) for group in groups])
    ]


def measure(hits, name):
    """Return one metric of one ordered list."""
    relevant = sum(hits)
    if name.startswith("recall_at_"):
        return float(any(hits[: int(name.removeprefix("recall_at_"))]))
    if not relevant:
        return 0.0
    if name == "mean_reciprocal_rank":
        return 1 / (hits.index(True) + 1)
    if name == "r_precision":
        return sum(hits[:relevant]) / relevant
    depth = relevant if name == "map_at_r" else len(hits)
    precisions = [sum(hits[: i + 1]) / (i + 1) for i in range(min(depth, len(hits))) if hits[i]]
    return sum(precisions) / relevant


def per_query(embeddings, labels, gallery, gallery_labels, metric, ties, name):
    """Return a metric of each query; without a gallery the queries search among themselves."""
    alone = gallery is None
    members, member_labels = (embeddings, labels) if alone else (gallery, gallery_labels)
    values = []
    for i, query in enumerate(embeddings):
        scored = scored_list(query, labels[i], i if alone else None, members, member_labels, metric)
        possible = orders(scored, ties)
        values.append(sum(measure(hits, name) for hits in possible) / len(possible))
    return values
