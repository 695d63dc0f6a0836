"""A `torch.utils.data.Dataset` of (image or tensor, label) as a dataset."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from tuplet.data.arrays import from_features, numbered
from tuplet.data.dataset import Dataset
from tuplet.progress import track


@dataclass(frozen=True)
class Item:
    """The image of an item of a torch dataset, read when it is needed."""

    dataset: Any
    index: int

    @property
    def name(self) -> str:
        """The name of the item."""
        return f"{type(self.dataset).__name__}/{self.index}"

    def __str__(self) -> str:
        return f"number {self.index} of the {type(self.dataset).__name__}"

    def read(self) -> Image.Image:
        """Return the image."""
        value = self.dataset[self.index][0]
        return value if isinstance(value, Image.Image) else Image.fromarray(_pixels(value, str(self)))


def from_torch(dataset: Any, splits: Sequence[str] | None = None) -> Dataset:
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
    count = len(dataset)
    if not count:
        raise ValueError(f"the {type(dataset).__name__} is empty; give one with items")
    try:
        first, _ = dataset[0]
    except (TypeError, ValueError) as error:
        raise TypeError(f"an item of the {type(dataset).__name__} is no pair (image or tensor, label)") from error
    named = getattr(dataset, "classes", None)
    targets = getattr(dataset, "targets", None)
    is_vector = isinstance(first, Tensor | np.ndarray) and first.ndim == 1
    if targets is None or len(targets) != count or is_vector:
        items = [dataset[i] for i in range(count)] if is_vector else []
        labels = [label for _, label in items] or [dataset[i][1] for i in track(range(count), "reading labels")]
        targets = [label.item() if isinstance(label, Tensor | np.generic) else label for label in labels]
        if is_vector:
            return from_features(torch.stack([torch.as_tensor(value) for value, _ in items]), targets, splits=splits)
    numbers, names = numbered(targets, None)
    if named is not None and all(isinstance(label, int) for label in torch.as_tensor(targets).tolist()):
        numbers, names = torch.as_tensor(targets).long(), tuple(map(str, named))
    images = [Item(dataset, i) for i in range(count)]
    return Dataset(numbers, names, images=images, splits=None if splits is None else tuple(splits))


def _pixels(value: Any, name: str) -> np.ndarray:
    """Return an image of a torch dataset as uint8 (H, W, 3)."""
    pixels = torch.as_tensor(value)
    if pixels.ndim == 2:
        pixels = pixels[None]
    if pixels.ndim == 3 and pixels.shape[0] not in (1, 3) and pixels.shape[2] in (1, 3):
        pixels = pixels.permute(2, 0, 1)
    if pixels.ndim != 3 or pixels.shape[0] not in (1, 3):
        raise ValueError(f"{name} is a tensor of shape {tuple(pixels.shape)}; images are (3, H, W)")
    if pixels.is_floating_point():
        if float(pixels.min()) < 0 or float(pixels.max()) > 1:
            raise ValueError(
                f"{name} has floats from {float(pixels.min()):g} to {float(pixels.max()):g}; give uint8, or floats "
                "from 0 to 1, without a mean subtracted"
            )
        pixels = (pixels * 255).round()
    return pixels.to(torch.uint8).expand(3, -1, -1).permute(1, 2, 0).contiguous().numpy()
