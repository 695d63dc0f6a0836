"""What all samplers share: classes out of labels, epochs, ranks and resuming."""

import warnings
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import Any, TypedDict

import numpy as np
import torch
from torch.utils.data import Sampler

from tuplet.labels import label_array

Labels = Sequence[int] | np.ndarray | torch.Tensor
Group = list[int]


class Options(TypedDict, total=False):
    """What every sampler takes beside its own numbers."""

    batches: int | None
    rank: int | None
    world_size: int | None


class ClassSampler(Sampler[list[int]]):
    """Batches of indices in epochs, shared by ranks and resumed exactly: `tuplet.sampling` says how."""

    def __init__(
        self,
        labels: Labels,
        batch_size: int,
        seed: int = 0,
        batches: int | None = None,
        rank: int | None = None,
        world_size: int | None = None,
    ) -> None:
        labels = _integers(labels)
        values, classes = np.unique(labels, return_inverse=True)
        members = np.split(np.argsort(classes, kind="stable"), np.cumsum(np.bincount(classes))[:-1])
        self.left_out = [int(value) for value, own in zip(values, members, strict=True) if len(own) < 2]
        self.members = [own for own in members if len(own) >= 2]
        name = type(self).__name__
        if not self.members:
            raise ValueError(
                f"{name} needs a class with two examples, and none of the {len(values)} classes has two; add examples"
            )
        if self.left_out:
            named = ", ".join(map(str, self.left_out[:20])) + (", …" if len(self.left_out) > 20 else "")
            warnings.warn(f"{name} leaves out {len(self.left_out)} classes of one example: {named}", stacklevel=3)
        at_least("batches", 1 if batches is None else batches, 1)
        at_least("seed", seed, 0)
        if (rank is None) != (world_size is None):
            raise ValueError(f"rank is {rank} and world_size is {world_size}; give both or neither")
        if rank is not None and world_size is not None:
            at_least("world_size", world_size, 1)
            if not 0 <= rank < world_size:
                raise ValueError(f"rank is {rank} and world_size is {world_size}; ranks run from 0 to {world_size - 1}")
        self.seed = seed
        self.epoch = 0
        self._batches = batches or max(1, len(labels) // batch_size)
        self._place = None if rank is None or world_size is None else (rank, world_size)
        self._drawn = 0  # batches that the latest iteration has yielded
        self._resume = 0  # batches that the next iteration leaves out

    def draw(self, rng: np.random.Generator) -> Iterator[list[Group]]:
        """Batches without end, each a list of groups that stay together on one rank."""
        raise NotImplementedError

    def __len__(self) -> int:
        return self._batches

    def __iter__(self) -> Iterator[list[int]]:
        epoch, start, self._resume = self.epoch, self._resume, 0
        self._drawn = start
        draws = self.draw(np.random.default_rng([self.seed, epoch]))
        for number, groups in enumerate(islice(draws, start, self._batches), start + 1):
            if self.epoch == epoch:  # and nobody has gone to another in the meantime
                self._drawn = number
            yield [index for group in self._own(groups) for index in group]
        if self.epoch == epoch:
            self.epoch, self._drawn = epoch + 1, 0

    def _own(self, groups: list[Group]) -> list[Group]:
        rank, world_size = self._place or _current_place()
        if world_size > len(groups):
            raise ValueError(f"a batch of {len(groups)} groups cannot be shared by {world_size} ranks; make it larger")
        first, last = (len(groups) * r // world_size for r in (rank, rank + 1))
        return groups[first:last]

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch; the epoch that `load_state_dict` has just set is not rewound."""
        at_least("epoch", epoch, 0)
        if epoch != self.epoch:
            self.epoch, self._drawn, self._resume = epoch, 0, 0

    def state_dict(self) -> dict[str, Any]:
        """The epoch, and how many of its batches were drawn."""
        return {"epoch": self.epoch, "batch": self._drawn}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next iteration go on from where `state` was taken."""
        if state["batch"] > len(self):
            raise ValueError(
                f"the state is of batch {state['batch']} and an epoch has {len(self)}; load one of a sampler made alike"
            )
        self.epoch, self._drawn = state["epoch"], state["batch"]
        self._resume = self._drawn


def _integers(labels: Labels) -> np.ndarray:
    shape = np.shape(labels)
    if len(shape) != 1 or not shape[0]:
        raise ValueError(f"labels must be a list of at least one integer, got shape {tuple(shape)}")
    return label_array(labels)


def at_least(name: str, value: int, least: int) -> None:
    """Refuse what is no whole number, and one that is too small."""
    if not isinstance(value, int | np.integer) or isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}; it must be a whole number of at least {least}")
    if value < least:
        raise ValueError(f"{name} is {value}; it must be at least {least}")


def _current_place() -> tuple[int, int]:
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1
