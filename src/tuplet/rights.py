"""Who may read what is written."""

import os
import re
from pathlib import Path

#: Where Linux tells of a process, the umask among the rest.
_STATUS = Path("/proc/self/status")


def like_any_new_file(path: Path) -> None:
    """Give a file the rights that a new one has here: safetensors gives its files to their owner alone.

    An index or a model that one user makes could not be served by another otherwise.

    >>> import tempfile
    >>> path = Path(tempfile.mkstemp()[1])
    >>> before = os.umask(0o022)
    >>> like_any_new_file(path)
    >>> oct(path.stat().st_mode & 0o777), os.umask(before) == 0o022
    ('0o644', True)
    """
    path.chmod(0o666 & ~_umask())


def _umask() -> int:
    told = re.search(rb"^Umask:\s*([0-7]+)$", _STATUS.read_bytes(), re.MULTILINE) if _STATUS.exists() else None
    if told:
        return int(told[1], 8)
    # Elsewhere it can only be set, and what another thread writes meanwhile is open to all.
    mask = os.umask(0)
    os.umask(mask)
    return mask
