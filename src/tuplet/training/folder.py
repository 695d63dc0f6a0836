"""The folder of a run: every file written whole or not at all, and a log that a resumed run continues."""

import io
import json
import os
import pickle
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from torch import Tensor

from tuplet.models import Embedder

_FILES = ("run.json", "events.jsonl", "checkpoint.pt", "evaluation.json", "vectors.safetensors", "report.html")
_FOLDERS = ("best", "last", "tensorboard")


class RunFolder:
    """Where a run keeps what it knows: settings, events, checkpoint, embedders, results.

    >>> import tempfile
    >>> folder = RunFolder(tempfile.mkdtemp())
    >>> folder.write_checkpoint({"step": 3})
    >>> folder.read_checkpoint()["step"]
    3
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if self.path.exists() and not self.path.is_dir():
            raise NotADirectoryError(f"{self.path} is a file; give a folder for the run")
        self.path.mkdir(parents=True, exist_ok=True)

    def clear(self) -> None:
        """Remove an earlier run; files that no run writes stay."""
        for name in _FILES:
            (self.path / name).unlink(missing_ok=True)
        for name in _FOLDERS:
            shutil.rmtree(self.path / name, ignore_errors=True)

    def write_json(self, name: str, content: dict[str, Any]) -> None:
        """Write plain data for people and programs to read."""
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        self._replace(name, lambda path: path.write_text(text, encoding="utf-8"))

    def read_json(self, name: str) -> dict[str, Any] | None:
        """What `write_json` wrote, if it did."""
        path = self.path / name
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None

    def write_checkpoint(self, state: dict[str, Any]) -> None:
        """Replace the checkpoint. Killed at any moment, the folder holds the old one or the new one, never a torn one."""
        buffer = io.BytesIO()
        torch.save(state, buffer)
        self._replace("checkpoint.pt", lambda path: path.write_bytes(buffer.getbuffer()))

    def read_checkpoint(self) -> dict[str, Any] | None:
        """The checkpoint on the CPU, if there is one. No code in it is run."""
        path = self.path / "checkpoint.pt"
        if not path.is_file():
            return None
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except (RuntimeError, EOFError, OSError, KeyError, pickle.UnpicklingError) as error:
            raise ValueError(
                f"{path} is damaged ({_first_line(error)}); train with resume=False to begin again"
            ) from error

    def write_tensors(self, name: str, tensors: dict[str, Tensor]) -> None:
        """Write named tensors as safetensors."""
        from safetensors.torch import save_file

        self._replace(name, lambda path: save_file(tensors, path))

    def save_embedder(self, name: str, embedder: Embedder) -> None:
        """Save an embedder as a folder of its own, and wait until it is on the disk."""
        place = self.path / name
        self._guard(place, lambda: embedder.save(place))
        for path in (*place.iterdir(), place):
            _sync(path)

    def _replace(self, name: str, write: Callable[[Path], object]) -> None:
        aside, final = self.path / f"{name}.part", self.path / name
        self._guard(final, lambda: write(aside))
        _sync(aside)
        os.replace(aside, final)
        _sync(self.path)

    def _guard(self, path: Path, write: Callable[[], object]) -> None:
        try:
            write()
        except (OSError, SafetensorError) as error:
            raise OSError(
                f"{path} could not be written ({_first_line(error)}); make room and call again to go on"
            ) from error


class Events:
    """A log of one JSON object a line. A checkpoint holds its length, to which a resumed run cuts it back."""

    def __init__(self, path: Path, length: int) -> None:
        self.path = path
        self._file = path.open("ab")
        self._file.truncate(length)

    def write(self, event: str, **facts: Any) -> None:
        """Append an event."""
        self._file.write((json.dumps({"event": event, **facts}, ensure_ascii=False) + "\n").encode())
        self._file.flush()

    def sync(self) -> int:
        """Wait until all is on the disk; the length of the log."""
        os.fsync(self._file.fileno())
        return self._file.tell()

    def close(self) -> None:
        """Write no more."""
        self._file.close()


def _sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0] or type(error).__name__
