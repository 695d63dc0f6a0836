"""The log of a run: JSON lines, and TensorBoard where it is installed."""

import json
import os
from importlib.util import find_spec
from math import isfinite
from pathlib import Path
from typing import Any

from tuplet.durable import writing


class Events:
    """Appends one JSON object a line to a file. A checkpoint holds the log's length, to which a resumed run cuts it.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> events = Events(folder, length=0, step=0)
    >>> events.write("train", step=1, loss=0.5)
    >>> events.sync(), (folder / "events.jsonl").read_text().splitlines()
    (43, ['{"event": "train", "step": 1, "loss": 0.5}'])
    """

    def __init__(self, folder: Path, length: int, step: int) -> None:
        self.path = folder / "events.jsonl"
        self._file = self.path.open("ab", buffering=0)
        # A log that somebody has removed or shortened is not filled up.
        self._file.truncate(min(length, os.fstat(self._file.fileno()).st_size))
        self._board = _tensorboard(folder, step)

    def write(self, event: str, step: int, **facts: Any) -> None:
        """Append an event; its numbers go to TensorBoard too."""
        # JSON has no word for what is not a number.
        facts = {k: None if isinstance(v, float) and not isfinite(v) else v for k, v in facts.items()}
        line = json.dumps({"event": event, "step": step, **facts}, ensure_ascii=False)
        with writing(self.path):
            self._append(f"{line}\n".encode(errors="backslashreplace"))  # JSON reads \\udcff of a path back
        if self._board is not None:
            for name, value in facts.items():
                if isinstance(value, int | float):
                    self._board.add_scalar(f"{event}/{name}", value, step)

    def _append(self, line: bytes) -> None:
        while line:
            line = line[self._file.write(line) :]

    def sync(self) -> int:
        """Wait until everything is on the disk; the length of the log."""
        with writing(self.path):
            os.fsync(self._file.fileno())
        return os.fstat(self._file.fileno()).st_size

    def close(self) -> None:
        """Let go of the files."""
        self._file.close()
        if self._board is not None:
            self._board.close()


def _tensorboard(folder: Path, step: int) -> Any:
    """A writer that hides what an earlier, killed run wrote beyond this step; None where there is no TensorBoard."""
    if find_spec("tensorboard") is None:
        return None
    from torch.utils.tensorboard import SummaryWriter

    return SummaryWriter(folder / "tensorboard", purge_step=step + 1)
