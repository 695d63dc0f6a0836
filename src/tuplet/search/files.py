"""An index on disk: files that only grow, and one small file that says how far each of them counts.

Adding and deleting append to the files, flush them to the disk, and then replace `index.json`, which holds the length
of every file. That one rename is the moment at which a change happens: before it nothing counts, after it everything.
What a killed writer left beyond the lengths is cut off by the next one, and no reader ever looks there.
"""

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from tuplet.durable import flush, replace_file, writing

FORMAT = 1
MANIFEST = "index.json"
VECTORS, ITEMS, ROWS, DELETED, PICTURES = "vectors.f32", "items.jsonl", "rows.u64", "deleted.u64", "pictures.bin"
LOCK = "writer.lock"


@dataclass(frozen=True)
class Manifest:
    """What `index.json` says."""

    dim: int
    metric: str
    model: str | None  # the fingerprint of the model that made the vectors
    born: str  # tells an index from another that later took its place
    rows: int = 0  # vectors written, the deleted ones included
    deleted: int = 0
    bytes: Mapping[str, int] = field(
        default_factory=lambda: dict.fromkeys((VECTORS, ITEMS, ROWS, DELETED, PICTURES), 0)
    )
    approximate: Mapping[str, Any] | None = None


def read_manifest(folder: Path) -> Manifest:
    """The state that was committed last; a folder that is no index, or a damaged one, is refused."""
    path = folder / MANIFEST
    make = "with tuplet index, or search.create in Python"
    if not folder.exists():
        raise FileNotFoundError(f"{folder} does not exist; make an index {make}")
    if not path.is_file():
        raise FileNotFoundError(f"{folder} is no index: it has no {MANIFEST}; make one {make}")
    try:
        about = json.loads(path.read_text(encoding="utf-8"))
        written = about.pop("format")
        manifest = Manifest(**about) if written == FORMAT else None
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{path} is damaged ({error}); restore it from a copy or index again") from error
    if manifest is None:
        raise ValueError(f"{path} has format {written} and this tuplet reads {FORMAT}; install a newer one")
    for name, counted in manifest.bytes.items():
        found = (folder / name).stat().st_size if (folder / name).exists() else 0
        if found < counted:
            raise ValueError(f"{folder / name} has {found:,} bytes of {counted:,}; restore it from a copy")
    return manifest


def commit(folder: Path, manifest: Manifest) -> None:
    """Make this the state of the index, at once and for good."""
    text = json.dumps({"format": FORMAT, **asdict(manifest)}, indent=1) + "\n"
    replace_file(folder / MANIFEST, lambda aside: aside.write_text(text, encoding="utf-8"))


def append(folder: Path, manifest: Manifest, additions: Mapping[str, Any]) -> dict[str, int]:
    """Append bytes to the files by name and flush them; the lengths that a manifest must state to make them count."""
    lengths = dict(manifest.bytes)
    for name, data in additions.items():
        path = folder / name
        is_new = not path.exists()
        with writing(path):
            with open(path, "w+b" if is_new else "r+b") as file:
                file.truncate(lengths[name])
                file.seek(lengths[name])
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
                lengths[name] = file.tell()
            if is_new:  # a manifest must not outlive the name of a file that it counts
                flush(folder)
    return lengths


@contextmanager
def only_writer(folder: Path) -> Iterator[None]:
    """Be the one writer of the folder. The lock belongs to the open file, so it ends with the process, however it ends.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with only_writer(folder), only_writer(folder):
    ...     pass
    Traceback (most recent call last):
    BlockingIOError: ... is being written by process ...; wait until it is done
    """
    import fcntl  # not on every system, and reading needs none

    with writing(folder / LOCK):
        (folder / LOCK).touch()
    with open(folder / LOCK, "r+b", buffering=0) as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            who = file.read().decode() or "?"
            raise BlockingIOError(f"{folder} is being written by process {who}; wait until it is done") from None
        with writing(folder / LOCK):
            file.truncate(0)
            file.write(str(os.getpid()).encode())
        yield
