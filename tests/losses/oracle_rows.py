"""What every oracle stands on: the sets P_i and N_i, the dot product, the distance, and sums that may be empty.

The oracles are slow on purpose. They take float64 tensors, loop over queries, positives and negatives as the equations
do, and leave the gradient to autograd. Nothing of the package is used.

Every oracle with `**look` passes it to `rows`: `gallery` and `gallery_labels`, `same` and `kept`.
"""

import torch


def sets(x, labels, gallery=None, gallery_labels=None, same=None, kept=None):
    """For each query i the lists of indices P_i and N_i into the gallery.

    Without a gallery the batch is its own, and i is in neither of its lists; with one, nothing is excluded.
    `same(labels, gallery_labels)` gives the boolean table of who is alike, equality unless told.
    `kept` is what mining leaves: the boolean tables (positives, negatives).
    """
    own = gallery is None
    others = labels if own else gallery_labels
    alike = same(labels, others) if same else torch.eq(labels[:, None], others[None, :])
    for i in range(len(x)):
        row = [j for j in range(len(others)) if not (own and j == i)]
        positives = [j for j in row if alike[i, j]]
        negatives = [j for j in row if not alike[i, j]]
        if kept is not None:
            positives = [j for j in positives if kept[0][i, j]]
            negatives = [j for j in negatives if kept[1][i, j]]
        yield positives, negatives


def rows(x, labels, gallery=None, **look):
    """For each query its vector and the lists of the vectors of its positives and of its negatives."""
    members = x if gallery is None else gallery
    for i, (positives, negatives) in enumerate(sets(x, labels, gallery, **look)):
        yield x[i], [members[j] for j in positives], [members[j] for j in negatives]


def dot(u, v):
    return (u * v).sum()


def squared(u, v):
    return ((u - v) ** 2).sum()


def distance(u, v):
    """Euclidean distance; where it is 0 so is its gradient."""
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
    """Σ terms; an empty sum is a 0 that hangs on x, so that its gradient is 0 and not absent."""
    return sum(terms, x.sum() * 0)


def mean(terms, x):
    """Σ terms / their number, 0 when there is none."""
    return total(terms, x) / max(len(terms), 1)


def by_vector(x, gradient):
    """The gradient with rows of equal vectors each given the sum over all of them.

    Where a loss picks a nearest or a farthest member and copies of one vector tie for it, the value does not depend on
    the choice, but which copy is moved does. This sum is the same for every choice.
    """
    return torch.stack([gradient[(x == row).all(dim=1)].sum(dim=0) for row in x])
