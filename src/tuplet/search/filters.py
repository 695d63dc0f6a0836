"""Filters on metadata: the rows that a search may find, and the counts of values."""

import json
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from tuplet import cancel
from tuplet.search.inputs import choices
from tuplet.search.snapshot import Snapshot

#: A filter: for each key, a value or a list of values of which one must match.
Where: TypeAlias = Mapping[str, Any]
BLOCK = 1 << 16
#: `json.dumps` with options would make an encoder for each call.
_encode = json.JSONEncoder(sort_keys=True).encode


def with_labels(where: Where, labels: list[Any]) -> dict[str, Any]:
    """Return a filter that also asks for one of these labels.

    >>> with_labels({"year": 2011, "label": ["ant", "bee"]}, ["bee", "wasp"])
    {'year': 2011, 'label': ['bee']}
    """
    if "label" in where:
        also = {as_json(value) for value in choices(where["label"])}
        labels = [label for label in labels if as_json(label) in also]
    return {**where, "label": labels}


class Column:
    """The values of one key in all rows, as integer codes. Rows never change, so a column only grows."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.codes = np.empty(0, np.int32)
        self.values: dict[str, int] = {}  # values as JSON text: hashable, and 1 differs from true

    def extend(self, snapshot: Snapshot, keys: set[str]) -> None:
        """Read the new rows, and add the keys that they have to `keys`."""
        for start in range(len(self.codes), len(snapshot.rows), BLOCK):
            cancel.check()
            items = snapshot.items(range(start, min(start + BLOCK, len(snapshot.rows))))
            codes = [self.values.setdefault(as_json(item.get(self.key)), len(self.values)) for item in items]
            self.codes = np.concatenate([self.codes, np.array(codes, np.int32)])
            keys.update(*items)


class Columns:
    """The columns of the keys that searches have used. Keys that no row has are not kept, so memory stays bounded."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reset("")

    def _reset(self, uid: str) -> None:
        self._uid, self._columns = uid, dict[str, Column]()
        self._keys, self._rows_read = set[str](), 0  # all keys of the rows read so far

    def column(self, key: str, snapshot: Snapshot) -> Column:
        """Return the column of a key, with all rows of the snapshot and perhaps later ones."""
        with self._lock:
            if snapshot.manifest.uid != self._uid:
                self._reset(snapshot.manifest.uid)
            column = self._columns.get(key) or Column(key)
            if key not in self._keys:  # no row read so far has it
                column.codes, column.values = np.zeros(self._rows_read, np.int32), {as_json(None): 0}
            try:
                column.extend(snapshot, self._keys)
            finally:  # a cancelled search leaves what it read to the next one
                self._rows_read = max(self._rows_read, len(column.codes))
                if key in self._keys:
                    self._columns[key] = column
        return column

    def allowed(self, where: Where | None, snapshot: Snapshot) -> np.ndarray | None:
        """Return a mask of the rows that a search may find; None if it may find all."""
        if not where and not snapshot.manifest.deleted:
            return None
        allowed = snapshot.alive
        for key, wanted in (where or {}).items():
            column = self.column(key, snapshot)
            texts = [_filter_json(key, value) for value in choices(wanted)]
            codes = [column.values[text] for text in texts if text in column.values]
            allowed = allowed & np.isin(column.codes[: len(allowed)], codes)
        return allowed

    def counts(self, key: str, snapshot: Snapshot) -> dict[Any, int]:
        """Count the rows by their value of a key, most frequent first; rows without the key are left out."""
        column = self.column(key, snapshot)
        values = list(column.values)  # in the order of their codes; other threads may add more
        counts = np.bincount(column.codes[: len(snapshot.rows)][snapshot.alive], minlength=len(values))
        counted: Counter[Any] = Counter()
        for text, count in zip(values, counts.tolist(), strict=True):
            value = json.loads(text)
            if count and isinstance(value, str | int | float):
                counted[value] += count
        return most_frequent(counted)


def most_frequent(counted: Counter[Any]) -> dict[Any, int]:
    """Sort counts, highest first; equal ones by name.

    >>> most_frequent(Counter(["bee", "ant", "wasp", "bee"]))
    {'bee': 2, 'ant': 1, 'wasp': 1}
    """
    return dict(sorted(counted.items(), key=lambda pair: (-pair[1], str(pair[0]))))


def _filter_json(key: str, value: Any) -> str:
    try:
        return as_json(value)
    except TypeError as error:
        raise ValueError(f"the filter {key}={value!r} cannot be JSON; use text, numbers or booleans") from error


def as_json(value: Any) -> str:
    """Return the JSON text of a value; the same text for equal numbers.

    >>> as_json(2011.0), as_json(2011), as_json(True)
    ('2011', '2011', 'true')
    """
    is_whole = isinstance(value, float) and value.is_integer()
    return _encode(int(value) if is_whole else value)
