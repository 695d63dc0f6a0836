"""The files of an index in a folder. They only grow; `index.json` states how many bytes of each count.

Adding and deleting append to the files, sync them to disk, and then replace `index.json` by a rename. The change
happens with that rename: before it nothing counts, after it everything does. If a writer is killed earlier, the next
writer cuts off the bytes beyond the stated lengths. Readers never look at them.

`index.json` also states a CRC-32 of each file. It is continued over the bytes that are appended, so that adding reads
nothing again, and it finds damage, not intent.
"""

import json
import mmap
import os
import re
import reprlib
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from tuplet.atomic import explain_write_errors, fsync, lock, write_atomic
from tuplet.evaluation.scores import METRICS

FORMAT = 2
MANIFEST = "index.json"
VECTORS, ITEMS, ROWS, DELETED, THUMBNAILS = "vectors.f32", "items.jsonl", "rows.u64", "deleted.u64", "thumbnails.bin"
FILES = (VECTORS, ITEMS, ROWS, DELETED, THUMBNAILS)
MODEL, LOCK = "model", "writer.lock"
#: The fields of `rows.u64`: the ends of a row's line and of its thumbnail, and a hash of its id.
ROW = np.dtype([("line", "<u8"), ("thumbnail", "<u8"), ("id", "<u8")])
KINDS = ("hnsw", "ivf_pq")
#: The most bytes of a manifest; its length does not depend on the number of rows.
MANIFEST_BYTES = 1 << 20
#: A file with at most this many unchecked bytes is checked before its first use: a second at most. `verify` checks all.
QUICK = 1 << 30
#: A file of at most this size is read into memory, where nobody can change it. A larger one is mapped: if another
#: program makes it shorter at the very moment of a search, the system ends this process.
IN_MEMORY = 1 << 26
#: The bytes to check at a time; other threads run in between.
CHECK_BLOCK = 1 << 24


class DamagedIndexError(ValueError):
    """A file of an index that is not as it was written."""

    def __init__(self, path: Path, problem: str, remedy: str = "restore it from a copy") -> None:
        super().__init__(f"{path} {problem}; {remedy}")


@dataclass(frozen=True)
class Approximate:
    """Describe an approximate index: what was built, how much effort a search takes, and its measured recall."""

    kind: str  # "hnsw": a graph, fast, as large as the vectors; "ivf_pq": lists of compressed vectors, small
    file: str
    rows: int  # it covers rows 0 to rows − 1
    effort: int  # nodes (hnsw) or lists (ivf_pq) to look at: the least that reaches the recall asked for
    recall_at_10: float  # measured with rows that were not in it
    seconds: float
    bytes: int
    crc32: int

    def __str__(self) -> str:
        return (
            f"{self.kind} over {self.rows:,} vectors: recall@10 {self.recall_at_10:.3f} against exact search "
            f"at effort {self.effort}, built in {self.seconds:.0f} s"
        )


@dataclass(frozen=True)
class Manifest:
    """The content of `index.json`."""

    dim: int
    metric: str
    model: str | None  # the fingerprint of the model that made the vectors
    uid: str  # tells an index from another one that later takes its place
    rows: int = 0  # vectors written, including deleted ones
    deleted: int = 0
    bytes: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(FILES, 0))
    crc32: Mapping[str, int] = field(default_factory=lambda: dict.fromkeys(FILES, 0))  # of that many bytes
    approximate: Approximate | None = None


def read_manifest(folder: Path) -> Manifest:
    """Read the last committed state; FileNotFoundError if there is no index, DamagedIndexError if it is damaged."""
    path = folder / MANIFEST
    make = "with tuplet index, or search.create in Python"
    if not folder.exists():
        raise FileNotFoundError(f"{folder} does not exist; make an index {make}")
    if not path.is_file():
        raise FileNotFoundError(f"{folder} is not an index: it has no {MANIFEST}; make one {make}")
    try:
        with open(path, "rb") as file:
            text = file.read(MANIFEST_BYTES + 1)
        if len(text) > MANIFEST_BYTES:
            raise ValueError(f"more than {MANIFEST_BYTES:,} bytes")
        content = json.loads(text)
        version = content["format"]
        manifest = _parse(content) if version == FORMAT else None
        if manifest is not None and text != _encode(manifest):
            raise ValueError("its checksum does not fit")
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        problem = f"is damaged ({str(error)[:100]})"
        raise DamagedIndexError(path, problem, "restore it from a copy or index again") from error
    if manifest is None:
        older = isinstance(version, int) and version < FORMAT
        raise ValueError(
            f"{path} has format {reprlib.repr(version)} and this tuplet reads {FORMAT}; "
            + ("index again" if older else "install a newer one")
        )
    for name, expected in manifest.bytes.items():
        size = (folder / name).stat().st_size if (folder / name).exists() else 0
        if size < expected:
            raise DamagedIndexError(folder / name, f"has {size:,} bytes of {expected:,}")
    return manifest


def _encode(manifest: Manifest) -> bytes:
    """Return the text of `index.json`, which ends with a checksum of the rest."""
    content = {"format": FORMAT, **asdict(manifest)}
    checksum = zlib.crc32(json.dumps(content).encode())
    return json.dumps({**content, "checksum": checksum}, indent=1).encode() + b"\n"


def _parse(content: dict[str, Any]) -> Manifest:
    """Return the manifest of a parsed `index.json`; ValueError, KeyError or TypeError if a value is impossible."""
    built = content.pop("approximate")
    del content["format"], content["checksum"]
    manifest = Manifest(**content, approximate=None if built is None else Approximate(**built))
    sizes, checksums = dict(manifest.bytes), dict(manifest.crc32)
    numbers = [("dim", manifest.dim), ("rows", manifest.rows), ("deleted", manifest.deleted)]
    numbers += [*sizes.items(), *checksums.items()]
    texts = [("metric", manifest.metric), ("uid", manifest.uid), ("model", manifest.model or "")]
    if built is not None:
        numbers += [(name, built[name]) for name in ("rows", "effort", "bytes", "crc32")]
        texts += [(name, built[name]) for name in ("kind", "file")]
        if not isinstance(built["recall_at_10"], float) or not isinstance(built["seconds"], float):
            raise ValueError("recall_at_10 and seconds must be numbers")
    for name, value in numbers:
        if type(value) is not int or not 0 <= value < 1 << 63:
            raise ValueError(f"{name} is {reprlib.repr(value)}")
    for name, text in texts:
        if not isinstance(text, str):
            raise ValueError(f"{name} is {reprlib.repr(text)}")
    rows, dim = manifest.rows, manifest.dim
    others = [name for name in sizes if name not in FILES and not re.fullmatch(rf"{MODEL}/\w[\w.-]*", name)]
    if others or sizes.keys() != checksums.keys() or not sizes.keys() >= set(FILES):
        raise ValueError("bytes and crc32 must name the files")
    if (sizes[VECTORS], sizes[ROWS], sizes[DELETED]) != (rows * dim * 4, rows * ROW.itemsize, manifest.deleted * 8):
        raise ValueError(f"{rows:,} rows do not fit the bytes of the files")
    if not dim or manifest.metric not in METRICS or manifest.deleted > rows:
        raise ValueError(f"dim {dim}, metric {reprlib.repr(manifest.metric)}, {manifest.deleted:,} of {rows:,} deleted")
    if manifest.approximate is not None:
        known = manifest.approximate.kind in KINDS and manifest.approximate.rows <= rows
        if not known or not re.fullmatch(r"approximate\.[0-9a-f]{8}\.faiss", manifest.approximate.file):
            raise ValueError(f"approximate is {reprlib.repr(built)}")
    return manifest


def refuse_other_files(folder: Path) -> None:
    """Raise FileExistsError if a folder is no index and holds files that a killed `create` does not leave."""
    own = (LOCK, MODEL, f"{MANIFEST}.part")
    others = sorted(path.name for path in folder.iterdir() if path.name not in own)
    if others and not (folder / MANIFEST).exists():
        raise FileExistsError(f"{folder} holds other files, such as {others[0]}; give a new or empty folder")


def commit(folder: Path, manifest: Manifest) -> None:
    """Replace the state of the index in one step."""
    write_atomic(folder / MANIFEST, lambda part: part.write_bytes(_encode(manifest)))


def append(folder: Path, manifest: Manifest, additions: Mapping[str, Any]) -> Manifest:
    """Append bytes to files by name and sync them. Return the manifest with their new lengths and checksums."""
    lengths, checksums = dict(manifest.bytes), dict(manifest.crc32)
    for name, data in additions.items():
        path = folder / name
        is_new = not path.exists()
        with explain_write_errors(path):
            with open(path, "w+b" if is_new else "r+b") as file:
                file.truncate(lengths[name])
                file.seek(lengths[name])
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
                lengths[name] = file.tell()
                checksums[name] = zlib.crc32(data, checksums[name])
            if is_new:  # the file's name must be on disk before a manifest counts it
                fsync(folder)
    return replace(manifest, bytes=lengths, crc32=checksums)


class CheckedFile:
    """The first `size` bytes of a file that only grows, with their CRC-32.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "a")
    >>> path.write_bytes(b"abd")
    3
    >>> CheckedFile(path, 3, 891568578, "restore it from a copy").read()
    Traceback (most recent call last):
    tuplet.search.files.DamagedIndexError: ...a is damaged: its checksum does not fit; restore it from a copy
    """

    def __init__(
        self,
        path: Path,
        size: int,
        crc32: int,
        remedy: str = "restore it from a copy",
        earlier: "CheckedFile | None" = None,
    ) -> None:
        """Read or map the file, and reuse what an `earlier` state of it has read or checked."""
        self.path, self.size, self.crc32, self._remedy = path, size, crc32, remedy
        self.is_damaged = False
        #: The length and the CRC-32 of the part that was checked.
        self._checked: tuple[int, int] = (0, 0) if earlier is None else earlier._checked
        self._content: mmap.mmap | bytes = b""
        if size:
            with open(path, "rb") as file:
                self._refuse_shorter(os.fstat(file.fileno()).st_size)
                if size <= IN_MEMORY:
                    known = b"" if earlier is None or isinstance(earlier._content, mmap.mmap) else earlier._content
                    file.seek(len(known))
                    self._content = known + file.read(size - len(known))
                    self._refuse_shorter(len(self._content))
                else:
                    self._content = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)

    def read(self, always: bool = False) -> mmap.mmap | bytes:
        """Return the bytes, checked if that is quick, or `always`; DamagedIndexError if they are not as written.

        Reading beyond the end of a mapped file that was made shorter would end the process, so its length is checked
        each time.
        """
        if isinstance(self._content, mmap.mmap):
            self._refuse_shorter(self._content.size())
        start, crc = self._checked
        if start < self.size and (always or self.size - start <= QUICK):
            with memoryview(self._content) as content:
                for first in range(start, self.size, CHECK_BLOCK):
                    crc = zlib.crc32(content[first : first + CHECK_BLOCK], crc)
            if crc != self.crc32:
                self.is_damaged = True
                raise DamagedIndexError(self.path, "is damaged: its checksum does not fit", self._remedy)
            self._checked = self.size, crc
        return self._content

    def _refuse_shorter(self, size: int) -> None:
        if size < self.size:
            self.is_damaged = True
            raise DamagedIndexError(self.path, f"has {size:,} bytes of {self.size:,}", self._remedy)


def with_model(folder: Path, manifest: Manifest) -> Manifest:
    """Return a manifest with the lengths and checksums of the files of the model, if there is one."""
    sums = {f"{MODEL}/{path.name}": checksum(path) for path in sorted((folder / MODEL).glob("*"))}
    return replace(
        manifest,
        bytes={**manifest.bytes, **{name: size for name, (size, _) in sums.items()}},
        crc32={**manifest.crc32, **{name: crc for name, (_, crc) in sums.items()}},
    )


def checksum(path: Path) -> tuple[int, int]:
    """Return the length and the CRC-32 of a file.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "a")
    >>> path.write_bytes(b"abc")
    3
    >>> checksum(path)
    (3, 891568578)
    """
    crc = 0
    with open(path, "rb") as file:
        while block := file.read(1 << 20):
            crc = zlib.crc32(block, crc)
        return file.tell(), crc


@contextmanager
def writer_lock(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder's only writer; BlockingIOError if another process has it. It ends with the process.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with writer_lock(folder), writer_lock(folder):
    ...     pass
    Traceback (most recent call last):
    BlockingIOError: ... is being written by process ...; wait until it is done
    """
    path = folder / LOCK
    writer = path.read_text() if path.is_file() else ""
    with lock(path, busy=f"{folder} is being written by process {writer or '?'}; wait until it is done"):
        with explain_write_errors(path):
            path.write_text(str(os.getpid()))
        yield
