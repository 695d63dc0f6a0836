"""Decoded pictures on disk: written once, whole or not at all, and mapped into memory by every process that asks.

A cache is a folder of its own, named by a hash of the pictures' files (path, size and time of change), of the size
they were resized to and of what else decides about their pixels. It is written aside under a lock, synced and then
renamed, so a process that is killed leaves nothing that could be taken for a cache, and two processes that want the
same one write it once.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import torch
from torch import Tensor

from tuplet.data import decode
from tuplet.data.dataset import Dataset
from tuplet.data.files import Held, Piece
from tuplet.durable import first_line, flush, writing

_FORMAT = "tuplet pictures 1"
_PIXELS, _FACTS = "pixels.u8", "facts.json"

#: Given a function that writes the bytes of the next picture, decode all; return aspects, and a sentence per bad file.
Fill = Callable[[Callable[[Tensor], object]], tuple[list[float], dict[int, str]]]


def cached(folder: Path, data: Dataset, size: int, fill: Fill) -> tuple[Tensor, list[float], dict[int, str]]:
    """The pictures of a dataset from the cache in `folder`, filled first if need be: uint8 (M, 3, size, size).

    With them come the pictures' aspects, and for those that could not be read, by index, a sentence.
    """
    place = folder / fingerprint(data, size)
    if not place.exists():
        if folder.exists() and not folder.is_dir():
            raise NotADirectoryError(f"{folder} is a file; give a folder for the cache")
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        with _locked(place.with_suffix(".lock")):
            if not place.exists():  # nobody has written it while this process waited for the lock
                _write(place, len(data), size, fill)
    try:
        facts = json.loads((place / _FACTS).read_text())
    except (OSError, ValueError) as error:
        raise ValueError(f"the cache {place} cannot be read ({first_line(error)}); delete that folder") from error
    count = len(facts["aspects"])
    found = (place / _PIXELS).stat().st_size
    if found != count * 3 * size * size:
        raise ValueError(f"the cache {place} holds {found:,} bytes for {count:,} pictures; delete that folder")
    pixels = torch.from_file(str(place / _PIXELS), shared=False, size=found, dtype=torch.uint8)
    errors = {int(i): sentence for i, sentence in facts["errors"].items()}
    return pixels.view(count, 3, size, size), facts["aspects"], errors


def fingerprint(data: Dataset, size: int) -> str:
    """A name for these pictures at this size; it changes when a file is replaced or a limit of decoding is moved."""
    rules = f"{_FORMAT}, {size}, {decode.MAX_PIXELS}, {decode.BACKGROUND}"
    digest = hashlib.blake2b(rules.encode(), digest_size=16)
    if isinstance(data.images, Tensor):
        digest.update(str(tuple(data.images.shape)).encode() + data.images.contiguous().numpy().tobytes())
        return digest.hexdigest()
    stamps: dict[str, str] = {}
    for location in data.images or ():
        if isinstance(location, Held):
            digest.update(location.content)
            continue
        file = location.file if isinstance(location, Piece) else location
        if file not in stamps:
            stamps[file] = _stamp(file)
        part = f"{location.offset}+{location.size}" if isinstance(location, Piece) else ""
        digest.update(os.fsencode(f"{stamps[file]} {part}\n"))
    return digest.hexdigest()


def _stamp(file: str) -> str:
    try:
        facts = os.stat(file)
    except FileNotFoundError:
        return f"{file} missing"
    return f"{os.path.abspath(file)} {facts.st_size} {facts.st_mtime_ns}"


def _write(place: Path, count: int, size: int, fill: Fill) -> None:
    needed, free = count * 3 * size * size, shutil.disk_usage(place.parent).free
    if needed > free:
        raise OSError(
            f"the cache of {count:,} pictures needs {needed / 2**30:.1f} GiB and {place.parent} has "
            f"{free / 2**30:.1f} GiB free; make room or choose another folder"
        )
    aside = place.with_suffix(".partial")
    shutil.rmtree(aside, ignore_errors=True)  # what a killed process left: this one holds the lock
    aside.mkdir()
    try:
        with (aside / _PIXELS).open("wb") as file:
            aspects, errors = fill(lambda pixels: file.write(pixels.numpy().tobytes()))
        with (aside / _FACTS).open("w") as facts:
            json.dump({"format": _FORMAT, "aspects": aspects, "errors": errors}, facts)
        for written in (aside / _PIXELS, aside / _FACTS, aside):
            flush(written)
        os.rename(aside, place)
        flush(place.parent)
    finally:
        shutil.rmtree(aside, ignore_errors=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a lock that ends with the process, however that ends."""
    import fcntl  # not on every system, and all but filling a cache needs none

    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
