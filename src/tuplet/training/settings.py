"""Every option of a training run: its type, default, meaning, group and limits."""

# ruff: noqa: RUF009 - `_option` returns a dataclass field

import math
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from functools import cache
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, Union, get_args, get_origin

from torch import nn

from tuplet.errors import OptionError, OptionTypeError, did_you_mean, opt
from tuplet.images.crop import ResizeMode
from tuplet.losses import RowLoss
from tuplet.models import Embedder
from tuplet.models.config import Pooling
from tuplet.models.lora import LoraLayers
from tuplet.sampling import SAMPLERS, HardClassSampler

if TYPE_CHECKING:
    SamplerName: TypeAlias = str
else:
    SamplerName = Literal[tuple(SAMPLERS)]


def _option(group: str, default: Any, about: str) -> Any:
    """Return a field of the settings; a dictionary as default is copied for each object."""
    metadata = {"group": group, "about": about}
    if isinstance(default, dict):
        return field(default_factory=default.copy, metadata=metadata)
    return field(default=default, metadata=metadata)


@dataclass(frozen=True)
class Settings:
    """The options of a training run. `tuplet.train` takes each by name; `describe_options` lists them.

    >>> Settings(batch_size=128, optimizer="sgd").lr
    0.0001
    >>> Settings(optimizer="lion")
    Traceback (most recent call last):
    tuplet.errors.OptionTypeError: optimizer is 'lion'; it must be 'sgd' or 'adam' or 'adamw': ...
    """

    size: int | None = _option("data", None, "side of the crop in pixels; None: as the weights were trained")
    resize: int | None = _option(
        "data", None, "side that images are resized to before the crop; None: as the weights were trained"
    )
    resize_mode: ResizeMode | None = _option(
        "data", None, "side that `resize` sets: both, the shorter or the longer; None: as the weights were trained"
    )
    augment: Mapping[str, Any] = _option("data", {}, "other options of `data.Augment`, such as mirror or area")
    transform: str | Callable[..., Any] | None = _option(
        "data", None, "own augmentation: a callable of a PIL image, `data.OnBatch`, or module:function; None: `augment`"
    )
    stored_size: int | None = _option("data", None, "side of the decoded images that are kept; None: same as `resize`")
    unreadable: Literal["stop", "skip"] = _option("data", "stop", "stop at an image that cannot be read, or skip it")
    cache_folder: str | None = _option("data", None, "folder of decoded images for later runs; None: memory only")
    stream: bool | None = _option(
        "data", None, "decode images when a batch needs them; None: if all of them exceed half of the free memory"
    )
    cache_memory: float | None = _option(
        "data", None, "GiB of decoded images that streaming keeps in memory; None: a quarter of what is free"
    )
    cache_disk: float | None = _option(
        "data", None, "GiB of decoded images that streaming keeps in `cache_folder`; None: half of what is free"
    )
    cache_on_device: bool | None = _option(
        "data", None, "keep all examples on the device; None: if they fit into half of its free memory"
    )

    model: str | Embedder = _option(
        "model", "resnet50", "backbone by name, or an embedder from `models.create`; not given: the best at hand"
    )
    weights: str | None = _option(
        "model", "auto", "initial weights of a backbone: a file or a known name; auto: the best at hand; None: random"
    )
    model_options: Mapping[str, Any] = _option(
        "model", {}, "options of the backbone, such as `hidden` of an mlp, and of parts, such as `heads`"
    )
    dim: int | None = _option("model", 512, "size of each level's embedding; None: the backbone's pooled features")
    levels: str = _option("model", "H", "levels of the backbone to embed, such as LMH; each has a loss of its own")
    pooling: Pooling | None = _option(
        "model", None, "pooling into a vector; None: the class token of a transformer, else the mean"
    )
    layer_norm: bool = _option(
        "model", False, "scale pooled features to mean 0 and standard deviation 1 before the new layer"
    )
    normalize: bool | Literal["eval"] | None = _option(
        "model", None, "scale embeddings to unit length: always, never, or not in training; None: as the loss needs"
    )
    freeze_batchnorm: bool | Literal["statistics"] | None = _option(
        "model", None, "freeze BatchNorm, or only its running statistics; None: freeze it if weights are given"
    )
    freeze_to: Literal["L", "M"] | int | None = _option(
        "model", None, "freeze the layers up to the end of this level, or this many blocks; None: train all layers"
    )
    lora: int = _option("model", 0, "rank of low-rank additions to a frozen transformer; 0: train its own weights")
    lora_layers: LoraLayers = _option("model", "attention", "layers that `lora` adds to: attention, or MLPs too")
    drop_path: float = _option("model", 0.0, "probability that an image skips the last block of a transformer")
    grad_checkpointing: bool = _option(
        "model", False, "keep less for the backward pass of a transformer and compute it again: slower, less memory"
    )

    loss: str | RowLoss = _option(
        "loss", "multi_similarity", "loss by name (`losses.LOSSES`), or a loss object; any other needs your own loop"
    )
    loss_options: Mapping[str, Any] = _option("loss", {}, "hyperparameters of a loss given by name, mining included")
    same: str | None = _option(
        "loss", None, "level of a hierarchy whose classes are trained, such as parent; None: the classes themselves"
    )

    sampler: SamplerName | None = _option("batches", None, "how batches are drawn; None: as the loss needs")
    batch_size: int | None = _option(
        "batches",
        None,
        "examples in a batch, over all processes; None: 120, or 32 on a CPU, or fewer if there are few classes",
    )
    per_class: int = _option("batches", 4, "examples of a class in a batch, for class_balanced and ngroup")
    candidates: int = _option("batches", 200, "number of classes that hard_class chooses from")
    sampler_options: Mapping[str, Any] = _option(
        "batches", {}, "options of the samplers anchor_neighbor (neighbors, levels) and smart_triplet (target, mined)"
    )
    micro_batch_size: int | None = _option(
        "batches", None, "examples that pass through the network at once, in each process; None: all"
    )
    memory: int = _option("batches", 0, "number of past embeddings that each batch is also compared with")
    memory_start: int = _option("batches", 0, "first step that uses the memory")

    optimizer: Literal["sgd", "adam", "adamw"] = _option("optimizer", "adamw", "rule that updates the weights")
    lr: float = _option("optimizer", 1e-4, "learning rate of the backbone")
    head_lr_scale: float = _option("optimizer", 1.0, "learning rate of the new layers, as a multiple of lr")
    loss_lr_scale: float = _option(
        "optimizer", 100.0, "learning rate of the loss's parameters (proxies, β), as a multiple of lr"
    )
    layer_lr_decay: float = _option(
        "optimizer", 1.0, "learning rate of a layer of the backbone, as a multiple of that of the layer above it"
    )
    momentum: float = _option("optimizer", 0.9, "momentum of sgd")
    weight_decay: float = _option(
        "optimizer", 0.0, "weight decay of matrices; biases, scales and the loss's parameters have none"
    )
    clip: float | None = _option("optimizer", None, "largest norm of the gradient, over all parameters; None: no limit")
    ema: float = _option("optimizer", 0.0, "decay of the exponential moving average of the weights; 0: no average")
    wise_ft: bool = _option(
        "optimizer", False, "at the end try averages of the first and the last weights, chosen like a checkpoint"
    )

    steps: int = _option("schedule", 1000, "number of training steps, each on one batch; 0 measures the start alone")
    schedule: Literal["constant", "cosine", "step"] = _option("schedule", "cosine", "how the learning rate decays")
    warmup: int = _option("schedule", 0, "number of steps in which the learning rate rises from zero")
    head_steps: int = _option(
        "schedule", 0, "number of first steps that train only the new layers and the loss's parameters"
    )
    decay_every: int | None = _option("schedule", None, "steps between two decays of schedule step")
    decay_start: int | None = _option("schedule", None, "step of the first decay of schedule step; None: `decay_every`")
    decay_factor: float = _option("schedule", 0.1, "factor of the learning rate at each decay of schedule step")

    split: Literal["classes", "images"] = _option(
        "evaluation", "classes", "what is held out of data without splits: whole classes, or images of every class"
    )
    test_share: float = _option("evaluation", 0.5, "share of the classes, or images, of data without splits to test on")
    validation: float = _option(
        "evaluation", 0.2, "share of the training classes that selects the best checkpoint; 0: the test split does"
    )
    validation_from: float | None = _option(
        "evaluation", None, "where the validation classes begin, as a share of the class list; None: drawn at random"
    )
    select_by: Literal["recall_at_1", "map_at_r"] = _option(
        "evaluation", "recall_at_1", "metric on the validation split that selects the best checkpoint"
    )
    keep_start: bool = _option(
        "evaluation", False, "let the model before training be the best where no checkpoint is better"
    )
    final: bool = _option(
        "evaluation", False, "after the test, train on all classes for the model to use, saved in the folder final"
    )
    test_on: Literal["test", "validation"] = _option(
        "evaluation", "test", "split of the final test; validation leaves the test split unused"
    )
    flip_test: bool = _option(
        "evaluation", False, "also report Recall@K of embeddings averaged over each image and its mirror image"
    )
    evaluate_every: int = _option("evaluation", 100, "steps between evaluations; the last step is always evaluated")
    patience: int | None = _option("evaluation", None, "stop after this many evaluations without a new best")

    seed: int = _option("run", 0, "seed of all random numbers")
    device: str | None = _option("run", None, "cpu, cuda, cuda:1 …; None: a GPU if there is one")
    precision: Literal["float32", "bfloat16", "float16"] = _option(
        "run", "float32", "type of the network's computations"
    )
    compile: bool = _option("run", False, "compile the backbone with torch.compile, once in each process")
    checkpoint_every: int = _option("run", 100, "steps between checkpoints")
    checkpoint_minutes: float = _option("run", 5.0, "minutes after which a checkpoint is written in any case")
    log_every: int = _option("run", 10, "steps between lines of events.jsonl")

    def __post_init__(self) -> None:
        check_values(vars(self))
        if self.schedule == "step" and self.decay_every is None:
            raise OptionError(f"{opt('schedule', 'step')} needs {opt('decay_every')}: the steps between two decays")
        for name, owner, needed in _NEEDS_VALUE:
            value, current = getattr(self, name), getattr(self, owner)
            if value != getattr(type(self), name) and current != needed:
                raise OptionError(f"{opt(name, value)} needs {opt(owner, needed)}, and {owner} is {current!r}")
        for name, needed, meaning in _NEEDS_OPTION:
            value = getattr(self, name)
            if value != getattr(type(self), name) and not getattr(self, needed):
                raise OptionError(f"{opt(name, value)} needs {opt(needed)}: {meaning}")
        if self.transform is not None and self.augment:
            raise OptionError(f"{opt('transform')} takes the place of {opt('augment')}; give one of them")
        if isinstance(self.loss, RowLoss) and self.loss_options:
            raise OptionError(
                f"{opt('loss_options')} are for a loss given by name; set the options of a loss object itself"
            )


_COUNTS = "size resize stored_size dim per_class micro_batch_size decay_every decay_start"
# NaN fails every comparison, so it is outside of all limits.
_LIMITS: tuple[tuple[str, Callable[[float], bool], str], ...] = (
    (f"{_COUNTS} evaluate_every checkpoint_every log_every patience", lambda x: x >= 1, "at least 1"),
    ("batch_size candidates", lambda x: x >= 2, "at least 2"),
    (
        "steps memory memory_start warmup head_steps weight_decay lora cache_memory cache_disk",
        lambda x: 0 <= x < math.inf,
        "at least 0",
    ),
    ("seed", lambda x: 0 <= x < 2**63, "at least 0 and below 2⁶³"),
    ("lr head_lr_scale loss_lr_scale decay_factor clip checkpoint_minutes", lambda x: 0 < x < math.inf, "above 0"),
    ("momentum ema validation validation_from drop_path", lambda x: 0 <= x < 1, "at least 0 and below 1"),
    ("layer_lr_decay", lambda x: 0 < x <= 1, "above 0 and at most 1"),
    ("test_share", lambda x: 0 < x < 1, "above 0 and below 1"),
)

#: Options that have an effect only with one value of another option. Without it they would be ignored silently.
_NEEDS_VALUE = (
    ("decay_every", "schedule", "step"),
    ("decay_start", "schedule", "step"),
    ("decay_factor", "schedule", "step"),
    ("momentum", "optimizer", "sgd"),
    ("candidates", "sampler", HardClassSampler.name),
)
#: Options that have an effect only if another option is set, and what that other option is.
_NEEDS_OPTION = (
    ("lora_layers", "lora", "the rank"),
    ("memory_start", "memory", "the number of embeddings to remember"),
    ("cache_disk", "cache_folder", "the folder of decoded images"),
    ("test_on", "validation", "the share of the training classes to measure on"),
    ("validation_from", "validation", "the share of the training classes"),
)

#: Names of options in other libraries.
_ELSEWHERE = {"learning_rate": "lr", "epochs": "steps", "embedding_size": "dim"}


@dataclass(frozen=True)
class Option:
    """Describe an option: its name, group, type (`hint`), default and meaning (`about`)."""

    name: str
    group: str
    hint: Any
    default: Any
    about: str

    @property
    def kind(self) -> str:
        """The type in words.

        >>> next(option.kind for option in describe_options() if option.name == "clip")
        'float or None'
        """
        return " or ".join(map(_in_words, self.alternatives))

    @property
    def alternatives(self) -> list[Any]:
        """The types that its value may have, and the words."""
        return alternatives(self.hint)


@cache
def describe_options() -> tuple[Option, ...]:
    """Return all options in order of their groups: data, model, loss, batches, optimizer, schedule, evaluation, run.

    >>> describe_options()[0].name, describe_options()[0].group
    ('size', 'data')
    """
    hints = typing.get_type_hints(Settings)
    return tuple(
        Option(each.name, each.metadata["group"], hints[each.name], default, each.metadata["about"])
        for each in fields(Settings)
        for default in [{} if each.default is MISSING else each.default]
    )


def check_names(options: Iterable[str]) -> None:
    """Raise an error for an option that does not exist, with the nearest name that does.

    >>> check_names(["batchsize"])
    Traceback (most recent call last):
    tuplet.errors.OptionTypeError: there is no option 'batchsize'; did you mean 'batch_size'?
    """
    known = [option.name for option in describe_options()]
    for name in options:
        if name not in known:
            raise OptionTypeError(f"there is no option {name!r}; {did_you_mean(_ELSEWHERE.get(name, name), known)}")


def check_values(options: Mapping[str, Any]) -> None:
    """Raise an error for an option of the wrong type, or one outside of its limits."""
    for option in describe_options():
        value = options.get(option.name, option.default)
        if not fits(value, option.hint):
            raise OptionTypeError(
                f"{opt(option.name)} is {short_repr(value)}; it must be {option.kind}: {option.about}"
            )
    for names, allowed, words in _LIMITS:
        for name in names.split():
            value = options.get(name)
            if value is not None and not allowed(value):
                raise OptionError(f"{opt(name)} is {value}; it must be {words}")


def short_repr(value: Any) -> str:
    """Return `repr(value)`, or the type of a module, whose own `repr` takes many lines.

    >>> short_repr("raw"), short_repr(nn.ReLU())
    ("'raw'", 'a ReLU')
    """
    return f"a {type(value).__name__}" if isinstance(value, nn.Module) else repr(value)


def fits(value: Any, hint: Any) -> bool:
    """Return whether a value matches a type hint; an integer also is a float, a bool is not an integer.

    >>> fits(3, float), fits(True, int), fits("0.5", float | None)
    (True, False, False)
    """

    def is_one(kind: Any) -> bool:
        if isinstance(kind, str):
            return isinstance(value, str) and value == kind
        if kind in (int, float):
            return isinstance(value, int if kind is int else int | float) and not isinstance(value, bool)
        return isinstance(value, get_origin(kind) or kind)

    return any(map(is_one, alternatives(hint)))


def alternatives(hint: Any) -> list[Any]:
    """Return the types that a type hint allows, and the words of its literals.

    >>> alternatives(bool | Literal["eval"] | None)
    [<class 'bool'>, 'eval', <class 'NoneType'>]
    """
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return [each for part in parts for each in alternatives(part)]
    return list(parts) if origin is Literal else [hint]


def _in_words(kind: Any) -> str:
    if isinstance(kind, str):
        return repr(kind)
    names: dict[Any, str] = {type(None): "None", Callable: "callable", Mapping: "dict"}
    return names.get(get_origin(kind) or kind) or str(kind.__name__)
