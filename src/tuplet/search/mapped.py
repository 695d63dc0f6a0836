"""A file of an index, mapped into memory and checked before it is read."""

import mmap
import os
import zlib
from pathlib import Path

#: A file with at most this many unchecked bytes is checked before its first use: a second at most. `verify` checks all.
QUICK = 1 << 30
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
        """Map the file. What an `earlier` state of it has checked is not checked again."""
        self.path, self.size, self.crc32, self._remedy = path, size, crc32, remedy
        #: The length and the CRC-32 of the part that was checked.
        self._checked: tuple[int, int] = (0, 0) if earlier is None else earlier._checked
        self._map: mmap.mmap | None = None
        if size:
            with open(path, "rb") as file:
                self._refuse_shorter(os.fstat(file.fileno()).st_size)
                self._map = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)

    def read(self, always: bool = False) -> mmap.mmap | bytes:
        """Return the bytes, checked if that is quick, or `always`; ValueError if they are not those that were written.

        Reading beyond the end of a file that was made shorter would end the process, so its length is checked each
        time.
        """
        if self._map is None:
            return b""
        self._refuse_shorter(self._map.size())
        start, crc = self._checked
        if start < self.size and (always or self.size - start <= QUICK):
            with memoryview(self._map) as content:
                for first in range(start, self.size, BLOCK):
                    crc = zlib.crc32(content[first : first + BLOCK], crc)
            if crc != self.crc32:
                raise ValueError(f"{self.path} is damaged: its checksum does not fit; {self._remedy}")
            self._checked = self.size, crc
        return self._map

    def _refuse_shorter(self, size: int) -> None:
        if size < self.size:
            raise ValueError(f"{self.path} has {size:,} bytes of {self.size:,}; {self._remedy}")
