"""Decoded images on disk, written once and mapped into memory by every process that asks.

A cache is a folder named by a hash of the image files (path, size and time of change) and of the crops made of them. It
is written under another name while a lock is held, synced and renamed. So a killed process leaves nothing that looks
like a cache, and two processes that need the same cache write it once.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path

import torch
from torch import Tensor

from tuplet.atomic import explain_write_errors, fsync, lock
from tuplet.data.dataset import Dataset
from tuplet.data.files import Cell, InMemory, Slice, TorchItem
from tuplet.errors import first_line
from tuplet.images import decode, limits
from tuplet.images.crop import CentreCrop

_FORMAT = "tuplet images 2"
_FACTS = "facts.json"

#: Decodes all images. It is given a function that writes the pixels of the next image, one tensor per crop. It returns
#: the aspects, and by index the problem of each image that cannot be read.
Fill = Callable[[Callable[[Sequence[Tensor]], object]], tuple[list[float], dict[int, str]]]


def cached(
    folder: Path, data: Dataset, crops: Sequence[CentreCrop], fill: Fill
) -> tuple[list[Tensor], list[float], dict[int, str]]:
    """Read the crops of a dataset from the cache in `folder`, and write the cache first if it is missing.

    Returns:
        For each crop a uint8 tensor (M, 3, size, size); the aspects; and by index the problem of each image that could
        not be read.
    """
    place = folder / fingerprint(data, crops)
    if not place.exists():
        if folder.exists() and not folder.is_dir():
            raise NotADirectoryError(f"{folder} is a file; give a folder for the cache")
        with explain_write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        with lock(place.with_suffix(".lock")):
            if not place.exists():  # no other process has written it in the meantime
                _write(place, len(data), crops, fill)
    try:
        facts = json.loads((place / _FACTS).read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"the cache {place} cannot be read ({first_line(error)}); delete that folder") from error
    errors = {int(i): problem for i, problem in facts["errors"].items()}
    pixels = [_mapped(place, number, len(facts["aspects"]), crop.size) for number, crop in enumerate(crops)]
    return pixels, facts["aspects"], errors


def is_cached(folder: Path, data: Dataset, crops: Sequence[CentreCrop]) -> bool:
    """Return whether the cache in `folder` has the crops of a dataset already."""
    return folder.is_dir() and (folder / fingerprint(data, crops)).exists()


def _mapped(place: Path, number: int, count: int, size: int) -> Tensor:
    path = place / f"pixels{number}.u8"
    found = path.stat().st_size
    if found != count * 3 * size * size:
        raise ValueError(f"the cache {place} holds {found:,} bytes for {count:,} images; delete that folder")
    return torch.from_file(str(path), shared=False, size=found, dtype=torch.uint8).view(count, 3, size, size)


def fingerprint(data: Dataset, crops: Sequence[CentreCrop]) -> str:
    """Return a name for these crops; it changes when a file is replaced or a limit of decoding is changed."""
    rules = f"{_FORMAT}, {list(crops)}, {limits.MAX_PIXELS}, {decode.available_formats()}, {decode.BACKGROUND}"
    digest = hashlib.blake2b(rules.encode(), digest_size=16)
    for about in (data.aspects, data.boxes):
        if about is not None:
            digest.update(about.cpu().numpy().tobytes())
    if isinstance(data.images, Tensor):
        digest.update(str(tuple(data.images.shape)).encode() + data.images.contiguous().numpy().tobytes())
        return digest.hexdigest()
    stamps: dict[str, str] = {}
    for location in data.images or ():
        if isinstance(location, InMemory):
            digest.update(location.content)
            continue
        if isinstance(location, TorchItem):
            raise ValueError(f"the cache cannot know when {location} changes; leave out its folder")
        file = location if isinstance(location, str) else location.file
        if file not in stamps:
            stamps[file] = _stamp(file)
        part = f"{location.offset}+{location.size}" if isinstance(location, Slice) else ""
        part = f"{location.column} {location.row}" if isinstance(location, Cell) else part
        digest.update(os.fsencode(f"{stamps[file]} {part}\n"))
    return digest.hexdigest()


def _stamp(file: str) -> str:
    try:
        facts = os.stat(file)
    except FileNotFoundError:
        return f"{file} missing"
    return f"{os.path.abspath(file)} {facts.st_size} {facts.st_mtime_ns}"


def _write(place: Path, count: int, crops: Sequence[CentreCrop], fill: Fill) -> None:
    needed, free = count * sum(3 * crop.size**2 for crop in crops), shutil.disk_usage(place.parent).free
    if needed > free:
        raise OSError(
            f"the cache of {count:,} images needs {needed / 2**30:.1f} GiB and {place.parent} has "
            f"{free / 2**30:.1f} GiB free; make room or choose another folder"
        )
    partial = place.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)  # left by a killed process: this one holds the lock
    partial.mkdir()
    try:
        with ExitStack() as stack:
            files = [stack.enter_context((partial / f"pixels{i}.u8").open("wb")) for i in range(len(crops))]
            aspects, errors = fill(
                lambda pixels: [file.write(each.numpy().tobytes()) for file, each in zip(files, pixels, strict=True)]
            )
        (partial / _FACTS).write_text(json.dumps({"format": _FORMAT, "aspects": aspects, "errors": errors}))
        for written in (*partial.iterdir(), partial):
            fsync(written)
        os.rename(partial, place)
        fsync(place.parent)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
