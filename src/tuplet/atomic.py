"""Write files so that they survive a crash, and lock them between processes."""

import errno
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from filelock import FileLock, Timeout
from safetensors import SafetensorError

from tuplet.errors import first_line

#: Errors that more disk space does not cure.
_WRONG_PLACE = (errno.EACCES, errno.EPERM, errno.EROFS, errno.EEXIST, errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG)


def fsync(path: Path) -> None:
    """Wait until a file, or the list of names in a folder, is on the disk.

    >>> import tempfile
    >>> fsync(Path(tempfile.mkdtemp()))
    """
    try:
        # Windows syncs only what may be written to.
        descriptor = os.open(path, os.O_RDONLY if path.is_dir() else os.O_RDWR)
    except PermissionError:
        if path.is_dir():  # Windows opens no folder; its file system keeps a journal of the names
            return
        raise
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def explain_write_errors(path: Path) -> Iterator[None]:
    """Turn an error while writing into one sentence: the file, the reason and the remedy."""
    try:
        yield
    except (OSError, SafetensorError) as error:
        remedy = "give another folder" if _errno(error) in _WRONG_PLACE else "make room, then call again"
        reason = getattr(error, "strerror", None) or first_line(error)
        raise OSError(f"{path} could not be written ({reason}); {remedy}") from error


def _errno(error: OSError | SafetensorError) -> int | None:
    """Return the system's error number; safetensors has it in its text alone."""
    if isinstance(error, OSError):
        return error.errno
    match = re.search(r"os error (\d+)", str(error))
    return int(match[1]) if match else None


def write_atomic(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file under a temporary name, sync it to disk, then rename it.

    The file gets the permissions of any new file, whatever `write` sets: safetensors makes files that only their owner
    can read.

    Args:
        path: where the file goes.
        write: writes the whole file to the path that it is given.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "a.txt")
    >>> write_atomic(path, lambda part: part.write_text("whole or not at all"))
    >>> path.read_text()
    'whole or not at all'
    """
    part = path.with_name(f"{path.name}.part")
    try:
        with explain_write_errors(path):
            with usual_permissions(part):
                write(part)
            # Some file systems notice that they are full only when they are asked to finish.
            fsync(part)
        os.replace(part, path)
    finally:
        with suppress(OSError):  # it is not there, or could never be written
            part.unlink()
    fsync(path.parent)


@contextmanager
def usual_permissions(path: Path) -> Iterator[None]:
    """Give a file that is written inside the permissions that any new file has here.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> with usual_permissions(folder / "a"):
    ...     (folder / "a").chmod(0o600)
    >>> (folder / "b").touch()
    >>> (folder / "a").stat().st_mode == (folder / "b").stat().st_mode
    True
    """
    path.unlink(missing_ok=True)
    path.touch()
    mode = path.stat().st_mode
    yield
    path.chmod(mode)


@contextmanager
def lock(path: Path, busy: str | None = None) -> Iterator[None]:
    """Hold a lock between processes; the system releases it when the process ends, even by a kill.

    Args:
        path: the lock file, which stays there.
        busy: the message of the error where another process holds the lock; wait for it where left out.

    Raises:
        BlockingIOError: with the message `busy`.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), ".lock")
    >>> with lock(path), lock(path, busy="in use; wait for it"):
    ...     pass
    Traceback (most recent call last):
    BlockingIOError: in use; wait for it
    """
    held = FileLock(path, timeout=-1 if busy is None else 0)
    try:
        held.acquire()
    except Timeout as error:
        raise BlockingIOError(busy) from error
    except OSError as error:
        with explain_write_errors(path):
            raise error
    try:
        yield
    finally:
        held.release()
