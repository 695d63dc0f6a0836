"""Base class of the samplers that embed the training set once an epoch."""

from collections.abc import Iterator
from typing import Any, ClassVar, Unpack

import numpy as np
from torch import Tensor

from tuplet.sampling.base import ClassSampler, Embed, Group, Labels, SamplerOptions, embedded, from_rank_zero

#: What an epoch's embeddings decided, by name.
EpochPlan = dict[str, Tensor]


class EpochSampler(ClassSampler):
    """Draw the batches of an epoch from a plan, made from the embeddings of the training set as the epoch starts.

    A subclass defines `plan` and `draw_planned`. The plan of rank 0 holds for all processes. It is part of the state,
    since the model has changed when an epoch is resumed in its middle.
    """

    needs_embeddings: ClassVar[bool] = True

    def __init__(
        self, labels: Labels, embed: Embed, batch_size: int, seed: int = 0, **options: Unpack[SamplerOptions]
    ) -> None:
        super().__init__(labels, batch_size, seed, **options)
        self.embed = embed
        self.examples = np.concatenate(self.members)
        self.classes_of_examples = np.repeat(np.arange(len(self.members)), [len(own) for own in self.members])
        self._plan: EpochPlan = {}

    def plan(self, vectors: Tensor, rng: np.random.Generator) -> EpochPlan:
        """Return the plan of an epoch, given the vectors of `examples`, whose classes are `classes_of_examples`."""
        raise NotImplementedError(f"{type(self).__name__} must define plan(vectors, rng)")

    def draw_planned(self, plan: EpochPlan, rng: np.random.Generator) -> Iterator[list[Group]]:
        """Yield the batches of an epoch, each a list of groups."""
        raise NotImplementedError(f"{type(self).__name__} must define draw_planned(plan, rng)")

    def draw(self, rng: np.random.Generator) -> Iterator[list[Group]]:
        """Plan an epoch, or take the plan of a checkpoint, and yield its batches."""
        self._plan, self._resumed = self._resumed or {}, None
        if not self._plan:
            vectors = embedded(self.embed, self.examples.tolist())
            plan = self.plan(vectors, np.random.default_rng([self.seed, self.epoch, 1]))
            self._plan = from_rank_zero({name: value.cpu() for name, value in plan.items()})
        yield from self.draw_planned(self._plan, rng)

    def state_dict(self) -> dict[str, Any]:
        """Return the epoch, the number of its batches that were drawn, and its plan."""
        return {**super().state_dict(), "plan": dict(self._plan)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Make the next iteration continue at the position of `state`."""
        super().load_state_dict(state)
        # At the start of an epoch the plan is still to be made.
        self._plan = self._resumed = dict(state["plan"]) if state["batch"] else {}
