"""The parts of every oracle: the sets P_i and N_i, the dot product, the distance, and sums that may be empty.

The oracles are slow on purpose. They take float64 tensors, loop over queries, positives and negatives as the equations
do, and leave the gradient to autograd. They use nothing of the package.

Every oracle with `**options` passes it to `rows`: `gallery` and `gallery_labels`, `same` and `kept`.
"""

import torch


def sets(x, labels, gallery=None, gallery_labels=None, same=None, kept=None):
    """Yield for each query i the lists of gallery indices P_i and N_i.

    Without a gallery the batch is its own gallery, and i is in neither list. With a gallery, nothing is excluded.
    `same(labels, gallery_labels)` returns the boolean table of positives; None compares labels.
    `kept` are the boolean tables (positives, negatives) of the pairs that mining keeps.
    """
    own = gallery is None
    others = labels if own else gallery_labels
    positive = same(labels, others) if same else torch.eq(labels[:, None], others[None, :])
    for i in range(len(x)):
        row = [j for j in range(len(others)) if not (own and j == i)]
        positives = [j for j in row if positive[i, j]]
        negatives = [j for j in row if not positive[i, j]]
        if kept is not None:
            positives = [j for j in positives if kept[0][i, j]]
            negatives = [j for j in negatives if kept[1][i, j]]
        yield positives, negatives


def rows(x, labels, gallery=None, **options):
    """Yield for each query its vector, and the vectors of its positives and of its negatives."""
    members = x if gallery is None else gallery
    for i, (positives, negatives) in enumerate(sets(x, labels, gallery, **options)):
        yield x[i], [members[j] for j in positives], [members[j] for j in negatives]


def dot(u, v):
    return (u * v).sum()


def squared(u, v):
    return ((u - v) ** 2).sum()


def distance(u, v):
    """Return the Euclidean distance; its gradient is 0 where it is 0."""
    if torch.equal(u, v):
        return ((u - v) * 0).sum()
    return torch.linalg.vector_norm(u - v)


def hinge(value):
    """[value]₊; at 0 its gradient is 0."""
    return torch.relu(value)


def log_sum(exponents):
    """log Σ e^z over a list that is not empty."""
    return torch.logsumexp(torch.stack(exponents), dim=0)


def log_one_plus(exponents):
    """log[1 + Σ e^z]; an empty sum gives log 1 = 0."""
    if not exponents:
        return torch.zeros((), dtype=torch.float64)
    return log_sum([torch.zeros_like(exponents[0]), *exponents])


def total(terms, x):
    """Return Σ terms. An empty sum is a 0 that depends on x, so that its gradient is 0 and not None."""
    return sum(terms, x.sum() * 0)


def mean(terms, x):
    """Return the mean of the terms, 0 if there is none."""
    return total(terms, x) / max(len(terms), 1)


def by_vector(x, gradient):
    """Return the gradient with each row replaced by the sum over all rows of equal vectors.

    If copies of one vector tie for the nearest or farthest member, the choice decides which copy gets the gradient, but
    not the value. This sum is the same for every choice.
    """
    return torch.stack([gradient[(x == row).all(dim=1)].sum(dim=0) for row in x])
