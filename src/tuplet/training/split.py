"""Which examples train, which choose the best, and which are tested on."""

import warnings
from typing import NamedTuple

import torch
from torch import Tensor

from tuplet.data import Dataset
from tuplet.training.settings import Settings


class Split(NamedTuple):
    """The places in a dataset of the examples that train, that choose the best and that are tested on."""

    train: Tensor
    validation: Tensor
    test: Tensor


def split_examples(data: Dataset, settings: Settings) -> Split:
    """Split a dataset as it comes or by its classes, and some training classes off where they are to choose the best.

    >>> from tuplet.data import from_features
    >>> split_examples(from_features(torch.eye(8), [0, 0, 1, 1, 2, 2, 3, 3]), Settings()).test
    tensor([4, 5, 6, 7])
    """
    places = torch.arange(len(data))[:, None]
    train, test = Dataset(data.labels, data.class_names, features=places, splits=data.splits).split()
    validation = test
    if settings.validation:
        train, validation = _held_out(train, settings)
        _check_measured("validation", validation, "a larger validation=")
    if settings.test_on == "validation":
        test = validation
    else:
        _check_measured("test", test, "more classes")
        _warn_of_known_classes(train, test)
    return Split(*(part.features[:, 0] for part in (train, validation, test) if part.features is not None))


def _warn_of_known_classes(train: Dataset, test: Dataset) -> None:
    both = set(train.classes) & set(test.classes)
    if both:
        warnings.warn(
            f"{len(both):,} of the {len(test.classes):,} test classes are trained on too, so that the result is not "
            "one of classes that are new; for that give splits that share no class, or none",
            stacklevel=6,
        )


def _check_measured(name: str, part: Dataset, remedy: str) -> None:
    """Refuse a split whose Recall@K is 0 whatever is learned, and warn where it is the same for another reason."""
    if not _has_positives(part):
        raise ValueError(
            f"no example of the {name} split has another one of its class to find; give classes of two or more, with "
            "a query and a member of the gallery each where it has those"
        )
    if len(part.classes) == 1:
        warnings.warn(
            f"the {name} split has a single class, {part.class_names[part.classes[0]]!r}, whose Recall@K is the same "
            f"whatever is learned; give {remedy}",
            stacklevel=6,
        )


def _has_positives(part: Dataset) -> bool:
    if part.splits is None or "query" not in part.splits:
        return bool((part.labels.unique(return_counts=True)[1] > 1).any())
    query = torch.tensor([split == "query" for split in part.splits])
    return bool(torch.isin(part.labels[query], part.labels[~query]).any())


def _held_out(train: Dataset, settings: Settings) -> tuple[Dataset, Dataset]:
    """Training classes without those for validation, and these: drawn by the seed, or neighbours in their order.

    Neighbours are often relatives, birds of a genus or cars of a make. Held out together, they are as new to the
    network as the classes of the test split will be.
    """
    classes = train.classes
    count = round(len(classes) * settings.validation)
    left = round(len(classes) * (1 - settings.validation)) if settings.validation_from is None else len(classes) - count
    if not 0 < left < len(classes):
        raise ValueError(
            f"validation is {settings.validation}, which does not divide {len(classes)} training classes; "
            "choose another share"
        )
    if settings.validation_from is None:
        return train.split(1 - settings.validation, settings.seed)
    start = round(len(classes) * settings.validation_from)
    held_out = classes[start : start + count]
    if len(held_out) < count:
        raise ValueError(
            f"validation is {settings.validation} and validation_from {settings.validation_from}, which do not fit "
            f"into {len(classes)} training classes; choose shares whose sum is 1 at most"
        )
    return train.of_classes(set(classes) - set(held_out)), train.of_classes(held_out)
