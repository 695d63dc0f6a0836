"""Datasets of Python objects (arrays, torch datasets), and of feature vectors in files."""

import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import IO, Any
from zipfile import ZipFile

import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from tuplet.data.dataset import Dataset
from tuplet.data.files import TorchItem
from tuplet.errors import first_line
from tuplet.labels import label_array
from tuplet.progress import track

Array = np.ndarray | Tensor
#: Numbers, or names.
Labels = Array | Sequence[int] | Sequence[str]


def from_images(
    images: Array,
    labels: Labels,
    class_names: Sequence[str] | None = None,
    splits: Iterable[str] | None = None,
) -> Dataset:
    """Make a dataset of images in memory.

    Args:
        images: uint8, grey (N, H, W), or RGB with the channels second or last.
        labels: integers or names.
        class_names: names for integer labels, which then count from 0.
        splits: the split of each example, such as "train" and "test".

    Raises:
        TypeError: the images are not uint8, or the labels neither integers nor names.
        ValueError: the shapes do not agree.

    >>> from_images(np.zeros((2, 28, 28), np.uint8), [0, 1])
    Dataset(2 images, 2 classes)
    """
    pixels = _tensor(images)
    if pixels.dtype != torch.uint8:
        raise TypeError(f"images must be uint8 from 0 to 255, got {pixels.dtype}; scale and round them first")
    if pixels.ndim == 3:
        pixels = pixels[:, None].expand(-1, 3, -1, -1)
    elif pixels.ndim == 4 and pixels.shape[1] != 3 and pixels.shape[3] == 3:
        pixels = pixels.permute(0, 3, 1, 2)
    if pixels.ndim != 4 or pixels.shape[1] != 3 or 0 in pixels.shape[2:]:
        raise ValueError(f"images must be (N, H, W), (N, 3, H, W) or (N, H, W, 3), got {tuple(pixels.shape)}")
    numbers, names = numbered(labels, class_names)
    return Dataset(numbers, names, images=pixels, splits=None if splits is None else tuple(splits))


def from_features(
    features: Array,
    labels: Labels,
    class_names: Sequence[str] | None = None,
    splits: Iterable[str] | None = None,
) -> Dataset:
    """Make a dataset of precomputed feature vectors, for training an embedding on them.

    Args:
        features: floats (N, d).
        labels: integers or names.
        class_names: names for integer labels, which then count from 0.
        splits: the split of each example, such as "train" and "test".

    Raises:
        ValueError: the shapes do not agree, or a vector is not finite.

    >>> from_features(np.zeros((4, 16), np.float32), ["bee", "bee", "ant", "ant"]).class_names
    ('ant', 'bee')
    """
    vectors = _tensor(features)
    if vectors.ndim != 2 or not vectors.shape[1] or not vectors.is_floating_point():
        raise ValueError(
            f"features must be floats (N, d), got {vectors.dtype} {tuple(vectors.shape)}; give one vector for each "
            "example, and convert integers with .float()"
        )
    vectors = vectors.float()
    if not bool(torch.isfinite(vectors).all()):
        row = int((~torch.isfinite(vectors)).any(1).nonzero()[0])
        raise ValueError(f"row {row} of the features is not finite in float32; remove it or compute it again")
    numbers, names = numbered(labels, class_names)
    return Dataset(numbers, names, features=vectors, splits=None if splits is None else tuple(splits))


def from_torch(dataset: Any, splits: Iterable[str] | None = None) -> Dataset:
    """Make a dataset of a `torch.utils.data.Dataset` whose items are (image or tensor, label).

    Images are PIL images or tensors (3, H, W), uint8 or floats from 0 to 1, of any size; they are read again when they
    are needed, and what the dataset does to them happens then. Tensors (d,) are feature vectors. Labels are integers or
    names. The attributes `targets` and `classes` that torchvision's datasets have give labels and class names without
    reading an image.

    Args:
        dataset: the torch dataset; it must have a length.
        splits: the split of each item, such as "train" and "test".

    >>> vectors = torch.utils.data.TensorDataset(torch.eye(4), torch.tensor([0, 0, 1, 1]))
    >>> from_torch(vectors)
    Dataset(4 feature vectors, 2 classes)
    """
    kind, count = type(dataset).__name__, len(dataset)
    if not count:
        raise ValueError(f"the {kind} is empty; give one with items")
    item = dataset[0]
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise TypeError(f"an item of the {kind} is no pair (image or tensor, label); return both from its __getitem__")
    first = item[0]
    if isinstance(first, Tensor | np.ndarray) and first.ndim == 1:
        vectors, labels = zip(*(dataset[i] for i in range(count)), strict=True)
        return from_features(torch.stack([torch.as_tensor(v) for v in vectors]), _plain(labels), splits=splits)
    targets, classes = getattr(dataset, "targets", None), getattr(dataset, "classes", None)
    if targets is None or len(targets) != count:
        targets = _plain(dataset[i][1] for i in track(range(count), "reading labels"))
    are_names = label_array(targets, names=True).dtype.kind == "U"
    numbers, names = numbered(targets, None if classes is None or are_names else [str(name) for name in classes])
    images = [TorchItem(dataset, i) for i in range(count)]
    return Dataset(numbers, names, images=images, splits=None if splits is None else tuple(splits))


def _plain(labels: Iterable[Any]) -> list[Any]:
    """Return labels as Python's numbers and text."""
    return [label.item() if isinstance(label, Tensor | np.generic) else label for label in labels]


def features_file(path: Path) -> Dataset:
    """Read vectors and labels from `.npz` or `.safetensors` (entries features and labels), or from `.npy`.

    The labels of `x.npy` are in `x_labels.npy`, or else in `labels.npy`, beside it. What `tuplet embed` writes can be
    read too: its vectors are the entry embeddings, and the names of safetensors' classes are in the metadata.
    """
    if path.suffix.lower() == ".npy":
        beside = [path.with_name(f"{path.stem}_labels.npy"), path.with_name("labels.npy")]
        found = [other for other in beside if other.is_file()]
        if not found:
            raise FileNotFoundError(f"the labels of {path} are missing; save them as {beside[0].name} beside it")
        entries = {"features": _read(path), "labels": _read(found[0])}
    else:
        entries = _read(path)
    vectors = "embeddings" if "embeddings" in entries and "features" not in entries else "features"
    for name, remedy in ((vectors, "give the vectors this name"), ("labels", "add the class of each vector")):
        if name not in entries:
            have = ", ".join(entries) or "none"
            raise ValueError(f"{path} has no entry {name!r}, its entries are {have}; {remedy}")
    names = _class_names(path) if path.suffix.lower() == ".safetensors" else None
    splits = entries.get("splits")
    dataset = from_features(entries[vectors], entries["labels"], names, None if splits is None else map(str, splits))
    if not len(dataset):
        raise ValueError(f"{path} has no vectors: its {vectors} are {tuple(entries[vectors].shape)}; save it again")
    return dataset


def _class_names(path: Path) -> list[str] | None:
    """Return the names of the classes in the metadata of a safetensors file, one per line; None if it has none."""
    with safe_open(path, "pt") as file:
        listed = (file.metadata() or {}).get("classes")
    return listed.split("\n") if listed else None


def _read(path: Path) -> Any:
    """Read the array of a `.npy` file, or the arrays of the other formats by name."""
    try:
        if path.suffix.lower() == ".safetensors":
            return load_file(path)
        if path.suffix.lower() == ".npy":
            with path.open("rb") as file:
                _check_shape(file, path.stat().st_size)
            return np.load(path, allow_pickle=False)
        with ZipFile(path) as packed:
            for member in packed.infolist():
                with packed.open(member) as file:
                    _check_shape(file, member.file_size)
        with np.load(path, allow_pickle=False) as archive:
            return dict(archive)
    except Exception as error:  # of numpy, zip, zlib, tokenize or safetensors
        reason = first_line(error).split(". ")[0][:200]
        remedy = "save labels as numbers or as text, labels.astype(str)" if "bject arr" in reason else "save it again"
        raise ValueError(f"features {path} cannot be read ({reason}); {remedy}") from error


def _check_shape(file: IO[bytes], size: int) -> None:
    """Raise ValueError where an array has not the bytes for its shape: numpy would make room for it first."""
    version = np.lib.format.read_magic(file)
    read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
    shape, _, dtype = read(file)
    needed = math.prod(shape) * dtype.itemsize
    if not dtype.hasobject and needed > size - file.tell():
        raise ValueError(f"its shape {shape} takes {needed:,} bytes and it has {size - file.tell():,}")


def _tensor(array: Array) -> Tensor:
    """Convert to a detached tensor; copy only where torch cannot share it: negative strides, another byte order."""
    if not isinstance(array, Tensor):
        try:
            array = np.asarray(array)
        except ValueError as error:
            raise ValueError(
                f"the list of {len(array)} has members of several shapes; bring them to one shape, or keep images "
                "in files and open their folder"
            ) from error
        if min(array.strides, default=0) < 0:
            array = array.copy()
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
    return torch.as_tensor(array).detach()


def numbered(labels: Labels, class_names: Sequence[str] | None) -> tuple[Tensor, tuple[str, ...]]:
    """Return labels as they are where class names are given; otherwise renumber them from 0 and name them."""
    array = label_array(labels, names=True)
    if class_names is not None:
        if array.dtype.kind == "U":
            raise TypeError("labels are names already; leave class_names out, or number the classes")
        return torch.from_numpy(array.astype(np.int64)), tuple(class_names)
    values, numbers = np.unique(array, return_inverse=True)
    return torch.from_numpy(numbers), tuple(map(str, values.tolist()))
