"""Hard negative class mining (Sohn 2016, section 3.2.1)."""

from collections.abc import Iterator
from typing import Any, Unpack

import numpy as np
import torch

from tuplet.errors import at_least
from tuplet.sampling.base import Embed, Group, Labels, SamplerOptions, embedded, from_rank_zero
from tuplet.sampling.rounds import Rounds
from tuplet.sampling.samplers import NPairSampler


class HardClassSampler(NPairSampler):
    """Draw N-pair batches of classes that the model confuses, chosen greedily.

    For each batch: (1) Embed `per_class` random examples of `candidates` classes, or as many as the smallest of them
    has. (2) Start with one of these classes at random. Add the class with the most violated triplet against the classes
    chosen so far, ties at random, until there are `pairs` classes. (3) Draw two examples of each. With one example of
    each class, the violation of two classes is f·g. With more it is the maximum of f_a·g − f_a·f_p over anchors a,
    positives p ≠ a and examples g of the other class, in both directions.

    The candidates are the classes that are still to come in the shuffled round. So mining chooses which classes share a
    batch, not how often a class is seen. Classes that must come next are in the batch from the start: the fewer than
    `pairs` that remain of a round, and large ones that need every remaining batch of the epoch.

    `labels`, `seed` and the options are those of `ClassBalancedSampler`.

    Args:
        embed: function of a list of n indices that returns their embeddings, an (n, d) tensor. It is called once for
            each batch in the iterating process, so iterate without `DataLoader` workers. Under `torch.distributed` the
            choice of rank 0 holds for all.
        pairs: the number of classes of a batch.
        candidates: the number of classes to choose from.
        per_class: the number of examples of each candidate to embed.

    >>> angle = torch.tensor([0.0, 0.0, 3.0, 3.0, 0.1, 0.1, 3.1, 3.1])
    >>> labels = [0, 0, 1, 1, 2, 2, 3, 3]
    >>> sampler = HardClassSampler(labels, lambda i: torch.stack([angle[i].cos(), angle[i].sin()], 1), pairs=2)
    >>> sorted(sorted({labels[i] for i in batch}) for batch in sampler)
    [[0, 2], [1, 3]]
    """

    name, needs_embeddings = "hard_class", True

    def __init__(
        self,
        labels: Labels,
        embed: Embed,
        pairs: int = 60,
        candidates: int = 200,
        per_class: int = 1,
        seed: int = 0,
        **options: Unpack[SamplerOptions],
    ) -> None:
        at_least(1, pairs=pairs, per_class=per_class)
        at_least(pairs, candidates=candidates)
        super().__init__(labels, pairs, seed, **options)
        self.embed, self.candidates, self.probes = embed, candidates, per_class
        self._chosen: list[list[int]] = []  # the classes of the batches of this epoch

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch, the number of its batches that were drawn, and their classes, which the model chose."""
        return {**super().state_dict(), "chosen": list(self._chosen) if self._drawn else []}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next iteration continue at the position of `state`."""
        super().load_state_dict(state)
        self._chosen = self._resumed = [list(classes) for classes in state["chosen"][: state["batch"]]]

    def draw(self, rng: np.random.Generator) -> Iterator[list[Group]]:
        """Yield batches of classes that are near each other."""
        rounds = Rounds(self.members, 2, len(self), rng)
        epoch, known, self._resumed = self.epoch, self._resumed or [], None
        self._chosen = []
        for number in range(len(self)):
            start = rounds.start_batch(self.classes)
            pool = list(dict.fromkeys(rounds.queue))
            if len(pool) < self.classes:
                start = pool
                while len(pool) < self.classes:
                    rounds.start_round(busy=pool)
                    pool = list(dict.fromkeys(rounds.queue))
            if number < len(known):
                chosen = known[number]
            else:
                rest = [c for c in pool if c not in start][: self.candidates]
                chosen = self._choose(start, rest, np.random.default_rng([self.seed, epoch, number]))
            self._chosen.append(chosen)
            for c in chosen:
                rounds.queue.remove(c)
            yield [rounds.take(c, 2) for c in chosen]

    def _choose(self, start: list[int], pool: list[int], rng: np.random.Generator) -> list[int]:
        classes = start + pool
        count = min(self.probes, min(len(self.members[c]) for c in classes))
        probes = [rng.choice(self.members[c], count, replace=False) for c in classes]
        vectors = embedded(self.embed, np.concatenate(probes).tolist())
        violation = class_violations(vectors.reshape(len(classes), count, -1))
        chosen = list(range(len(start))) or [int(rng.integers(len(classes)))]
        worst = violation[chosen].max(0)
        while len(chosen) < self.classes:
            worst[chosen] = -np.inf
            chosen.append(int(rng.choice(np.flatnonzero(worst == worst.max()))))
            worst = np.maximum(worst, violation[chosen[-1]])
        return from_rank_zero([classes[i] for i in chosen])


def class_violations(vectors: torch.Tensor) -> np.ndarray:
    """Return the violation of the most violated triplet of every two classes, for (classes, examples, d) vectors.

    >>> class_violations(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]], [[0.6, 0.8]]]))[2]
    array([0.6, 0.8, 1. ], dtype=float32)
    """
    classes, examples, _ = vectors.shape
    flat = vectors.flatten(0, 1).to(torch.promote_types(vectors.dtype, torch.float32))
    similarity = (flat @ flat.T).reshape(classes, examples, classes, examples)
    if examples == 1:
        return similarity[:, 0, :, 0].cpu().numpy()
    own = torch.stack([similarity[c, :, c] for c in range(classes)])
    own = own.masked_fill(torch.eye(examples, dtype=torch.bool, device=own.device), torch.inf)
    hardest_positive = own.amin(2)
    violation = (similarity - hardest_positive[:, :, None, None]).amax((1, 3))
    return torch.maximum(violation, violation.T).cpu().numpy()
