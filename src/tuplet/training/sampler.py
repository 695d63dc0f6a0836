"""The sampler of a run, and what the training classes have to offer it."""

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from tuplet import losses, sampling
from tuplet.data import Dataset
from tuplet.losses import RowLoss
from tuplet.sampling.base import ClassSampler
from tuplet.training.settings import SamplerName, Settings


def usual_sampler(loss: RowLoss) -> SamplerName:
    """The batches that a loss needs, or else C classes of K.

    >>> usual_sampler(losses.NPairLoss()), usual_sampler(losses.RAWLoss())
    ('npair', 'class_balanced')
    """
    if isinstance(loss, losses.NPairLoss):
        return "npair"
    return "triplet" if isinstance(loss, losses.TripletLoss) and loss.mining == "disjoint" else "class_balanced"


def refuse_unsuited_batches(loss: RowLoss, settings: Settings) -> None:
    """Refuse batches that a loss cannot learn from: on a GPU the loss itself does not look at the labels."""
    needed, each = usual_sampler(loss), class_share(settings)
    two_of_each = needed == "npair" and each == 2
    if needed not in ("class_balanced", settings.sampler) and not two_of_each:
        raise ValueError(
            f"{type(loss).__name__} needs the batches of sampler={needed!r}, and sampler={settings.sampler!r} makes "
            "others; leave sampler= out"
        )
    elsewhere = hasattr(loss, "proxies") or settings.memory or settings.sampler == "triplet"
    if each == 1 and not elsewhere:
        raise ValueError("per_class is 1, which leaves no example a positive; choose 2 or more")
    if settings.batch_size == each and not elsewhere:
        instead = ", or a smaller per_class" if _goes_by_per_class(settings) else ""
        raise ValueError(
            f"a batch of {each} is a single class, which has no negatives; choose a batch_size of {2 * each} or more"
            f"{instead}"
        )


def make_sampler(settings: Settings, data: Dataset, embed: Callable[[list[int]], Tensor]) -> ClassSampler:
    """The sampler by name for batches of `batch_size`, which are those of all processes together."""
    each, seed, labels = class_share(settings), settings.seed, data.labels
    size = settings.batch_size or usual_batch_size(settings, data)
    refuse_unfilled_batches(settings, size, usable_sizes(data))
    warn_of_small_classes(data, settings)
    with warnings.catch_warnings():
        # What the sampler would say of classes of one example was said just now, with their names.
        warnings.filterwarnings("ignore", message=".*leaves out")
        if settings.sampler == "npair":
            return sampling.NPairSampler(labels, size // 2, seed)
        if settings.sampler == "triplet":
            return sampling.TripletSampler(labels, size // 3, seed)
        if settings.sampler == "hard_class":
            return sampling.HardClassSampler(labels, embed, size // 2, settings.candidates, seed=seed)
        kind = sampling.NGroupSampler if settings.sampler == "ngroup" else sampling.ClassBalancedSampler
        return kind(labels, size // each, each, seed)


def refuse_unfilled_batches(settings: Settings, size: int, class_sizes: list[int]) -> None:
    """Refuse batches that the classes with a positive pair, of these sizes, cannot fill."""
    each, classes = class_share(settings), len(class_sizes)
    if classes < 2:
        instead = ", or choose a smaller validation=" if settings.validation else ""
        raise ValueError(
            f"training needs two classes of two examples or more, and there are {classes}; add examples{instead}"
        )
    most = size if settings.sampler == "triplet" else largest_batch(settings, class_sizes)
    if size % each:
        raise ValueError(
            f"batch_size is {size} and the sampler {settings.sampler} takes {each} at a time; "
            f"choose a multiple of {each}, such as {max(2, min(size, most) // each) * each}"
        )
    if size <= most:
        return
    what = f"is {size // each} classes of {each}, and only {classes} training classes have two examples"
    if settings.sampler == "ngroup":
        what = f"is more than the {most} examples that {classes} training classes give, each {each} at most"
    instead = ", or a larger per_class" if _goes_by_per_class(settings) else ""
    raise ValueError(f"a batch of {size} {what}; choose a batch_size of {most // each * each} or less{instead}")


def refuse_unshared_batches(settings: Settings, size: int, processes: int) -> None:
    """Refuse batches of fewer classes than there are processes, since classes stay whole; those of n-groups vary."""
    each = class_share(settings)
    if size // each < processes and settings.sampler != "ngroup":
        raise ValueError(
            f"a batch of {size} is {size // each} groups of {each}, too few for {processes} processes; "
            f"choose a batch_size of {processes * each} or more"
        )


def largest_batch(settings: Settings, class_sizes: list[int]) -> int:
    """The most examples that classes of these sizes give: n-groups do not repeat those of a small class."""
    each = class_share(settings)
    return sum(min(size, each) if settings.sampler == "ngroup" else each for size in class_sizes)


def usual_batch_size(settings: Settings, data: Dataset) -> int:
    """About 120, or as much as there are classes for, and two classes at least.

    >>> from tuplet.data import from_features
    >>> usual_batch_size(Settings(per_class=5), from_features(torch.zeros(9, 1), [0, 0, 0, 1, 1, 1, 2, 2, 3]))
    15
    """
    each = class_share(settings)
    return max(2, min(120, largest_batch(settings, usable_sizes(data))) // each) * each


def usable_sizes(data: Dataset) -> list[int]:
    """The sizes of the classes that have a positive pair."""
    counts = data.labels.unique(return_counts=True)[1]
    return counts[counts > 1].tolist()


def class_share(settings: Settings) -> int:
    """How many examples the sampler takes together: those of a class, or of a triplet."""
    return {"npair": 2, "hard_class": 2, "triplet": 3}.get(settings.sampler or "", settings.per_class)


def largest_share(settings: Settings, processes: int) -> int:
    """The most examples of a batch that one of some processes can get: classes stay whole, and n-groups vary in size.

    >>> largest_share(Settings(sampler="class_balanced", batch_size=12, per_class=4), processes=2)
    8
    """
    size, each = settings.batch_size or 0, class_share(settings)
    return size if settings.sampler == "ngroup" else math.ceil(size / each / processes) * each


def _goes_by_per_class(settings: Settings) -> bool:
    return settings.sampler in ("class_balanced", "ngroup")


def warn_of_small_classes(data: Dataset, settings: Settings) -> None:
    """Name the training classes that have too few examples for the batches asked for."""
    classes, counts = torch.unique(data.labels, return_counts=True)
    sizes = {data.class_names[c]: n for c, n in zip(classes.tolist(), counts.tolist(), strict=True)}
    each = 2 if settings.sampler == "triplet" else class_share(settings)
    instead = (
        "other classes fill the batch up" if settings.sampler == "ngroup" else "they come more than once in a batch"
    )
    single = [name for name, size in sizes.items() if size == 1]
    few = [f"{name} ({size})" for name, size in sizes.items() if 1 < size < each]
    for named, what in (
        (single, "a single example, which has no positive, and are left out"),
        (few, f"fewer than {each} examples, and {instead}"),
    ):
        if named:
            listed = ", ".join(named[:10]) + (", …" if len(named) > 10 else "")
            warnings.warn(f"{len(named)} of {len(sizes)} training classes have {what}: {listed}", stacklevel=6)


def sampler_state(sampler: ClassSampler, step: int) -> dict[str, Any]:
    """Where the sampler stands after so many steps, however far ahead of them it has drawn."""
    epoch, batch = divmod(step, len(sampler))
    state = {**sampler.state_dict(), "epoch": epoch, "batch": batch}
    if batch == 0 and "chosen" in state:
        state["chosen"] = []
    return state
