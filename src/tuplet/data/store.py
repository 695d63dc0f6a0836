"""Decoded images, all of one size, as one tensor: in memory, mapped from disk, or on the device."""

import logging
import os
import shutil
import signal
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from tuplet import progress
from tuplet.data.cache import cached, fingerprint, is_cached
from tuplet.data.dataset import Dataset
from tuplet.data.stream import StreamedImages, available_memory
from tuplet.errors import warn
from tuplet.images.crop import CentreCrop, to_tensor
from tuplet.images.decode import UnreadableImageError
from tuplet.signals import postpone_signals
from tuplet.threads import usable_cores

_logger = logging.getLogger("tuplet")

Unreadable = Literal["stop", "skip"]


@dataclass(frozen=True, eq=False)
class Store:
    """The examples of a dataset as one tensor.

    Attributes:
        data: the examples that could be read.
        values: uint8 images (N, 3, S, S), or feature vectors (N, d); `StreamedImages` decodes them when they are read.
        aspects: (N,), the true width / height of the images.
        skipped: by its number in the dataset, the problem of each image that could not be read.
        crop: how the images were made. Squares that ignore the proportions, from which augmentation restores them, are
            `CentreCrop(S, S, "square")`. None for feature vectors.
    """

    data: Dataset
    values: Tensor | StreamedImages
    aspects: Tensor
    skipped: Mapping[int, str] = field(default_factory=dict)
    crop: CentreCrop | None = None

    def __len__(self) -> int:
        return len(self.values)

    def to(self, device: torch.device | str) -> "Store":
        """Copy the store to a device; raise ValueError if it does not fit. Streamed images stay where they are."""
        if isinstance(self.values, StreamedImages):
            return self
        return replace(self, values=_moved(self.values, torch.device(device)), aspects=self.aspects.to(device))


def _moved(values: Tensor, device: torch.device) -> Tensor:
    size = values.numel() * values.element_size()
    free = torch.cuda.mem_get_info(device)[0] if device.type == "cuda" else size
    if size > free:
        raise ValueError(
            f"{len(values):,} examples of {tuple(values.shape[1:])} need {size / 2**30:.1f} GiB and {device} "
            f"has {free / 2**30:.1f} GiB free; leave them on the CPU or make them smaller"
        )
    return values.to(device)


def load(
    data: Dataset,
    size: int | None = None,
    folder: str | os.PathLike[str] | None = None,
    workers: int | None = None,
    unreadable: Unreadable = "stop",
    crop: CentreCrop | None = None,
    stream: bool | None = None,
    memory: int | None = None,
    disk: int | None = None,
) -> Store:
    """Decode all images of a dataset once and keep their pixels. Feature vectors are taken as they are.

    Images that do not fit into memory are decoded when a batch asks for them, and give the same batches bit for bit.

    Args:
        data: the dataset.
        size: keep squares of this side, which ignore the proportions, for augmentation. 256 by default; for arrays in
            memory their own size.
        folder: keep the pixels there on disk, for the next run and for other processes (`tuplet.data.cache`).
        workers: the number of processes that decode. 0 is this process; by default one per core for large datasets.
        unreadable: stop with an error at an image that cannot be read, or skip it with a warning.
        crop: keep final crops, as an embedder takes them, instead of squares.
        stream: decode images when they are asked for. None: if all of them take more than half of the free memory.
        memory: the most bytes of decoded images that streaming keeps in memory; a quarter of what is free by default.
        disk: the most bytes that streaming keeps in `folder`; half of what is free by default.

    Raises:
        UnreadableImageError: an image cannot be read and `unreadable` is "stop".

    >>> from tuplet.data import from_images
    >>> store = load(from_images(torch.zeros(4, 20, 30, dtype=torch.uint8), [0, 0, 1, 1]), size=16)
    >>> store.values.shape, store.aspects
    (torch.Size([4, 3, 16, 16]), tensor([1.5000, 1.5000, 1.5000, 1.5000]))
    """
    if data.features is not None:
        _check(data, unreadable)
        return Store(data, data.features, torch.ones(len(data)))
    crop = crop or _square(data, size)
    if _is_streamed(data, crop, folder, stream):
        return _streamed(data, crop, folder, workers, unreadable, memory, disk)
    data, values, aspects, skipped = _load(data, [crop], folder, workers, unreadable)
    return Store(data, values[0], aspects, skipped, crop)


def _is_streamed(data: Dataset, crop: CentreCrop, folder: str | os.PathLike[str] | None, stream: bool | None) -> bool:
    """Return whether to stream. Where this is not given, log that images are streamed, and why."""
    if isinstance(data.images, Tensor) or stream is False:
        return False
    if stream is None:
        needed, free = len(data) * 3 * crop.size**2, available_memory()
        if needed <= free / 2 or (folder is not None and is_cached(Path(folder), data, [crop])):
            return False
        _logger.info(
            "images are decoded while they are needed: all %s at %s × %s pixels would take %.1f GiB of the %.1f GiB of "
            "memory that are free",
            *(f"{len(data):,}", crop.size, crop.size, needed / 2**30, free / 2**30),
        )
    return True


def _streamed(
    data: Dataset,
    crop: CentreCrop,
    folder: str | os.PathLike[str] | None,
    workers: int | None,
    unreadable: Unreadable,
    memory: int | None,
    disk: int | None,
) -> Store:
    _check(data, unreadable)
    file = None
    if folder is not None:
        file = Path(folder) / f"{fingerprint(data, [crop])}.stream"
        file.parent.mkdir(parents=True, exist_ok=True)
        disk = shutil.disk_usage(folder).free // 2 if disk is None else disk
    memory = available_memory() // 4 if memory is None else memory
    images = StreamedImages(data, crop, memory, file, disk or 0, workers)
    errors = images.problems() if unreadable == "skip" else {}
    readable = _without(data, errors, unreadable)
    if errors:
        images = images.select([i for i in range(len(data)) if i not in errors])
    return Store(readable, images, images.aspects, errors, crop)


def hold(
    data: Dataset,
    size: int | None = None,
    device: torch.device | str = "cpu",
    folder: str | os.PathLike[str] | None = None,
    unreadable: Unreadable = "stop",
    crop: CentreCrop | None = None,
) -> Dataset:
    """Decode the images of a dataset once and keep them in it, so that several runs decode nothing.

    Args:
        data: the dataset.
        size: the side of the squares that replace the images; the default is that of `load`.
        device: where they are kept.
        folder: keep the pixels there on disk too, as `load` does.
        unreadable: stop with an error at an image that cannot be read, or skip it with a warning.
        crop: keep final crops too, beside the squares.

    Returns:
        The dataset with its images in memory. If images were skipped it is a part of the data and has no `source`.

    Raises:
        UnreadableImageError: an image cannot be read and `unreadable` is "stop".

    >>> from tuplet.data import from_images
    >>> hold(from_images(torch.zeros(4, 20, 30, dtype=torch.uint8), [0, 0, 1, 1]), size=16).images.shape
    torch.Size([4, 3, 16, 16])
    """
    device = torch.device(device)
    if data.features is not None:
        return replace(data, features=_moved(data.features, device))
    crops = [_square(data, size), *([] if crop is None else [crop])]
    data, values, aspects, _ = _load(data, crops, folder, None, unreadable)
    squares, *final = (_moved(each, device) for each in values)
    return replace(data, images=squares, aspects=aspects.to(device), crops=(crop, final[0]) if crop else None)


def _square(data: Dataset, size: int | None) -> CentreCrop:
    if size is None:
        size = max(data.images.shape[-2:]) if isinstance(data.images, Tensor) else 256
    return CentreCrop(size, size, "square")


def _check(data: Dataset, unreadable: str) -> None:
    if unreadable not in ("stop", "skip"):
        raise ValueError(f"unreadable is {unreadable!r}; it must be 'stop' or 'skip'")
    if not len(data):
        raise ValueError("the dataset has no examples to load")


def _load(
    data: Dataset,
    crops: Sequence[CentreCrop],
    folder: str | os.PathLike[str] | None,
    workers: int | None,
    unreadable: Unreadable,
) -> tuple[Dataset, list[Tensor], Tensor, dict[int, str]]:
    """Return the readable examples, their pixels by each crop, their aspects, and the problems of the others."""
    _check(data, unreadable)
    if isinstance(data.images, Tensor):
        ready = [_ready(data, crop) for crop in crops]
        if all(each is not None for each in ready):
            known = torch.ones(len(data)) if data.aspects is None else data.aspects
            return data, [each for each in ready if each is not None], known, {}
        # Worker processes cannot reach a GPU.
        data = replace(data, images=data.images.cpu(), aspects=None if data.aspects is None else data.aspects.cpu())

    def fill(write: Callable[[Sequence[Tensor]], object]) -> tuple[list[float], dict[int, str]]:
        aspects, errors = [], {}
        decoded = _decode(data, crops, workers)
        for i, (pixels, aspect, problem) in enumerate(progress.track(decoded, "decoding", total=len(data))):
            if problem:
                errors[i] = problem
                if unreadable == "stop":
                    raise UnreadableImageError(problem)
            else:
                write(pixels)
                aspects.append(aspect)
        return aspects, errors

    if folder is not None:
        values, aspects, errors = cached(Path(folder), data, crops, fill)
    else:
        values = [torch.empty(len(data), 3, crop.size, crop.size, dtype=torch.uint8) for crop in crops]
        rows = zip(*values, strict=True)
        aspects, errors = fill(lambda pixels: [row.copy_(p) for row, p in zip(next(rows), pixels, strict=True)])
        values = [each[: len(aspects)] for each in values]
    readable = _without(data, errors, unreadable)
    return readable, values, torch.tensor(aspects) if readable.aspects is None else readable.aspects, errors


def _ready(data: Dataset, crop: CentreCrop) -> Tensor | None:
    """Return the crops of images in memory that need no work, or None."""
    if data.crops is not None and data.crops[0] == crop:
        return data.crops[1]
    images = data.images
    if not isinstance(images, Tensor) or not images.shape[-2:] == (crop.size, crop.size) == (crop.resize, crop.resize):
        return None
    return images if crop.resize_mode == "square" or data.aspects is None else None


def _without(data: Dataset, errors: Mapping[int, str], unreadable: Unreadable) -> Dataset:
    """Return the examples without those that cannot be read, with a warning, or raise an error."""
    if not errors:
        return data
    problems = list(errors.values())
    if unreadable == "stop":
        raise UnreadableImageError(problems[0])
    if len(errors) == len(data):
        raise ValueError(f"none of the {len(data):,} images can be loaded, first: {problems[0]}")
    # One line, since the command line shows the first line of a warning.
    warn(f"{len(errors):,} of {len(data):,} images were skipped, first: {problems[0]}")
    return data.select([i for i in range(len(data)) if i not in errors])


class _Crops(torch.utils.data.Dataset):
    """For each example its crops, its width / height and, if it cannot be read, the problem."""

    def __init__(self, data: Dataset, crops: Sequence[CentreCrop]) -> None:
        self.data, self.crops = data, crops

    def __len__(self) -> int:
        return len(self.data)

    def __getitem__(self, index: int) -> tuple[list[Tensor], float, str]:
        try:
            image = self.data.image(index)
        except UnreadableImageError as error:
            return [torch.zeros(3, crop.size, crop.size, dtype=torch.uint8) for crop in self.crops], 1.0, error.problem
        aspect = image.width / image.height if self.data.aspects is None else float(self.data.aspects[index])
        return [to_tensor(crop.crop(image, aspect)) for crop in self.crops], aspect, ""


def _decode(
    data: Dataset, crops: Sequence[CentreCrop], workers: int | None
) -> Iterator[tuple[Sequence[Tensor], float, str]]:
    """Yield all examples in order, whatever the number of workers."""
    workers = min(16, usable_cores(), len(data) // 64) if workers is None else workers
    # A loader draws a seed for its workers. Its own generator keeps the caller's random numbers as they are.
    own = torch.Generator()
    loader = DataLoader(
        _Crops(data, crops),
        8,
        num_workers=workers,
        collate_fn=_collate,
        generator=own,
        worker_init_fn=_end_quietly,
    )
    with postpone_signals():
        batches = iter(loader)  # starts the workers
    for pixels, aspects, problems in batches:
        yield from zip(zip(*pixels, strict=True), aspects, problems, strict=True)


def _end_quietly(worker: int) -> None:
    """Cause no traceback when a signal stops a worker or its reader; errors of images reach the reader.

    `multiprocessing.resource_sharer`, whose thread hands over the pixels, reports a connection that ctrl-C broke by the
    hook. Where SIGTERM goes to all processes, torch reports each worker that did not end with 0.
    """
    sys.excepthook = lambda *_: None
    if signal.getsignal(signal.SIGINT) is not signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)  # again: it was postponed while this worker started
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))


def _collate(items: list[tuple[list[Tensor], float, str]]) -> tuple[list[Tensor], list[float], list[str]]:
    pixels, aspects, problems = zip(*items, strict=True)
    return [torch.stack(each) for each in zip(*pixels, strict=True)], list(aspects), list(problems)
