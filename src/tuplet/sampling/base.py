"""The base class of all samplers: classes from labels, epochs, ranks and resuming."""

from collections.abc import Callable, Iterator, Sequence
from inspect import signature
from itertools import islice
from typing import Any, ClassVar, Literal, Self, TypedDict, TypeVar, Unpack

import numpy as np
import torch
from torch.utils.data import Sampler

from tuplet.errors import at_least, first_of, refuse_unknown, warn
from tuplet.labels import label_array
from tuplet.sampling.class_tree import ClassTree

Labels = Sequence[int] | np.ndarray | torch.Tensor
Group = list[int]
#: Kinds of batches: a loss states the kind that it needs, a sampler the kind that it makes.
BatchKind = Literal["classes", "pairs", "triplets", "groups", "neighbors", "one_class"]
#: Function of a list of n indices that returns their embeddings, (n, d).
Embed = Callable[[list[int]], torch.Tensor]
T = TypeVar("T")


class SamplerOptions(TypedDict, total=False):
    """Options that every sampler takes beside its own sizes."""

    batches: int | None
    rank: int | None
    world_size: int | None


class ClassSampler(Sampler[list[int]]):
    """Base class of the samplers: epochs, ranks and resuming as described in `tuplet.sampling`.

    A subclass defines `draw` and these class attributes:

    Attributes:
        name: the name of the sampler in `tuplet.train` and on the command line.
        batch: the batches that it makes. "classes" and "pairs": groups of one class, all of the same size. "groups":
            groups of one class, smaller where a class is small. "triplets": an anchor, a positive and a negative each.
            "neighbors": like "classes", of classes that lie near each other, with a tree of all classes. "one_class":
            one class, then negatives of any class.
        group_size: the number of examples of a group; None if the caller chooses it.
        needs_embeddings: True if it chooses by the model's current embeddings. Such batches cannot be drawn ahead.
        needs_active: True if it wants to know which triplets of each batch had a loss: `report`.
        options: the names of its own options in `sampler_options` of `tuplet.train`.
    """

    name: ClassVar[str]
    batch: ClassVar[BatchKind] = "classes"
    group_size: ClassVar[int | None] = None
    needs_embeddings: ClassVar[bool] = False
    needs_active: ClassVar[bool] = False
    options: ClassVar[tuple[str, ...]] = ()

    def __init__(self, labels: Labels, batch_size: int, /, seed: int = 0, **options: Unpack[SamplerOptions]) -> None:
        name = type(self).__name__
        known = {*signature(type(self)).parameters, *SamplerOptions.__annotations__} - {"options"}
        refuse_unknown(name, options, known)
        batches, rank, world_size = options.get("batches"), options.get("rank"), options.get("world_size")
        if len(shape := np.shape(labels)) not in (1, 2) or 0 in shape:
            raise ValueError(
                f"labels must be a list, an array or a tensor with an integer for each example, got "
                f"{type(labels).__name__} of shape {tuple(shape)}; give those of a dataset as dataset.labels"
            )
        labels = label_array(labels)
        values, members = examples_by_class(labels)
        self.left_out = [value for value, own in zip(values, members, strict=True) if len(own) < 2]
        self.members = [own for own in members if len(own) >= 2]
        self.member_labels = [value for value, own in zip(values, members, strict=True) if len(own) >= 2]
        if not self.members:
            raise ValueError(
                f"{name} needs a class with two examples, but none of the {len(values)} classes has two; add examples"
            )
        if self.left_out:
            warn(f"{name} leaves out {len(self.left_out)} classes of one example: {first_of(self.left_out, 20)}")
        at_least(1, batches=1 if batches is None else batches)
        at_least(0, seed=seed)
        if (rank is None) != (world_size is None):
            raise ValueError(f"rank is {rank} and world_size is {world_size}; give both or neither")
        if rank is not None and world_size is not None:
            at_least(0, rank=rank)
            at_least(1, world_size=world_size)
            if rank >= world_size:
                raise ValueError(f"rank is {rank} and world_size is {world_size}; ranks run from 0 to {world_size - 1}")
        self.seed = seed
        self.epoch = 0
        self._batches = batches or max(1, len(labels) // batch_size)
        self._rank = None if rank is None or world_size is None else (rank, world_size)
        self._drawn = 0  # number of batches that the latest iteration has yielded
        self._skip = 0  # number of batches that the next iteration skips
        self._resumed: Any = None  # what a subclass has saved of the epoch that the next iteration continues

    @classmethod
    def of_size(cls, labels: Labels, batch_size: int, per_class: int, seed: int = 0, **inputs: Any) -> Self:
        """Make a sampler for batches of `batch_size` examples; `per_class` is ignored by samplers with a `group_size`.

        `inputs` are `embed`, if the sampler needs embeddings, and its own options.

        >>> from tuplet.sampling import TripletSampler
        >>> TripletSampler.of_size([0, 0, 0, 1, 1, 1], batch_size=6, per_class=4).triplets
        2
        """
        make: Callable[..., Self] = cls
        sizes = (batch_size // per_class, per_class) if cls.group_size is None else (batch_size // cls.group_size,)
        embed = (inputs.pop("embed"),) if cls.needs_embeddings else ()
        return make(labels, *embed, *sizes, seed=seed, **inputs)

    def draw(self, rng: np.random.Generator) -> Iterator[list[Group]]:
        """Yield batches without end, each a list of groups. A group stays together on one rank."""
        raise NotImplementedError(f"{type(self).__name__} must define draw(rng)")

    def __len__(self) -> int:
        return self._batches

    def __iter__(self) -> Iterator[list[int]]:
        epoch, start, self._skip = self.epoch, self._skip, 0
        self._drawn = start
        draws = self.draw(np.random.default_rng([self.seed, epoch]))
        for number, groups in enumerate(islice(draws, start, self._batches), start + 1):
            if self.epoch == epoch:  # and not set to another one in the meantime
                self._drawn = number
            yield [index for group in self._own(groups) for index in group]
        if self.epoch == epoch:
            self.epoch, self._drawn = epoch + 1, 0

    def _own(self, groups: list[Group]) -> list[Group]:
        rank, world_size = self._rank or _current_rank()
        if world_size > len(groups):
            raise ValueError(
                f"a batch of {len(groups)} groups cannot be shared by {world_size} ranks; use larger batches"
            )
        first, last = (len(groups) * r // world_size for r in (rank, rank + 1))
        return groups[first:last]

    @property
    def tree(self) -> ClassTree | None:
        """The tree of classes of the current epoch, for losses that use one; None for most samplers."""
        return None

    def report(self, active: torch.Tensor) -> None:
        """Receive the mask of the triplets of a batch with a loss above zero; training calls it if `needs_active`."""

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch. The epoch that `load_state_dict` has just set keeps its position."""
        at_least(0, epoch=epoch)
        if epoch != self.epoch:
            self.epoch, self._drawn, self._skip, self._resumed = epoch, 0, 0, None

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch and the number of its batches that were drawn."""
        return {"epoch": self.epoch, "batch": self._drawn}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next iteration continue at the position of `state`."""
        if state["batch"] > len(self):
            raise ValueError(
                f"the state is at batch {state['batch']}, but an epoch has {len(self)}; use the same arguments"
            )
        self.epoch, self._drawn, self._skip = state["epoch"], state["batch"], state["batch"]


def examples_by_class(labels: np.ndarray) -> tuple[list[int], list[np.ndarray]]:
    """Return the labels that occur, in order, and the examples of each.

    Of several labels of an example, (N, L), −1 is none; it belongs to all its classes.

    >>> examples_by_class(np.array([[7, 3], [3, -1]]))
    ([3, 7], [array([0, 1]), array([0])])
    """
    given = labels >= 0 if labels.ndim == 2 else np.ones(len(labels), dtype=bool)
    values, classes = np.unique(labels[given], return_inverse=True)
    # In the order of classes, then of examples; an example that has a label twice counts once.
    places = np.sort(classes * len(labels) + given.nonzero()[0])
    places = places[np.diff(places, prepend=-1) > 0]
    members = np.split(places % len(labels), np.bincount(places // len(labels)).cumsum())[:-1]
    return values.tolist(), members


def embedded(embed: Embed, indices: list[int]) -> torch.Tensor:
    """Return the embeddings of these examples, after a check of their shape and values."""
    vectors = torch.as_tensor(embed(indices)).detach()
    if vectors.ndim != 2 or len(vectors) != len(indices):
        raise ValueError(f"embed returned shape {tuple(vectors.shape)} for {len(indices)} indices; it must be (n, d)")
    if not bool(vectors.isfinite().all()):
        raise ValueError("embed returned vectors that are not finite; the model has diverged")
    return vectors


def _current_rank() -> tuple[int, int]:
    distributed = torch.distributed
    if distributed.is_available() and distributed.is_initialized():
        return distributed.get_rank(), distributed.get_world_size()
    return 0, 1


def from_rank_zero(decided: T) -> T:
    """Return what rank 0 decided, since embeddings may differ in their last bits from one GPU to another."""
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        torch.distributed.broadcast_object_list(box := [decided])
        return box[0]
    return decided
