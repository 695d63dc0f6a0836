"""The sampler of a run, and checks that the training classes can fill its batches."""

import math
import warnings
from collections.abc import Callable
from dataclasses import replace
from inspect import signature
from typing import get_args

import torch
from torch import Tensor

from tuplet.data import Dataset
from tuplet.errors import OptionError, OptionWarning, did_you_mean, first_of, opt, refuse_unknown, warn
from tuplet.losses import RowLoss
from tuplet.sampling import SAMPLERS, ClassBalancedSampler, ClassSampler
from tuplet.sampling.base import BatchKind
from tuplet.training.distributed import World
from tuplet.training.settings import SamplerName, Settings

#: Examples of a batch where there are enough classes. On a CPU a batch of images for a large network is smaller.
BATCH, CPU_BATCH = 120, 32


def usual_sampler(loss: RowLoss) -> SamplerName:
    """Return the name of the sampler that makes the batches which a loss needs.

    >>> from tuplet import losses
    >>> usual_sampler(losses.NPairLoss()), usual_sampler(losses.RAWLoss())
    ('npair', 'class_balanced')
    """
    if loss.batch not in get_args(BatchKind):
        raise ValueError(
            f"batch of {type(loss).__name__} is {loss.batch!r}; {did_you_mean(loss.batch, get_args(BatchKind))}"
        )
    fitting = [each for each in SAMPLERS.values() if each.batch == loss.batch]
    return min(fitting, key=lambda each: each.needs_embeddings).name


def choose_batches(settings: Settings, loss: RowLoss, data: Dataset, world: World) -> Settings:
    """Return the settings with a sampler and a batch size; raise an error if training cannot use such batches."""
    settings = replace(settings, sampler=settings.sampler or usual_sampler(loss))
    slow = world.device.type == "cpu" and settings.weights is not None
    size = settings.batch_size or usual_batch_size(settings, data, CPU_BATCH if slow else BATCH)
    settings, kind, each = replace(settings, batch_size=size), sampler_class(settings), class_share(settings)
    refuse_unknown(opt("sampler", settings.sampler), settings.sampler_options, kind.options)
    _refuse_unsuited_batches(loss, settings)
    # Made for its checks alone: it embeds nothing before it is asked for a batch.
    make_sampler(settings, data, lambda indices: torch.empty(0))
    # A group stays whole in one process. N-groups vary in number.
    if size // each < world.size and kind.batch not in ("groups", "one_class"):
        raise OptionError(
            f"a batch of {size} is {size // each} groups of {each}, too few for {world.size} processes; "
            f"choose a {opt('batch_size')} of {world.size * each} or more"
        )
    return settings


def make_sampler(settings: Settings, data: Dataset, embed: Callable[[list[int]], Tensor]) -> ClassSampler:
    """Return the sampler of the settings for batches of `batch_size`, those of all processes together."""
    assert settings.batch_size is not None
    _refuse_unfilled_batches(settings, settings.batch_size, _usable_sizes(data))
    kind, inputs = sampler_class(settings), dict(settings.sampler_options)
    if kind.needs_embeddings:
        inputs["embed"] = embed
    if "candidates" in signature(kind).parameters:
        inputs["candidates"] = settings.candidates
    with warnings.catch_warnings():
        # A sampler warns of classes of one example, which `warn_of_small_classes` names.
        warnings.simplefilter("ignore", OptionWarning)
        return kind.of_size(data.targets, settings.batch_size, settings.per_class, settings.seed, **inputs)


def sampler_class(settings: Settings) -> type[ClassSampler]:
    """Return the class of the sampler that the settings name."""
    return SAMPLERS[settings.sampler] if settings.sampler else ClassBalancedSampler


def class_share(settings: Settings) -> int:
    """Return the number of examples that the sampler takes together: those of a class, or of a triplet."""
    return sampler_class(settings).group_size or settings.per_class


def largest_class(settings: Settings) -> int | None:
    """Return the most examples of a class in a batch, so that a loss need not count them; None if unknown."""
    return None if sampler_class(settings).batch in ("triplets", "one_class") else class_share(settings)


def largest_share(settings: Settings, processes: int) -> int:
    """Return the most examples of a batch that one process can get: groups stay whole, and n-groups vary in size.

    >>> largest_share(Settings(sampler="class_balanced", batch_size=12, per_class=4), processes=2)
    8
    """
    size, each = settings.batch_size or 0, class_share(settings)
    return size if sampler_class(settings).batch == "groups" else math.ceil(size / each / processes) * each


def usual_batch_size(settings: Settings, data: Dataset, most: int) -> int:
    """Return a batch size of about `most`, or less if there are few classes, but at least two classes.

    >>> from tuplet.data import from_features
    >>> usual_batch_size(Settings(per_class=5), from_features(torch.zeros(9, 1), [0, 0, 0, 1, 1, 1, 2, 2, 3]), 120)
    15
    """
    each = class_share(settings)
    return max(2, min(most, _largest_batch(settings, _usable_sizes(data))) // each) * each


def _usable_sizes(data: Dataset) -> list[int]:
    """Return the sizes of the classes that have a positive pair."""
    return [count for count in data.class_sizes().values() if count > 1]


def _largest_batch(settings: Settings, class_sizes: list[int]) -> int:
    """Return the most examples that classes of these sizes give; n-groups do not repeat those of a small class."""
    each, varies = class_share(settings), sampler_class(settings).batch == "groups"
    return sum(min(size, each) if varies else each for size in class_sizes)


def _refuse_unsuited_batches(loss: RowLoss, settings: Settings) -> None:
    """Raise an error if a loss cannot learn from the batches. On a GPU the loss itself does not check the labels."""
    kind, each = sampler_class(settings), class_share(settings)
    two_of_each = loss.batch == "pairs" and each == 2
    if loss.batch not in ("classes", kind.batch) and not two_of_each:
        raise OptionError(
            f"{type(loss).__name__} needs the batches of {opt('sampler', usual_sampler(loss))}, and "
            f"{opt('sampler', settings.sampler)} makes others; leave {opt('sampler')} out"
        )
    if kind.needs_active and not loss.marks_active:
        raise OptionError(
            f"{opt('sampler', settings.sampler)} needs to know which triplets have a loss, and {type(loss).__name__} "
            "does not tell",
            "choose a loss of triplets, such as triplet_ratio with mining 'disjoint'",
        )
    if loss.proxies is not None or settings.memory or kind.batch in ("triplets", "one_class"):
        return  # positives and negatives are there in any case
    if each == 1:
        raise OptionError(f"{opt('per_class')} is 1, which leaves no example a positive; choose 2 or more")
    if settings.batch_size == each:
        instead = f", or a smaller {opt('per_class')}" if not kind.group_size else ""
        raise OptionError(
            f"a batch of {each} is a single class, which has no negatives; choose a {opt('batch_size')} of {2 * each} "
            f"or more{instead}"
        )


def _refuse_unfilled_batches(settings: Settings, size: int, class_sizes: list[int]) -> None:
    """Raise an error for batches that the classes with a positive pair, of these sizes, cannot fill."""
    kind, each, classes = sampler_class(settings), class_share(settings), len(class_sizes)
    if classes < 2:
        instead = f", or choose a smaller {opt('validation')}" if settings.validation else ""
        raise OptionError(
            f"training needs two classes of two examples or more, and there are {classes}; add examples{instead}"
        )
    most = size if kind.batch in ("triplets", "one_class") else _largest_batch(settings, class_sizes)
    if size % each:
        raise OptionError(
            f"{opt('batch_size')} is {size} and the sampler {settings.sampler} takes {each} at a time; "
            f"choose a multiple of {each}, such as {max(2, min(size, most) // each) * each}"
        )
    if size > most:
        what = f"is {size // each} classes of {each}, and only {classes} training classes have two examples"
        if kind.batch == "groups":
            what = f"is more than the {most} examples that {classes} training classes give, each {each} at most"
        instead = f", or a larger {opt('per_class')}" if not kind.group_size else ""
        instead += f", or a smaller {opt('validation')}" if settings.validation else ""
        fitting = f"choose a {opt('batch_size')} of {most // each * each} or less"
        raise OptionError(f"a batch of {size} {what}; {fitting}{instead}")


def warn_of_small_classes(data: Dataset, settings: Settings) -> None:
    """Warn of the training classes that have too few examples for the batches."""
    sizes = {data.class_names[c]: n for c, n in data.class_sizes().items()}
    made = sampler_class(settings).batch
    each = 2 if made == "triplets" else class_share(settings)
    instead = "other classes fill the batch up" if made == "groups" else "they come more than once in a batch"
    single = [name for name, size in sizes.items() if size == 1]
    few = [f"{name} ({size})" for name, size in sizes.items() if 1 < size < each]
    for named, what in (
        (single, "a single example, which has no positive, and are left out"),
        (few, f"fewer than {each} examples, and {instead}"),
    ):
        if named:
            warn(f"{len(named)} of {len(sizes)} training classes have {what}: {first_of(named, 10)}")
