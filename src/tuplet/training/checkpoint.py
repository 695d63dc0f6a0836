"""The state of a run, which a checkpoint holds for exact resume, and the identity of a run."""

import hashlib
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from tuplet.data import Dataset
from tuplet.errors import OptionError, opt
from tuplet.losses import RowLoss
from tuplet.models import Embedder
from tuplet.sampling.base import ClassSampler
from tuplet.training.distributed import World
from tuplet.training.ema import ExponentialMovingAverage
from tuplet.training.objective import Objective
from tuplet.training.optimizer import sharded_parameters
from tuplet.training.settings import Settings, describe_options

#: Options that a resumed run may change: none of them changes the weights after a given step.
_MAY_CHANGE = {
    *("device", "cache_folder", "cache_on_device", "log_every", "checkpoint_every", "checkpoint_minutes"),
    *("evaluate_every", "patience", "final", "steps", "stream", "cache_memory", "cache_disk"),
}
#: Options that may differ between the processes of a run.
_OF_A_PROCESS = {"device", "cache_folder", "cache_on_device"}
#: For each divided parameter of the objective, by name: the parameter and its state in the optimizer, of all processes.
Shards: TypeAlias = dict[str, dict[str, Tensor]]


@dataclass
class Progress:
    """The progress of a run."""

    step: int = 0
    last_evaluation: int = -1
    """The step of the last evaluation; the start is step 0."""
    best_score: float = -1.0
    """The metric `select_by` of the best embedder."""
    best_step: int = -1
    best_average: float | None = None
    """The share of the last weights in the best embedder, if it is an average with the start."""
    averaged_step: int = 0
    """The step whose averages with the start have been measured."""
    since_best: int = 0
    """Number of evaluations since the best one."""
    seconds: float = 0.0
    losses: list[float] = field(default_factory=list)
    """Losses of the steps since the last `train` event."""
    busy_seconds: float = 0.0
    """Time that these steps took."""
    log_length: int = 0
    """Length of events.jsonl in bytes."""

    def set_best(self, score: float, step: int, average: float | None = None) -> None:
        """Note the best embedder: its score, its step, and its share of trained weights if it is an average."""
        self.best_score, self.best_step, self.best_average = score, step, average

    @property
    def candidate(self) -> str:
        """The name of the best embedder until it replaces the former one."""
        return f"{self.best_step}" if self.best_average is None else f"{self.best_step}_averaged"


@dataclass
class TrainState:
    """The parts of a run that change from step to step."""

    embedder: Embedder
    objective: Objective
    optimizer: torch.optim.Optimizer
    scaler: torch.amp.GradScaler
    ema: ExponentialMovingAverage | None
    sampler: ClassSampler
    progress: Progress = field(default_factory=Progress)

    @property
    def result(self) -> Embedder:
        """The embedder to evaluate and save: the averaged one if `ema` is on."""
        return self.embedder if self.ema is None else self.ema.embedder

    def save(self, world: World) -> dict[str, Any]:
        """Return the state as tensors and plain data. All processes must call it: each has its own random numbers.

        Parameters that are divided among the processes are collected in the main one, so that a checkpoint does not
        depend on the number of processes.
        """
        # The sampler may have drawn ahead. The next step decides where it continues.
        epoch, batch = divmod(self.progress.step, len(self.sampler))
        saved = {
            **{name: part.state_dict() for name, part in self._parts().items()},
            "sampler": {**self.sampler.state_dict(), "epoch": epoch, "batch": batch},
            "rng": world.gather_objects(rng_state(world.device)),
            "progress": asdict(self.progress),
        }
        shards: Shards = {}
        for name, number in self._sharded().items():
            tensors = {"parameter": saved["objective"].pop(name), **saved["optimizer"]["state"].pop(number, {})}
            shards[name] = {k: world.collect_rows(v) if v.ndim else v for k, v in tensors.items()}
        return {**saved, "shards": shards}

    def restore(self, saved: dict[str, Any], shards: Shards, world: World) -> None:
        """Load what `save` returned. If the number of processes differs, random numbers start from the seed.

        The main process has `shards`, taken out of `saved` so that not every process gets all of them.
        """
        # `fused` is no part of the optimizer's state: only a fused optimizer can skip a step on the device.
        for group in saved["optimizer"]["param_groups"]:
            group["fused"] = True
        parameters = sharded_parameters(self.objective)
        # Only numbers, such as a count of steps, are the same in all processes.
        layout = {name: {k: None if v.ndim else v for k, v in each.items()} for name, each in shards.items()}
        for name, each in world.broadcast(layout).items():
            whole, own = shards.get(name, {}), parameters[name]
            tensors = {k: world.divide_rows(whole.get(k), own) if v is None else v for k, v in each.items()}
            saved["objective"][name] = tensors.pop("parameter")
            saved["optimizer"]["state"][self._sharded()[name]] = tensors
        for name, part in self._parts().items():
            part.load_state_dict(saved[name])
        self.sampler.load_state_dict(saved["sampler"])
        if len(saved["rng"]) == world.size:
            set_rng_state(saved["rng"][world.rank], world.device)
        self.progress = Progress(**saved["progress"])

    def _sharded(self) -> dict[str, int]:
        """Return the number in the optimizer of each parameter of which every process holds a share, by its name."""
        numbers = {p: n for n, p in enumerate(p for group in self.optimizer.param_groups for p in group["params"])}
        return {name: numbers[p] for name, p in sharded_parameters(self.objective).items()}

    def _parts(self) -> dict[str, Any]:
        parts = {"embedder": self.embedder, "objective": self.objective, "optimizer": self.optimizer}
        ema = {} if self.ema is None else {"ema": self.ema.embedder}
        return {**parts, "scaler": self.scaler, **ema}


def rng_state(device: torch.device) -> list[Tensor]:
    """Return the state of the random number generators that a network on this device uses."""
    return [torch.get_rng_state()] + ([torch.cuda.get_rng_state(device)] if device.type == "cuda" else [])


def set_rng_state(state: list[Tensor], device: torch.device) -> None:
    """Set the random number generators to what `rng_state` returned."""
    torch.set_rng_state(state[0].cpu())
    if device.type == "cuda" and len(state) > 1:
        torch.cuda.set_rng_state(state[1].cpu(), device)


def identity_of(settings: Settings, data: Dataset, embedder: Embedder) -> dict[str, Any]:
    """Return plain data that differ between two runs with other settings, data or shapes and types of weights."""
    shapes = [(name, tuple(value.shape), value.dtype) for name, value in embedder.state_dict().items()]
    return {"settings": plain_settings(settings), "data": _data_identity(data), "model": _hash(repr(shapes).encode())}


def _data_identity(data: Dataset) -> dict[str, Any]:
    """Return the sizes of a dataset and hashes of its labels, its boxes and, for data from memory, of some examples."""
    labels = data.labels.numpy().tobytes() + repr((data.class_names, data.splits)).encode()
    images = data.images if data.source is None else None
    values = images if data.features is None else data.features
    sample = b"" if data.boxes is None else data.boxes.numpy().tobytes()
    if isinstance(values, Tensor):
        sample += values[:: max(1, len(values) // 256)].contiguous().cpu().numpy().tobytes()
    return {"examples": len(data), "classes": len(data.classes), "labels": _hash(labels), "contents": _hash(sample)}


def _hash(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()[:12]


def check_same_run(saved: dict[str, Any], current: dict[str, Any], folder: Path) -> None:
    """Raise an error if a folder holds a run with other settings, on other data or of another model.

    `steps` may change unless the schedule depends on it.
    """
    remedy = f"give another folder, or {opt('resume', False)} to start again"
    may_change = _MAY_CHANGE - {"steps"} if current["settings"]["schedule"] == "cosine" else _MAY_CHANGE
    for kind, name, before, now in _differences(saved, current, may_change):
        why = ", on which its cosine schedule depends" if name == "steps" else ""
        message = {
            "data": f"a run on other data ({name} {before}, now {now})",
            "settings": f"a run with {opt(name, before)}{why}, not {opt(name, now)}",
            "model": "a run of another model, whose weights have other shapes",
        }
        raise OptionError(f"{folder} holds {message[kind]}", remedy)


def check_same_processes(identity: dict[str, Any], world: World) -> None:
    """Raise an error if the processes of a run differ in settings, data or model: they would wait for each other."""
    main, *others = world.gather_objects(identity)
    for rank, other in enumerate(others, 1):
        for kind, name, own, mains in _differences(other, main, _OF_A_PROCESS):
            message = {
                "data": f"the data of process {rank} differ from those of process 0 in their {name}",
                "settings": f"{opt(name, own)} in process {rank} and {opt(name, mains)} in process 0",
                "model": f"the weights of process {rank} have other names, shapes or types than in process 0",
            }
            raise OptionError(message[kind], "start all processes with the same command on the same data")


def _differences(one: dict[str, Any], other: dict[str, Any], but: set[str]) -> Iterator[tuple[str, str, Any, Any]]:
    """Yield what differs between two identities, but for some options: its kind, its name and both values.

    Data come first, since some settings follow from them. An option that `one` does not know was added later, so that
    run had its default.
    """
    defaults = {option.name: option.default for option in describe_options()}
    for kind, known in (("data", one["data"]), ("settings", defaults | one["settings"])):
        for name, value in other[kind].items():
            if known.get(name) != value and name not in but:
                yield kind, name, known.get(name), value
    if one["model"] != other["model"]:
        yield "model", "model", one["model"], other["model"]


def plain_settings(settings: Settings) -> dict[str, Any]:
    """Return the settings as data that JSON can hold; models and losses become descriptions.

    >>> plain_settings(Settings(augment={"area": (0.2, 1.0)}))["augment"]
    {'area': [0.2, 1.0]}
    """
    return {each.name: _plain(getattr(settings, each.name)) for each in fields(settings)}


def _plain(value: Any) -> Any:
    if isinstance(value, Embedder):
        return f"{value.config.architecture} with {sum(p.numel() for p in value.parameters()):,} parameters"
    if isinstance(value, RowLoss):
        return describe_module(value)
    if callable(value):
        return _without_address(repr(value))
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    return value


def _without_address(text: str) -> str:
    """Leave out the address of a function, which differs between processes."""
    return re.sub(" at 0x[0-9a-f]+", "", text)


def describe_module(module: nn.Module) -> str:
    """Describe a loss or a mining rule by its class, its attributes and its parameters.

    >>> from tuplet import losses
    >>> describe_module(losses.MultiSimilarityLoss())
    'MultiSimilarityLoss(alpha=2.0, beta=50.0, threshold=0.5, mining=ValidTriplet(epsilon=0.1))'
    """
    public = {k: v for k, v in vars(module).items() if not k.startswith("_") and k != "training" and v is not None}
    parts = [_without_address(f"{k}={v!r}") for k, v in public.items()]
    for name, p in module.named_parameters(recurse=False):
        parts.append(f"{name} learned from {p.item():g}" if p.numel() == 1 else f"{name} {tuple(p.shape)} learned")
    parts += [f"{k}={describe_module(child)}" for k, child in module.named_children()]
    return f"{type(module).__name__}({', '.join(parts)})"
