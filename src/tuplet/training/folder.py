"""The folder of a run: every file in it is written whole or not at all."""

import fcntl
import io
import json
import os
import pickle
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tuplet.durable import first_line, flush, replace_file, writing
from tuplet.models import Embedder
from tuplet.models.folder import read as read_embedder
from tuplet.rights import like_any_new_file
from tuplet.training.processes import Team

CHECKPOINT, EVALUATION, VECTORS = "checkpoint.pt", "evaluation.json", "vectors.safetensors"
_FILES = ("events.jsonl", CHECKPOINT, EVALUATION, VECTORS, "report.html", "run.json")
_FOLDERS = ("best", "last", "tensorboard")


def named(out: str | os.PathLike[str]) -> Path:
    """The path that `out` names.

    >>> named("runs/birds").parts
    ('runs', 'birds')
    """
    # An empty one would be the current folder, and is more likely a variable that was not set.
    if not isinstance(out, str | os.PathLike) or not os.fspath(out):
        raise TypeError(f"out is {out!r}; give the path of a folder, which is made if it is not there")
    place = Path(out)
    try:
        str(place).encode()
    except UnicodeEncodeError as error:  # which safetensors could not read from, at the end of it all
        raise ValueError(f"out is {str(place)!r}, which is no UTF-8 text; give the path of another folder") from error
    return place


class RunFolder:
    """Where a run keeps what it knows: settings, events, checkpoint, embedders and results.

    >>> import tempfile
    >>> folder = RunFolder(tempfile.mkdtemp())
    >>> folder.write_checkpoint({"step": 3})
    >>> folder.read_checkpoint()
    {'step': 3}
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if self.path.exists() and not self.path.is_dir():
            raise NotADirectoryError(f"{self.path} is a file; give a folder for the run")
        with writing(self.path):
            self.path.mkdir(parents=True, exist_ok=True)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Keep other runs out of the folder for as long as this process lives."""
        lock = self.path / ".lock"
        with writing(lock):
            opened = lock.open("w")
        with opened as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError as error:
                raise BlockingIOError(f"{self.path} is in use by another run; wait for it or give another") from error
            yield

    def begin(self, anew: bool, best_step: int) -> None:
        """Make ready for a run: remove an earlier one, or what a killed one had not finished."""
        if anew:
            self._clear()
        elif self._candidate(best_step).exists():
            self.crown(best_step)
        self.remove(EVALUATION, VECTORS)
        for unfinished in self.path.glob("best.[0-9]*"):
            shutil.rmtree(unfinished)

    def _clear(self) -> None:
        """Remove an earlier run, and nothing that belongs to somebody else."""
        if not (self.path / "run.json").is_file():
            for name in (*_FOLDERS, *_FILES):
                if (self.path / name).exists():
                    raise FileExistsError(f"{self.path / name} is there and belongs to no run; give another folder")
        # First what would be gone on with or returned, and last what says whose folder it is.
        self.remove(EVALUATION, CHECKPOINT)
        for name in _FOLDERS:
            shutil.rmtree(self.path / name, ignore_errors=True)
        self.remove(*_FILES)

    def remove(self, *names: str) -> None:
        """Remove files, if they are there."""
        for name in names:
            (self.path / name).unlink(missing_ok=True)

    def write_json(self, name: str, content: dict[str, Any]) -> None:
        """Write plain data for people and programs to read."""
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        # A path that is no UTF-8 text has characters that JSON writes as \\udcff, and reads back.
        replace_file(self.path / name, lambda path: path.write_text(text, "utf-8", "backslashreplace"))

    def read_json(self, name: str) -> dict[str, Any] | None:
        """What `write_json` wrote, if it did."""
        path = self.path / name
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None

    def write_tensors(self, name: str, tensors: dict[str, Tensor]) -> None:
        """Write named tensors as safetensors."""

        def write(path: Path) -> None:
            save_file(tensors, path)
            like_any_new_file(path)

        replace_file(self.path / name, write)

    def write_checkpoint(self, state: dict[str, Any]) -> None:
        """Replace the checkpoint: a kill at any moment leaves the old one or the new one, whole."""
        buffer = io.BytesIO()
        torch.save(state, buffer)
        replace_file(self.path / CHECKPOINT, lambda path: path.write_bytes(buffer.getbuffer()))

    def read_checkpoint(self) -> dict[str, Any] | None:
        """The checkpoint on the CPU, if there is one. No code in it is run."""
        path = self.path / CHECKPOINT
        if not path.is_file():
            if (self.path / "run.json").is_file() and (self.path / EVALUATION).is_file():
                raise FileNotFoundError(
                    f"{path} of a finished run is gone; give another folder, or resume=False to begin again"
                )
            return None
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except (RuntimeError, EOFError, OSError, KeyError, ValueError, pickle.UnpicklingError) as error:
            reason = first_line(error)
            raise ValueError(f"{path} is damaged ({reason}); train with resume=False to begin again") from error

    def save_last(self, embedder: Embedder) -> None:
        """Save the latest embedder."""
        self._save(embedder, self.path / "last")

    def save_candidate(self, embedder: Embedder, step: int) -> None:
        """Save an embedder that will be the best as soon as a checkpoint says so."""
        self._save(embedder, self._candidate(step))

    def crown(self, step: int) -> None:
        """Put the candidate of a step in the place of the best."""
        shutil.rmtree(self.path / "best", ignore_errors=True)
        os.rename(self._candidate(step), self.path / "best")
        flush(self.path)

    def _candidate(self, step: int) -> Path:
        return self.path / f"best.{step}"

    def _save(self, embedder: Embedder, place: Path) -> None:
        embedder.save(place)
        for path in (*place.iterdir(), place):
            flush(path)

    def load_embedder(self, name: str, embedder: Embedder, team: Team) -> None:
        """Give an embedder of every process the weights that were saved under a name."""
        if team.leads:
            embedder.restore(read_embedder(self.path / name)[1])
        team.align(embedder)
