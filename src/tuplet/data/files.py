"""The files of a folder or of a tar, by name: readers of a layout need not know which of the two they read."""

import io
import lzma
import os
import tarfile
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeAlias


@dataclass(frozen=True)
class Piece:
    """A file inside an uncompressed tar. It is read in place, by any process, without opening the tar as one."""

    file: str
    offset: int
    size: int
    name: str

    def __str__(self) -> str:
        return f"{self.file}/{self.name}"


@dataclass(frozen=True)
class Held:
    """A file that its tar has compressed, without its zeros or as a link, and that is held in memory for that."""

    content: bytes
    file: str
    name: str

    def __str__(self) -> str:
        return f"{self.file}/{self.name}"


Location: TypeAlias = str | Piece | Held
Named: TypeAlias = tuple[str, Location]


def read_bytes(location: Location) -> bytes:
    """The content of a file, wherever it lies."""
    if isinstance(location, Held):
        return location.content
    if isinstance(location, Piece):
        with open(location.file, "rb") as file:
            file.seek(location.offset)
            return file.read(location.size)
    return Path(location).read_bytes()


class Files(Mapping[str, Location]):
    """The files below a folder or in a tar, by their names below it, with `/` between the parts.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     _ = Path(folder, "a.txt").write_text("hello")
    ...     files = Files.of(folder)
    ...     list(files), files.text("a.txt")
    (['a.txt'], 'hello')
    """

    def __init__(self, source: str, locations: Mapping[str, Location]) -> None:
        self.source = source
        self._locations = locations

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

    def __getitem__(self, name: str) -> Location:
        return self._locations[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._locations)

    def __len__(self) -> int:
        return len(self._locations)

    def text(self, name: str) -> str:
        """The content of a text file."""
        return self.content(name).decode()

    def content(self, name: str) -> bytes:
        """The content of a file."""
        if name not in self:
            raise FileNotFoundError(f"{self.source} has no {name}; fetch it again")
        return read_bytes(self[name])

    def root_of(self, marker: str) -> str | None:
        """What stands before the file or folder `marker` in its name: `""` if it lies at the top, None if it is absent.

        >>> Files("there", {"set/lists/train.txt": "", "set/readme": ""}).root_of("lists/train.txt")
        'set/'
        """
        found = [f"/{name}/".find(f"/{marker}/") for name in self]
        roots = [name[:at] for name, at in zip(self, found, strict=True) if at >= 0]
        return min(roots, key=len, default=None)


def _hidden(name: str) -> bool:
    return any(part.startswith(".") for part in name.split("/"))


def _in_folder(folder: str, below: str = "", above: frozenset[tuple[int, int]] = frozenset()) -> Iterator[Named]:
    """The files of a folder and of those in it. Links are followed, but not to a folder that they lie in."""
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
            elif entry.is_file() or entry.is_symlink():  # and not a pipe, which would be waited for
                yield f"{below}{entry.name}", entry.path


def _in_tar(path: Path) -> Iterator[Named]:
    try:
        with tarfile.open(path) as tar:
            in_place = isinstance(tar.fileobj, io.BufferedReader)  # and not a stream that decompresses
            for member in tar:
                name = member.name.removeprefix("./")
                if in_place and member.isfile() and not member.issparse():
                    yield name, Piece(str(path), member.offset_data, member.size, name)
                elif content := _extracted(tar, member, path):
                    yield name, Held(content.read(), str(path), name)
            _check_end(tar)
    except (tarfile.TarError, OSError, EOFError, KeyError, zlib.error, lzma.LZMAError) as error:
        reason = str(error).split(":\n")[0]
        raise ValueError(
            f"{path} cannot be read as a tar: {reason}; fetch it again, or unpack it if it is another archive"
        ) from error


def _extracted(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> IO[bytes] | None:
    """The content of a member, or of that to which it is a link; None of a folder."""
    try:
        return tar.extractfile(member)
    except (KeyError, RecursionError) as error:  # a link to nowhere, or to itself
        raise ValueError(
            f"{path} has a link from {member.name} to {member.linkname}, which is no file in it; "
            "pack it with tar --dereference, or without the link"
        ) from error


def _check_end(tar: tarfile.TarFile) -> None:
    """See that the members ended with the mark of the end: tarfile takes a damaged or missing header for it too."""
    stream: Any = tar.fileobj
    stream.seek(tar.offset)
    if stream.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
        raise EOFError(f"after {len(tar.getmembers()):,} members it is damaged or cut off")
    while stream.read(1 << 20):  # a compressed file has its checksum at its end
        pass
