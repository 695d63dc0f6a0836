"""The files of a run. Each file is written completely or not at all."""

import io
import json
import os
import shutil
import zipfile
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from tuplet.atomic import explain_write_errors, fsync, lock, write_atomic
from tuplet.errors import OptionError, OptionTypeError, first_line, opt
from tuplet.models import Embedder
from tuplet.models.lora import merge_lora
from tuplet.models.storage import move as move_embedder
from tuplet.models.storage import read as read_embedder
from tuplet.training.distributed import World

CHECKPOINT, EVALUATION, VECTORS = "checkpoint.pt", "evaluation.json", "vectors.safetensors"
_FILES = ("events.jsonl", CHECKPOINT, EVALUATION, VECTORS, "report.html", "examples.zip", "run.json")
_FOLDERS = ("best", "last", "final", "tensorboard")
_REMEDY = f"give another folder, or {opt('resume', False)} to start again"


class LostFileError(OptionError, FileNotFoundError):
    """A file of a run was removed, and it cannot be made from the others."""


def run_path(out: str | os.PathLike[str], resume: bool, data: Any) -> Path:
    """Return the path that `out` names, after a check of the arguments; `data` are what the run is trained on.

    >>> run_path("runs/birds", resume=True, data="photos").parts
    ('runs', 'birds')
    """
    if not isinstance(resume, bool):  # None or 0 would remove what is in the folder
        raise OptionTypeError(f"{opt('resume')} is {resume!r}; give True to continue, or False to start again")
    # An empty path means the current folder. It is more likely a variable that was not set.
    if not isinstance(out, str | os.PathLike) or not os.fspath(out):
        raise OptionTypeError(f"{opt('out')} is {out!r}; give the path of a folder, which is created if needed")
    path = Path(out)
    try:
        str(path).encode()
    except UnicodeEncodeError as error:  # safetensors could not read it, at the end of the run
        raise OptionError(f"{opt('out')} is {str(path)!r}, which is not UTF-8; give another folder") from error
    source = getattr(data, "source", data)
    if isinstance(source, str | os.PathLike) and path.is_dir() and path.resolve() == Path(source).resolve():
        raise OptionError(f"{opt('out')} is {path}, the folder of the data; give another folder")
    return path


class RunFolder:
    """The folder of a run: settings, events, checkpoint, embedders and results.

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
        with explain_write_errors(self.path):
            self.path.mkdir(parents=True, exist_ok=True)

    def locked(self) -> AbstractContextManager[None]:
        """Keep other runs out of the folder while the context is open."""
        return lock(self.path / ".lock", busy=f"{self.path} is in use by another run; wait for it or give another")

    def prepare(self, new: bool, candidate: str) -> None:
        """Remove the earlier run if this is a new one, or what a killed run did not finish."""
        if new:
            self._clear()
        elif self._candidate(candidate).exists():
            self.promote(candidate)
        self._remove(EVALUATION, VECTORS)
        for unfinished in self.path.glob("best.[0-9]*"):
            shutil.rmtree(unfinished)

    def _clear(self) -> None:
        """Remove an earlier run and no other files."""
        if not (self.path / "run.json").is_file():
            for name in (*_FOLDERS, *_FILES):
                if (self.path / name).exists():
                    raise FileExistsError(f"{self.path / name} exists and belongs to no run; give another folder")
        # Results and checkpoint go first, so that a call after a crash does not use them. run.json goes last, since it
        # tells whether the folder holds a run.
        self._remove(EVALUATION, CHECKPOINT)
        for name in _FOLDERS:
            shutil.rmtree(self.path / name, ignore_errors=True)
        self._remove(*_FILES)

    def _remove(self, *names: str) -> None:
        for name in names:
            (self.path / name).unlink(missing_ok=True)

    def write_json(self, name: str, content: dict[str, Any]) -> None:
        """Write plain data as JSON."""
        text = json.dumps(content, indent=2, ensure_ascii=False) + "\n"
        # Characters of a path that is not UTF-8 become \\udcff, which JSON reads back.
        write_atomic(self.path / name, lambda path: path.write_text(text, "utf-8", "backslashreplace"))

    def read_json(self, name: str) -> dict[str, Any] | None:
        """Read what `write_json` wrote; None if there is no such file."""
        path = self.path / name
        return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else None

    def has_result(self) -> bool:
        """Return whether the metrics and the vectors of the test are there."""
        return all((self.path / name).is_file() for name in (EVALUATION, VECTORS))

    def write_tensors(self, name: str, tensors: dict[str, Tensor]) -> None:
        """Write named tensors as safetensors."""
        write_atomic(self.path / name, lambda path: save_file(tensors, path))

    def write_checkpoint(self, state: dict[str, Any]) -> None:
        """Replace the checkpoint; after a crash there is the old one or the new one."""
        buffer = io.BytesIO()
        torch.save(state, buffer)
        write_atomic(self.path / CHECKPOINT, lambda path: path.write_bytes(buffer.getbuffer()))

    def read_checkpoint(self) -> dict[str, Any] | None:
        """Read the checkpoint to the CPU, without running code in it; None if there is none."""
        path = self.path / CHECKPOINT
        if not path.is_file():
            if (self.path / "run.json").is_file() and (self.path / EVALUATION).is_file():
                raise LostFileError(
                    f"{path} of a finished run is missing, without which its settings cannot be compared",
                    f"its model {self.path / 'best'} can be used as it is; to train, {_REMEDY}",
                )
            return None
        with self.explain_damage(), zipfile.ZipFile(path) as archive:
            wrong = archive.testzip()  # torch ignores the checksums of the parts
            if wrong is not None:
                raise ValueError(f"the checksum of {wrong} does not fit")
            return torch.load(path, map_location="cpu", weights_only=True)

    @contextmanager
    def explain_damage(self) -> Iterator[None]:
        """Turn an error that a damaged checkpoint causes in this block, such as a missing part, into one sentence."""
        try:
            yield
        except (OptionError, torch.OutOfMemoryError):
            raise
        except Exception as error:  # of torch, pickle or zip, or about a part that is missing
            reason = f"it has no {error}" if isinstance(error, KeyError) else first_line(error)[:200]
            raise OptionError(f"{self.path / CHECKPOINT} is damaged ({reason})", _REMEDY) from error

    def save_last(self, embedder: Embedder) -> None:
        """Save the latest embedder."""
        embedder.save(self.path / "last")

    def save_candidate(self, embedder: Embedder, name: str) -> None:
        """Save an embedder that becomes the best one when a checkpoint that names it is saved."""
        embedder.save(self._candidate(name))

    def promote(self, name: str) -> None:
        """Replace the best embedder by a candidate."""
        move_embedder(self._candidate(name), self.path / "best")
        fsync(self.path)

    def _candidate(self, name: str) -> Path:
        return self.path / f"best.{name}"

    def load_embedder(self, name: str, embedder: Embedder, world: World) -> None:
        """Load the weights that were saved under a name into the embedder of every process."""
        merge_lora(embedder)  # in every process, so that all have the same tensors
        if world.is_main:
            if not (self.path / name).is_dir():
                raise LostFileError(
                    f"{self.path / name} is missing, the saved embedder of this run",
                    f"use {self.path / 'last'}, or rebuild it with {opt('resume', False)}, which trains again",
                )
            embedder.restore(read_embedder(self.path / name)[1])
        world.broadcast_module(embedder)
