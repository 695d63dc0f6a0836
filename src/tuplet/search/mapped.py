"""A file of an index, held in memory or mapped into it, and checked before it is read."""

import mmap
import os
import zlib
from pathlib import Path

#: A file with at most this many unchecked bytes is checked before its first use: a second at most. `verify` checks all.
QUICK = 1 << 30
#: A file of at most this size is read into memory, where nobody can change it. A larger one is mapped: if another
#: program makes it shorter at the very moment of a search, the system ends this process.
IN_MEMORY = 1 << 26
#: The bytes to check at a time; other threads run in between.
BLOCK = 1 << 24


class MappedFile:
    """The first `size` bytes of a file that only grows, with their CRC-32.

    >>> import tempfile
    >>> path = Path(tempfile.mkdtemp(), "a")
    >>> path.write_bytes(b"abd")
    3
    >>> MappedFile(path, 3, 891568578, "restore it from a copy").read()
    Traceback (most recent call last):
    ValueError: ...a is damaged: its checksum does not fit; restore it from a copy
    """

    def __init__(
        self,
        path: Path,
        size: int,
        crc32: int,
        remedy: str = "restore it from a copy",
        earlier: "MappedFile | None" = None,
    ) -> None:
        """Read or map the file. What an `earlier` state of it has read or checked is not read or checked again."""
        self.path, self.size, self.crc32, self._remedy = path, size, crc32, remedy
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
        """Return the bytes, checked if that is quick, or `always`; ValueError if they are not those that were written.

        Reading beyond the end of a mapped file that was made shorter would end the process, so its length is checked
        each time.
        """
        if isinstance(self._content, mmap.mmap):
            self._refuse_shorter(self._content.size())
        start, crc = self._checked
        if start < self.size and (always or self.size - start <= QUICK):
            with memoryview(self._content) as content:
                for first in range(start, self.size, BLOCK):
                    crc = zlib.crc32(content[first : first + BLOCK], crc)
            if crc != self.crc32:
                raise ValueError(f"{self.path} is damaged: its checksum does not fit; {self._remedy}")
            self._checked = self.size, crc
        return self._content

    def _refuse_shorter(self, size: int) -> None:
        if size < self.size:
            raise ValueError(f"{self.path} has {size:,} bytes of {self.size:,}; {self._remedy}")
