"""The sampler of a run, and what the training classes have to offer it."""

import warnings
from collections.abc import Callable

import torch
from torch import Tensor

from tuplet import losses, sampling
from tuplet.data import Dataset
from tuplet.losses import RowLoss
from tuplet.sampling.base import ClassSampler
from tuplet.training.settings import Settings


def usual_sampler(loss: RowLoss) -> str:
    """The batches that a loss needs, or else C classes of K.

    >>> usual_sampler(losses.NPairLoss()), usual_sampler(losses.RAWLoss())
    ('npair', 'class_balanced')
    """
    if isinstance(loss, losses.NPairLoss):
        return "npair"
    return "triplet" if isinstance(loss, losses.TripletLoss) and loss.mining == "disjoint" else "class_balanced"


def make_sampler(name: str, settings: Settings, data: Dataset, embed: Callable[[list[int]], Tensor]) -> ClassSampler:
    """The sampler by name for a batch of `batch_size`, which is that of all processes."""
    size, each, seed, labels = settings.batch_size, class_share(name, settings), settings.seed, data.labels
    if size % each:
        raise ValueError(f"batch_size is {size}; for the sampler {name} it must be a multiple of {each}")
    _warn_of_small_classes(data, each, name)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=".*leaves out")
        if name == "npair":
            return sampling.NPairSampler(labels, size // 2, seed)
        if name == "triplet":
            return sampling.TripletSampler(labels, size // 3, seed)
        if name == "hard_class":
            return sampling.HardClassSampler(labels, embed, size // 2, settings.candidates, seed=seed)
        kind = sampling.NGroupSampler if name == "ngroup" else sampling.ClassBalancedSampler
        return kind(labels, size // each, each, seed)


def class_share(name: str, settings: Settings) -> int:
    """How many examples of one class, or of one triplet, a sampler puts together."""
    return {"npair": 2, "hard_class": 2, "triplet": 3}.get(name, settings.per_class)


def _warn_of_small_classes(data: Dataset, each: int, name: str) -> None:
    classes, counts = torch.unique(data.labels, return_counts=True)
    for too_few, what in (
        (counts == 1, "have a single example, which has no positive, and are left out"),
        ((counts > 1) & (counts < each), f"have fewer than {each} examples, " + (
            "and are filled up with other classes" if name == "ngroup" else "and repeat them within a batch")),
    ):  # fmt: skip
        if name == "triplet" and not bool((too_few & (counts == 1)).any()):
            continue
        if few := [
            f"{data.class_names[c]!r} ({n})"
            for c, n in zip(classes[too_few].tolist(), counts[too_few].tolist(), strict=True)
        ]:
            listed = ", ".join(few[:10]) + (", …" if len(few) > 10 else "")
            warnings.warn(f"{len(few)} training classes {what}: {listed}", stacklevel=4)
