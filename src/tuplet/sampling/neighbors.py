"""Anchor-neighbour batches: classes with those that lie nearest to them (Ge et al. 2018)."""

from collections.abc import Iterator
from typing import Any, Self, Unpack

import numpy as np
import torch
from torch import Tensor

from tuplet.errors import at_least
from tuplet.sampling.base import Embed, Group, Labels, SamplerOptions
from tuplet.sampling.class_tree import ClassTree, class_moments, class_tree
from tuplet.sampling.epoch import EpochPlan, EpochSampler
from tuplet.sampling.rounds import Rounds

#: Classes whose distances to all others are computed at once.
_BLOCK = 256


class AnchorNeighborSampler(EpochSampler):
    """Draw `anchors` classes, each with the `neighbors` − 1 classes nearest to it, and `per_class` examples of each.

    Once an epoch it embeds the training set. The distance of two classes is the mean squared distance of their
    examples. The anchors are the next classes of the shuffled rounds. A neighbour that is in the batch already gives
    its place to the next nearest class, so that a batch has exactly anchors · neighbors classes.

    `tree` is the tree of classes of the present epoch; `tuplet.train` gives it to `losses.HierarchicalTripletLoss`,
    whose margins depend on it. The authors train for one epoch by the plain triplet loss before the first tree;
    here the first tree is that of the network as it starts. They do not print the sizes of their batches.

    `labels`, `seed` and the options are those of `ClassBalancedSampler`.

    Args:
        embed: function of a list of n indices that returns their embeddings (n, d), called once an epoch.
        anchors: the number of anchor classes of a batch.
        neighbors: the number of classes in a neighbourhood, the anchor included.
        per_class: the number of examples of each class.
        levels: the number of levels of the tree above its leaves.

    >>> place = torch.tensor([0.0, 0.0, 3.0, 3.0, 0.1, 0.1, 3.1, 3.1])[:, None]
    >>> labels = [0, 0, 1, 1, 2, 2, 3, 3]
    >>> sampler = AnchorNeighborSampler(labels, lambda i: place[i], anchors=1, neighbors=2, per_class=2)
    >>> sorted({labels[i] for i in next(iter(sampler))}) in ([0, 2], [1, 3])
    True

    Ge, Huang, Dong, Scott: Deep Metric Learning with Hierarchical Triplet Loss. ECCV 2018.
    """

    name, batch = "anchor_neighbor", "neighbors"
    options = ("neighbors", "levels")

    def __init__(
        self,
        labels: Labels,
        embed: Embed,
        anchors: int = 8,
        neighbors: int = 4,
        per_class: int = 4,
        levels: int = 16,
        seed: int = 0,
        **options: Unpack[SamplerOptions],
    ) -> None:
        at_least(1, anchors=anchors, neighbors=neighbors, levels=levels)
        at_least(2, per_class=per_class)
        super().__init__(labels, embed, anchors * neighbors * per_class, seed, **options)
        self.anchors, self.neighbors, self.per_class, self.levels = anchors, neighbors, per_class, levels
        if anchors * neighbors > len(self.members):
            raise ValueError(
                f"a batch of {anchors} × {neighbors} needs {anchors * neighbors} classes, but only "
                f"{len(self.members)} have two examples; ask for fewer"
            )

    @classmethod
    def of_size(cls, labels: Labels, batch_size: int, per_class: int, seed: int = 0, **inputs: Any) -> Self:
        """Make a sampler for batches of `batch_size` examples; `inputs` are `embed`, `neighbors` and `levels`.

        Without `neighbors` it is the largest number up to 4 that divides the classes of a batch.
        """
        classes = batch_size // per_class
        neighbors = inputs.pop("neighbors", None) or max(m for m in range(1, 5) if classes % m == 0)
        if batch_size % (neighbors * per_class):
            raise ValueError(
                f"a batch of {batch_size} is no multiple of {neighbors} neighbors with {per_class} examples each; "
                f"choose {max(1, classes // neighbors) * neighbors * per_class}, or other neighbors"
            )
        return cls(labels, anchors=classes // neighbors, neighbors=neighbors, per_class=per_class, seed=seed, **inputs)

    @property
    def tree(self) -> ClassTree | None:
        """The tree of classes of the present epoch; None before the first one."""
        if not self._plan:
            return None
        return ClassTree(**{name: self._plan[name] for name in ClassTree._fields})

    def plan(self, vectors: Tensor, rng: np.random.Generator) -> EpochPlan:
        """Return the tree of classes, and for each class the others from near to far, as many as a batch may need."""
        classes = torch.from_numpy(self.classes_of_examples).to(vectors.device)
        moments = class_moments(vectors, classes, len(self.members))
        # Labels beyond int64 wrap around, as they do in the losses.
        labels = np.array([label % 2**64 for label in self.member_labels], dtype=np.uint64).astype(np.int64)
        tree = class_tree(torch.from_numpy(labels).to(vectors.device), moments, self.levels)
        nearest, most = [], min(self.anchors * self.neighbors, len(self.members) - 1)
        for block in torch.arange(len(self.members), device=vectors.device).split(_BLOCK):
            distances = moments.distances(block).scatter_(1, block[:, None], torch.inf)
            nearest.append(distances.topk(most, largest=False).indices)
        return {**tree._asdict(), "nearest": torch.cat(nearest)}

    def draw_planned(self, plan: EpochPlan, rng: np.random.Generator) -> Iterator[list[Group]]:
        """Yield the classes of each batch as groups, an anchor before its neighbours."""
        rounds, nearest = Rounds(self.members, self.per_class, len(self), rng), plan["nearest"].numpy()
        while True:
            rounds.start_batch(self.anchors)
            batch: dict[int, Group] = {}
            for _ in range(self.anchors):
                anchor = rounds.next_class(busy=batch)
                others = [c for c in nearest[anchor].tolist() if c not in batch][: self.neighbors - 1]
                for c in (anchor, *others):
                    batch[c] = rounds.take(c, self.per_class)
            yield list(batch.values())
