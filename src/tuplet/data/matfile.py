"""Just enough of MATLAB's MAT-file (level 5) to read lists of annotations: structs, cells, text and numbers."""

import struct
import zlib
from typing import Any

import numpy as np

_NUMBERS = {1: "i1", 2: "u1", 3: "<i2", 4: "<u2", 5: "<i4", 6: "<u4", 7: "<f4", 9: "<f8", 12: "<i8", 13: "<u8"}
_TEXT = {1: "latin-1", 2: "latin-1", 4: "utf-16-le", 16: "utf-8", 17: "utf-16-le", 18: "utf-32-le"}
_MATRIX, _COMPRESSED = 14, 15
_CELL, _STRUCT, _CHAR = 1, 2, 4


def read_mat(content: bytes) -> dict[str, Any]:
    """The variables of a MAT-file: a struct is a list of dicts, a cell a list, text a str, numbers an array.

    Needs a file of MATLAB 5 to 7.2 from a little-endian machine; from 7.3 on the format is HDF5.
    """
    if content[126:128] != b"IM":
        raise ValueError("not a MAT-file of MATLAB 5 to 7.2: its header is missing")
    try:
        return dict(_variable(data) for kind, data in _elements(content[128:]) if kind == _MATRIX)
    except (struct.error, zlib.error, IndexError, KeyError, ValueError) as error:
        raise ValueError(f"the MAT-file is damaged: {error}") from error


def _elements(data: bytes) -> list[tuple[int, bytes]]:
    """The type and content of each element that lies in `data`, one after the other."""
    found, at = [], 0
    while at < len(data):
        kind, size = struct.unpack_from("<II", data, at)
        if kind >> 16:  # a small element: size and type share the first word, the content is the second
            found.append((kind & 0xFFFF, data[at + 4 : at + 4 + (kind >> 16)]))
            at += 8
            continue
        body = data[at + 8 : at + 8 + size]
        if len(body) < size:
            raise IndexError(f"an element of {size} bytes ends after {len(body)}")
        if kind == _COMPRESSED:
            found += _elements(zlib.decompress(body))
            at += 8 + size
        else:
            found.append((kind, body))
            at += 8 + size + -size % 8
    return found


def _variable(data: bytes) -> tuple[str, Any]:
    (_, flags), (_, shape), (_, name), *rest = _elements(data)
    kind = flags[0]
    value: Any
    if kind == _CELL:
        value = [_variable(content)[1] for _, content in rest]
    elif kind == _STRUCT:
        value = _structs(rest)
    elif kind == _CHAR:
        value = "".join(content.decode(_TEXT[code]) for code, content in rest[:1])
    else:
        value = _numbers(*rest[0]).reshape(_numbers(5, shape), order="F")
    return name.decode(), value


def _structs(rest: list[tuple[int, bytes]]) -> list[dict[str, Any]]:
    width = int(_numbers(*rest[0])[0])
    names = [rest[1][1][at : at + width].split(b"\0")[0].decode() for at in range(0, len(rest[1][1]), width)]
    values = [_variable(content)[1] for _, content in rest[2:]]
    return [dict(zip(names, values[at : at + len(names)], strict=True)) for at in range(0, len(values), len(names))]


def _numbers(kind: int, data: bytes) -> np.ndarray:
    return np.frombuffer(data, _NUMBERS[kind])
