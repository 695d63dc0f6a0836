"""Who may read what is written."""

import os
from pathlib import Path


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
    mask = os.umask(0)
    os.umask(mask)
    path.chmod(0o666 & ~mask)
