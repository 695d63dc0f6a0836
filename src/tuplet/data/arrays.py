"""Data that are in memory already, and feature vectors from files."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from tuplet.data.dataset import Dataset

Array = np.ndarray | Tensor


def from_images(
    images: Array,
    labels: Array | Sequence[int],
    class_names: Sequence[str] | None = None,
    splits: Sequence[str] | None = None,
) -> Dataset:
    """Pictures in one array of bytes: grey (N, H, W), or RGB with the channels second or last.

    >>> from_images(np.zeros((2, 28, 28), np.uint8), [0, 1])
    Dataset(2 images, 2 classes)
    """
    pixels = torch.as_tensor(images)
    if pixels.dtype != torch.uint8:
        raise TypeError(f"images must be bytes from 0 to 255, got {pixels.dtype}; scale and round them first")
    if pixels.ndim == 3:
        pixels = pixels[:, None].expand(-1, 3, -1, -1)
    elif pixels.ndim == 4 and pixels.shape[1] != 3 and pixels.shape[3] == 3:
        pixels = pixels.permute(0, 3, 1, 2)
    if pixels.ndim != 4 or pixels.shape[1] != 3:
        raise ValueError(f"images must be (N, H, W), (N, 3, H, W) or (N, H, W, 3), got {tuple(pixels.shape)}")
    numbers, names = _named(labels, class_names)
    return Dataset(numbers, names, images=pixels, splits=None if splits is None else tuple(splits))


def from_features(
    features: Array,
    labels: Array | Sequence[int],
    class_names: Sequence[str] | None = None,
    splits: Sequence[str] | None = None,
) -> Dataset:
    """Precomputed vectors (N, d), for training a metric head on them.

    >>> from_features(np.zeros((4, 16), np.float32), [3, 3, 9, 9]).class_names
    ('3', '9')
    """
    vectors = torch.as_tensor(features)
    if vectors.ndim != 2 or not vectors.is_floating_point():
        raise ValueError(f"features must be floats (N, d), got {vectors.dtype} {tuple(vectors.shape)}")
    if not bool(torch.isfinite(vectors).all()):
        row = int((~torch.isfinite(vectors)).any(1).nonzero()[0])
        raise ValueError(f"row {row} of the features is not finite; remove it or compute it again")
    numbers, names = _named(labels, class_names)
    return Dataset(numbers, names, features=vectors.float(), splits=None if splits is None else tuple(splits))


def features_file(path: Path) -> Dataset:
    """Vectors and labels from `.npz` or `.safetensors` (entries features and labels), or from `.npy`.

    The labels of `x.npy` are in `x_labels.npy`, or else in `labels.npy`, beside it.
    """
    if path.suffix == ".npy":
        beside = [path.with_name(f"{path.stem}_labels.npy"), path.with_name("labels.npy")]
        found = [other for other in beside if other.is_file()]
        if not found:
            raise FileNotFoundError(f"the labels of {path} are missing; save them as {beside[0].name} beside it")
        return from_features(np.load(path, allow_pickle=False), np.load(found[0], allow_pickle=False))
    if path.suffix == ".npz":
        with np.load(path, allow_pickle=False) as archive:
            entries: dict[str, Array] = dict(archive)
    else:
        from safetensors.torch import load_file

        entries = dict(load_file(path))
    for name in ("features", "labels"):
        if name not in entries:
            raise ValueError(f"{path} has no entry {name!r}; its entries are {', '.join(entries)}")
    return from_features(entries["features"], entries["labels"])


def _named(labels: Array | Sequence[int], class_names: Sequence[str] | None) -> tuple[Tensor, tuple[str, ...]]:
    """Labels as they are where names are given for them, else renumbered from 0 and named by themselves."""
    numbers = torch.as_tensor(labels)
    if numbers.is_floating_point() or numbers.is_complex():
        raise TypeError(f"labels must be integers, got {numbers.dtype}")
    if class_names is not None:
        return numbers.long(), tuple(class_names)
    values, numbers = torch.unique(numbers.long(), return_inverse=True)
    return numbers, tuple(map(str, values.tolist()))
