"""Images that are decoded when a batch asks for them, for datasets larger than memory.

A `StreamedImages` is indexed like the tensor of a store and gives the same pixels bit for bit. What it has decoded it
keeps, up to a limit, in memory and in a file on disk. It never drops anything for something newer: a sampler comes back
to an image only after an epoch, so what came last is needed last.
"""

import copy
import os
import sys
import zlib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import cached_property
from pathlib import Path
from threading import Lock

import numpy as np
import torch
from torch import Tensor

from tuplet import progress
from tuplet.atomic import explain_write_errors, lock
from tuplet.data.dataset import Dataset
from tuplet.images.crop import CentreCrop, to_tensor
from tuplet.images.decode import UnreadableImageError
from tuplet.threads import map_in_threads, usable_cores

#: What is known of each image in a file: a checksum of its pixels, 0 if they are not there, and width / height.
_ABOUT = np.dtype([("check", "<u4"), ("aspect", "<f8")])
#: Batches that are decoded ahead of the training.
LEAD = 4


def available_memory() -> int:
    """Return the bytes of memory that this process may still use, within the limit of its control group.

    Only Linux tells it. Elsewhere this is all memory of the machine, or no limit where that is unknown too.
    """
    try:
        lines = dict(line.split(":", 1) for line in Path("/proc/meminfo").read_text().splitlines())
    except OSError:
        is_known = "SC_PHYS_PAGES" in getattr(os, "sysconf_names", ())
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if is_known else sys.maxsize
    free, group = 1024 * int(lines["MemAvailable"].split()[0]), Path("/sys/fs/cgroup")
    try:
        most, used = (group.joinpath(f"memory.{name}").read_text().strip() for name in ("max", "current"))
        # The pages of files that it has read count as used, and are given up when memory is needed.
        stat = dict(line.split() for line in group.joinpath("memory.stat").read_text().splitlines())
    except OSError:  # no such control group
        return free
    return free if most == "max" else max(0, min(free, int(most) - int(used) + int(stat["inactive_file"])))


class StreamedImages:
    """The crops of a dataset's images, decoded in threads when they are asked for.

    Args:
        data: the dataset.
        crop: how each image is cut.
        memory: the most bytes of decoded images that are kept in memory.
        file: keep decoded images in this file too, for the next epoch and the next run.
        disk: the most bytes of that file.
        workers: the number of threads; by default one for each core.

    Attributes:
        aspects: (N,), the true width / height of the images that were decoded; NaN for the others.

    >>> from tuplet.data import from_images
    >>> data = from_images(torch.arange(4, dtype=torch.uint8)[:, None, None].expand(4, 6, 6), [0, 0, 1, 1])
    >>> StreamedImages(data, CentreCrop(2, 2), memory=0)[torch.tensor([3, 1])][:, 0, 0, 0]
    tensor([3, 1], dtype=torch.uint8)
    """

    dtype, device = torch.uint8, torch.device("cpu")

    def __init__(
        self,
        data: Dataset,
        crop: CentreCrop,
        memory: int,
        file: Path | None = None,
        disk: int = 0,
        workers: int | None = None,
    ) -> None:
        self.data, self.crop = data, crop
        self.aspects = torch.full((len(data),), torch.nan) if data.aspects is None else data.aspects
        self._item = 3 * crop.size**2
        # Untouched memory takes no space.
        self._kept = torch.empty(min(len(data), memory // self._item), *self.shape[1:], dtype=torch.uint8)
        self._slots, self._used = torch.full((len(data),), -1), 0
        self._lock, self._workers = Lock(), workers or usable_cores()
        self._disk = None if file is None else _DiskCache(file, len(data), self._item, disk)

    def __len__(self) -> int:
        return len(self.data)

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of the tensor that these images would be."""
        return (len(self.data), 3, self.crop.size, self.crop.size)

    def __getitem__(self, index: Tensor) -> Tensor:
        """Return images (n, 3, size, size).

        Raises:
            UnreadableImageError: one of them cannot be read.
        """
        slots = self._slots[index]
        known = slots >= 0
        if bool(known.all()):
            return self._kept.index_select(0, slots)
        out = torch.empty(len(index), *self.shape[1:], dtype=torch.uint8)
        places, numbers = range(len(index)), index.tolist()
        for _ in self._pool.map(self._fill, (out[place] for place in places), numbers, slots.tolist()):
            pass  # an error in a thread is raised here
        return out

    @cached_property
    def _pool(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._workers)

    def _fill(self, pixels: Tensor, number: int, slot: int = -1) -> None:
        """Write one image into `pixels`: from memory, from the file or decoded. Keep it where there is room."""
        if slot >= 0:
            pixels.copy_(self._kept[slot])
            return
        aspect = None if self._disk is None else self._disk.read(number, pixels.numpy())
        if aspect is None:
            image = self.data.image(number)
            known = self.data.aspects
            aspect = image.width / image.height if known is None else float(known[number])
            pixels.copy_(to_tensor(self.crop.crop(image, aspect)))
            if self._disk is not None:
                self._disk.write(number, pixels.numpy(), aspect)
        self.aspects[number] = aspect
        with self._lock:
            if self._slots[number] < 0 and self._used < len(self._kept):
                self._kept[self._used] = pixels
                self._slots[number] = self._used
                self._used += 1

    def problems(self) -> dict[int, str]:
        """Decode every image once and return, by its number, the problem of each that cannot be read."""

        def attempt(number: int) -> str:
            try:
                self._fill(torch.empty(self.shape[1:], dtype=torch.uint8), number)
            except UnreadableImageError as error:
                return error.problem
            return ""

        found = progress.track(
            map_in_threads(attempt, range(len(self)), 64, self._workers), "checking images", total=len(self)
        )
        return {number: problem for number, problem in enumerate(found) if problem}

    def select(self, numbers: Sequence[int]) -> "StreamedImages":
        """Return some of the images; decoded ones that are in the file are found again."""
        part = StreamedImages(self.data.select(numbers), self.crop, self._kept.numel(), workers=self._workers)
        part._disk = None if self._disk is None else self._disk.select(numbers)
        return part


class _DiskCache:
    """Decoded images in a sparse file, each with a checksum: one that a crash has cut short is decoded again."""

    def __init__(self, file: Path, count: int, item: int, limit: int) -> None:
        with explain_write_errors(file.parent):
            file.parent.mkdir(parents=True, exist_ok=True)
            file.touch()
            index = file.with_suffix(".index")
            # Several processes may write the same images, but one has to make the file.
            with lock(file.with_suffix(".lock")):
                if not index.exists() or index.stat().st_size != count * _ABOUT.itemsize:
                    index.write_bytes(bytes(count * _ABOUT.itemsize))
        about = np.memmap(index, _ABOUT, "r+")
        self._checks, self._aspects, self._file, self._item = about["check"], about["aspect"], file, item
        self._room = limit // item - int((self._checks != 0).sum())
        self._numbers: Sequence[int] = range(count)

    def select(self, numbers: Sequence[int]) -> "_DiskCache":
        part = copy.copy(self)
        part._numbers = [self._numbers[number] for number in numbers]
        return part

    def read(self, number: int, pixels: np.ndarray) -> float | None:
        """Read an image into `pixels` and return its aspect; None if it is not there."""
        number = self._numbers[number]
        if not self._checks[number]:
            return None
        # Each thread opens the file for itself: Windows has no reads at a position.
        with suppress(FileNotFoundError), self._file.open("rb") as file:
            file.seek(number * self._item)
            content = file.read(self._item)
            if len(content) == self._item and _checksum(content) == self._checks[number]:
                pixels.reshape(-1)[:] = np.frombuffer(content, np.uint8)
                return float(self._aspects[number])
        return None

    def write(self, number: int, pixels: np.ndarray, aspect: float) -> None:
        """Keep an image, where there is room for it or it takes the place of a damaged one."""
        number = self._numbers[number]
        is_new = not self._checks[number]
        if self._room > 0 or not is_new:
            self._room -= is_new
            with suppress(FileNotFoundError), self._file.open("r+b") as file:
                file.seek(number * self._item)
                file.write(pixels.data)
                self._aspects[number], self._checks[number] = aspect, _checksum(pixels.data)


def _checksum(pixels: bytes | memoryview) -> int:
    return zlib.crc32(pixels) or 1
