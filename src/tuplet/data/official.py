"""Readers of the standard datasets as their authors distribute them, with the splits of the papers."""

import gzip
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from tuplet.data.dataset import Dataset
from tuplet.data.files import Files
from tuplet.data.readers.arrays import from_images
from tuplet.data.readers.lfw import MARKERS as LFW_MARKERS
from tuplet.data.readers.lfw import has_faces, read_lfw
from tuplet.data.readers.matlab import read_mat


@dataclass(frozen=True)
class Layout:
    """A dataset as its authors distribute it.

    Attributes:
        title: its name.
        markers: files or folders, any of which tells the layout.
        read: reads it; takes `boxes=True` where the dataset has boxes.
        counts: the number of images in each split.
        has_boxes: whether it comes with bounding boxes.
        accepts: decides where a marker is not enough, since other data may have a file of that name.
    """

    title: str
    markers: tuple[str, ...]
    read: Callable[..., Dataset]
    counts: dict[str, int]
    has_boxes: bool = False
    accepts: Callable[[Files], bool] = lambda files: True

    def matches(self, files: Files) -> bool:
        """Return True if one of the files or folders that mark this layout exists."""
        return any(files.root_of(marker) is not None for marker in self.markers) and self.accepts(files)

    def check(self, data: Dataset, source: str) -> None:
        """Raise an error where the splits do not have the official sizes."""
        found = Counter(data.splits)
        for split, count in self.counts.items():
            if found[split] != count:
                raise ValueError(
                    f"{self.title} has {count:,} {split} images, but {source} has {found[split]:,}: "
                    "fetch it again, or open it as it is with complete=False in Python"
                )


def cub200(files: Files, boxes: bool = False) -> Dataset:
    """CUB-200-2011: the first 100 classes train, the other 100 test. Boxes are in `bounding_boxes.txt`."""
    root = _root(files, "image_class_labels.txt")
    label = {key: int(c) - 1 for key, c in _rows(files, f"{root}image_class_labels.txt", 2)}
    names = [name for _, name in _rows(files, f"{root}classes.txt", 2)]
    path = {key: f"{root}images/{name}" for key, name in _rows(files, f"{root}images.txt", 2)}
    rows = [(name, label[key], "train" if label[key] < 100 else "test") for key, name in path.items()]
    if not boxes:
        return _dataset(files, rows, names)
    listed = _rows(files, _path(files, "bounding_boxes.txt"), 5)
    sides = {path[key]: tuple(map(float, numbers)) for key, *numbers in listed}
    corners = {name: (x, y, x + width, y + height) for name, (x, y, width, height) in sides.items()}
    return _dataset(files, rows, names, corners)


def cars196(files: Files, boxes: bool = False) -> Dataset:
    """Cars196: the first 98 classes train, the other 98 test. From `cars_annos.mat` or the two lists of the devkit."""
    root = files.root_of("cars_annos.mat")
    if root is not None:
        content = read_mat(files.content(f"{root}cars_annos.mat"))
        listed = [(f"{root}{row['relative_im_path']}", row) for row in content["annotations"]]
    else:
        root = _root(files, "cars_train")
        content = read_mat(files.content(_path(files, "cars_meta.mat")))
        listed = []
        for folder, listing in (
            ("cars_train", "cars_train_annos.mat"),
            ("cars_test", "cars_test_annos_withlabels.mat"),
        ):
            entries = read_mat(files.content(_path(files, listing)))["annotations"]
            listed += [(f"{root}{folder}/{row['fname']}", row) for row in entries]
    labels = [int(row["class"].item()) - 1 for _, row in listed]
    rows = [(name, c, "train" if c < 98 else "test") for (name, _), c in zip(listed, labels, strict=True)]
    if not boxes:
        return _dataset(files, rows, content["class_names"])
    # MATLAB counts pixels from 1, and the last one lies inside the box.
    sides = [("bbox_x1", 1), ("bbox_y1", 1), ("bbox_x2", 0), ("bbox_y2", 0)]
    corners = {name: tuple(float(row[side].item()) - first for side, first in sides) for name, row in listed}
    return _dataset(files, rows, content["class_names"], corners)


def stanford_online_products(files: Files) -> Dataset:
    """Stanford Online Products: the lists `Ebay_train.txt` and `Ebay_test.txt` of 11,318 and 11,316 products."""
    root = _root(files, "Ebay_train.txt")
    rows = [
        (f"{root}{path}", product, split)
        for split in ("train", "test")
        for _, product, _, path in _rows(files, f"{root}Ebay_{split}.txt", 4)[1:]
    ]
    return _by_name(files, rows, order=int)


def in_shop(files: Files, boxes: bool = False) -> Dataset:
    """In-Shop Clothes Retrieval: the train, query and gallery images of `list_eval_partition.txt`.

    Boxes of its images of 256 pixels are in `list_bbox_inshop.txt`.
    """
    root = _root(files, "img")
    listed = _rows(files, _path(files, "list_eval_partition.txt"), 3, header=2)
    rows = [(f"{root}{path}", item, split) for path, item, split in listed]
    if not boxes:
        return _by_name(files, rows)
    # The columns between the name and the box are the kind of garment and the pose.
    lines = _rows(files, _path(files, "list_bbox_inshop.txt"), 7, header=2)
    return _by_name(files, rows, boxes={f"{root}{path}": tuple(map(float, box)) for path, _, _, *box in lines})


def omniglot(files: Files) -> Dataset:
    """Omniglot: the 964 background characters train, the 659 evaluation characters test, 20 drawings each."""
    splits = {"images_background": "train", "images_evaluation": "test"}
    found = [re.search(rf"(?:^|/)({'|'.join(splits)})/([^/]+/[^/]+)/[^/]+\.png$", name) for name in files]
    return _by_name(files, [(match.string, match[2], splits[match[1]]) for match in found if match])


def mnist(files: Files) -> Dataset:
    """MNIST, Fashion-MNIST and the like: the idx files `train-…` and `t10k-…`, plain or gzipped."""
    train, test = (_idx_array(files, f"{part}-labels", 1) for part in ("train", "t10k"))
    images = [_idx_array(files, f"{part}-images", 3) for part in ("train", "t10k")]
    splits = ["train"] * len(train) + ["test"] * len(test)
    return from_images(np.concatenate(images), np.concatenate([train, test]), splits=splits)


def _idx_array(files: Files, stem: str, dimensions: int) -> np.ndarray:
    """Read an idx file: two zeros, type 8 for bytes, the dimensions, their sizes as big-endian words, the bytes."""
    names = [name for name in files if re.search(rf"(^|/){stem}[.-]idx{dimensions}-ubyte(\.gz)?$", name)]
    if not names:
        raise FileNotFoundError(f"{files.source} has no file {stem}-idx{dimensions}-ubyte, plain or .gz")
    content = files.content(names[0])
    try:
        content = gzip.decompress(content) if names[0].endswith(".gz") else content
        if content[:4] != bytes([0, 0, 8, dimensions]):
            raise ValueError(f"it begins with {content[:4].hex()} and not with 000008{dimensions:02x}")
        shape = np.frombuffer(content, ">u4", dimensions, offset=4)
        return np.frombuffer(content, np.uint8, offset=4 + 4 * dimensions).reshape(shape)
    except (OSError, EOFError, ValueError, zlib.error) as error:
        raise ValueError(f"{names[0]}: {error}") from error


def _dataset(
    files: Files,
    rows: Sequence[tuple[str, int, str]],
    class_names: Iterable[str],
    boxes: Mapping[str, tuple[float, ...]] | None = None,
) -> Dataset:
    """Make a dataset of the rows (name, label, split) whose images exist; `Layout.check` counts them.

    `boxes` has left, top, right and bottom for each name.
    """
    present = [row for row in rows if row[0] in files]
    if not present:
        first = rows[0][0] if rows else "none listed"
        raise FileNotFoundError(f"none of the {len(rows):,} listed images lies in {files.source}; the first is {first}")
    return Dataset(
        labels=torch.tensor([label for _, label, _ in present]),
        class_names=tuple(class_names),
        images=[files[name] for name, _, _ in present],
        splits=tuple(split for _, _, split in present),
        boxes=None if boxes is None else torch.tensor([boxes[name] for name, _, _ in present], dtype=torch.float64),
    )


def _by_name(
    files: Files,
    rows: Sequence[tuple[str, str, str]],
    order: Callable[[str], object] = str,
    boxes: Mapping[str, tuple[float, ...]] | None = None,
) -> Dataset:
    """Make a dataset of rows (name, class name, split)."""
    names = sorted({name for _, name, _ in rows}, key=order)  # type: ignore[arg-type]
    number = {name: label for label, name in enumerate(names)}
    return _dataset(files, [(path, number[name], split) for path, name, split in rows], names, boxes)


def _root(files: Files, marker: str) -> str:
    root = files.root_of(marker)
    if root is None:
        raise FileNotFoundError(f"{files.source} has no {marker}, which the official layout has")
    return root


def _path(files: Files, name: str) -> str:
    return _root(files, name) + name


def _rows(files: Files, name: str, columns: int, header: int = 0) -> list[tuple[str, ...]]:
    """Read the lines of a list, split into columns at white space."""
    rows = [tuple(line.split(maxsplit=columns - 1)) for line in files.text(name).splitlines()[header:] if line.strip()]
    for row in rows:
        if len(row) != columns:
            raise ValueError(f"a line of {name} in {files.source} does not have {columns} columns: {' '.join(row)!r}")
    return rows


LAYOUTS = {
    "cub200": Layout("CUB-200-2011", ("image_class_labels.txt",), cub200, {"train": 5_864, "test": 5_924}, True),
    "cars196": Layout(
        "Cars196", ("cars_annos.mat", "cars_train_annos.mat"), cars196, {"train": 8_054, "test": 8_131}, True
    ),
    "sop": Layout(
        "Stanford Online Products", ("Ebay_train.txt",), stanford_online_products, {"train": 59_551, "test": 60_502}
    ),
    "inshop": Layout(
        "In-Shop", ("list_eval_partition.txt",), in_shop, {"train": 25_882, "query": 14_218, "gallery": 12_612}, True
    ),
    "lfw": Layout("LFW", LFW_MARKERS, read_lfw, {}, accepts=has_faces),  # aligned copies lack images
    "omniglot": Layout("Omniglot", ("images_background",), omniglot, {"train": 19_280, "test": 13_180}),
    "mnist": Layout(
        "MNIST",
        tuple(f"train-images{dot}idx3-ubyte{end}" for dot in "-." for end in ("", ".gz")),
        mnist,
        {"train": 60_000, "test": 10_000},
    ),
}
