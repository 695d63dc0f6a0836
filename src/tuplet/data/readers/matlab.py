"""A reader of MATLAB's MAT-files (level 5) for lists of annotations: structs, cells, text and numbers."""

import struct
import zlib
from collections.abc import Iterator
from typing import Any, TypeAlias

import numpy as np

_NUMBERS = {1: "i1", 2: "u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<f4", 9: "<f8", 12: "<i8", 13: "<u8"}
_TEXT = {1: "latin-1", 2: "latin-1", 4: "utf-16-le", 16: "utf-8", 17: "utf-16-le", 18: "utf-32-le"}
_MATRIX, _COMPRESSED = 14, 15
_CELL, _STRUCT, _CHAR = 1, 2, 4
#: The most bytes that a file may unpack to. The lists of Cars196 take a fraction of it.
MAX_UNPACKED = 64 * 2**20
#: The most elements of one cell or struct; the lists of Cars196 have 113 thousand.
MAX_ELEMENTS = 500_000
#: The most levels of cells and structs inside each other.
MAX_DEPTH = 32
#: A type and a content.
Element: TypeAlias = tuple[int, memoryview]


def read_mat(content: bytes) -> dict[str, Any]:
    """Return the variables of a MAT-file: a struct is a list of dicts, a cell a list, text a str, numbers an array.

    The file must be of MATLAB 5 to 7.2 from a little-endian machine; from 7.3 on the format is HDF5.
    """
    if content[126:128] != b"IM":
        raise ValueError("not a MAT-file of MATLAB 5 to 7.2: its header is missing")
    try:
        return dict(_variable(data) for kind, data in _unpacked(memoryview(content)[128:]) if kind == _MATRIX)
    except (struct.error, zlib.error, IndexError, KeyError, ValueError) as error:
        raise ValueError(f"the MAT-file is damaged: {error}") from error


def _unpacked(data: memoryview) -> Iterator[Element]:
    """Yield the elements of a file; those that are compressed are unpacked."""
    room = MAX_UNPACKED
    for kind, body in _elements(data):
        if kind != _COMPRESSED:
            yield kind, body
            continue
        unpacker = zlib.decompressobj()
        content = unpacker.decompress(body, room)
        if unpacker.unconsumed_tail:
            raise ValueError(f"it unpacks to over {MAX_UNPACKED:,} bytes")
        room -= len(content)
        yield from _elements(memoryview(content))


def _elements(data: memoryview) -> list[Element]:
    """Return the type and content of each element in `data`."""
    found: list[Element] = []
    at = 0
    while at < len(data):
        if len(found) == MAX_ELEMENTS:
            raise ValueError(f"it has over {MAX_ELEMENTS:,} elements side by side")
        kind, size = struct.unpack_from("<II", data, at)
        if kind >> 16:  # a small element: size and type share the first word, the content is the second
            found.append((kind & 0xFFFF, data[at + 4 : at + 4 + (kind >> 16)]))
            at += 8
            continue
        body = data[at + 8 : at + 8 + size]
        if len(body) < size:
            raise IndexError(f"an element of {size} bytes ends after {len(body)}")
        found.append((kind, body))
        at += 8 + size + (0 if kind == _COMPRESSED else -size % 8)
    return found


def _variable(data: memoryview, depth: int = 0) -> tuple[str, Any]:
    if depth > MAX_DEPTH:
        raise ValueError(f"its cells and structs lie over {MAX_DEPTH} deep in each other")
    (_, flags), (_, shape), (_, name), *rest = _elements(data)
    kind = flags[0]
    value: Any
    if kind == _CELL:
        value = [_variable(content, depth + 1)[1] for _, content in rest]
    elif kind == _STRUCT:
        value = _structs(rest, depth + 1)
    elif kind == _CHAR:
        value = "".join(bytes(content).decode(_TEXT[code]) for code, content in rest[:1])
    else:
        value = _numbers(*rest[0]).reshape(_numbers(5, shape), order="F")
    return bytes(name).decode(), value


def _structs(rest: list[Element], depth: int) -> list[dict[str, Any]]:
    width = int(_numbers(*rest[0])[0])
    listed = bytes(rest[1][1])
    names = [listed[at : at + width].split(b"\0")[0].decode() for at in range(0, len(listed), width)]
    values = [_variable(content, depth)[1] for _, content in rest[2:]]
    return [dict(zip(names, values[at : at + len(names)], strict=True)) for at in range(0, len(values), len(names))]


def _numbers(kind: int, data: memoryview) -> np.ndarray:
    return np.frombuffer(data, _NUMBERS[kind])
