"""Everything that a run must remember to go on exactly."""

from dataclasses import asdict, dataclass, field
from typing import Any

import torch

from tuplet.models import Embedder
from tuplet.sampling.base import ClassSampler
from tuplet.training.average import Average
from tuplet.training.gradients import random_state, set_random_state
from tuplet.training.objective import Objective
from tuplet.training.processes import Team
from tuplet.training.sampler import sampler_state


@dataclass
class Progress:
    """How far a run has come."""

    step: int = 0
    evaluated: int = 0
    """The last step that was measured."""
    best: float = -1.0
    best_step: int = 0
    since_best: int = 0
    """Evaluations since the best one."""
    seconds: float = 0.0
    losses: list[float] = field(default_factory=list)
    """Of the steps since the last line of the log, with the seconds that they took."""
    busy: float = 0.0
    log_length: int = 0


@dataclass
class State:
    """The moving parts of a run."""

    embedder: Embedder
    objective: Objective
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    average: Average | None
    sampler: ClassSampler
    progress: Progress = field(default_factory=Progress)

    @property
    def result(self) -> Embedder:
        """What is evaluated and kept: the averaged weights, if they are averaged."""
        return self.embedder if self.average is None else self.average.embedder

    def save(self, team: Team) -> dict[str, Any]:
        """All of it as tensors and plain data; called by every process, since each has random numbers of its own."""
        return {
            **{name: part.state_dict() for name, part in self._parts().items()},
            "sampler": sampler_state(self.sampler, self.progress.step),
            "random": team.of_all(random_state(team.device)),
            "progress": asdict(self.progress),
        }

    def restore(self, saved: dict[str, Any], team: Team) -> None:
        """Go back to what `save` gave. With another number of processes, random numbers start from the seed."""
        # How the optimiser works is not its state: one that is not fused could not be called off.
        for group in saved["optimizer"]["param_groups"]:
            group["fused"] = True
        for name, part in self._parts().items():
            part.load_state_dict(saved[name])
        self.sampler.load_state_dict(saved["sampler"])
        if len(saved["random"]) == team.size:
            set_random_state(saved["random"][team.rank], team.device)
        self.progress = Progress(**saved["progress"])

    def _parts(self) -> dict[str, Any]:
        parts = {"embedder": self.embedder, "objective": self.objective, "optimizer": self.optimizer}
        average = {} if self.average is None else {"average": self.average.embedder}
        return {**parts, "scaler": self.scaler, **average}
