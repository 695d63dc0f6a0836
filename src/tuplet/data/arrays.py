"""Data that are in memory already, and feature vectors from files."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any
from zipfile import BadZipFile

import numpy as np
import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from tuplet.data.dataset import Dataset
from tuplet.labels import label_array

Array = np.ndarray | Tensor
#: Numbers, which `class_names` may name, or names.
Labels = Array | Sequence[int] | Sequence[str]


def from_images(
    images: Array,
    labels: Labels,
    class_names: Sequence[str] | None = None,
    splits: Sequence[str] | None = None,
) -> Dataset:
    """Pictures in one array of bytes: grey (N, H, W), or RGB with the channels second or last.

    >>> from_images(np.zeros((2, 28, 28), np.uint8), [0, 1])
    Dataset(2 images, 2 classes)
    """
    pixels = _tensor(images)
    if pixels.dtype != torch.uint8:
        raise TypeError(f"images must be bytes from 0 to 255, got {pixels.dtype}; scale and round them first")
    if pixels.ndim == 3:
        pixels = pixels[:, None].expand(-1, 3, -1, -1)
    elif pixels.ndim == 4 and pixels.shape[1] != 3 and pixels.shape[3] == 3:
        pixels = pixels.permute(0, 3, 1, 2)
    if pixels.ndim != 4 or pixels.shape[1] != 3 or 0 in pixels.shape[2:]:
        raise ValueError(f"images must be (N, H, W), (N, 3, H, W) or (N, H, W, 3), got {tuple(pixels.shape)}")
    numbers, names = _named(labels, class_names)
    return Dataset(numbers, names, images=pixels, splits=None if splits is None else tuple(splits))


def from_features(
    features: Array,
    labels: Labels,
    class_names: Sequence[str] | None = None,
    splits: Sequence[str] | None = None,
) -> Dataset:
    """Precomputed vectors (N, d), for training a metric head on them.

    >>> from_features(np.zeros((4, 16), np.float32), ["bee", "bee", "ant", "ant"]).class_names
    ('ant', 'bee')
    """
    vectors = _tensor(features)
    if vectors.ndim != 2 or not vectors.shape[1] or not vectors.is_floating_point():
        raise ValueError(f"features must be floats (N, d), got {vectors.dtype} {tuple(vectors.shape)}")
    vectors = vectors.float()
    if not bool(torch.isfinite(vectors).all()):
        row = int((~torch.isfinite(vectors)).any(1).nonzero()[0])
        raise ValueError(f"row {row} of the features is not finite in float32; remove it or compute it again")
    numbers, names = _named(labels, class_names)
    return Dataset(numbers, names, features=vectors, splits=None if splits is None else tuple(splits))


def features_file(path: Path) -> Dataset:
    """Vectors and labels from `.npz` or `.safetensors` (entries features and labels), or from `.npy`.

    The labels of `x.npy` are in `x_labels.npy`, or else in `labels.npy`, beside it.
    """
    if path.suffix.lower() == ".npy":
        beside = [path.with_name(f"{path.stem}_labels.npy"), path.with_name("labels.npy")]
        found = [other for other in beside if other.is_file()]
        if not found:
            raise FileNotFoundError(f"the labels of {path} are missing; save them as {beside[0].name} beside it")
        return from_features(_read(path), _read(found[0]))
    entries = _read(path)
    for name in ("features", "labels"):
        if name not in entries:
            have = ", ".join(entries) or "none"
            raise ValueError(f"{path} has no entry {name!r}, its entries are {have}; name them features and labels")
    return from_features(entries["features"], entries["labels"])


def _read(path: Path) -> Any:
    """The array of a `.npy` file, or those of the other kinds by name."""
    try:
        if path.suffix.lower() == ".safetensors":
            return load_file(path)
        if path.suffix.lower() == ".npy":
            return np.load(path, allow_pickle=False)
        with np.load(path, allow_pickle=False) as archive:
            return dict(archive)
    except (ValueError, TypeError, OSError, EOFError, BadZipFile, SafetensorError) as error:
        reason = str(error).split(". ")[0]
        remedy = "save labels as numbers or as text, labels.astype(str)" if "bject arr" in reason else "save it again"
        raise ValueError(f"features {path} cannot be read ({reason}); {remedy}") from error


def _tensor(array: Array) -> Tensor:
    """The array as a tensor of no graph, copied only where torch cannot share it: steps back, another byte order."""
    if not isinstance(array, Tensor):
        try:
            array = np.asarray(array)
        except ValueError as error:
            raise ValueError(
                f"the list of {len(array)} has members of several shapes; bring them to one shape, or keep pictures "
                "in files and open their folder"
            ) from error
        if min(array.strides, default=0) < 0:
            array = array.copy()
        array = array.astype(array.dtype.newbyteorder("="), copy=False)
    return torch.as_tensor(array).detach()


def _named(labels: Labels, class_names: Sequence[str] | None) -> tuple[Tensor, tuple[str, ...]]:
    """Labels as they are where names are given for them, else renumbered from 0 and named by themselves."""
    array = label_array(labels, names=True)
    if class_names is not None:
        if array.dtype.kind == "U":
            raise TypeError("labels are names already; leave class_names out, or number the classes")
        return torch.from_numpy(array.astype(np.int64)), tuple(class_names)
    values, numbers = np.unique(array, return_inverse=True)
    return torch.from_numpy(numbers), tuple(map(str, values.tolist()))
