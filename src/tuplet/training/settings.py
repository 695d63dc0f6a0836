"""Every option of a training run, with its type, its meaning and its limits."""

import difflib
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, Union, get_args, get_origin

from tuplet.data.decode import Fit
from tuplet.losses import RowLoss
from tuplet.models import Embedder
from tuplet.models.embedder import Pooling


def option(default: Any, about: str) -> Any:
    """A field of the settings with its meaning in a sentence."""
    if isinstance(default, dict):
        return field(default_factory=lambda: dict(default), metadata={"about": about})
    return field(default=default, metadata={"about": about})


@dataclass(frozen=True)
class Settings:
    """How to train. `tuplet.train` takes each of these by name; `describe()` lists them.

    >>> Settings(batch_size=128, per_class=2, optimizer="sgd").rate
    0.0001
    >>> Settings(per_clas=2)
    Traceback (most recent call last):
    TypeError: ...unexpected keyword argument 'per_clas'...
    """

    # The loss
    loss: str | RowLoss = option("multi_similarity", "a loss by name (see training.LOSSES), or a loss object")
    loss_options: Mapping[str, Any] = option({}, "the hyper-parameters of a named loss; mining by name too")
    # The network
    model: str | Embedder = option("resnet50", "a backbone by name, or an embedder from models.create")
    weights: str | None = option(None, "where a named backbone starts: a file or a known name; None is random")
    model_options: Mapping[str, Any] = option({}, "the backbone's own options, such as hidden=[512] of an mlp")
    dim: int | None = option(512, "the length of a level's embedding; None is the backbone's features")
    levels: str = option("H", "which of the backbone's levels are embedded, such as LMH; each has its own loss")
    pooling: Pooling = option("mean", "how a map becomes a vector")
    normalize: bool | Literal["eval"] | None = option(
        None, "unit length: always, never, or outside training (eval); None is what the loss is defined on"
    )
    frozen_batchnorm: bool | Literal["statistics"] = option(
        False, "keep BatchNorm as it starts: all of it, or its running statistics alone"
    )
    # Pictures
    size: int | None = option(None, "the side of a crop in pixels; None is what the weights were trained with")
    resize: int | None = option(None, "the side that pictures are resized to before the crop; None likewise")
    fit: Fit | None = option(None, "which side `resize` means; None likewise")
    augment: Mapping[str, Any] = option({}, "other options of data.Augment, such as mirror or area")
    stored_size: int | None = option(None, "the side of the decoded pictures that are kept; None is `resize`")
    unreadable: Literal["stop", "skip"] = option("stop", "what to do about a picture that cannot be read")
    cache_folder: str | None = option(None, "where to keep decoded pictures for the next run; None is memory")
    cache_on_device: bool | None = option(None, "keep all examples on the device; None is where they fill half of it")
    # Batches
    sampler: Literal["class_balanced", "npair", "triplet", "ngroup", "hard_class"] | None = option(
        None, "how examples meet in a batch; None is what the loss needs"
    )
    batch_size: int = option(120, "examples of a batch, all processes together")
    per_class: int = option(4, "examples of a class in a batch, for class_balanced and ngroup")
    candidates: int = option(200, "how many classes hard_class chooses from")
    piece_size: int | None = option(None, "pass the network in pieces of this size, for batches that do not fit")
    memory: int = option(0, "how many past embeddings the batch is compared with beside itself")
    memory_start: int = option(0, "the step at which the memory is first used")
    # The optimiser
    optimizer: Literal["sgd", "adam", "adamw"] = option("adamw", "the rule by which weights move")
    rate: float = option(1e-4, "the learning rate of the backbone")
    head_rate: float = option(10.0, "times the rate: the new layers' rate")
    loss_rate: float = option(100.0, "times the rate: the rate of what the loss learns, proxies and β")
    momentum: float = option(0.9, "of sgd")
    weight_decay: float = option(0.0, "of matrices; biases, scales and the loss's parameters do not decay")
    schedule: Literal["constant", "cosine", "step"] = option("constant", "how the rate falls")
    warmup: int = option(0, "steps over which the rate rises from zero")
    decay_every: int | None = option(None, "steps after which `step` lowers the rate, again and again")
    decay_factor: float = option(0.1, "what `step` multiplies the rate by")
    clip: float | None = option(None, "the largest length of the gradient of all parameters together")
    average: float = option(0.0, "the decay of the exponential average of the weights; 0 is none")
    # The run
    steps: int = option(1000, "how many batches")
    seed: int = option(0, "of everything that is drawn")
    device: str | None = option(None, "cpu, cuda, cuda:1 …; None is a GPU where there is one")
    precision: Literal["float32", "bfloat16", "float16"] = option("float32", "the type that the network computes in")
    compile: bool = option(False, "compile the network with torch.compile")
    validation: float = option(0.0, "the share of the training classes that chooses the best; 0 is the test split")
    evaluate_every: int = option(100, "steps between evaluations; the last step is always one")
    patience: int | None = option(None, "stop after this many evaluations without a better one")
    checkpoint_every: int | None = option(None, "steps between checkpoints; None is `evaluate_every`")
    log_every: int = option(10, "steps between lines of events.jsonl")

    def __post_init__(self) -> None:
        hints = typing.get_type_hints(type(self))
        for each in fields(self):
            value = getattr(self, each.name)
            if not _fits(value, hints[each.name]):
                raise TypeError(f"{each.name} is {value!r}; it must be {_named(hints[each.name])}: {_about(each)}")
            if isinstance(value, float) and not value == value:
                raise ValueError(f"{each.name} is not a number; give one")
        for name, least in _LEAST.items():
            value = getattr(self, name)
            if value is not None and value < least:
                raise ValueError(f"{name} is {value}; it must be at least {least}")
        for name in ("rate", "head_rate", "loss_rate", "decay_factor", "clip"):
            value = getattr(self, name)
            if value is not None and value <= 0:
                raise ValueError(f"{name} is {value}; it must be above 0")
        for name in ("momentum", "average", "validation"):
            value = getattr(self, name)
            if not 0 <= value < 1:
                raise ValueError(f"{name} is {value}; it must be at least 0 and below 1")
        if self.schedule == "step" and self.decay_every is None:
            raise ValueError("schedule='step' needs decay_every, the steps after which the rate falls")
        if isinstance(self.loss, RowLoss) and self.loss_options:
            raise ValueError("loss_options belong to a loss by name; set them in the loss object itself")


_LEAST = {
    "size": 1, "resize": 1, "stored_size": 1, "dim": 1, "batch_size": 2, "per_class": 1, "candidates": 2,
    "piece_size": 1, "memory": 0, "memory_start": 0, "weight_decay": 0, "warmup": 0, "decay_every": 1, "steps": 1,
    "seed": 0, "evaluate_every": 1, "patience": 1, "checkpoint_every": 1, "log_every": 1,
}  # fmt: skip


def check_names(options: Mapping[str, Any]) -> None:
    """Refuse an option that does not exist, with the nearest one that does.

    >>> check_names({"batchsize": 3})
    Traceback (most recent call last):
    TypeError: there is no option 'batchsize'; did you mean 'batch_size'?
    """
    names = [each.name for each in fields(Settings)]
    for name in options:
        if name not in names:
            raise TypeError(f"there is no option {name!r}; {nearest(name, names)}")


def nearest(name: str, names: typing.Iterable[str]) -> str:
    """The end of a sentence about a name that does not exist.

    >>> nearest("ranked", ["ranked_list", "npair"])
    "did you mean 'ranked_list'?"
    """
    names = sorted(names)
    close = difflib.get_close_matches(name, names, 1)
    return f"did you mean {close[0]!r}?" if close else f"choose one of {', '.join(names)}"


def describe() -> list[tuple[str, str, Any, str]]:
    """Name, type, default and meaning of every option, in order."""
    hints = typing.get_type_hints(Settings)
    start = Settings()
    return [(each.name, _named(hints[each.name]), getattr(start, each.name), _about(each)) for each in fields(Settings)]


def _about(each: Any) -> str:
    return str(each.metadata["about"])


def _fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a type; an integer is a float too, a bool is no integer."""
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return any(_fits(value, part) for part in get_args(hint))
    if origin is Literal:
        return any(value == choice and type(value) is type(choice) for choice in get_args(hint))
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if hint is int:
        return isinstance(value, int) and not isinstance(value, bool)
    return isinstance(value, origin or hint)


def _named(hint: Any) -> str:
    """A type as people read it.

    >>> _named(int | None)
    'int or None'
    """
    origin = get_origin(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(_named(part) for part in get_args(hint))
    if origin is Literal:
        return " or ".join(map(repr, get_args(hint)))
    if hint is type(None):
        return "None"
    return "dict" if origin is not None else hint.__name__
