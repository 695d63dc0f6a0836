"""Decoded pictures, all of one size, ready to be indexed: in memory, mapped from disk, or on the device."""

import os
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import DataLoader

from tuplet import progress
from tuplet.data.cache import cached
from tuplet.data.dataset import Dataset
from tuplet.data.decode import fit, to_tensor


@dataclass(frozen=True, eq=False)
class Store:
    """The examples of a dataset as one tensor.

    `values` are uint8 pictures (N, 3, S, S), each squeezed into a square whatever its proportions, or feature vectors
    (N, d). `aspects` (N,) are the pictures' true width / height, by which crops restore the proportions. `data`
    holds the examples that could be read, `skipped` a sentence for each of the others, by its number in the dataset.
    """

    data: Dataset
    values: Tensor
    aspects: Tensor
    skipped: Mapping[int, str] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.values)

    def to(self, device: torch.device | str) -> "Store":
        """The same on a device, if it has the memory."""
        device = torch.device(device)
        size = self.values.numel() * self.values.element_size()
        free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else size
        if size > free:
            raise ValueError(
                f"{len(self):,} examples of {tuple(self.values.shape[1:])} need {size / 2**30:.1f} GiB and {device} "
                f"has {free / 2**30:.1f} GiB free; leave them on the CPU or make them smaller"
            )
        return replace(self, values=self.values.to(device), aspects=self.aspects.to(device))


def load(
    data: Dataset,
    size: int | None = None,
    folder: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    on_error: Literal["stop", "skip"] = "stop",
) -> Store:
    """Decode all pictures of a dataset once, resize them to size × size and keep the bytes.

    `size` is 256 by default, or for arrays in memory their own. With a `folder` the bytes are kept there on disk and
    found again by the next run and by other processes (`tuplet.data.cache`). `workers` processes decode, by default
    one a core where the dataset is worth it; 0 is this process itself. A file that cannot be read stops the run with
    a sentence that names it; with `on_error="skip"` it is left out, counted and reported. Feature vectors are taken
    as they are.

    >>> from tuplet.data import from_images
    >>> store = load(from_images(torch.zeros(4, 20, 30, dtype=torch.uint8), [0, 0, 1, 1]), size=16)
    >>> store.values.shape, store.aspects
    (torch.Size([4, 3, 16, 16]), tensor([1.5000, 1.5000, 1.5000, 1.5000]))
    """
    if on_error not in ("stop", "skip"):
        raise ValueError(f"on_error is {on_error!r}; it must be 'stop' or 'skip'")
    if size is not None and not (isinstance(size, int | np.integer) and size > 0):
        raise ValueError(f"size is {size!r}; it must be a positive whole number")
    if not len(data):
        raise ValueError("the dataset has no examples to load")
    if data.features is not None:
        return Store(data, data.features, torch.ones(len(data)))
    if isinstance(data.images, Tensor):
        size = size or max(data.images.shape[-2:])
        if data.images.shape[-2:] == (size, size):
            return Store(data, data.images, torch.ones(len(data)) if data.aspects is None else data.aspects)
        data = replace(data, images=data.images.cpu())  # worker processes cannot reach a GPU
    size = size or 256

    def fill(write: Callable[[Tensor], object]) -> tuple[list[float], dict[int, str]]:
        aspects, errors = [], {}
        decoded = _decode(data, size, workers)
        for i, (pixels, aspect, error) in enumerate(progress.track(decoded, "decoding", total=len(data))):
            if error:
                errors[i] = error
                if on_error == "stop":
                    raise ValueError(error)
            else:
                write(pixels)
                aspects.append(aspect)
        return aspects, errors

    if folder is not None:
        values, aspects, errors = cached(Path(folder), data, size, fill)
    else:
        values = torch.empty(len(data), 3, size, size, dtype=torch.uint8)
        places = iter(values)
        aspects, errors = fill(lambda pixels: next(places).copy_(pixels))
        values = values[: len(aspects)]
    return _store(data, values, torch.tensor(aspects), errors, on_error)


def hold(
    data: Dataset,
    size: int | None = None,
    device: torch.device | str = "cpu",
    folder: str | os.PathLike[str] | None = None,
    on_error: Literal["stop", "skip"] = "stop",
) -> Dataset:
    """The dataset with its pictures decoded and held in memory, or on a device: whatever reads them reads these.

    Several runs on it decode nothing. Sizes, folders and unreadable files are as `load` has them; what could not be
    read is left out, and the others are a part of the data, which has no `source`.

    >>> from tuplet.data import from_images
    >>> hold(from_images(torch.zeros(4, 20, 30, dtype=torch.uint8), [0, 0, 1, 1]), size=16).images.shape
    torch.Size([4, 3, 16, 16])
    """
    store = load(data, size, folder, on_error=on_error).to(device)
    if store.data.features is not None:
        return replace(store.data, features=store.values)
    return replace(store.data, images=store.values, aspects=store.aspects)


def _store(data: Dataset, values: Tensor, aspects: Tensor, errors: dict[int, str], on_error: str) -> Store:
    if errors:
        sentences = list(errors.values())
        if on_error == "stop":
            raise ValueError(sentences[0])
        if len(errors) == len(data):
            raise ValueError(f"none of the {len(data):,} images can be loaded, first: {sentences[0]}")
        listed = "\n  ".join(sentences[:20]) + ("\n  …" if len(sentences) > 20 else "")
        warnings.warn(f"{len(errors):,} of {len(data):,} images were skipped:\n  {listed}", stacklevel=3)
        data = data.select([i for i in range(len(data)) if i not in errors])
    return Store(data, values, aspects if data.aspects is None else data.aspects, errors)


class _Squares(torch.utils.data.Dataset):
    """For each example its bytes, its width / height and, if it cannot be read, the sentence that says why."""

    def __init__(self, data: Dataset, size: int) -> None:
        self.data, self.size = data, size

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[Tensor, float, str]:
        try:
            image = self.data.image(index, least=2 * self.size)
        except (ValueError, OSError) as error:
            return torch.zeros(3, self.size, self.size, dtype=torch.uint8), 1.0, str(error)
        return to_tensor(fit(image, self.size, "square")), image.width / image.height, ""


def _decode(data: Dataset, size: int, workers: int | None) -> Iterator[tuple[Tensor, float, str]]:
    """All examples in order, whatever the number of workers."""
    workers = min(16, _cores(), len(data) // 64) if workers is None else workers
    # A loader draws a seed for its workers: from a generator of its own, so that decoding leaves the caller's alone.
    apart = torch.Generator()
    loader = DataLoader(_Squares(data, size), 8, num_workers=workers, collate_fn=_together, generator=apart)
    for pixels, aspects, errors in loader:
        yield from zip(pixels, aspects, errors, strict=True)


def _cores() -> int:
    """The cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _together(items: list[tuple[Tensor, float, str]]) -> tuple[Tensor, list[float], list[str]]:
    pixels, aspects, errors = zip(*items, strict=True)
    return torch.stack(pixels), list(aspects), list(errors)
