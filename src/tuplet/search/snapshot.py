"""One committed state of an index, as its files hold it: rows, their vectors, items and pictures."""

import hashlib
import json
import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tuplet.evaluation import Vectors
from tuplet.search import files
from tuplet.search.files import Manifest
from tuplet.search.incoming import in_order

#: What `rows.u64` holds of each row: where its line and its picture end, and a number made of its id.
ROW = np.dtype([("line", "<u8"), ("picture", "<u8"), ("id", "<u8")])


def id_number(name: str) -> int:
    """64 bits of an id, by which its row is found; equal ids have equal numbers, others nearly never.

    >>> id_number("a") == id_number("a"), id_number("a") == id_number("b")
    (True, False)
    """
    content = name.encode(errors="surrogatepass")  # what is no text may be asked for, and is not there
    return int.from_bytes(hashlib.blake2b(content, digest_size=8).digest(), "little")


class Members(Vectors):
    """The vectors of an index as the evaluator takes them; the lengths of those that an earlier state had are known."""

    def __init__(self, vectors: np.ndarray, before: Vectors | None = None) -> None:
        self._before = before
        super().__init__(vectors, "the index")
        self._before = None  # it maps the file too

    def _squares(self) -> Tensor:
        if self._before is None:
            return super()._squares()
        known, later = self._before.squared_norms, self.tensor[self._before.count :]
        return torch.cat([known, Vectors(later, self.name).squared_norms]) if len(later) else known


class Snapshot:
    """The rows that a manifest counts. Later writers only append, so it stays as it is for as long as it is held.

    What an earlier state of the same index has read, `before`, is not read again.
    """

    def __init__(self, folder: Path, manifest: Manifest, before: "Snapshot | None" = None) -> None:
        self.folder, self.manifest = folder, manifest
        self.vectors = self._mapped(files.VECTORS, "<f4").reshape(-1, manifest.dim)
        self.rows = self._mapped(files.ROWS, ROW)
        self._galleries: dict[int, Members] = {}
        self._known: dict[int, Members] = {}
        if before is not None and before.manifest.born == manifest.born:
            self._known = before._known | before._galleries
        self._items, self._pictures = self._bytes(files.ITEMS), self._bytes(files.PICTURES)
        self.alive = np.ones(manifest.rows, dtype=bool)
        self.alive[self._mapped(files.DELETED, "<u8")] = False
        if not len(self.vectors) == len(self.rows) == manifest.rows:
            raise ValueError(f"{folder} is damaged: its files hold different numbers of rows; restore it from a copy")
        if files.read_manifest(folder).born != manifest.born:
            raise ValueError(f"{folder} was replaced by another index while it was opened; open it again")

    @property
    def count(self) -> int:
        """Rows that are not deleted."""
        return self.manifest.rows - self.manifest.deleted

    def gallery(self, first: int = 0) -> Vectors:
        """The vectors from a row on. The first look reads those that are new once, for their lengths."""
        if first not in self._galleries:
            self._galleries[first] = Members(self.vectors[first:], self._known.pop(first, None))
        return self._galleries[first]

    def items(self, rows: Sequence[int]) -> list[dict[str, Any]]:
        """The lines of these rows: id and metadata of each."""
        where = np.asarray(rows, np.int64)
        ends = self.rows["line"][where].tolist()
        starts = np.where(where > 0, self.rows["line"][where - 1], 0).tolist()
        return self._parsed([self._items[start:end] for start, end in zip(starts, ends, strict=True)], len(where))

    def items_from(self, start: int, stop: int) -> list[dict[str, Any]]:
        """The lines of these consecutive rows, cut out as one: several times as fast as line by line."""
        first = int(self.rows["line"][start - 1]) if start else 0
        lines = self._items[first : int(self.rows["line"][stop - 1])]
        # A line break inside a text is escaped, so that each one ends a row.
        return self._parsed([lines[:-1].replace(b"\n", b",")], stop - start)

    def picture(self, row: int) -> bytes | None:
        """The small picture of a row, where it has one."""
        start = int(self.rows["picture"][row - 1]) if row else 0
        return self._pictures[start : int(self.rows["picture"][row])] or None

    def find(self, names: list[str]) -> dict[str, int]:
        """The rows of those of the ids that are here and not deleted."""
        wanted = set(names)
        numbers = np.array(sorted(id_number(name) for name in wanted), "<u8")
        rows = np.flatnonzero(_among(self.rows["id"], numbers) & self.alive).tolist()
        return {item["id"]: row for row, item in zip(rows, self.items(rows), strict=True) if item["id"] in wanted}

    def rows_of(self, names: list[str]) -> list[int]:
        """The rows with these ids, in their order; one that is missing is an error."""
        return in_order(self.find(names), names)

    def _parsed(self, lines: list[bytes], count: int) -> list[dict[str, Any]]:
        try:
            items = json.loads(b"[" + b",".join(lines) + b"]")
            if len(items) != count:
                raise ValueError(f"{len(items):,} lines for {count:,} rows")
        except ValueError as error:
            raise ValueError(
                f"{self.folder} is damaged: {files.ITEMS} and {files.ROWS} do not fit ({error}); restore it from a copy"
            ) from error
        return list(items)

    def _mapped(self, name: str, dtype: Any) -> np.ndarray:
        size = self.manifest.bytes[name] // np.dtype(dtype).itemsize
        if not size:
            return np.empty(0, dtype)
        return np.asarray(np.memmap(self.folder / name, dtype, mode="r", shape=(size,)))

    def _bytes(self, name: str) -> mmap.mmap | bytes:
        size = self.manifest.bytes[name]
        if not size:
            return b""
        with open(self.folder / name, "rb") as file:
            return mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)


def _among(values: np.ndarray, few: np.ndarray) -> np.ndarray:
    """Whether each value is one of a few sorted ones. Beyond a handful `np.isin` would sort all the values.

    >>> _among(np.array([5, 3, 9, 3]), np.array([3, 7])).tolist()
    [False, True, False, True]
    """
    if len(few) < 32:
        return np.isin(values, few)
    return few[np.searchsorted(few[:-1], values)] == values
