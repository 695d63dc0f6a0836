"""Smart mining: triplets from neighbours in the whole training set, at a controlled hardness (Harwood et al. 2017)."""

from collections.abc import Iterator, Sequence
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor

from tuplet.errors import at_least
from tuplet.sampling.base import Embed, Group, Labels, SamplerOptions
from tuplet.sampling.epoch import EpochPlan, EpochSampler

#: Anchors whose distances to all examples are computed at once.
_BLOCK = 256
#: κ of the first two epochs, since a line needs two points, and the limits of κ.
START, LEAST, MOST = (16.0, 4.0), 1.0, 64.0
#: The share of mined triplets in the first two epochs: enough to choose κ by, as the authors say.
PROBED = 0.02


class SmartTripletSampler(EpochSampler):
    """Draw triplets whose negatives lie just outside a ball around the anchor that its nearest positive sets.

    Once an epoch it embeds the training set. For an anchor i, whose nearest positive is p, negatives nearer than
    D(i, n) = κ · D(i, p) are skipped, with D the squared distance. The triplet takes the nearest negative that is left
    and the nearest positive beyond it. If the list of neighbours has no such positive, it takes a random one outside
    the list; if it has no negative, the triplet is random. An anchor that comes again takes its next negative.

    κ is controlled: after each epoch training reports which mined triplets had a loss (`report`). From the third epoch
    on, a line κ = a·e + b is fitted to the shares e and the values κ of all epochs so far, and gives the κ for the
    share `target`. The first two epochs draw random triplets, with a few mined ones at κ = 16 and 4 to measure by;
    these two values, and the limits of κ, 1 and 64, are choices: the authors' are not known.

    `labels`, `seed` and the options are those of `ClassBalancedSampler`.

    Args:
        embed: function of a list of n indices that returns their embeddings (n, d), called once an epoch.
        triplets: the number of triplets in a batch: anchor, positive, negative in turn. An example may be in several.
        neighbors: the length of the list of neighbours that an anchor's triplet is searched in. The authors' is not
            known.
        target: the share of mined triplets that should have a loss; the authors take 0.5 to 0.75.
        mined: the share of mined triplets from the third epoch on; the rest is random. The authors take 0.5 to 1.

    >>> place = torch.tensor([0.0, 0.1, 0.5, 0.6])[:, None]
    >>> labels = [0, 0, 1, 1]
    >>> sampler = SmartTripletSampler(labels, lambda i: place[i], triplets=2, batches=1)
    >>> [labels[a] == labels[p] != labels[n] for a, p, n in torch.tensor(next(iter(sampler))).view(-1, 3).tolist()]
    [True, True]

    Harwood, Kumar, Carneiro, Reid, Drummond: Smart Mining for Deep Metric Learning. ICCV 2017.
    """

    name, batch, group_size = "smart_triplet", "triplets", 3
    needs_active = True
    options = ("neighbors", "target", "mined")

    def __init__(
        self,
        labels: Labels,
        embed: Embed,
        triplets: int = 40,
        neighbors: int = 500,
        target: float = 0.6,
        mined: float = 0.9,
        seed: int = 0,
        **options: Unpack[SamplerOptions],
    ) -> None:
        at_least(1, triplets=triplets, neighbors=neighbors)
        if not 0 < target < 1 or not 0 < mined <= 1:
            raise ValueError(f"target is {target} and mined {mined}; give shares above 0, target below 1")
        super().__init__(labels, embed, 3 * triplets, seed, **options)
        if len(self.members) < 2:
            raise ValueError("SmartTripletSampler needs two classes with two examples, got one; add examples")
        self.triplets, self.neighbors, self.target, self.mined = triplets, neighbors, target, mined
        self._firsts = np.cumsum([0, *(len(own) for own in self.members)])
        self.history: list[tuple[float, float]] = []  # share of mined triplets with a loss, κ, of each epoch
        self._kappa = START[0]  # of this epoch
        self._reported = 0  # batches of this epoch that were reported on
        self._active: Tensor | int = 0  # their mined triplets with a loss, counted on the device

    def report(self, active: Tensor) -> None:
        """Receive the mask of the triplets of a batch with a loss above zero, without waiting for the device."""
        mined = self._plan["mined"][self._reported].to(active.device, non_blocking=True)
        self._active = self._active + (active & mined).sum()
        self._reported += 1

    def state_dict(self) -> dict[str, Any]:
        """Return the position, the plan of the epoch, the history of κ and what was reported in this epoch."""
        report = {"kappa": self._kappa, "reported": self._reported, "active": int(self._active), "mined": self._tried()}
        return {**super().state_dict(), "history": list(self.history), "report": report}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next iteration continue at the position of `state`."""
        super().load_state_dict(state)
        self.history = [(share, kappa) for share, kappa in state["history"]]
        report = state["report"]
        self._kappa, self._reported, self._active = report["kappa"], report["reported"], report["active"]
        if not state["batch"]:  # the epoch that was reported on has ended
            self._learn(report["mined"])

    def _tried(self) -> int:
        """Return the number of mined triplets in the batches that were reported on."""
        return int(self._plan["mined"][: self._reported].sum()) if self._plan else 0

    def _learn(self, tried: int) -> None:
        """Add the epoch that has ended to the history, and choose the next κ."""
        if tried:
            self.history.append((int(self._active) / tried, self._kappa))
        self._kappa, self._reported, self._active = next_kappa(self.history, self.target), 0, 0

    def plan(self, vectors: Tensor, rng: np.random.Generator) -> EpochPlan:
        """Return the triplets of the epoch, and which of them are mined."""
        count = len(self) * self.triplets
        share = PROBED if len(self.history) < len(START) else self.mined
        mined = rng.permutation(np.arange(count) < np.ceil(share * count))
        rounds = -(-count // len(self.examples))
        anchors = np.concatenate([rng.permutation(len(self.examples)) for _ in range(rounds)])[:count]
        visits = np.arange(count) // len(self.examples)
        triplets = np.empty((count, 3), dtype=np.int64)
        for chosen in np.array_split(np.flatnonzero(mined), range(_BLOCK, mined.sum(), _BLOCK)):
            for row, near in zip(chosen, self._neighbors(vectors, anchors[chosen]), strict=True):
                triplets[row] = self._mined(anchors[row], *near, visits[row], rng)
        for row in np.flatnonzero(~mined):
            triplets[row] = self._random(anchors[row], rng)
        batches = torch.from_numpy(self.examples[triplets]).view(len(self), self.triplets, 3)
        return {"triplets": batches, "mined": torch.from_numpy(mined).view(len(self), -1)}

    def draw_planned(self, plan: EpochPlan, rng: np.random.Generator) -> Iterator[list[Group]]:
        """Yield the triplets of each batch as groups."""
        yield from plan["triplets"].tolist()

    def draw(self, rng: np.random.Generator) -> Iterator[list[Group]]:
        """Learn from the last epoch how hard triplets may be, then yield the batches of this one."""
        if not self._resumed:
            self._learn(self._tried())
        yield from super().draw(rng)

    def _neighbors(self, vectors: Tensor, anchors: np.ndarray) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield the nearest examples of each anchor, from near to far, and their squared distances."""
        x = vectors.to(torch.promote_types(vectors.dtype, torch.float32))
        rows = torch.from_numpy(anchors).to(x.device)
        distances = torch.cdist(x[rows], x, compute_mode="donot_use_mm_for_euclid_dist").square_()
        distances.scatter_(1, rows[:, None], torch.inf)
        near = distances.topk(min(self.neighbors, len(x) - 1), largest=False)
        yield from zip(near.indices.cpu().numpy(), near.values.cpu().numpy(), strict=True)

    def _mined(
        self, anchor: int, near: np.ndarray, distances: np.ndarray, visit: int, rng: np.random.Generator
    ) -> tuple[int, int, int]:
        """Return a triplet from the neighbours of an anchor, the `visit`-th of this anchor in the epoch."""
        own = self.classes_of_examples[near] == self.classes_of_examples[anchor]
        positives = np.flatnonzero(own)
        if not len(positives):
            return self._random(anchor, rng)
        beyond = distances >= self._kappa * distances[positives[0]]
        beyond[: positives[0] + 1] = False
        negatives = np.flatnonzero(~own & beyond)
        if visit >= len(negatives):
            return self._random(anchor, rng)
        negative = negatives[visit]
        farther = positives[positives > negative]
        positive = near[farther[0]] if len(farther) else self._positive(anchor, rng, avoid=near[own])
        return anchor, int(positive), int(near[negative])

    def _random(self, anchor: int, rng: np.random.Generator) -> tuple[int, int, int]:
        """Return a random triplet of an anchor."""
        first, size = self._class_range(anchor)
        other = int(rng.integers(len(self.examples) - size))
        return anchor, self._positive(anchor, rng), other if other < first else other + size

    def _positive(self, anchor: int, rng: np.random.Generator, avoid: Sequence[int] | np.ndarray = ()) -> int:
        """Return a random positive of an anchor, if possible none to avoid."""
        first, size = self._class_range(anchor)
        others = np.delete(np.arange(first, first + size), anchor - first)
        left = np.setdiff1d(others, avoid)
        return int(rng.choice(left if len(left) else others))

    def _class_range(self, position: int) -> tuple[int, int]:
        """Return where the class of an example begins among the examples, and its size."""
        c = self.classes_of_examples[position]
        return int(self._firsts[c]), len(self.members[c])


def next_kappa(history: Sequence[tuple[float, float]], target: float) -> float:
    """Return the κ of the next epoch, given the share of active triplets and κ of those before.

    >>> next_kappa([], 0.6), next_kappa([(0.2, 16.0), (0.8, 4.0)], 0.5)
    (16.0, 10.0)
    """
    if len(history) < len(START):
        return START[len(history)]
    shares, kappas = np.array(history).T
    if np.ptp(shares) < 1e-6:  # no line goes through them
        return float(kappas[-1])
    slope, offset = np.polyfit(shares, kappas, 1)
    return round(float(np.clip(slope * target + offset, LEAST, MOST)), 6)
