"""The samplers of the papers: C×K classes, pairs, uniform n-groups and triplets."""

from collections.abc import Iterator
from typing import Unpack

import numpy as np

from tuplet.errors import at_least
from tuplet.sampling.base import ClassSampler, Group, Labels, SamplerOptions
from tuplet.sampling.rounds import Rounds


class ClassBalancedSampler(ClassSampler):
    """Draw `classes` classes with `per_class` examples each, one class after the other.

    Most losses need such batches. They are the C×K batches of the Unified view and the ranked list paper, and the N×M
    batches of Sohn 2016, section 4.4.

    Args:
        labels: the class of each example, as integers; or (N, L), several for each, padded with −1.
        classes: the number of classes in a batch.
        per_class: the number of examples of each class. A class with fewer examples repeats them evenly.
        seed: the seed of all random choices.
        **options: `batches`, the number of batches in an epoch; `rank` and `world_size` (see `tuplet.sampling`).

    Raises:
        ValueError: fewer than `classes` classes have two examples.

    >>> sampler = ClassBalancedSampler([0, 0, 0, 1, 1, 1, 2, 2, 2], classes=2, per_class=3)
    >>> [len(batch) for batch in sampler]
    [6]
    """

    name = "class_balanced"

    def __init__(
        self, labels: Labels, classes: int = 24, per_class: int = 5, seed: int = 0, **options: Unpack[SamplerOptions]
    ) -> None:
        at_least(1, classes=classes, per_class=per_class)
        super().__init__(labels, classes * per_class, seed, **options)
        if classes > len(self.members):
            raise ValueError(
                f"a batch needs {classes} classes, but only {len(self.members)} have two examples; ask for fewer"
            )
        self.classes, self.per_class = classes, per_class

    def draw(self, rng: np.random.Generator) -> Iterator[list[Group]]:
        """Yield batches of `classes` classes."""
        rounds = Rounds(self.members, self.per_class, len(self), rng)
        while True:
            rounds.start_batch(self.classes)
            batch: dict[int, Group] = {}
            while len(batch) < self.classes:
                c = rounds.next_class(busy=batch)
                batch[c] = rounds.take(c, self.per_class)
            yield list(batch.values())


class NPairSampler(ClassBalancedSampler):
    """Draw two examples of each of `pairs` classes, query and positive in turn (Sohn 2016, section 3.2).

    `NPairLoss` needs such batches.

    `labels`, `seed` and the options are those of `ClassBalancedSampler`.

    Args:
        pairs: the number of classes in a batch.

    >>> batch = next(iter(NPairSampler([7, 7, 7, -1, -1, 3, 3, 3], pairs=3)))
    >>> len(batch), len(set(batch))
    (6, 6)
    """

    name, batch, group_size = "npair", "pairs", 2

    def __init__(self, labels: Labels, pairs: int = 60, seed: int = 0, **options: Unpack[SamplerOptions]) -> None:
        at_least(1, pairs=pairs)
        super().__init__(labels, pairs, 2, seed, **options)


class NGroupSampler(ClassSampler):
    """Draw uniform n-groups: `groups` classes of `per_group` examples, or more classes if some are smaller.

    A class gives `per_group` examples, or all of its examples if it has fewer. Classes are added until the batch holds
    exactly groups · per_group examples. No example is repeated in a batch. If one place is left, the last class with
    more than two examples gives up one, so that the class that fills the batch brings a pair (Schall et al. 2019,
    section III); without such a class it brings a single example. `NRALoss` was published with such batches.

    `labels`, `seed` and the options are those of `ClassBalancedSampler`.

    Args:
        groups: the number of classes in a batch, if all are large enough.
        per_group: the number of examples of each class.

    >>> sampler = NGroupSampler([0, 0, 1, 1, 2, 2, 2, 2, 3, 3, 3, 3], groups=2, per_group=4)
    >>> [len(batch) for batch in sampler]
    [8]
    """

    name, batch = "ngroup", "groups"

    def __init__(
        self, labels: Labels, groups: int = 16, per_group: int = 8, seed: int = 0, **options: Unpack[SamplerOptions]
    ) -> None:
        at_least(1, groups=groups)
        at_least(2, per_group=per_group)
        self.groups, self.per_group = groups, per_group
        super().__init__(labels, groups * per_group, seed, **options)
        most = sum(min(len(own), per_group) for own in self.members)
        if most < groups * per_group:
            raise ValueError(
                f"groups × per_group is {groups} × {per_group}, but with at most {per_group} of a class "
                f"the {len(self.members)} classes with two or more examples give {most} examples; ask for fewer"
            )

    def draw(self, rng: np.random.Generator) -> Iterator[list[Group]]:
        """Yield batches of `groups` groups, and more where classes are too small."""
        rounds = Rounds(self.members, self.per_group, len(self), rng)
        while True:
            rounds.start_batch(self.groups)
            batch: dict[int, Group] = {}
            free = self.groups * self.per_group
            while free:
                if free == 1 and (givers := [c for c in batch if len(batch[c]) > 2]):
                    batch[givers[-1]].pop()
                    rounds.put_back(givers[-1])
                    free = 2
                c = rounds.next_class(busy=batch)
                batch[c] = rounds.take(c, min(self.per_group, len(self.members[c]), free))
                free -= len(batch[c])
            yield list(batch.values())


class TripletSampler(ClassSampler):
    """Draw `triplets` disjoint triplets: anchor, positive and negative in turn, no example twice in a batch.

    The class of the pair and the class of the negative are the next ones of the shuffled rounds.
    `TripletLoss(mining="disjoint")` needs such batches.

    `labels`, `seed` and the options are those of `ClassBalancedSampler`.

    Args:
        triplets: the number of triplets in a batch.

    >>> labels = [0, 0, 0, 1, 1, 1]
    >>> batch = next(iter(TripletSampler(labels, triplets=2)))
    >>> len(set(batch)), [labels[a] == labels[p] != labels[n] for a, p, n in (batch[:3], batch[3:])]
    (6, [True, True])
    """

    name, batch, group_size = "triplet", "triplets", 3

    def __init__(self, labels: Labels, triplets: int = 40, seed: int = 0, **options: Unpack[SamplerOptions]) -> None:
        at_least(1, triplets=triplets)
        super().__init__(labels, 3 * triplets, seed, **options)
        self.triplets = triplets
        self._sizes = np.array([len(own) for own in self.members])
        if not _can_give(self._sizes, triplets):
            raise ValueError(
                f"triplets is {triplets}, but {len(self.members)} classes with {self._sizes.sum()} examples, "
                f"{self._sizes.max()} of them in one class, cannot give so many disjoint ones; ask for fewer"
            )

    def draw(self, rng: np.random.Generator) -> Iterator[list[Group]]:
        """Yield batches of `triplets` triplets."""
        # Each triplet counts as a batch of the rounds, with a place for one class.
        rounds = Rounds(self.members, 2, len(self) * self.triplets, rng)
        while True:
            free = self._sizes.copy()  # examples of each class that are not in the batch
            batch: list[Group] = []
            for missing in reversed(range(self.triplets)):
                used = [index for group in batch for index in group]
                rounds.start_batch(1)
                c, n = self._classes(rounds, free, missing)
                batch.append(rounds.take(c, 2, avoid=used) + rounds.take(n, 1, avoid=used))
                free[c] -= 2
                free[n] -= 1
            yield batch

    def _classes(self, rounds: Rounds, free: np.ndarray, missing: int) -> tuple[int, int]:
        """Return the classes of the next pair and negative, such that `missing` more triplets can follow."""
        busy_pairs = set(np.flatnonzero(free < 2).tolist())
        while True:
            c = rounds.next_class(busy_pairs)
            busy = {c, *np.flatnonzero(free < 1).tolist()}
            while len(busy) < len(free):
                n = rounds.next_class(busy)
                after = free.copy()
                after[c] -= 2
                after[n] -= 1
                if _can_give(after, missing):
                    return c, n
                rounds.queue.insert(0, n)
                busy.add(n)
            rounds.queue.insert(0, c)
            busy_pairs.add(c)


def _can_give(free: np.ndarray, triplets: int) -> bool:
    """Tell if classes with `free` examples each can give `triplets` disjoint triplets."""
    total = free.sum()
    return bool(total >= 3 * triplets and total - free.max() >= triplets and (free // 2).sum() >= triplets)
