"""Split the examples of a run: training, validation and test."""

import logging
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from tuplet.data import Dataset
from tuplet.errors import OptionError, opt, warn
from tuplet.training.papers import benchmark
from tuplet.training.settings import Settings

_logger = logging.getLogger("tuplet")
#: Splits of the data that select the best checkpoint.
VALIDATION = ("val", "valid", "validation")
#: The options that decide how data are split.
SPLIT_OPTIONS = ("split", "test_share", "validation", "validation_from", "test_on", "seed")
#: With fewer training classes, images of every class are held out for validation instead of whole classes.
FEWEST_CLASSES = 6
#: An ordered list of classes is cut into about this many runs, which are held out whole.
_RUNS = 10


class Split(NamedTuple):
    """The positions in a dataset of the training, validation and test examples.

    Where validation or test examples are of the training classes, they are queries and the training examples are their
    gallery.
    """

    train: Tensor
    validation: Tensor
    test: Tensor
    validation_gallery: Tensor | None = None
    test_gallery: Tensor | None = None


def split_examples(data: Dataset, settings: Settings) -> Split:
    """Split a dataset as the settings say; splits that the data come with take precedence.

    >>> from tuplet.data import from_features
    >>> split_examples(from_features(torch.eye(8), [0, 0, 1, 1, 2, 2, 3, 3]), Settings(validation=0)).test
    tensor([4, 5, 6, 7])
    """
    positions = torch.arange(len(data))[:, None]
    # No metadata: a copy of them for each part would take long.
    numbered = replace(data, images=None, features=positions, boxes=None, crops=None, metadata={})
    if settings.split == "images":
        return _by_images(numbered, settings)
    train, test, own_validation = _train_and_test(numbered, settings)
    known, validation, gallery = train, test, None
    if settings.validation:
        if own_validation is not None and settings.validation_from is None:
            validation = own_validation
        elif len(train.classes) < FEWEST_CLASSES and settings.validation_from is None:
            train, validation = _hold_out_images(train, settings.validation, settings.seed)
            gallery = _positions(train)
        else:
            train, validation = _hold_out_classes(train, settings, benchmark(data) is not None)
        if gallery is None:
            _check_measured("validation", validation, f"a larger {opt('validation')}")
    if settings.test_on == "validation":
        return Split(_positions(train), _positions(validation), _positions(validation), gallery, gallery)
    _check_measured("test", test, f"more classes, or hold out images with {opt('split', 'images')}")
    both = known.class_sizes().keys() & test.class_sizes().keys()
    if both:
        warn(
            f"{len(both):,} of the {len(test.class_sizes()):,} test classes are trained on too, so the result does not "
            "hold for new classes; to measure those, give splits that share no class, or none"
        )
    return Split(_positions(train), _positions(validation), _positions(test), gallery)


def everything_trains(data: Dataset) -> Split:
    """Return a split without validation and test examples, for the model that is fitted after all choices."""
    nothing = torch.empty(0, dtype=torch.int64)
    return Split(torch.arange(len(data)), nothing, nothing)


def select_measured(data: Dataset, examples: Tensor, gallery: Tensor | None) -> Dataset:
    """Return the examples at these positions; with a gallery they are its queries, and it follows them."""
    if gallery is None:
        return data.select(examples)
    splits = ("query",) * len(examples) + ("gallery",) * len(gallery)
    return replace(data.select(torch.cat([examples, gallery])), splits=splits)


def query_mask(data: Dataset) -> Tensor | None:
    """Return which examples are queries; None if every example is a query and the others are its gallery."""
    if data.splits is None or "query" not in data.splits:
        return None
    return torch.tensor([split == "query" for split in data.splits])


def _positions(part: Dataset) -> Tensor:
    assert part.features is not None
    return part.features[:, 0]


def _train_and_test(data: Dataset, settings: Settings) -> tuple[Dataset, Dataset, Dataset | None]:
    """Return the training and test examples, and the validation examples if the data come with some."""
    if data.splits is None:
        if len(data.classes) == 2:
            raise OptionError(
                "the data have 2 classes, too few to train on one and test on the other",
                f"hold out images of both with {opt('split', 'images')}, or give four classes or more",
            )
        share, classes = settings.test_share, len(data.classes)
        trained = round(classes * (1 - share))
        if classes > 1 and trained in (0, classes):
            purpose = "test" if trained else "train"
            raise OptionError(
                f"{opt('test_share')} is {share:g}, which leaves none of {classes} classes to {purpose} on",
                f"choose a {'larger' if trained else 'smaller'} one",
            )
        return *data.split(1 - share), None
    own = [name for name in VALIDATION if name in data.splits]
    has_test = "test" in data.splits or {"query", "gallery"} <= set(data.splits)
    if own and not has_test and "train" in data.splits:
        _logger.info("the data have no split test: the split %s is tested on", own[0])
        return data.part("train"), data.part(*own), None
    return *data.split(), data.part(*own) if own else None


def _by_images(data: Dataset, settings: Settings) -> Split:
    """Hold out images of every class; their gallery is the training images, so that Recall@1 is 1-NN accuracy."""
    if data.splits is not None:
        raise OptionError(f"{opt('split', 'images')} is for data without splits", "leave it out")
    if len(data.classes) < 2:
        raise ValueError(f"the data have {len(data.classes)} class; training needs two or more")
    rest, test = _hold_out_images(data, settings.test_share, settings.seed)
    train, validation = rest, test
    if settings.validation:
        train, validation = _hold_out_images(rest, settings.validation, settings.seed + 1)
    if settings.test_on == "validation":
        test = validation
    gallery = _positions(train)
    return Split(gallery, _positions(validation), _positions(test), gallery, gallery)


def _hold_out_images(data: Dataset, share: float, seed: int) -> tuple[Dataset, Dataset]:
    """Draw a share of the images of each class, one at least, and leave two at least."""
    drawn = torch.zeros(len(data), dtype=torch.bool)
    generator = torch.Generator().manual_seed(seed)
    sizes = data.labels.unique(return_counts=True)[1]
    for members in data.labels.argsort(stable=True).split(sizes.tolist()):
        count = min(max(1, round(len(members) * share)), len(members) - 2)
        drawn[members[torch.randperm(len(members), generator=generator)[: max(0, count)]]] = True
    if not drawn.any():
        raise ValueError("no class has three examples, of which one can be held out; add examples")
    return data.select(~drawn), data.select(drawn)


def _hold_out_classes(train: Dataset, settings: Settings, ordered: bool) -> tuple[Dataset, Dataset]:
    """Return training and validation examples of different classes.

    The validation classes are whole groups of relatives, drawn by the seed, or with `validation_from` one run of the
    class list. Relatives that are held out together are as new to the network as the test classes.
    """
    classes = train.classes
    count = round(len(classes) * settings.validation)
    if settings.validation_from is None:
        # A metric of two or three classes tells little: four at least, if they leave two thirds for training.
        count = min(max(count, min(4, len(classes) // 3)), len(classes) - 2)
        groups = class_groups([train.class_names[c] for c in classes], ordered)
        order = torch.randperm(len(groups), generator=torch.Generator().manual_seed(settings.seed)).tolist()
        # Of the last group only as many classes as are still wanted.
        held_out = [classes[i] for group in order for i in groups[group]][:count]
    else:
        if not count:
            raise OptionError(
                f"{opt('validation')} is {settings.validation}, which is less than one of {len(classes)} training "
                "classes; choose a larger one"
            )
        start = round(len(classes) * settings.validation_from)
        held_out = classes[start : start + count]
        if not len(held_out) == count < len(classes):
            raise OptionError(
                f"{opt('validation')} is {settings.validation} and {opt('validation_from')} "
                f"{settings.validation_from}, which do not fit into {len(classes)} training classes; choose shares "
                "whose sum is 1 at most"
            )
    return train.of_classes(set(classes) - set(held_out)), train.of_classes(held_out)


def class_groups(names: Sequence[str], ordered: bool = False) -> list[list[int]]:
    """Group classes that are relatives: those of one parent folder, or neighbours in a numbered or known list.

    >>> class_groups(["greek/a", "greek/b", "latin/a", "latin/b"])
    [[0, 1], [2, 3]]
    >>> class_groups(["daisy", "rose", "tulip"])
    [[0], [1], [2]]
    """
    parents: dict[str, list[int]] = {}
    for i, name in enumerate(names):
        parents.setdefault(name.rpartition("/")[0], []).append(i)
    if len(parents) > 1:
        return list(parents.values())
    # Names such as "001.Black_footed_Albatross" are in an order that was chosen.
    if ordered or all(re.match(r"\d+\W*[^\W\d]", name.rpartition("/")[2]) for name in names):
        length = max(1, round(len(names) / _RUNS))
        return [list(range(i, min(i + length, len(names)))) for i in range(0, len(names), length)]
    return [[i] for i in range(len(names))]


def _check_measured(name: str, part: Dataset, remedy: str) -> None:
    """Raise an error if no query can have a match, and warn if every query must have one."""
    query = query_mask(part)
    if query is None:
        has_positives = max(part.class_sizes().values()) > 1
    else:
        known = part.targets[~query]
        has_positives = bool(torch.isin(part.targets[query], known[known >= 0]).any())
    if not has_positives:
        raise ValueError(
            f"no example of the {name} split has a positive; give classes of two or more examples, and with a query "
            "and a gallery split, classes that are in both"
        )
    if len(part.classes) == 1:
        warn(
            f"the {name} split has a single class, {part.class_names[part.classes[0]]!r}, so its Recall@K does not "
            f"depend on training; give {remedy}"
        )


def as_trained(data: Dataset, settings: Settings) -> Dataset:
    """Return the examples with the labels of the level `same` of their hierarchy, or unchanged without `same`."""
    return data if settings.same is None else data.at_level(settings.same)
