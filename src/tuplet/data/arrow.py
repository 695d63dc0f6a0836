"""Parquet and Arrow files: their columns, and images as bytes in their cells."""

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

from tuplet import extras
from tuplet.errors import first_line


class ArrowFile(NamedTuple):
    """The columns of a file without those of images, and the names of the latter."""

    table: Any
    images: list[str]


def read_arrow(file: str) -> ArrowFile:
    """Read a Parquet or Arrow file except its columns of bytes, which may be larger than memory."""
    _arrow()
    try:
        schema = _mapped(file).schema if _is_mapped(file) else _parquet(file).schema_arrow
        images = [field.name for field in schema if _holds_bytes(field.type)]
        others = [name for name in schema.names if name not in images]
        table = _mapped(file).select(others) if _is_mapped(file) else _parquet(file).read(columns=others)
    except Exception as error:  # pyarrow raises anything for a damaged file
        raise ValueError(f"{file} cannot be read ({first_line(error).split('. ')[0][:200]}); save it again") from error
    return ArrowFile(table, images)


def count_rows(file: str) -> int:
    """Return the number of rows of a file."""
    return int(_mapped(file).num_rows if _is_mapped(file) else _parquet(file).metadata.num_rows)


def read_cell(file: str, column: str, row: int) -> bytes:
    """Return the bytes of an image in a row of a file; b"" if the cell is empty.

    An Arrow file is mapped into memory. Of a Parquet file a whole row group is read, and the last ones are kept.
    """
    if _is_mapped(file):
        value = _mapped(file).column(column)[row].as_py()
    else:
        group, first = _place(file, row)
        value = _row_group(file, column, group)[row - first].as_py()
    if isinstance(value, dict):  # as Hugging Face's datasets store an image
        path = value.get("path")
        value = value.get("bytes") or (Path(file).parent.joinpath(path).read_bytes() if path else b"")
    return value or b""


def _arrow() -> Any:
    return extras.need("pyarrow", extra="tables", purpose="reading a Parquet table")


def _is_mapped(file: str) -> bool:
    return file.lower().endswith(".arrow")


def _holds_bytes(kind: Any) -> bool:
    types = _arrow().types
    if types.is_struct(kind):
        return any(field.name == "bytes" and _holds_bytes(field.type) for field in kind)
    return bool(types.is_binary(kind) or types.is_large_binary(kind))


@lru_cache(maxsize=64)
def _parquet(file: str) -> Any:
    return extras.need("pyarrow.parquet", extra="tables", purpose="reading a Parquet table").ParquetFile(file)


@lru_cache(maxsize=64)
def _mapped(file: str) -> Any:
    content = _arrow().memory_map(file)
    ipc = extras.need("pyarrow.ipc", extra="tables", purpose="reading an Arrow table")
    try:
        return ipc.open_stream(content).read_all()
    except ValueError:  # the other of Arrow's two formats
        return ipc.open_file(content).read_all()


def _place(file: str, row: int) -> tuple[int, int]:
    """Return the row group that holds a row, and its first row."""
    first = 0
    for group, count in enumerate(_group_sizes(file)):
        if row < first + count:
            return group, first
        first += count
    raise IndexError(f"{file} has {first} rows, and row {row} was asked for")


@lru_cache(maxsize=64)
def _group_sizes(file: str) -> Sequence[int]:
    metadata = _parquet(file).metadata
    return [metadata.row_group(group).num_rows for group in range(metadata.num_row_groups)]


@lru_cache(maxsize=4)
def _row_group(file: str, column: str, group: int) -> Any:
    # A handle of its own: several threads may read.
    parquet = extras.need("pyarrow.parquet", extra="tables", purpose="reading a Parquet table").ParquetFile(file)
    return parquet.read_row_group(group, columns=[column]).column(0)
