"""Hierarchical triplet loss: margins that grow with the distance of two classes in a tree of classes."""

from typing import Any

import torch
from torch import Tensor

from tuplet.losses.base import RowLoss
from tuplet.losses.batchwise import class_numbers, refuse_gallery, refuse_same
from tuplet.losses.triplet import active_sums
from tuplet.rows import View
from tuplet.rows.geometry import with_float64
from tuplet.sampling.class_tree import ClassTree, class_moments, class_tree


class HierarchicalTripletLoss(RowLoss):
    """Hierarchical triplet loss: ½ · [d_ap² − d_an² + β + d_H(y_a, y_n) − s_{y_a}]₊, the mean over all triplets.

    d_H is the threshold of the level at which the classes of a and n join in a tree of classes, and s the mean squared
    distance of the pairs inside the class of a (Ge et al. 2018). So the margin grows with the distance of two classes.
    A spread class may have a negative margin; whether the authors clip it is not confirmed.

    The tree is that of `sampling.AnchorNeighborSampler`: `tuplet.train` calls `loss.set_tree(sampler.tree)` as each
    epoch starts. Until then each call makes a tree of the classes and vectors of its batch.
    Margins come from the node numbers of the two classes, so there is no table of all pairs of classes.

    Args:
        beta: β, the constant part of the margin.

    Inputs: unit vectors; batches with several examples of classes that lie near each other. It takes no gallery and no
    `same=`: each example needs a class of the tree. The work is O(N·K·M), the memory that of a few blocks.

    Related: `TripletLoss` with one margin for all; it is twice this where all classes join at one level and have one
    spread.

    >>> loss = HierarchicalTripletLoss(beta=0.1)
    >>> loss(torch.tensor([[1.0, 0.0], [0.8, 0.6], [0.0, 1.0], [0.6, 0.8]]), torch.tensor([0, 0, 1, 1])).item()
    0.2306...

    Ge, Huang, Dong, Scott: Deep Metric Learning with Hierarchical Triplet Loss. ECCV 2018.
    """

    name, geometry, normalize, batch = "hierarchical_triplet", "euclidean", True, "neighbors"
    takes_gallery = False
    tree_labels: Tensor
    tree_nodes: Tensor
    tree_thresholds: Tensor
    tree_spreads: Tensor

    def __init__(self, beta: float = 0.1) -> None:
        super().__init__()
        self.beta = beta
        for name in ClassTree._fields:
            self.register_buffer(f"tree_{name}", torch.empty(0))

    def set_tree(self, tree: ClassTree) -> None:
        """Take the margins from this tree from now on. It is part of the state."""
        for name, value in tree._asdict().items():
            setattr(self, f"tree_{name}", value.to(self.tree_labels.device, copy=True))

    def _load_from_state_dict(self, state: dict[str, Any], prefix: str, *rest: Any) -> None:
        # The saved tree may have another number of classes.
        for name in ClassTree._fields:
            if (key := f"{prefix}tree_{name}") in state:
                setattr(self, f"tree_{name}", torch.empty_like(state[key], device=self.tree_labels.device))
        super()._load_from_state_dict(state, prefix, *rest)

    def value(self, view: View) -> Tensor:
        """Return half of the mean over all triplets."""
        refuse_gallery(self, view)
        refuse_same(self, view)
        tree, classes = self._tree_and_classes(view)
        there = view.queries.device
        nodes, steps = tree.nodes[classes].to(there), tree.thresholds.diff().to(there, view.dtype)
        constant = (self.beta + tree.thresholds[0] - tree.spreads[classes]).to(there, view.dtype)
        # A copy of the nodes, since the compiler takes no tensor twice.
        inputs = {"own": (*view.members(), nodes, constant), "other": (nodes + 0,), "shared": (steps,)}
        return view.mean(self._triplets, **inputs) / 2

    def _tree_and_classes(self, view: View) -> tuple[ClassTree, Tensor]:
        """Return the tree, and the position of each row's class in it."""
        if not len(self.tree_labels):
            with torch.no_grad():
                here = with_float64(view.queries.device)
                classes, labels = class_numbers(view.labels).to(here), view.labels.unique().to(here)
                return class_tree(labels, class_moments(view.queries.to(here), classes, len(labels))), classes
        tree = ClassTree(self.tree_labels, self.tree_nodes, self.tree_thresholds, self.tree_spreads)
        order = tree.labels.argsort()
        places = torch.searchsorted(tree.labels, view.labels, sorter=order)
        classes = order[places.clamp_max(len(order) - 1)]
        if view.checks_values and bool((wrong := tree.labels[classes] != view.labels).any()):
            raise ValueError(
                f"label {int(view.labels[wrong][0])} is not in the tree of {len(tree.labels)} classes; give the tree "
                "of a sampler over all training examples"
            )
        return tree, classes

    def _triplets(
        self,
        d: Tensor,
        positive: Tensor,
        negative: Tensor,
        index: Tensor,
        exists: Tensor,
        nodes: Tensor,
        constant: Tensor,
        there: Tensor,
        steps: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """Add up the steps between thresholds over the levels at which two classes are still apart."""
        square = d.square()
        margin = constant[:, None].expand_as(square)
        for level in range(steps.shape[0]):
            margin = margin + (nodes[:, level : level + 1] != there[:, level]) * steps[level]
        total = active_sums(square.gather(1, index), exists, square - margin, negative)
        return total, exists.sum(1) * negative.sum(1)
