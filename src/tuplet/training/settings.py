"""Every option of a training run, with its type, its meaning and its limits."""

import difflib
import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

from torch import nn

from tuplet.data.decode import Fit
from tuplet.losses import RowLoss
from tuplet.models import Embedder
from tuplet.models.embedder import Pooling

SamplerName: TypeAlias = Literal["class_balanced", "npair", "triplet", "ngroup", "hard_class"]


@dataclass(frozen=True)
class Settings:
    """How to train. `tuplet.train` takes each of these by name; `describe_options` lists them.

    >>> Settings(batch_size=128, optimizer="sgd").rate
    0.0001
    >>> Settings(optimizer="lion")
    Traceback (most recent call last):
    TypeError: optimizer is 'lion'; it must be 'sgd' or 'adam' or 'adamw': the rule by which weights move
    """

    # The loss
    loss: Annotated[str | RowLoss, "a loss by name (`training.LOSSES`), or a loss object"] = "multi_similarity"
    loss_options: Annotated[Mapping[str, Any], "the hyper-parameters of a named loss; mining by name too"] = field(
        default_factory=dict
    )
    # The network
    model: Annotated[str | Embedder, "a backbone by name, or an embedder from `models.create`"] = "resnet50"
    weights: Annotated[str | None, "where a named backbone starts: a file or a known name; None is random"] = None
    model_options: Annotated[Mapping[str, Any], "the backbone's own options, such as `hidden` of an mlp"] = field(
        default_factory=dict
    )
    dim: Annotated[int | None, "the length of a level's embedding; None is the backbone's features"] = 512
    levels: Annotated[str, "which of the backbone's levels are embedded, such as LMH; each has its own loss"] = "H"
    pooling: Annotated[Pooling, "how a map becomes a vector"] = "mean"
    layer_norm: Annotated[bool, "bring pooled features to mean 0 and deviation 1 before the new layer"] = False
    normalize: Annotated[
        bool | Literal["eval"] | None,
        "unit length always, never, or outside training only; None is what the loss is defined on",
    ] = None
    frozen_batchnorm: Annotated[
        bool | Literal["statistics"] | None,
        "keep BatchNorm as it starts, all of it or its running statistics alone; None does where weights are given",
    ] = None
    frozen_to: Annotated[
        Literal["L", "M"] | None, "keep the layers up to the end of this level as they start; None trains them all"
    ] = None
    # Pictures
    size: Annotated[int | None, "the side of a crop in pixels; None is what the weights were trained with"] = None
    resize: Annotated[int | None, "the side that pictures are resized to before the crop; None likewise"] = None
    fit: Annotated[Fit | None, "which side `resize` means; None likewise"] = None
    augment: Annotated[Mapping[str, Any], "other options of `data.Augment`, such as mirror or area"] = field(
        default_factory=dict
    )
    stored_size: Annotated[int | None, "the side of the decoded pictures that are kept; None is `resize`"] = None
    unreadable: Annotated[Literal["stop", "skip"], "what to do about a picture that cannot be read"] = "stop"
    cache_folder: Annotated[str | None, "where to keep decoded pictures for the next run; None is memory"] = None
    cache_on_device: Annotated[
        bool | None, "keep all examples on the device; None does where half of its memory holds them"
    ] = None
    # Batches
    sampler: Annotated[
        SamplerName | None,
        "how examples meet in a batch; None is what the loss needs",
    ] = None
    batch_size: Annotated[
        int | None, "examples of a batch, all processes together; None is 120, or fewer where classes are few"
    ] = None
    per_class: Annotated[int, "examples of a class in a batch, of class_balanced and ngroup"] = 4
    candidates: Annotated[int, "how many classes hard_class chooses from"] = 200
    piece_size: Annotated[int | None, "how many examples of a process pass the network at once; None is all"] = None
    memory: Annotated[int, "how many past embeddings each batch is compared with beside itself"] = 0
    memory_start: Annotated[int, "the step at which the memory is first used"] = 0
    # The optimiser
    optimizer: Annotated[Literal["sgd", "adam", "adamw"], "the rule by which weights move"] = "adamw"
    rate: Annotated[float, "the learning rate of the backbone"] = 1e-4
    head_rate: Annotated[float, "times the rate: the new layers' rate"] = 1.0
    loss_rate: Annotated[float, "times the rate: the rate of what the loss learns, proxies and β"] = 100.0
    momentum: Annotated[float, "of sgd"] = 0.9
    weight_decay: Annotated[float, "of matrices; biases, scales and the loss's parameters do not decay"] = 0.0
    schedule: Annotated[Literal["constant", "cosine", "step"], "how the rate falls"] = "cosine"
    warmup: Annotated[int, "steps over which the rate rises from zero"] = 0
    head_steps: Annotated[int, "first steps in which the backbone stays: only new layers and the loss learn"] = 0
    decay_every: Annotated[int | None, "steps after which `step` lowers the rate, again and again"] = None
    decay_factor: Annotated[float, "what `step` multiplies the rate by"] = 0.1
    clip: Annotated[float | None, "the largest length of the gradient of all parameters together"] = None
    average: Annotated[float, "the decay of the exponential average of the weights; 0 is none"] = 0.0
    # The run
    steps: Annotated[int, "how many batches"] = 1000
    seed: Annotated[int, "of everything that is drawn"] = 0
    device: Annotated[str | None, "cpu, cuda, cuda:1 …; None is a GPU where there is one"] = None
    precision: Annotated[Literal["float32", "bfloat16", "float16"], "the type that the network computes in"] = "float32"
    compile: Annotated[bool, "compile the backbone with torch.compile: once a process"] = False
    validation: Annotated[float, "the share of the training classes that chooses the best; 0 is the test split"] = 0.0
    validation_from: Annotated[
        float | None, "the share of the classes, in their order, after which those for validation come; None draws them"
    ] = None
    test_on: Annotated[
        Literal["test", "validation"],
        "what the end measures; validation leaves the test split unseen",
    ] = "test"
    mirrored: Annotated[bool, "measure Recall@K also with vectors averaged with those of the mirror images"] = False
    evaluate_every: Annotated[int, "steps between evaluations; the last step always is one"] = 100
    patience: Annotated[int | None, "stop after this many evaluations without a better one"] = None
    checkpoint_every: Annotated[int, "steps between checkpoints, from which a killed run goes on"] = 100
    log_every: Annotated[int, "steps between lines of events.jsonl"] = 10

    def __post_init__(self) -> None:
        for option in describe_options():
            value = getattr(self, option.name)
            if not fits(value, option.hint):
                raise TypeError(f"{option.name} is {shown(value)}; it must be {option.kind}: {option.about}")
        for names, allowed, words in _LIMITS:
            for name in names.split():
                value = getattr(self, name)
                if value is not None and not allowed(value):
                    raise ValueError(f"{name} is {value}; it must be {words}")
        if self.schedule == "step" and self.decay_every is None:
            raise ValueError("schedule='step' needs decay_every=, the number of steps after which the rate falls")
        for name, owner, needed in _BELONGS:
            value, now = getattr(self, name), getattr(self, owner)
            if value != getattr(type(self), name) and now != needed:
                raise ValueError(f"{name}={value} needs {owner}={needed!r}, and the {owner} is {now!r}")
        if self.memory_start and not self.memory:
            raise ValueError(f"memory_start={self.memory_start} needs memory=, the number of embeddings to remember")
        if self.test_on == "validation" and not self.validation:
            raise ValueError("test_on='validation' needs validation=, the share of the training classes to measure on")
        if self.validation_from is not None and not self.validation:
            raise ValueError(f"validation_from={self.validation_from} needs validation=, the share of the classes")
        if isinstance(self.loss, RowLoss) and self.loss_options:
            raise ValueError("loss_options belong to a loss by name; a loss object has its own already")


_COUNTS = "size resize stored_size dim per_class piece_size decay_every steps"
# NaN compares with nothing, so it is within no limits.
_LIMITS: tuple[tuple[str, Callable[[float], bool], str], ...] = (
    (f"{_COUNTS} evaluate_every checkpoint_every log_every patience", lambda x: x >= 1, "at least 1"),
    ("batch_size candidates", lambda x: x >= 2, "at least 2"),
    ("memory memory_start warmup head_steps weight_decay", lambda x: 0 <= x < math.inf, "at least 0"),
    ("seed", lambda x: 0 <= x < 2**63, "at least 0 and below 2⁶³"),
    ("rate head_rate loss_rate decay_factor clip", lambda x: 0 < x < math.inf, "above 0"),
    ("momentum average validation validation_from", lambda x: 0 <= x < 1, "at least 0 and below 1"),
)

#: Options that only one value of another option reads: elsewhere they would do nothing, and nobody would know.
_BELONGS = (
    ("decay_every", "schedule", "step"),
    ("decay_factor", "schedule", "step"),
    ("momentum", "optimizer", "sgd"),
    ("candidates", "sampler", "hard_class"),
)

#: What other libraries call them.
_ELSEWHERE = {"lr": "rate", "learning_rate": "rate", "epochs": "steps", "embedding_size": "dim", "ema": "average"}


@dataclass(frozen=True)
class Option:
    """An option of the settings, for people to read about."""

    name: str
    hint: Any
    default: Any
    about: str

    @property
    def kind(self) -> str:
        """Its type in words.

        >>> next(option.kind for option in describe_options() if option.name == "clip")
        'float or None'
        """
        return _in_words(self.hint)


@cache
def describe_options() -> tuple[Option, ...]:
    """Every option in order: what the command line offers and the documentation lists.

    >>> describe_options()[0].name
    'loss'
    """
    hints = typing.get_type_hints(Settings, include_extras=True)
    return tuple(
        Option(
            each.name,
            hints[each.name].__origin__,
            {} if each.default is MISSING else each.default,
            hints[each.name].__metadata__[0],
        )
        for each in fields(Settings)
    )


def check_names(options: Iterable[str]) -> None:
    """Refuse an option that does not exist, with the nearest one that does.

    >>> check_names(["batchsize"])
    Traceback (most recent call last):
    TypeError: there is no option 'batchsize'; did you mean 'batch_size'?
    """
    known = [option.name for option in describe_options()]
    for name in options:
        if name not in known:
            raise TypeError(f"there is no option {name!r}; {nearest(_ELSEWHERE.get(name, name), known)}")


def shown(value: Any) -> str:
    """A value in a sentence; a network, whose own words take many lines, by its type.

    >>> shown("raw"), shown(nn.ReLU())
    ("'raw'", 'a ReLU')
    """
    return f"a {type(value).__name__}" if isinstance(value, nn.Module) else repr(value)


def nearest(name: str, names: Iterable[str]) -> str:
    """The end of a sentence about a name that does not exist.

    >>> nearest("ranked", ["ranked_list", "npair"])
    "did you mean 'ranked_list'?"
    """
    names = sorted(names)
    close = difflib.get_close_matches(str(name), names, 1)
    return f"did you mean {close[0]!r}?" if close else f"choose one of {', '.join(names)}"


def fits(value: Any, hint: Any) -> bool:
    """Whether a value is of a type; an integer is a float too, a bool is no integer.

    >>> fits(3, float), fits(True, int), fits("0.5", float | None)
    (True, False, False)
    """
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return any(fits(value, part) for part in parts)
    if origin is Literal:
        return isinstance(value, str) and value in parts
    if hint in (int, float):
        return isinstance(value, int if hint is int else int | float) and not isinstance(value, bool)
    return isinstance(value, origin or hint)


def _in_words(hint: Any) -> str:
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return " or ".join(_in_words(part) for part in parts)
    if origin is Literal:
        return " or ".join(map(repr, parts))
    if hint is type(None):
        return "None"
    return "dict" if origin is not None else str(hint.__name__)
