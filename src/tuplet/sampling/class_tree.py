"""A tree of classes by the mean squared distance of their examples (Ge et al. 2018)."""

from typing import NamedTuple

import torch
from torch import Tensor

#: The largest squared distance of unit vectors.
LARGEST = 4.0


class ClassTree(NamedTuple):
    """Classes that join level by level, as node numbers and not as a table of all pairs of classes.

    Attributes:
        labels: the labels of the C classes, in order.
        nodes: (C, levels + 1) integers: two classes have joined at a level if their numbers there are equal.
        thresholds: (levels + 1), the squared distance up to which classes join at each level.
        spreads: (C,), the mean squared distance of the ordered pairs inside each class, 0 for a class of one example.
    """

    labels: Tensor
    nodes: Tensor
    thresholds: Tensor
    spreads: Tensor


class ClassMoments(NamedTuple):
    """The size, the mean vector and the mean squared length of each class: all that mean distances depend on."""

    sizes: Tensor
    means: Tensor
    squares: Tensor

    def spreads(self) -> Tensor:
        """Return the mean squared distance of the ordered pairs of different examples inside each class."""
        pairs = self.sizes / (self.sizes - 1).clamp_min(1)
        return (2 * pairs * (self.squares - self.means.square().sum(1))).clamp_min(0)

    def distances(self, rows: Tensor) -> Tensor:
        """Return the mean squared distance of the examples of some classes, given by index, to those of each class."""
        products = self.means[rows] @ self.means.T
        return (self.squares[rows, None] + self.squares - 2 * products).clamp_min(0)


def class_moments(vectors: Tensor, classes: Tensor, count: int) -> ClassMoments:
    """Return the moments of `count` classes, given the class 0 … count − 1 of each vector, in float64.

    >>> moments = class_moments(torch.tensor([[0.0], [2.0], [5.0]]), torch.tensor([0, 0, 1]), 2)
    >>> moments.spreads().tolist(), moments.distances(torch.tensor([0])).tolist()
    ([4.0, 0.0], [[2.0, 17.0]])
    """
    x = vectors.double()
    sizes = torch.bincount(classes, minlength=count).double()
    means = x.new_zeros(count, x.shape[1]).index_add_(0, classes, x) / sizes[:, None]
    squares = x.new_zeros(count).index_add_(0, classes, x.square().sum(1)) / sizes
    return ClassMoments(sizes, means, squares)


def class_tree(labels: Tensor, moments: ClassMoments, levels: int = 16) -> ClassTree:
    """Return the tree of the classes with these labels.

    d(p, q) is the mean squared distance of the examples of two classes, and d_0 the mean of the spreads of the classes
    that have two examples. At level l = 0 … levels, classes join that a chain of classes links, each within
    d_l = d_0 + l · [4 − d_0]₊ / levels of the next. At the last level all have joined. How the distance of joined
    classes is defined is not confirmed; a chain depends on no order, and needs no table of all pairs.

    >>> vectors, classes = torch.tensor([[1.0, 0.0], [1.0, 0.0], [0.8, 0.6], [-1.0, 0.0]]), torch.tensor([0, 0, 1, 2])
    >>> class_tree(torch.tensor([3, 5, 9]), class_moments(vectors, classes, 3), levels=2).nodes.tolist()
    [[0, 0, 0], [1, 0, 0], [2, 1, 0]]
    """
    spreads, several = moments.spreads(), moments.sizes > 1
    start = torch.where(several, spreads, 0).sum() / several.sum().clamp_min(1)
    # Vectors that are not unit may be farther apart.
    range_above = (LARGEST - start).clamp_min(0)
    thresholds = start + torch.arange(levels + 1, device=start.device) * range_above / levels
    order, lengths = _nearest_first(moments)
    # A class that is nearest to those before it, but too far from them, begins another node. Rounding must not keep
    # opposite poles apart.
    begins = lengths[:, None] > thresholds * (1 + 1e-12)
    begins[:, -1] = False
    nodes = torch.empty_like(begins, dtype=torch.int64)
    nodes[order] = begins.cumsum(0)
    return ClassTree(labels, nodes, thresholds, spreads)


def _nearest_first(moments: ClassMoments) -> tuple[Tensor, Tensor]:
    """Return all classes, each the nearest to any before it, and that distance (the minimum spanning tree of Prim).

    Classes that a chain of short links joins follow each other in this order, whatever "short" means.
    """
    count = len(moments.sizes)
    order, lengths = [torch.zeros(1, dtype=torch.int64, device=moments.sizes.device)], [moments.sizes.new_zeros(1)]
    nearest = moments.distances(order[0])[0].index_fill(0, order[0], torch.inf)
    for _ in range(count - 1):
        added = nearest.argmin(0, keepdim=True)
        order.append(added)
        lengths.append(nearest[added])
        closer = torch.minimum(nearest, moments.distances(added)[0])
        nearest = torch.where(nearest == torch.inf, torch.inf, closer).index_fill(0, added, torch.inf)
    return torch.cat(order), torch.cat(lengths)
