"""The files of a folder or a tar by name, so that readers treat both alike."""

import io
import lzma
import os
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import IO, Any, TypeAlias

import numpy as np
import torch
from PIL import Image

from tuplet.data.arrow import read_cell
from tuplet.images.decode import open_file

#: The endings of image files; files with others are ignored.
IMAGE_ENDINGS = (".jpg", ".jpeg", ".jfif", ".png", ".webp", ".avif", ".heic", ".heif", ".bmp", ".gif", ".tif", ".tiff")


@dataclass(frozen=True)
class _Member:
    """A file inside a tar."""

    file: str
    name: str

    def __str__(self) -> str:
        return f"{self.file}/{self.name}"


@dataclass(frozen=True)
class Slice(_Member):
    """A file inside an uncompressed tar, read in place by any process."""

    offset: int
    size: int


@dataclass(frozen=True)
class InMemory(_Member):
    """A file that cannot be read in place, since its tar holds it compressed, sparse or as a link."""

    content: bytes


@dataclass(frozen=True)
class Cell:
    """An image as bytes in a row of a Parquet or Arrow file, counted from 0."""

    file: str
    column: str
    row: int

    @property
    def name(self) -> str:
        """The name of the row."""
        return f"{Path(self.file).name}/{self.row}"

    def __str__(self) -> str:
        return f"in row {self.row + 2} of {self.file}"


@dataclass(frozen=True)
class TorchItem:
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


Location: TypeAlias = str | Slice | InMemory | Cell
Named: TypeAlias = tuple[str, Location]


def read_bytes(location: Location) -> bytes:
    """Read a file of a folder or a tar."""
    if isinstance(location, InMemory):
        return location.content
    if isinstance(location, Cell):
        return read_cell(location.file, location.column, location.row)
    if isinstance(location, Slice):
        with open(location.file, "rb") as file:
            file.seek(location.offset)
            return file.read(location.size)
    with open_file(location) as file:
        return file.read()


class Files(dict[str, Location]):
    """The files below a folder or in a tar, by their relative names, with `/` between the parts.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "a.txt").write_text("hello")
    ...     files = Files.of(folder)
    ...     list(files), files.text("a.txt")
    (['a.txt'], 'hello')
    """

    def __init__(self, source: str, locations: Mapping[str, Location]) -> None:
        super().__init__(locations)
        self.source = source

    @classmethod
    def of(cls, source: str | os.PathLike[str]) -> "Files":
        """List a folder or a tar; files whose names begin with a dot are left out."""
        path = Path(source)
        if path.is_dir():
            found = _in_folder(str(path))
        elif path.is_file():
            found = _in_tar(path)
        else:
            raise ValueError(f"{path} is neither a folder nor a file; give a folder or a tar")
        named = sorted(found, key=lambda item: item[0])
        return cls(str(path), {name: location for name, location in named if not _hidden(name)})

    @cached_property
    def _parts(self) -> set[str]:
        """The names of all folders and files."""
        return {part for name in self for part in name.split("/")}

    @cached_property
    def images(self) -> list[str]:
        """The names of the images."""
        return [name for name in self if name.lower().endswith(IMAGE_ENDINGS)]

    def content(self, name: str) -> bytes:
        """Read a file."""
        if name not in self:
            raise FileNotFoundError(f"{self.source} has no {name}; fetch it again")
        return read_bytes(self[name])

    def text(self, name: str) -> str:
        """Read a text file."""
        return self.content(name).decode()

    def root_of(self, marker: str) -> str | None:
        """Return the folder, with a final `/`, that contains the file or folder `marker`; None if it is absent.

        >>> Files("there", {"set/lists/train.txt": "", "set/readme": ""}).root_of("lists/train.txt")
        'set/'
        """
        if not set(marker.split("/")) <= self._parts:  # the search below takes seconds for a million files
            return None
        found = [f"/{name}/".find(f"/{marker}/") for name in self]
        roots = [name[:at] for name, at in zip(self, found, strict=True) if at >= 0]
        return min(roots, key=len, default=None)


def _hidden(name: str) -> bool:
    return name.startswith(".") or "/." in name


def _in_folder(folder: str, below: str = "", above: frozenset[tuple[int, int]] = frozenset()) -> Iterator[Named]:
    """Yield the files below a folder. Links are followed, except to a folder that contains them."""
    about = os.stat(folder)
    here = (about.st_dev, about.st_ino)
    if here in above:
        return
    with os.scandir(folder) as entries:
        for entry in entries:
            if _hidden(entry.name):
                continue
            if entry.is_dir():
                yield from _in_folder(entry.path, f"{below}{entry.name}/", above | {here})
            elif entry.is_file() or entry.is_symlink():  # a pipe would block
                yield f"{below}{entry.name}", entry.path


def _in_tar(path: Path) -> Iterator[Named]:
    try:
        with tarfile.open(path) as tar:
            in_place = isinstance(tar.fileobj, io.BufferedReader)  # not a decompressing stream
            for member in tar:
                name = member.name.removeprefix("./")
                if in_place and member.isfile() and not member.issparse():
                    yield name, Slice(str(path), name, member.offset_data, member.size)
                elif content := _extracted(tar, member, path):
                    yield name, InMemory(str(path), name, content.read())
            _check_end(tar)
    except (tarfile.TarError, OSError, EOFError, KeyError, zlib.error, lzma.LZMAError) as error:
        reason = str(error).split(":\n")[0]
        raise ValueError(
            f"{path} cannot be read as a tar: {reason}; fetch it again, or unpack it if it is another archive"
        ) from error


def _extracted(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> IO[bytes] | None:
    """Open a member, or the member that it links to; return None for a folder."""
    try:
        return tar.extractfile(member)
    except (KeyError, RecursionError) as error:  # a link to nowhere, or to itself
        raise ValueError(
            f"{path} has a link from {member.name} to {member.linkname}, which is no file in it; "
            "pack it with tar --dereference, or without the link"
        ) from error


def _check_end(tar: tarfile.TarFile) -> None:
    """Raise an error unless an end mark follows the members: tarfile accepts a damaged or missing header too."""
    stream: Any = tar.fileobj
    stream.seek(tar.offset)
    if stream.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise EOFError(f"after {len(tar.getmembers()):,} members it is damaged or cut off")
    while stream.read(1 << 20):  # the checksum of a compressed file is at its end
        pass
