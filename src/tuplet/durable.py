"""What must survive a power cut."""

import os
from pathlib import Path


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
