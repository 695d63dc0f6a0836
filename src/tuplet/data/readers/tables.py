"""Tables of images, as CSV, Parquet or Arrow files."""

import csv
import glob
import json
import os
import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from pathlib import Path
from typing import Any

from tuplet.data.arrow import read_arrow
from tuplet.data.dataset import Dataset
from tuplet.data.files import Cell, Files, Location
from tuplet.data.readers.columns import ROLES, Table, dataset_of
from tuplet.data.readers.folders import split_in
from tuplet.data.readers.pairs import is_pairs, read_pairs_table
from tuplet.errors import OptionError, first_of, opt, warn

TABLE_ENDINGS = (".csv", ".parquet", ".arrow")


def read_table(
    path: Path, columns: Mapping[str, str] | None = None, pattern: str | None = None, labelled: bool = True
) -> Dataset:
    """Read a table with the columns path (or image) and label, or a folder of Parquet or Arrow files.

    Paths are relative to the table's folder, or lie inside tars beside it whose names begin with the table's name:
    those of `birds.csv` in `birds_1.tar`. The column image holds the bytes of the files instead, as Hugging Face's
    datasets do. `tuplet.data.readers.columns` says what the other columns are.

    Args:
        path: the table, or the folder.
        columns: the table's own names of its columns, such as {"label": "species"}.
        pattern: a regular expression that finds the label, and perhaps more, in each path; see `match_pattern`.
        labelled: rows need a label.
    """
    table = _csv(path) if path.suffix.lower() == ".csv" else _arrow(path)
    if not len(table):
        raise ValueError(f"{path} has no rows below its header; write one for each image")
    if is_pairs(table, columns):
        return read_pairs_table(table, columns, lambda paths: _located(path, paths, table))
    table = table.with_roles(columns)
    if "image" in table and not isinstance(table["image"][0], Cell):  # a column of paths that is called image
        roles = dict(table.roles)
        table = replace(table, roles={"path": roles.pop("image"), **roles})
    if "path" not in table and "image" not in table:
        needed = ["path"] if pattern or "label" in table or "labels" in table else ["path", "label"]
        raise _no_column(table, columns, *needed)
    if pattern is not None:
        if "path" not in table:
            raise OptionError(
                f"{opt('pattern')} is given, but {path} has no column 'path' to look into; name it, or the label"
            )
        found = match_pattern(table, list(map(str, table["path"])), pattern).with_roles(columns)
        table = replace(found, roles={**found.roles, "path": table.roles["path"]})
    if "label" not in table and "labels" not in table:
        missing = _no_column(table, columns, "label")
        if labelled:
            raise missing
        if missing.option and "label" not in (columns or {}):  # another column may be meant
            warn(f"the images get no label: {missing.marked}")
    if not labelled:
        table = table.with_empty_labels()
    if "image" in table:
        return dataset_of(table, list(table["image"]))
    paths = list(map(str, table["path"]))
    # The columns are checked first: that takes less time than looking for the files.
    return replace(dataset_of(table, paths), images=_located(path, paths, table))


def _no_column(table: Table, given: Mapping[str, str] | None, *names: str) -> OptionError:
    """Return the error about columns that are missing, with the first columns that may be meant."""
    others = [column for column in table.columns if column not in (*ROLES, *table.roles.values())]
    listed = first_of(list(table.columns), 20)
    columns = opt("columns", {**(given or {}), **dict(zip(names, others, strict=False))})
    remedy = f"rename one, or give {columns}" if others else "add it"
    return OptionError(f"{table.source} has no column {names[0]!r}; its columns are {listed}: {remedy}")


def match_pattern(table: Table, names: Sequence[str], pattern: str) -> Table:
    r"""Add the named groups of a regular expression, found in each name, as columns.

    >>> from tuplet.data.readers.columns import Table
    >>> names = ["0002_c1s1.jpg", "0007_c3s1.jpg"]
    >>> found = match_pattern(Table("photos", {"path": names}, str), names, r"(?P<label>\d+)_c(?P<camera>\d)")
    >>> found.columns["label"], found.columns["camera"]
    (['0002', '0007'], ['1', '3'])
    """
    try:
        expression = re.compile(pattern)
    except re.error as error:
        raise OptionError(f"{opt('pattern')} is {pattern!r}, which is no regular expression: {error}") from error
    if "label" not in expression.groupindex:
        raise OptionError(
            f"{opt('pattern')} is {pattern!r}, which has no group (?P<label>…); name the part that is the class"
        )
    found = [expression.search(name) for name in names]
    if missing := [i for i, match in enumerate(found) if match is None]:
        raise ValueError(
            f"{len(missing):,} of the {len(names):,} names in {table.source} do not match the pattern {pattern!r}, "
            f"first {names[missing[0]]}; correct the pattern, or leave these files out"
        )
    for name in expression.groupindex:
        if name in table.columns:
            raise ValueError(
                f"{table.source} has a column {name!r} and the pattern finds another; rename one of the two"
            )
    added = {name: [match[name] for match in found if match] for name in expression.groupindex}
    return replace(table, columns={**table.columns, **added})


def _csv(path: Path) -> Table:
    numbers: list[int] = []
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.reader(file)
            rows = (list(map(str.strip, row)) for row in reader if row)
            header = _header(next(rows, []), path)
            columns: list[list[str | None]] = [[] for _ in header]
            for row in rows:
                if len(row) != len(header):
                    raise ValueError(
                        f"row {reader.line_num} of {path} has {len(row)} fields, its header has {len(header)}; "
                        "put fields that hold commas in quotes"
                    )
                numbers.append(reader.line_num)
                # Rows are not kept: the garbage collector looks through a million lists again and again.
                for column, value in zip(columns, row, strict=True):
                    column.append(value or None)
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not in UTF-8: {error}; save it as UTF-8") from error
    except csv.Error as error:
        raise ValueError(f"{path} cannot be read ({error}); look for quotes that are not closed") from error
    named = dict(zip(header, columns, strict=True))
    return Table(str(path), named, lambda row: f"row {numbers[row]} of {path}", is_text=True)


def _header(names: list[str], path: Path) -> list[str]:
    """Return the names of the columns of a CSV file, or raise an error that says what is wrong with them."""
    if not names:
        raise ValueError(f"{path} is empty; its first line must name the columns path and label")
    if len(names) == 1 and re.search("[;\t]", names[0]):
        raise ValueError(f"{path} has the one column {names[0]!r}; separate path and label by commas")
    for name, count in Counter(names).items():
        if name and count > 1:
            raise ValueError(f"{path} has the column {name!r} twice; rename one of the two")
    return names


def is_arrow(name: str) -> bool:
    """Return whether a file is a Parquet or Arrow file by its ending."""
    return name.lower().endswith((".parquet", ".arrow"))


def _arrow(path: Path) -> Table:
    """Read Parquet or Arrow files. Columns of bytes are not read: their cells say where they are."""
    files = [path]
    if path.is_dir():  # the names of Hugging Face's own caches begin with cache-
        files = sorted(file for file in path.rglob("*") if is_arrow(file.name) and not file.name.startswith("cache-"))
    columns: dict[str, list[Any]] = {}
    counts = []
    for file in files:
        found = _one_arrow(file, path)
        if columns and found.keys() != columns.keys():
            other = next(iter(found.keys() ^ columns.keys()))
            raise ValueError(f"{file} and {files[0]} do not have the same columns ({other!r}); keep one kind in {path}")
        for name, values in found.items():
            columns.setdefault(name, []).extend(values)
        counts.append(len(next(iter(found.values()), ())))
    starts = [0, *accumulate(counts)]

    def row(number: int) -> str:
        at = bisect_right(starts, number) - 1
        # Counted as in a CSV file, whose header is row 1.
        return f"row {number - starts[at] + 2} of {files[at]}"

    return Table(str(path), columns, row)


def _one_arrow(file: Path, path: Path) -> dict[str, list[Any]]:
    table, images, count = read_arrow(str(file))
    known = json.loads((table.schema.metadata or {}).get(b"huggingface", b"{}"))
    features = known.get("info", {}).get("features", {})
    columns: dict[str, list[Any]] = {
        "image" if name == "img" else name: [Cell(str(file), name, row) for row in range(count)] for name in images
    }
    for name in table.column_names:
        values = table.column(name).to_pylist()
        # Only NaN differs from itself; it stands for a missing value.
        values = [None if v is None or v != v or v == "" else v for v in values]
        if names := features.get(name, {}).get("names"):
            values = [None if v is None or v < 0 else names[v] for v in values]
        columns[name] = values
    split = None if file == path else split_in(str(file.relative_to(path)))
    if split and "split" not in columns:
        columns["split"] = [split] * count
    return columns


def _located(path: Path, paths: Sequence[str], table: Table) -> list[Location]:
    """Return where the images are; raise an error that names the first row whose image is not there."""
    packed: dict[str, Location] = {}
    for tar in sorted(path.parent.glob(f"{glob.escape(path.stem)}*.tar")):
        for name, location in Files.of(tar).items():
            if name in packed:
                raise ValueError(f"{name} lies both in {packed[name]} and in {tar}; remove one of the two")
            packed[name] = location
    # Much faster than pathlib, which matters for a million paths.
    folder = "" if path.parent == Path() else str(path.parent)
    named = [name.removeprefix("./") for name in paths]
    located = [packed.get(name) or os.path.join(folder, name) for name in named]
    missing = [i for i, file in enumerate(located) if isinstance(file, str) and not os.path.isfile(file)]
    if missing:
        name = paths[missing[0]]
        rows = zip(*table.columns.values(), strict=True)
        row = next(number for number, values in enumerate(rows) if name in map(str, values))
        raise FileNotFoundError(
            f"{len(missing):,} of the {len(paths):,} images in {path} are missing, first {located[missing[0]]} "
            f"({table.row(row)}); paths start at the folder of the table"
        )
    return located
