"""The idx files of MNIST, Fashion-MNIST and similar datasets, plain or gzipped."""

import gzip
import re
import zlib

import numpy as np

from tuplet.data.arrays import from_images
from tuplet.data.dataset import Dataset
from tuplet.data.files import Files

MARKERS = tuple(f"train-images{dot}idx3-ubyte{end}" for dot in "-." for end in ("", ".gz"))


def read_mnist(files: Files) -> Dataset:
    """Read the images and labels of the files `train-…` and `t10k-…`, which share the same ten classes."""
    train, test = (_array(files, f"{part}-labels", 1) for part in ("train", "t10k"))
    images = [_array(files, f"{part}-images", 3) for part in ("train", "t10k")]
    splits = ["train"] * len(train) + ["test"] * len(test)
    return from_images(np.concatenate(images), np.concatenate([train, test]), splits=splits)


def _array(files: Files, stem: str, dimensions: int) -> np.ndarray:
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
