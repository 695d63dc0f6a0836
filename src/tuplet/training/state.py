"""Everything that a run must remember to go on exactly, and when it may."""

import hashlib
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import torch

from tuplet.models import Embedder
from tuplet.sampling.base import ClassSampler
from tuplet.training.average import Average
from tuplet.training.gradients import random_state, set_random_state
from tuplet.training.objective import Objective
from tuplet.training.processes import Team
from tuplet.training.sampler import sampler_state
from tuplet.training.settings import describe_options

#: Options that another call may change: none of them moves the weights.
FREE = {
    *("device", "cache_folder", "cache_on_device", "log_every", "checkpoint_every", "evaluate_every", "patience"),
    "steps",
}


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


def shapes(embedder: Embedder) -> str:
    """A hash of the names and shapes of all weights: what must agree for one checkpoint to fit another model."""
    listed = [(name, tuple(value.shape)) for name, value in embedder.state_dict().items()]
    return hashlib.sha256(repr(listed).encode()).hexdigest()[:12]


def refuse_another_run(then: dict[str, Any], now: dict[str, Any], folder: Path) -> None:
    """One sentence where a folder holds a run of other settings, on other data or of another model.

    The number of steps may change unless the schedule depends on it. An option that the run does not know, since a
    later version has it, was at its default then.
    """
    remedy = "give another folder, or resume=False to begin again"
    defaults = {option.name: option.default for option in describe_options()}
    free = FREE - {"steps"} if now["settings"]["schedule"] == "cosine" else FREE
    for name, value in now["settings"].items():
        before = then["settings"].get(name, defaults[name])
        if before != value and name not in free:
            why = ", on which its cosine schedule depends" if name == "steps" else ""
            raise ValueError(f"{folder} holds a run with {name}={before!r}{why}, not {name}={value!r}; {remedy}")
    for name, value in now["data"].items():
        if then["data"].get(name) != value:
            raise ValueError(
                f"{folder} holds a run on other data ({name} {then['data'].get(name)}, here {value}); {remedy}"
            )
    if then["model"] != now["model"]:
        raise ValueError(f"{folder} holds a run of another model, whose weights have other shapes; {remedy}")
