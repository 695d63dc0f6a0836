"""The order in which all samplers take classes and examples."""

from collections import Counter
from collections.abc import Collection, Sequence

import numpy as np


class Rounds:
    """Take classes in shuffled rounds, and examples of a class in shuffled order without repeats until all are used.

    A round holds every class that still has `visit` unused examples (or all of its examples, if it has fewer), so a
    large class is in more rounds than a small one. If no class has as many, the round holds the classes with any unused
    example, those with the most of them first. When all are used, everything starts again.

    A class goes first if it must be in each of the remaining batches of the epoch to be seen completely. An epoch that
    draws as many examples as there are thus touches almost all of them.

    >>> rounds = Rounds([np.array([0, 1]), np.array([2, 3])], visit=2, batches=1, rng=np.random.default_rng(0))
    >>> sorted(rounds.next_class() for _ in range(2))
    [0, 1]
    """

    def __init__(self, members: Sequence[np.ndarray], visit: int, batches: int, rng: np.random.Generator) -> None:
        self.members = members
        self.queue: list[int] = []  # classes that still have a turn in this round
        self._rng = rng
        self._batches = batches  # batches that are still to come
        self._sizes = np.array([len(own) for own in members])
        self._enough = np.minimum(self._sizes, visit)
        self._unused = self._sizes.copy()  # unused examples in the present order of each class
        self._taken = np.zeros_like(self._sizes)  # examples taken since the start
        self._orders = [rng.permutation(own) for own in members]

    def start_batch(self, classes: int) -> list[int]:
        """Begin a batch. Queue first, and return, the classes that must be in it, if it can hold them."""
        needs_all = np.flatnonzero(self._sizes - self._taken >= self._enough * self._batches)
        self._batches -= 1
        if not 0 < len(needs_all) <= classes:
            return []
        urgent = self._rng.permutation(needs_all).tolist()
        had_turn, rest = set(urgent), []
        for c in self.queue:
            if c in had_turn:
                had_turn.remove(c)
            else:
                rest.append(c)
        self.queue = urgent + rest
        return urgent

    def next_class(self, busy: Collection[int] = ()) -> int:
        """Return the next class that is not `busy`. A busy class keeps its turn."""
        while True:
            for place, c in enumerate(self.queue):
                if c not in busy:
                    return self.queue.pop(place)
            self.start_round(busy)

    def start_round(self, busy: Collection[int] = ()) -> None:
        """Queue another round with at least one class that is not `busy`."""
        free = np.ones(len(self.members), dtype=bool)
        free[list(busy)] = False
        if not free.any():
            raise ValueError(f"all {len(free)} classes are in the batch already; ask for a smaller batch")
        waiting = np.bincount(self.queue, minlength=len(free))  # turns that busy classes kept
        unseen = self._unseen() - waiting * self._enough
        # A class with a kept turn gets one in this round too. More would pile up where a class is always busy.
        tiers = (unseen >= self._enough, unseen > 0, waiting < 2)
        eligible = next(tier for tier in tiers if (tier & free).any())
        turns = self._rng.permutation(np.flatnonzero(eligible))
        # Turns that lack unused examples come last, since the epoch may end before they do.
        lacking = np.maximum(self._enough - unseen, 0)[turns]
        self.queue += turns[np.argsort(lacking, kind="stable")].tolist()

    def _unseen(self) -> np.ndarray:
        """Return how many examples of each class were not drawn since everything last started again.

        The rest of a class's present order does not tell: a class that is used up begins another order at once.
        """
        starts = 1 + (self._taken // self._sizes).min()
        return starts * self._sizes - self._taken

    def take(self, c: int, count: int, avoid: Collection[int] = ()) -> list[int]:
        """Return the next `count` examples of class `c`.

        When its order starts again, examples that are taken already or are in `avoid` come last.
        """
        taken: list[int] = []
        while len(taken) < count:
            if self._unused[c] == 0:
                order = self._rng.permutation(self.members[c])
                times = Counter([*taken, *avoid])
                self._orders[c] = order[np.argsort([times[index] for index in order.tolist()], kind="stable")]
                self._unused[c] = self._sizes[c]
            start = self._sizes[c] - self._unused[c]
            some = self._orders[c][start : start + count - len(taken)].tolist()
            self._unused[c] -= len(some)
            taken += some
        self._taken[c] += count
        return taken

    def put_back(self, c: int) -> None:
        """Put back the last example that was taken of class `c`."""
        self._unused[c] += 1
        self._taken[c] -= 1
