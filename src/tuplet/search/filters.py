"""Which rows have the metadata that a search asks for."""

import json
import threading
from collections.abc import Mapping
from typing import Any, TypeAlias

import numpy as np

from tuplet.search.incoming import choices
from tuplet.search.snapshot import Snapshot

#: What a search asks for: a value, or a list of values of which one must fit, for each key.
Where: TypeAlias = Mapping[str, Any]
BLOCK = 1 << 16


class Column:
    """The value of one key in every row, as a code; rows are never changed, so a column only grows."""

    def __init__(self, key: str) -> None:
        self.key = key
        self.codes = np.empty(0, np.int64)
        self.values: dict[str, int] = {}  # the value as JSON: hashable, and 1 is not true

    def extend(self, snapshot: Snapshot) -> None:
        """Read the rows that are new."""
        for start in range(len(self.codes), len(snapshot.rows), BLOCK):
            items = snapshot.items(range(start, min(start + BLOCK, len(snapshot.rows))))
            codes = [self.values.setdefault(_as_json(item.get(self.key)), len(self.values)) for item in items]
            self.codes = np.concatenate([self.codes, np.array(codes, np.int64)])


class Columns:
    """The columns that searches asked for so far."""

    def __init__(self) -> None:
        self._columns: dict[str, Column] = {}
        self._growing = threading.Lock()

    def column(self, key: str, snapshot: Snapshot) -> Column:
        """The column of a key, up to the last row of the snapshot at least."""
        with self._growing:
            column = self._columns.setdefault(key, Column(key))
            if len(column.codes) < len(snapshot.rows):
                column.extend(snapshot)
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
        counts = np.bincount(column.codes[: len(snapshot.rows)][snapshot.alive], minlength=len(column.values))
        found = [(json.loads(text), int(counts[code])) for text, code in column.values.items()]
        listed = [(value, count) for value, count in found if count and isinstance(value, str | int | float)]
        return dict(sorted(listed, key=lambda pair: (-pair[1], str(pair[0]))))


def _asked(key: str, value: Any) -> str:
    try:
        return _as_json(value)
    except TypeError as error:
        raise ValueError(
            f"the filter {key}={value!r} is nothing that JSON can hold; use text, numbers or booleans"
        ) from error


def _as_json(value: Any) -> str:
    return json.dumps(value, sort_keys=True)
