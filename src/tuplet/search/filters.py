"""Which rows have the metadata that a search asks for."""

import json
import threading
from collections import Counter
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from tuplet.search.incoming import choices
from tuplet.search.snapshot import Snapshot

#: What a search asks for: a value, or a list of values of which one must fit, for each key.
Where: TypeAlias = Mapping[str, Any]
BLOCK = 1 << 16
#: Made once: `json.dumps` would make one for each value.
_encode = json.JSONEncoder(sort_keys=True).encode


class Column:
    """The value of one key in every row, as a code; rows are never changed, so a column only grows."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.codes = np.empty(0, np.int32)
        self.values: dict[str, int] = {}  # the value as JSON: hashable, and 1 is not true

    def extend(self, snapshot: Snapshot, keys: set[str]) -> None:
        """Read the rows that are new, and note which keys they have."""
        for start in range(len(self.codes), len(snapshot.rows), BLOCK):
            items = snapshot.items_from(start, min(start + BLOCK, len(snapshot.rows)))
            codes = [self.values.setdefault(_as_json(item.get(self.key)), len(self.values)) for item in items]
            self.codes = np.concatenate([self.codes, np.array(codes, np.int32)])
            keys.update(*items)

    def extend_without(self, rows: int) -> None:
        """Take it that none of the first rows has the key."""
        self.codes, self.values = np.zeros(rows, np.int32), {_as_json(None): 0}


class Columns:
    """The columns that searches asked for so far, of keys that some row has: anyone may ask for any key."""

    def __init__(self) -> None:
        self._growing = threading.Lock()
        self._start_again("")

    def _start_again(self, born: str) -> None:
        self._born, self._columns = born, dict[str, Column]()
        self._keys, self._read = set[str](), 0  # the keys of the first so many rows

    def column(self, key: str, snapshot: Snapshot) -> Column:
        """The column of a key, up to the last row of the snapshot at least."""
        with self._growing:
            if snapshot.manifest.born != self._born:
                self._start_again(snapshot.manifest.born)
            column = self._columns.get(key) or Column(key)
            if key not in self._keys:
                column.extend_without(self._read)
            column.extend(snapshot, self._keys)
            self._read = max(self._read, len(column.codes))
            if key in self._keys:
                self._columns[key] = column
        return column

    def allowed(self, where: Where | None, snapshot: Snapshot) -> np.ndarray | None:
        """Whether each row may be found; None where all may."""
        if not where and not snapshot.manifest.deleted:
            return None
        allowed = snapshot.alive
        for key, wanted in (where or {}).items():
            column = self.column(key, snapshot)
            asked = [_asked(key, each) for each in choices(wanted)]
            codes = [column.values[text] for text in asked if text in column.values]
            allowed = allowed & np.isin(column.codes[: len(allowed)], codes)
        return allowed

    def counts(self, key: str, snapshot: Snapshot) -> dict[Any, int]:
        """How many rows have each value of a key, the most frequent first; rows without the key are left out."""
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
    """Counts in their order, the highest first; of equals by name.

    >>> most_frequent(Counter(["bee", "ant", "wasp", "bee"]))
    {'bee': 2, 'ant': 1, 'wasp': 1}
    """
    return dict(sorted(counted.items(), key=lambda pair: (-pair[1], str(pair[0]))))


def _asked(key: str, value: Any) -> str:
    try:
        return _as_json(value)
    except TypeError as error:
        raise ValueError(
            f"the filter {key}={value!r} is nothing that JSON can hold; use text, numbers or booleans"
        ) from error


def _as_json(value: Any) -> str:
    """The same text for equal numbers.

    >>> _as_json(2011.0), _as_json(2011), _as_json(True)
    ('2011', '2011', 'true')
    """
    is_whole = isinstance(value, float) and value.is_integer()
    return _encode(int(value) if is_whole else value)
