"""What must survive a power cut, and what to say where it cannot be written."""

import errno
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from safetensors import SafetensorError

#: Why a place cannot be written however much room there is.
_NEVER_HERE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)


def flush(path: Path) -> None:
    """Wait until a file, or the list of names in a folder, is on the disk.

    >>> import tempfile
    >>> flush(Path(tempfile.mkdtemp()))
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Say of an error inside, in one sentence, which file could not be written, why, and what helps."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        remedy = "give another folder" if _number(error) in _NEVER_HERE else "make room, then call again"
        raise OSError(f"{path} could not be written ({first_line(error)}); {remedy}") from error


def _number(error: OSError | SafetensorError) -> int | None:
    """Which error of the system it is; safetensors says so in its text alone."""
    if isinstance(error, OSError):
        return error.errno
    told = re.search(r"os error (\d+)", str(error))
    return int(told[1]) if told else None


def replace_file(path: Path, write: Callable[[Path], object]) -> None:
    """Let `write` write a file under another name, wait until it is on the disk, and then give it its own.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "a.txt")
    >>> replace_file(path, lambda aside: aside.write_text("whole or not at all"))
    >>> path.read_text()
    'whole or not at all'
    """
    aside = path.with_name(f"{path.name}.part")
    try:
        with writing(path):
            write(aside)
            # Some file systems find out that they are full only when they are asked to finish.
            flush(aside)
        os.replace(aside, path)
    finally:
        with suppress(OSError):  # it is not there, or could never be written
            aside.unlink()
    flush(path.parent)


def first_line(error: Exception) -> str:
    """What an error says first, or its name where it says nothing."""
    return str(error).strip().split("\n")[0] or type(error).__name__
