"""Parquet and Arrow files: their columns, and images as bytes in their cells."""

from bisect import bisect_right
from functools import lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple

from tuplet import extras
from tuplet.errors import first_line


class ArrowFile(NamedTuple):
    """The columns of a file without those of images, the names of the latter, and the number of rows."""

    table: Any
    images: list[str]
    rows: int


def read_arrow(file: str) -> ArrowFile:
    """Read a Parquet or Arrow file except its columns of bytes, which may be larger than memory."""
    types = _need("pyarrow").types
    try:
        source = _mapped(file) if _is_mapped(file) else _parquet(file)
        schema = source.schema if _is_mapped(file) else source.schema_arrow
        images = [field.name for field in schema if _holds_bytes(field.type, types)]
        others = [name for name in schema.names if name not in images]
        if _is_mapped(file):
            return ArrowFile(source.select(others), images, source.num_rows)
        return ArrowFile(source.read(columns=others), images, source.metadata.num_rows)
    except Exception as error:  # pyarrow raises anything for a damaged file
        raise ValueError(f"{file} cannot be read ({first_line(error).split('. ')[0][:200]}); save it again") from error


def read_cell(file: str, column: str, row: int) -> bytes:
    """Return the bytes of an image in a row of a file; b"" if the cell is empty.

    An Arrow file is mapped into memory. Of a Parquet file a whole row group is read, and the last ones are kept.
    """
    if _is_mapped(file):
        value = _mapped(file).column(column)[row].as_py()
    else:
        starts = _group_starts(file)
        group = bisect_right(starts, row) - 1
        value = _row_group(file, column, group)[row - starts[group]].as_py()
    if isinstance(value, dict):  # as Hugging Face's datasets store an image
        path = value.get("path")
        value = value.get("bytes") or (Path(file).parent.joinpath(path).read_bytes() if path else b"")
    return value or b""


def _need(module: str) -> Any:
    return extras.need(module, extra="tables", purpose="reading a Parquet or Arrow table")


def _is_mapped(file: str) -> bool:
    return file.lower().endswith(".arrow")


def _holds_bytes(kind: Any, types: Any) -> bool:
    if types.is_struct(kind):
        return any(field.name == "bytes" and _holds_bytes(field.type, types) for field in kind)
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


@lru_cache(maxsize=64)
def _mapped(file: str) -> Any:
    content, ipc = _need("pyarrow").memory_map(file), _need("pyarrow.ipc")
    try:
        return ipc.open_stream(content).read_all()
    except ValueError:  # the other of Arrow's two formats
        return ipc.open_file(content).read_all()


def _parquet(file: str) -> Any:
    return _need("pyarrow.parquet").ParquetFile(file)


@lru_cache(maxsize=64)
def _group_starts(file: str) -> list[int]:
    """Return the first row of each row group."""
    metadata = _parquet(file).metadata
    return [0, *accumulate(metadata.row_group(group).num_rows for group in range(metadata.num_row_groups))][:-1]


@lru_cache(maxsize=4)
def _row_group(file: str, column: str, group: int) -> Any:
    return _parquet(file).read_row_group(group, columns=[column]).column(0)
