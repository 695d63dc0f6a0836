"""Tables of paths and labels, as CSV or Parquet."""

import csv
import glob
from collections.abc import Mapping, Sequence
from itertools import pairwise
from math import inf
from pathlib import Path

import torch

from tuplet import extras
from tuplet.data.dataset import Dataset
from tuplet.data.files import Files, Location

COLUMNS = ("path", "label", "split", "class", "width", "height")


def table(path: Path, columns: Mapping[str, str] | None = None) -> Dataset:
    """Read a table with the columns path and label, and where it has them split, class, width and height.

    Labels are integers, which the column class may name, or names themselves; splits may be in capitals. Paths start at
    the table's folder, or lie inside the tars beside it whose names begin with the table's: those of `birds.csv` in
    `birds_1.tar`. Width and height are a picture's true size; where its pixels have other proportions, crops restore
    the true ones. `columns` says what the table calls a column: {"label": "species"}.
    """
    rows = _parquet(path) if path.suffix.lower() == ".parquet" else _csv(path)
    found = {name: (columns or {}).get(name, name) for name in COLUMNS}
    for name in (*(columns or {}), "path", "label"):
        if name not in found:
            raise ValueError(f"columns names {name!r}; the columns are {', '.join(COLUMNS)}")
        if found[name] not in rows:
            raise ValueError(
                f"{path} has no column {found[name]!r}; its columns are {', '.join(rows)}: "
                "rename one, or give columns= in Python"
            )
    values = {name: rows[column] for name, column in found.items() if column in rows}
    if not values["path"]:
        raise ValueError(f"{path} has no rows below its header")
    for name, column in values.items():
        if "" in column:
            raise ValueError(f"row {column.index('') + 2} of {path} has no {name}; fill it in or remove the row")
    labels, names = _numbered(path, values["label"], values.get("class", values["label"]))
    return Dataset(
        labels=labels,
        class_names=names,
        images=_located(path, values["path"]),
        splits=tuple(map(str.lower, values["split"])) if "split" in values else None,
        aspects=_aspects(path, values["width"], values["height"]) if {"width", "height"} <= values.keys() else None,
    )


def _csv(path: Path) -> dict[str, list[str]]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            lines = [[field.strip() for field in row] for row in csv.reader(file) if row]
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not in UTF-8: {error}; save it as UTF-8") from error
    except csv.Error as error:
        raise ValueError(f"{path} cannot be read ({error}); look for quotes that are not closed") from error
    if not lines:
        raise ValueError(f"{path} is empty; its first line must name the columns path and label")
    header, *rows = lines
    if len(header) == 1:
        raise ValueError(f"{path} has the one column {header[0]!r}; separate path and label by commas")
    for name in header:
        if name and header.count(name) > 1:
            raise ValueError(f"{path} has the column {name!r} twice; rename one of the two")
    for number, row in enumerate(rows, 2):
        if len(row) != len(header):
            raise ValueError(
                f"row {number} of {path} has {len(row)} fields, its header has {len(header)}; "
                "put fields that hold commas in quotes"
            )
    return {name: [row[i] for row in rows] for i, name in enumerate(header)}


def _parquet(path: Path) -> dict[str, list[str]]:
    parquet = extras.need("pyarrow.parquet", extra="tables", purpose="reading a Parquet table")
    try:
        columns = parquet.read_table(path).to_pydict()
    except (ValueError, OSError) as error:
        raise ValueError(f"{path} cannot be read ({str(error).split('. ')[0]}); save it again") from error
    # A number that is not equal to itself is NaN, by which many write that it is missing.
    return {name: ["" if v is None or v != v else str(v) for v in column] for name, column in columns.items()}


def _numbered(path: Path, raw: Sequence[str], classes: Sequence[str]) -> tuple[torch.Tensor, tuple[str, ...]]:
    """Labels from 0 on, in the order of the integers or names that the table has, and the name of each."""
    try:
        order: list[str] = sorted(sorted(set(raw)), key=int)
    except ValueError:
        order = sorted(set(raw))
    else:
        for one, other in pairwise(order):
            if int(one) == int(other):
                raise ValueError(f"{path} writes the label {int(one)} both {one!r} and {other!r}; write it one way")
    number = {value: label for label, value in enumerate(order)}
    name = dict(zip(raw, classes, strict=True))
    for value, other in zip(raw, classes, strict=True):
        if name[value] != other:
            raise ValueError(f"{path} names the label {value} both {name[value]!r} and {other!r}; correct the table")
    return torch.tensor([number[value] for value in raw]), tuple(name[value] for value in order)


def _located(path: Path, paths: Sequence[str]) -> list[Location]:
    packed: dict[str, Location] = {}
    for tar in sorted(path.parent.glob(f"{glob.escape(path.stem)}*.tar")):
        for name, location in Files.of(tar).items():
            if name in packed:
                raise ValueError(f"{name} lies both in {packed[name]} and in {tar}; remove one of the two")
            packed[name] = location
    located = [packed.get(name.removeprefix("./")) or str(path.parent / name) for name in paths]
    missing = [name for name in located if isinstance(name, str) and not Path(name).is_file()]
    if missing:
        raise FileNotFoundError(
            f"{len(missing):,} of the {len(paths):,} images in {path} are missing, first {missing[0]}; "
            "paths start at the folder of the table"
        )
    return located


def _aspects(path: Path, widths: Sequence[str], heights: Sequence[str]) -> torch.Tensor:
    aspects = []
    for number, size in enumerate(zip(widths, heights, strict=True), 2):
        try:
            width, height = map(float, size)
        except ValueError:
            width = height = 0.0
        if not (0 < width < inf and 0 < height < inf):
            raise ValueError(f"row {number} of {path} has the size {' × '.join(size)}; both must be numbers above 0")
        aspects.append(width / height)
    return torch.tensor(aspects)
