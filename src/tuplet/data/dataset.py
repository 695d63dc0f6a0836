"""What every reader gives and everything downstream takes: examples, their labels and their splits."""

from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeAlias

import torch
from PIL import Image
from torch import Tensor

from tuplet.data.decode import read_image
from tuplet.data.files import Location, read_bytes

#: Where pictures are: files, files inside tars, or one uint8 tensor (N, 3, H, W) that holds them all.
Images: TypeAlias = Sequence[Location] | Tensor


@dataclass(frozen=True, eq=False, repr=False)
class Dataset:
    """Labelled pictures, or labelled vectors.

    `labels` (N,) int64 count from 0 and index `class_names`. Either `images` or `features` (N, d) holds the examples.
    `splits` names the split of each example (train, test, query, gallery …) where the data come with one. `aspects`
    (N,) are the true width / height of pictures that were squashed; without them the pixels are taken as they are.
    `source` is what `tuplet.data.open` opened to get all of it; a part of it, and what was made in memory, has none.

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
    source: str | None = None

    def __post_init__(self) -> None:
        if (self.images is None) == (self.features is None):
            raise ValueError("a dataset holds either images or features; give one of them")
        if self.labels.dtype != torch.int64 or self.labels.ndim != 1:
            raise ValueError(f"labels must be int64 (N,), got {self.labels.dtype} {tuple(self.labels.shape)}")
        for name in ("images", "features", "splits", "aspects"):
            value = getattr(self, name)
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
        """The labels that occur, in order."""
        return torch.unique(self.labels).tolist()

    def path(self, index: int) -> str:
        """Where an example comes from, for people to read."""
        if self.images is None or isinstance(self.images, Tensor):
            return f"number {index} of the arrays in memory"
        return str(self.images[index])

    def image(self, index: int, least: int | None = None) -> Image.Image:
        """The picture of an example, upright and RGB; `least` as in `tuplet.data.decode.read_image`."""
        if self.images is None:
            raise ValueError("this dataset holds feature vectors and no images")
        source = self.images[index]
        if isinstance(source, Tensor):
            return Image.fromarray(source.permute(1, 2, 0).cpu().numpy())
        return read_image(source if isinstance(source, str) else read_bytes(source), str(source), least)

    def select(self, indices: Sequence[int] | Tensor) -> "Dataset":
        """The examples at these indices, or where this mask is true; labels and class names stay as they are."""
        wanted = torch.as_tensor(indices)
        if wanted.dtype == torch.bool and len(wanted) != len(self):
            raise ValueError(f"the mask has {len(wanted)} entries for {len(self)} examples; they must agree")
        if wanted.is_floating_point() and len(wanted):
            raise ValueError(f"indices must be integers or a mask, got {wanted.dtype}; round them first")
        wanted = wanted.nonzero()[:, 0] if wanted.dtype == torch.bool else wanted.long()
        numbers = wanted.tolist()
        images = self.images
        return replace(
            self,
            labels=self.labels[wanted],
            images=images[wanted] if isinstance(images, Tensor) else images and [images[i] for i in numbers],
            features=None if self.features is None else self.features[wanted],
            splits=self.splits and tuple(self.splits[i] for i in numbers),
            aspects=None if self.aspects is None else self.aspects[wanted],
            source=None,
        )

    def of_classes(self, classes: Collection[int]) -> "Dataset":
        """The examples of these labels."""
        return self.select(torch.isin(self.labels, torch.tensor(list(classes), dtype=torch.int64)))

    def part(self, *names: str) -> "Dataset":
        """The examples of these splits, such as `part("query")`."""
        have = dict.fromkeys(self.splits or ())
        for name in names:
            if name not in have:
                there = f"the splits are {', '.join(have)}" if have else "the data have no splits: take all of them"
                raise ValueError(f"there is no split {name!r} here; {there}")
        return self.select(torch.tensor([split in names for split in self.splits or ()]))

    def split(self, ratio: float | None = None, seed: int | None = None) -> tuple["Dataset", "Dataset"]:
        """Training and test examples.

        Without arguments: the split that the data come with (`test` is query and gallery together where those
        are its names), or else the first half of the classes against the second, as the papers do. Examples of other
        splits, such as `val`, are in neither. With `ratio` or `seed`: that share of the classes, one half by default,
        in order or shuffled by the seed.
        """
        if self.splits is not None and ratio is None and seed is None:
            testing = ("test",) if "test" in self.splits else ("query", "gallery")
            if not set(testing) <= set(self.splits):
                raise ValueError(
                    f"there is no split 'test', nor 'query' and 'gallery', here; the splits are "
                    f"{', '.join(dict.fromkeys(self.splits))}: call the one to test with 'test', or take them by part()"
                )
            return self.part("train"), self.part(*testing)
        ratio = 0.5 if ratio is None else ratio
        order = self._class_order(seed)
        if len(order) < 2:
            named = f": {self.class_names[order[0]]!r}" if order else ""
            raise ValueError(f"the data have {len(order)} class{named}; a split into train and test needs two at least")
        count = round(len(order) * ratio) if 0 < ratio < 1 else 0
        if not 0 < count < len(order):
            raise ValueError(f"a ratio of {ratio} leaves one side of {len(order)} classes empty; choose another")
        return self.of_classes(order[:count]), self.of_classes(order[count:])

    def folds(self, count: int, seed: int = 0) -> Iterator[tuple["Dataset", "Dataset"]]:
        """Training and validation examples of `count` folds over the classes: each class is validated on once."""
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
        """The same examples with the labels that occur renumbered 0, 1, 2 …, for losses with one proxy a class."""
        classes, labels = torch.unique(self.labels, return_inverse=True)
        names = tuple(self.class_names[c] for c in classes.tolist())
        return replace(self, labels=labels, class_names=names, source=None)
