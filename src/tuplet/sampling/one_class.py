"""One class in each batch, with the negatives that lie nearest to it."""

from collections.abc import Iterator
from typing import Any, Self, Unpack

import numpy as np
import torch
from torch import Tensor

from tuplet.errors import at_least
from tuplet.sampling.base import Embed, Group, Labels, SamplerOptions
from tuplet.sampling.epoch import EpochPlan, EpochSampler
from tuplet.sampling.rounds import Rounds


class OneClassSampler(EpochSampler):
    """Draw `per_class` examples of one class, and the `negatives` examples of other classes nearest to any of them.

    Once an epoch it embeds the training set. These are the batches of the lifted structure loss as Schall et al. 2019
    (section II) describe them; its own code is said to draw random pairs and their hard negatives.

    `labels`, `seed` and the options are those of `ClassBalancedSampler`.

    Args:
        embed: function of a list of n indices that returns their embeddings (n, d), called once an epoch.
        per_class: the number of examples of the class; all of them if it has fewer.
        negatives: the number of examples of other classes; more if the class is small.

    >>> place = torch.tensor([0.0, 0.0, 3.0, 3.0, 0.1, 0.1])[:, None]
    >>> sampler = OneClassSampler([0, 0, 1, 1, 2, 2], lambda i: place[i], per_class=2, negatives=2, batches=9)
    >>> sorted({tuple(sorted(batch)) for batch in sampler})
    [(0, 1, 4, 5), (2, 3, 4, 5)]

    Oh Song, Xiang, Jegelka, Savarese: Deep Metric Learning via Lifted Structured Feature Embedding. CVPR 2016.
    """

    name, batch = "one_class", "one_class"

    def __init__(
        self,
        labels: Labels,
        embed: Embed,
        per_class: int = 8,
        negatives: int = 56,
        seed: int = 0,
        **options: Unpack[SamplerOptions],
    ) -> None:
        at_least(2, per_class=per_class)
        at_least(1, negatives=negatives)
        super().__init__(labels, embed, per_class + negatives, seed, **options)
        self.per_class, self.negatives = per_class, negatives
        size, total = per_class + negatives, len(self.examples)
        if any(size - min(per_class, len(own)) > total - len(own) for own in self.members):
            raise ValueError(
                f"a batch of {per_class} + {negatives} examples has more negatives than some class leaves among the "
                f"{total} examples; ask for fewer"
            )

    @classmethod
    def of_size(cls, labels: Labels, batch_size: int, per_class: int, seed: int = 0, **inputs: Any) -> Self:
        """Make a sampler for batches of `batch_size` examples; `inputs` is `embed`."""
        return cls(labels, per_class=per_class, negatives=batch_size - per_class, seed=seed, **inputs)

    def plan(self, vectors: Tensor, rng: np.random.Generator) -> EpochPlan:
        """Return all batches of the epoch, the examples of one class before their negatives."""
        rounds, size = Rounds(self.members, self.per_class, len(self), rng), self.per_class + self.negatives
        x = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
        place = {index: k for k, index in enumerate(self.examples.tolist())}
        classes, batches = torch.from_numpy(self.classes_of_examples).to(x.device), []
        for _ in range(len(self)):
            rounds.start_batch(1)
            c = rounds.next_class()
            own = rounds.take(c, min(self.per_class, len(self.members[c])))
            distances = torch.cdist(x[[place[index] for index in own]], x).amin(0)
            near = distances.masked_fill(classes == c, torch.inf).topk(size - len(own), largest=False).indices
            batches.append(own + self.examples[near.cpu().numpy()].tolist())
        return {"batches": torch.tensor(batches)}

    def draw_planned(self, plan: EpochPlan, rng: np.random.Generator) -> Iterator[list[Group]]:
        """Yield the batches, each example a group of its own, so that processes share them."""
        for batch in plan["batches"].tolist():
            yield [[index] for index in batch]
