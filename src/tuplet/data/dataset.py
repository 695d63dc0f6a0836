"""The dataset that every reader returns: examples, their labels and their splits."""

from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from PIL import Image
from torch import Tensor

from tuplet.data.files import Location, TorchItem, read_bytes
from tuplet.images.crop import CentreCrop
from tuplet.images.decode import UnreadableImageError, read_image

#: Images as files, as files inside tars and tables, as items of a torch dataset, or as one uint8 tensor (N, 3, H, W).
Images: TypeAlias = Sequence[Location | TorchItem] | Tensor


class Groups(NamedTuple):
    """The column of a table that groups examples, such as camera, and the group of each example (N,)."""

    name: str
    codes: Tensor


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Labelled images, or labelled feature vectors.

    Attributes:
        labels: (N,) int64, counted from 0; they index `class_names`.
        class_names: the names of the classes.
        images: the images, or None for feature vectors.
        features: feature vectors (N, d), or None for images.
        splits: the split of each example (train, test, query, gallery …), if the data come with splits.
        aspects: (N,), the true width / height of images whose pixels have other proportions.
        boxes: (N, 4), left, top, right and bottom in pixels of the upright image; nothing else of it is seen.
        groups: the group of each example. A query does not search among the examples of its class and its group.
        label_sets: (N, L), all labels of each example, padded with −1, if examples have several; with `levels` its
            class, the parent of that and so on.
        levels: the levels of a hierarchy, in the order of the columns of `label_sets`, with the names of their classes.
        metadata: what else is known of the examples: N values by name, None where one is missing.
        pairs: the pairs that a table of pairs or triplets lists.
        protocol: "lfw" for faces in LFW's layout, which are measured by its protocols too.
        crops: the final crops of the images by one `CentreCrop`, if `tuplet.data.hold` has made them.
        source: what `tuplet.data.open` opened; None for a part of it and for data made in memory.
        opened_with: the options that `tuplet.data.open` was called with.

    >>> data = Dataset(torch.tensor([0, 0, 1, 1, 2, 2]), ("ant", "bee", "cat"), features=torch.randn(6, 4))
    >>> data
    Dataset(6 feature vectors, 3 classes)
    >>> train, test = data.split(ratio=0.7)
    >>> train, test.labels
    (Dataset(4 feature vectors, 2 classes), tensor([2, 2]))
    """

    labels: Tensor
    class_names: tuple[str, ...]
    images: Images | None = None
    features: Tensor | None = None
    splits: tuple[str, ...] | None = None
    aspects: Tensor | None = None
    boxes: Tensor | None = None
    groups: Groups | None = None
    label_sets: Tensor | None = None
    levels: Mapping[str, tuple[str, ...]] | None = None
    metadata: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    pairs: "ListedPairs | None" = None
    protocol: Literal["lfw"] | None = None
    crops: tuple[CentreCrop, Tensor] | None = None
    source: str | None = None
    opened_with: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if (self.images is None) == (self.features is None):
            raise ValueError("a dataset holds either images or features; give one of them")
        if self.labels.dtype != torch.int64 or self.labels.ndim != 1:
            raise ValueError(f"labels must be int64 (N,), got {self.labels.dtype} {tuple(self.labels.shape)}")
        names = ("images", "features", "splits", "aspects", "boxes", "label_sets")
        parts = {**{name: getattr(self, name) for name in names}, **self.metadata}
        parts["groups"] = None if self.groups is None else self.groups.codes
        for name, value in parts.items():
            if value is not None and len(value) != len(self):
                raise ValueError(f"{name} has {len(value)} entries for {len(self)} labels; they must agree")
        if len(self) and not 0 <= int(self.labels.min()) <= int(self.labels.max()) < len(self.class_names):
            raise ValueError(
                f"labels run from {int(self.labels.min())} to {int(self.labels.max())}, "
                f"outside the {len(self.class_names)} class names"
            )

    def __len__(self) -> int:
        return len(self.labels)

    def __repr__(self) -> str:
        what = "images" if self.features is None else "feature vectors"
        splits = "".join(f", {count:,} {name}" for name, count in Counter(self.splits or ()).items())
        return f"Dataset({len(self):,} {what}, {len(self.classes):,} classes{splits})"

    @property
    def classes(self) -> list[int]:
        """The labels that occur, sorted."""
        return self.labels.bincount().nonzero()[:, 0].tolist()  # many times as fast as `unique`

    @property
    def targets(self) -> Tensor:
        """The labels by which examples are the same: (N,), or (N, L) if one of several shared labels is enough."""
        return self.labels if self.label_sets is None or self.levels is not None else self.label_sets

    def class_sizes(self) -> dict[int, int]:
        """Return the number of examples that have each label; one with several labels counts for each."""
        counts = self.targets[self.targets >= 0].bincount().tolist()
        return {label: count for label, count in enumerate(counts) if count}

    def at_level(self, name: str) -> "Dataset":
        """Return the examples with the classes of another level of their hierarchy, such as "parent"."""
        if self.levels is None or self.label_sets is None or name not in self.levels:
            have = f"the levels are {', '.join(self.levels)}" if self.levels else "the data have no column parent"
            raise ValueError(f"there is no level {name!r} here; {have}")
        column = list(self.levels).index(name)
        return replace(
            self,
            labels=self.label_sets[:, column],
            class_names=self.levels[name],
            label_sets=None,
            levels=None,
            source=None,
        )

    def path(self, index: int) -> str:
        """Return the path of an example, or a name for messages if it has none."""
        if self.images is None or isinstance(self.images, Tensor):
            return f"number {index} of the arrays in memory"
        return str(self.images[index])

    def image(self, index: int, least: int | None = None) -> Image.Image:
        """Decode the image of an example as upright RGB; `least` as in `tuplet.images.decode.read_image`."""
        if self.images is None:
            raise ValueError("this dataset holds feature vectors and no images; see its features")
        source = self.images[index]
        if isinstance(source, Tensor):
            image = Image.fromarray(source.permute(1, 2, 0).cpu().numpy())
        elif not isinstance(source, TorchItem):
            # A box counts the pixels of the whole image, not those of a reduced one.
            least = least if self.boxes is None else None
            image = read_image(source if isinstance(source, str) else read_bytes(source), str(source), least)
        else:
            image = read_image(source.read(), str(source))
        return image if self.boxes is None else crop_box(image, self.boxes[index].tolist(), self.path(index))

    def select(self, indices: Sequence[int] | Tensor) -> "Dataset":
        """Return the examples at these indices, or where this mask is true; labels and class names stay."""
        wanted = torch.as_tensor(indices)
        if wanted.dtype == torch.bool and len(wanted) != len(self):
            raise ValueError(f"the mask has {len(wanted)} entries for {len(self)} examples; they must agree")
        if wanted.is_floating_point() and len(wanted):
            raise ValueError(f"indices must be integers or a mask, got {wanted.dtype}; round them first")
        wanted = wanted.nonzero()[:, 0] if wanted.dtype == torch.bool else wanted.long()
        numbers = wanted.tolist()
        # Splits are often halves of a dataset: the large tensors of examples in a row are not copied.
        start = numbers[0] if numbers else 0
        in_a_row = start >= 0 and numbers == [*range(start, start + len(numbers))]
        rows = slice(start, start + len(numbers)) if in_a_row else wanted
        images = self.images
        return replace(
            self,
            labels=self.labels[wanted],
            images=images[rows] if isinstance(images, Tensor) else images and [images[i] for i in numbers],
            features=None if self.features is None else self.features[rows],
            splits=self.splits and tuple(self.splits[i] for i in numbers),
            aspects=None if self.aspects is None else self.aspects[wanted],
            boxes=None if self.boxes is None else self.boxes[wanted],
            groups=self.groups and self.groups._replace(codes=self.groups.codes[wanted]),
            label_sets=None if self.label_sets is None else self.label_sets[wanted],
            metadata={name: tuple(values[i] for i in numbers) for name, values in self.metadata.items()},
            pairs=self.pairs and self.pairs.select(wanted, len(self)),
            crops=self.crops and (self.crops[0], self.crops[1][rows]),
            source=None,
            opened_with={},
        )

    def of_classes(self, classes: Collection[int]) -> "Dataset":
        """Return the examples of these labels."""
        wanted = torch.zeros(len(self.class_names), dtype=torch.bool)
        wanted[[label for label in classes if 0 <= label < len(wanted)]] = True
        return self.select(wanted[self.labels])

    def part(self, *names: str) -> "Dataset":
        """Return the examples of these splits, such as `part("query")`."""
        have = dict.fromkeys(self.splits or ())
        for name in names:
            if name not in have:
                there = f"the splits are {', '.join(have)}" if have else "the data have no splits: take all of them"
                raise ValueError(f"there is no split {name!r} here; {there}")
        return self.select(torch.tensor([split in names for split in self.splits or ()]))

    def test_part(self) -> "Dataset":
        """Return the test examples of data that come with splits: `test`, or `query` and `gallery`."""
        have = dict.fromkeys(self.splits or ())
        testing = ("test",) if "test" in have else ("query", "gallery")
        if not set(testing) <= set(have):
            raise ValueError(
                f"there is no split 'test', nor 'query' and 'gallery', here; the splits are "
                f"{', '.join(have)}: rename the one to test on to 'test', or use part()"
            )
        return self.part(*testing)

    def split(self, ratio: float | None = None, seed: int | None = None) -> tuple["Dataset", "Dataset"]:
        """Split into training and test examples.

        By default this is the split that the data come with; query and gallery together are the test examples where
        the data have those. Data without splits are divided by class, the first half for training, as in the papers.
        Examples of other splits, such as `val`, are in neither part.

        Args:
            ratio: the share of the classes for training; ignores the splits of the data.
            seed: shuffle the classes before dividing them; ignores the splits of the data.
        """
        if self.splits is not None and ratio is None and seed is None:
            test = self.test_part()
            return self.part("train"), test
        ratio = 0.5 if ratio is None else ratio
        order = self._class_order(seed)
        if len(order) < 2:
            named = f": {self.class_names[order[0]]!r}" if order else ""
            raise ValueError(f"the data have {len(order)} class{named}; a split into train and test needs two or more")
        count = round(len(order) * ratio) if 0 < ratio < 1 else 0
        if not 0 < count < len(order):
            raise ValueError(f"a ratio of {ratio} leaves one side of {len(order)} classes empty; choose another")
        return self.of_classes(order[:count]), self.of_classes(order[count:])

    def folds(self, count: int, seed: int = 0) -> Iterator[tuple["Dataset", "Dataset"]]:
        """Yield training and validation examples of `count` folds; each class is in one validation part."""
        order = self._class_order(seed)
        if not 2 <= count <= len(order):
            raise ValueError(f"{count} folds of {len(order)} classes are not possible; choose 2 to {len(order)}")
        for fold in range(count):
            held_out = order[fold::count]
            yield self.of_classes(set(order) - set(held_out)), self.of_classes(held_out)

    def _class_order(self, seed: int | None) -> list[int]:
        if seed is None:
            return self.classes
        shuffled = torch.randperm(len(self.classes), generator=torch.Generator().manual_seed(seed))
        return torch.tensor(self.classes)[shuffled].tolist()

    def dense(self) -> "Dataset":
        """Renumber the labels that occur as 0, 1, 2 …, for losses with one proxy per class."""
        classes = torch.unique(self.targets[self.targets >= 0])
        number = torch.full((len(self.class_names) + 1,), -1).scatter_(0, classes, torch.arange(len(classes)))
        names = tuple(self.class_names[c] for c in classes.tolist())
        sets = None if self.label_sets is None or self.levels else number[self.label_sets]  # −1 stays −1
        return replace(self, labels=number[self.labels], class_names=names, label_sets=sets, levels=None, source=None)


class ListedPairs(NamedTuple):
    """Pairs and triplets of examples, by their numbers.

    `first` and `second` (P,) are the pairs, `same` (P,) is true for those of one class. `triplets` (T, 3) are anchor,
    positive and negative; their pairs are among the pairs. `folds` (P,) are the folds of cross-validation that the
    data come with.
    """

    first: Tensor
    second: Tensor
    same: Tensor
    triplets: Tensor
    folds: Tensor | None = None

    def select(self, indices: Tensor, count: int) -> "ListedPairs":
        """Return the pairs whose examples are both among these, numbered by their place among them."""
        place = torch.full((count,), -1).scatter_(0, indices, torch.arange(len(indices)))
        first, second = place[self.first], place[self.second]
        both, triplets = (first >= 0) & (second >= 0), place[self.triplets]
        folds = None if self.folds is None else self.folds[both]
        return ListedPairs(first[both], second[both], self.same[both], triplets[(triplets >= 0).all(1)], folds)


def crop_box(image: Image.Image, box: Sequence[float], name: str) -> Image.Image:
    """Cut the part of a box that lies inside an image; raise `UnreadableImageError` if no part does.

    Corners are rounded to whole pixels.

    >>> crop_box(Image.new("RGB", (40, 30)), (10, 5, 60, 20), "a.jpg").size
    (30, 15)
    """
    left, top = (max(0, round(low)) for low in box[:2])
    right, bottom = (min(side, round(high)) for high, side in zip(box[2:], image.size, strict=True))
    if right <= left or bottom <= top:
        given = ", ".join(f"{side:g}" for side in box)
        raise UnreadableImageError(
            f"image {name} has the box {given}, which lies outside of its {image.width} × {image.height} pixels"
        )
    return image.crop((left, top, right, bottom))
