"""Hard negative class mining (Sohn 2016, section 3.2.1)."""

from collections.abc import Callable, Iterator
from typing import Any, Unpack

import numpy as np
import torch

from tuplet.sampling.base import Group, Labels, Options, at_least
from tuplet.sampling.rounds import Rounds
from tuplet.sampling.samplers import NPairSampler


class HardClassSampler(NPairSampler):
    """N-pair batches of classes that the model confuses, chosen greedily.

    For each batch: (1) embed `per_class` random examples of `candidates` classes, or as many as the smallest of them
    has; (2) start with one of them at random and add, until there are `pairs`, the class with the most violated triplet
    against the classes chosen so far, ties at random; (3) draw two examples of each. With one example a class the
    violation of two classes is f·g; with more it is max f_a·g − f_a·f_p over anchors a, positives p ≠ a and the other
    class's examples g, in both directions.

    The candidates are those classes whose turn in the shuffled round is still to come, so mining chooses which classes
    meet in a batch, not how often a class is seen. Classes that must come next (the fewer than `pairs` that remain
    of a round, and large ones that need every remaining batch of the epoch) are in the batch from the start.

    `embed(indices)` gives an (n, d) tensor; it is called once a batch, in the iterating process, so iterate without
    `DataLoader` workers. Under `torch.distributed` the choice of rank 0 holds for all.

    >>> angle = torch.tensor([0.0, 0.0, 3.0, 3.0, 0.1, 0.1, 3.1, 3.1])
    >>> labels = [0, 0, 1, 1, 2, 2, 3, 3]
    >>> sampler = HardClassSampler(labels, lambda i: torch.stack([angle[i].cos(), angle[i].sin()], 1), pairs=2)
    >>> sorted(sorted({labels[i] for i in batch}) for batch in sampler)
    [[0, 2], [1, 3]]
    """

    def __init__(
        self,
        labels: Labels,
        embed: Callable[[list[int]], torch.Tensor],
        pairs: int = 60,
        candidates: int = 200,
        per_class: int = 1,
        seed: int = 0,
        **options: Unpack[Options],
    ) -> None:
        at_least("pairs", pairs, 1)
        at_least("per_class", per_class, 1)
        at_least("candidates", candidates, pairs)
        super().__init__(labels, pairs, seed, **options)
        self.embed, self.candidates, self.probes = embed, candidates, per_class
        self._chosen: list[list[int]] = []  # the classes of this epoch's batches
        self._replay: list[list[int]] = []  # those of them that the next iteration takes as given

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; the epoch that `load_state_dict` has just set is not rewound."""
        if epoch != self.epoch:
            self._replay = []
        super().set_epoch(epoch)

    def state_dict(self) -> dict[str, Any]:
        """The epoch, how many of its batches were drawn, and their classes, which depended on the model."""
        return {**super().state_dict(), "chosen": list(self._chosen) if self._drawn else []}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next iteration go on from where `state` was taken."""
        super().load_state_dict(state)
        self._chosen = [list(classes) for classes in state["chosen"]]
        self._replay = self._chosen

    def draw(self, rng: np.random.Generator) -> Iterator[list[Group]]:  # noqa: D102
        rounds = Rounds(self.members, 2, len(self), rng)
        epoch, known, self._replay = self.epoch, self._replay, []
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
        indices = np.concatenate(probes).tolist()
        vectors = torch.as_tensor(self.embed(indices)).detach()
        if vectors.ndim != 2 or len(vectors) != len(indices):
            raise ValueError(f"embed gave shape {tuple(vectors.shape)} for {len(indices)} indices; it must be (n, d)")
        violation = class_violations(vectors.reshape(len(classes), count, -1))
        chosen = list(range(len(start))) or [int(rng.integers(len(classes)))]
        worst = violation[chosen].max(0)
        while len(chosen) < self.classes:
            worst[chosen] = -np.inf
            chosen.append(int(rng.choice(np.flatnonzero(worst == worst.max()))))
            worst = np.maximum(worst, violation[chosen[-1]])
        return _of_rank_zero([classes[i] for i in chosen])


def class_violations(vectors: torch.Tensor) -> np.ndarray:
    """How far the most violated triplet of each two classes goes, for (classes, examples, d) vectors.

    >>> class_violations(torch.tensor([[[1.0, 0.0]], [[0.0, 1.0]], [[0.6, 0.8]]]))[2]
    array([0.6, 0.8, 1. ], dtype=float32)
    """
    classes, examples, _ = vectors.shape
    if not bool(torch.isfinite(vectors).all()):
        raise ValueError("embed gave vectors that are not finite; the model has diverged")
    flat = vectors.flatten(0, 1).to(torch.promote_types(vectors.dtype, torch.float32))
    similarity = (flat @ flat.T).reshape(classes, examples, classes, examples)
    if examples == 1:
        return similarity[:, 0, :, 0].cpu().numpy()
    own = torch.stack([similarity[c, :, c] for c in range(classes)])
    own = own.masked_fill(torch.eye(examples, dtype=torch.bool, device=own.device), torch.inf)
    hardest_positive = own.amin(2)
    violation = (similarity - hardest_positive[:, :, None, None]).amax((1, 3))
    return torch.maximum(violation, violation.T).cpu().numpy()


def _of_rank_zero(chosen: list[int]) -> list[int]:
    """The choice of rank 0: products may differ in their last bits from one GPU to the next."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.broadcast_object_list(box := [chosen])
        return box[0]
    return chosen
