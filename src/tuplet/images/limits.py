"""Limits of image files, and one budget of memory for all images that a process decodes at the same time.

A small file can unpack to gigabytes, and one that is made for it can keep a decoder busy for hours. Every limit is
checked before pixels are decoded. All of them are module variables that a program may change.
"""

import os
import re
import struct
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO

from PIL import Image

#: The most pixels of an image: 10,000 × 8,000 pass.
MAX_PIXELS = 80_000_000
#: The longest side.
MAX_SIDE = 65_535
#: The most bytes of memory to decode one image, and all images that are decoded at the same time.
MAX_MEMORY = 2 * 2**30
#: The most bytes of a file.
MAX_FILE = 2**30
#: The most scans of a JPEG. Progressive files have about ten; each is a pass over all pixels.
MAX_SCANS = 100
#: The most segments of a JPEG before its first scan. Photographs have up to 300.
MAX_SEGMENTS = 1000
#: The most tiles or strips of a TIFF, chunks of a PNG, or blocks of a GIF before its first frame.
MAX_PARTS = 100_000

# The bytes of memory for a pixel, as measured: of the decoder beside the image, and of the copies that make it RGB.
_DECODER_BYTES = {"WEBP": 14, "AVIF": 8, "HEIF": 4}
_COPY_BYTES = {"RGB": 4, "P": 16, "PA": 16, "LA": 16, "RGBA": 16, "I": 12, "I;16": 12, "I;16B": 12}
# A marker in JPEG data: neither a stuffed FF nor a restart. Those below C0 are invalid and have no length.
_MARKER = re.compile(rb"\xff[^\x00\xff\xd0-\xd7]")
_SCAN, _END, _SEQUENTIAL, _OTHER_FRAMES = 0xDA, 0xD9, (0xC0, 0xC1), (0xC2, 0xC5, 0xC6, 0xC9, 0xCA, 0xCD, 0xCE)
_WITHOUT_LENGTH = (0x01, *range(0xD0, 0xD9))
_STRIP_OFFSETS, _TILE_OFFSETS = 273, 324


class LimitError(ValueError):
    """An image that exceeds a limit.

    Attributes:
        limit: the name of the variable of this module.
    """

    def __init__(self, problem: str, limit: str) -> None:
        super().__init__(problem)
        self.limit = limit


def check_size(width: int, height: int) -> None:
    """Raise LimitError for an image that is too long or has too many pixels.

    >>> check_size(1, 50_000_000)
    Traceback (most recent call last):
    tuplet.images.limits.LimitError: it has 1×50000000 pixels, over 65,535 on a side
    """
    if max(width, height) > MAX_SIDE:
        raise LimitError(f"it has {width}×{height} pixels, over {MAX_SIDE:,} on a side", "MAX_SIDE")
    if width * height > MAX_PIXELS:
        raise LimitError(f"it has {width}×{height} pixels, over {MAX_PIXELS:,}", "MAX_PIXELS")


def check_file(file: BinaryIO) -> int:
    """Check the structure of a file before Pillow opens it, and go back to its beginning.

    Returns:
        the bytes of memory that Pillow takes to open it: it makes room for a WebP's pixels at once.
    """
    size = file.seek(0, os.SEEK_END)
    if size > MAX_FILE:
        raise LimitError(f"it has {size:,} bytes, over {MAX_FILE:,}", "MAX_FILE")
    file.seek(0)
    head = file.read(30)
    if head[:2] == b"\xff\xd8" and not _has_one_scan(file) and _count_scans(file) > MAX_SCANS:
        raise LimitError(f"it has over {MAX_SCANS:,} scans", "MAX_SCANS")
    for start, count, parts in (
        (b"II", _count_tiles, "tiles or strips"),
        (b"MM", _count_tiles, "tiles or strips"),
        (b"\x89PNG", _count_chunks, "chunks"),
        (b"GIF", _count_blocks, "blocks before its first frame"),
    ):
        if head.startswith(start) and count(file, head) > MAX_PARTS:
            raise LimitError(f"it has over {MAX_PARTS:,} {parts}", "MAX_PARTS")
    file.seek(0)
    if head[:4] != b"RIFF" or len(head) < 30:
        return 0
    width, height, mode = _webp_header(head)
    check_size(width, height)
    return check_memory(width * height, mode, "WEBP")


def check_memory(pixels: int, mode: str, format: str | None = None, progressive: bool = False) -> int:
    """Return the bytes of memory that decoding and converting to RGB take; raise LimitError if they are too many.

    >>> check_memory(12_000_000, "RGB", "JPEG")
    96000000
    """
    own = 1 if mode in ("1", "L", "P") else 4
    coefficients = 2 * Image.getmodebands(mode) if progressive else 0
    needed = pixels * (own + coefficients + _DECODER_BYTES.get(format or "", 0) + _COPY_BYTES.get(mode, 8))
    if needed > MAX_MEMORY:
        raise LimitError(
            f"it takes {needed / 2**20:,.0f} MiB of memory to decode, over {MAX_MEMORY / 2**20:,.0f}", "MAX_MEMORY"
        )
    return needed


class MemoryBudget:
    """Let threads decode at the same time as long as their images fit in `MAX_MEMORY`; the others wait.

    >>> budget = MemoryBudget()
    >>> with budget.reserve(1000):
    ...     budget.used
    1000
    """

    def __init__(self) -> None:
        self.used = 0
        self._changed = threading.Condition()

    @contextmanager
    def reserve(self, amount: int) -> Iterator[None]:
        """Wait until there is room, and take it inside this block."""
        with self._changed:
            self._changed.wait_for(lambda: self.used == 0 or self.used + amount <= MAX_MEMORY)
            self.used += amount
        try:
            yield
        finally:
            with self._changed:
                self.used -= amount
                self._changed.notify_all()


#: The budget of this process.
MEMORY = MemoryBudget()
if hasattr(os, "register_at_fork"):  # Windows has no fork
    # Threads do not survive a fork, and would never give back what they had reserved.
    os.register_at_fork(after_in_child=MEMORY.__init__)  # type: ignore[misc]


def _has_one_scan(file: BinaryIO) -> bool:
    """Return True for a JPEG whose first scan holds all components and is not progressive: libjpeg then reads no other.

    Raises LimitError if too much comes before. Pillow reads that in Python, and joins segments of the same kind.
    """
    components, is_sequential = 0, True
    file.seek(2)
    for _ in range(MAX_SEGMENTS):
        if len(mark := file.read(2)) < 2:
            return False
        code = mark[1]
        if mark[0] != 0xFF or code in (0x00, 0xFF):  # a byte between segments, which libjpeg and Pillow skip
            file.seek(-1, os.SEEK_CUR)
            continue
        if code in _WITHOUT_LENGTH:
            continue
        content = file.read(size - 2) if (size := int.from_bytes(file.read(2))) > 2 else b""
        if code == _SCAN:
            return is_sequential and content[:1] == bytes([components])
        if code in _SEQUENTIAL and len(content) > 5:
            components = content[5]
        is_sequential &= code not in _OTHER_FRAMES
    raise LimitError(f"it has over {MAX_SEGMENTS:,} segments before its first scan", "MAX_SEGMENTS")


def _count_scans(file: BinaryIO) -> int:
    """Count the scans of a JPEG as libjpeg finds them; counting stops above `MAX_SCANS`."""
    file.seek(0)
    content, at, scans = file.read(), 2, 0
    while scans <= MAX_SCANS and (found := _MARKER.search(content, at)):
        code, at = content[found.start() + 1], found.end()
        if code == _END:
            break
        scans += code == _SCAN
        if code >= 0xC0:  # those below are invalid: libjpeg skips them, and they have no length
            at += int.from_bytes(content[at : at + 2])
    return scans


def _count_tiles(file: BinaryIO, head: bytes) -> int:
    """Return the number of tiles or strips that the first directory of a TIFF lists."""
    order, is_big = "<" if head[:2] == b"II" else ">", 43 in head[2:4]
    number, entry = ("Q", "HHQ8x") if is_big else ("H", "HHI4x")
    try:
        (offset,) = struct.unpack_from(f"{order}{'Q' if is_big else 'I'}", head, 8 if is_big else 4)
        file.seek(offset)
        (entries,) = struct.unpack(f"{order}{number}", file.read(struct.calcsize(f"{order}{number}")))
        size = struct.calcsize(f"{order}{entry}")
        content = file.read(min(entries, 2**16) * size)
        tags = struct.iter_unpack(f"{order}{entry}", content[: len(content) // size * size])
        return max((count for tag, _, count in tags if tag in (_STRIP_OFFSETS, _TILE_OFFSETS)), default=0)
    except (struct.error, OSError, OverflowError, ValueError):  # Pillow says what is wrong
        return 0


def _count_chunks(file: BinaryIO, head: bytes) -> int:
    """Count the chunks of a PNG, each of which Pillow reads in Python; counting stops above `MAX_PARTS`."""
    file.seek(8)
    chunks = 0
    while chunks <= MAX_PARTS and len(start := file.read(8)) == 8:
        chunks += 1
        file.seek(int.from_bytes(start[:4]) + 4, os.SEEK_CUR)
    return chunks


def _count_blocks(file: BinaryIO, head: bytes) -> int:
    """Count the blocks before the first frame of a GIF, which Pillow joins; counting stops above `MAX_PARTS`."""
    file.seek(13 + (3 << (head[10] & 7) + 1 if len(head) > 10 and head[10] & 0x80 else 0))
    blocks = 0
    while blocks <= MAX_PARTS and (kind := file.read(1)) not in (b"", b",", b";"):
        blocks += 1
        if kind == b"!":
            file.seek(1, os.SEEK_CUR)
            while blocks <= MAX_PARTS and (size := file.read(1)) > b"\0":
                blocks += 1
                file.seek(size[0], os.SEEK_CUR)
    return blocks


def _webp_header(head: bytes) -> tuple[int, int, str]:
    """Return the width, height and mode that the first chunk of a WebP names; no size if there is none."""
    modes = "RGB", "RGBA"
    if head[12:16] == b"VP8X":
        width, height = (int.from_bytes(head[at : at + 3], "little") + 1 for at in (24, 27))
        return width, height, modes[head[20] >> 4 & 1]
    if head[12:16] == b"VP8L":
        bits = int.from_bytes(head[21:25], "little")
        return (bits & 0x3FFF) + 1, (bits >> 14 & 0x3FFF) + 1, modes[bits >> 28 & 1]
    if head[12:16] == b"VP8 ":
        width, height = struct.unpack_from("<HH", head, 26)
        return width & 0x3FFF, height & 0x3FFF, "RGB"
    return 0, 0, "RGB"
