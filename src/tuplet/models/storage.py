"""An embedder on disk: a folder with `model.safetensors` and `embedder.json`, which holds the fingerprint of both."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

import tuplet
from tuplet.atomic import explain_write_errors, fsync, write_atomic
from tuplet.models.backbone import State

FORMAT = 1
WEIGHTS = "model.safetensors"
CONFIG = "embedder.json"


def fingerprint(config: dict[str, Any], state: State) -> str:
    """Return a SHA-256 over the configuration and the name, type, shape and bytes of every tensor.

    >>> a = fingerprint({"dim": 2}, {"w": torch.zeros(2)})
    >>> a == fingerprint({"dim": 2}, {"w": torch.zeros(2)}), a == fingerprint({"dim": 3}, {"w": torch.zeros(2)})
    (True, False)
    """
    digest = hashlib.sha256(json.dumps(config, sort_keys=True).encode())
    for name in sorted(state):
        tensor = state[name].detach().cpu().contiguous()
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        digest.update(tensor.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def write(folder: str | os.PathLike[str], config: dict[str, Any], state: State) -> None:
    """Write both files so that a kill at any moment leaves the old embedder or the new one.

    Both are written under names that end in `.new`, the configuration last. From then on the new embedder counts, and
    its files are renamed one after the other.
    """
    folder = Path(folder)
    # The format refuses tied weights, which share memory, so copy them.
    state = {name: value.detach().cpu().clone(memory_format=torch.contiguous_format) for name, value in state.items()}
    about = {
        "format": FORMAT,
        "config": config,
        "fingerprint": fingerprint(config, state),
        "versions": {"tuplet": tuplet.__version__, "torch": torch.__version__},
    }
    with explain_write_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
        _rename_new(folder)  # what a killed save had not finished
    write_atomic(_new(folder / WEIGHTS), lambda part: save_file(state, part))
    try:
        write_atomic(_new(folder / CONFIG), lambda part: part.write_text(json.dumps(about, indent=2) + "\n"))
    except OSError:
        if not _new(folder / CONFIG).exists():
            _new(folder / WEIGHTS).unlink()
        raise
    with explain_write_errors(folder):
        _rename_new(folder)
    fsync(folder)


def move(source: Path, folder: Path) -> None:
    """Move the embedder of a folder to another, so that a kill at any moment leaves the old one there or the new one.

    The same call then finishes what a kill interrupted.
    """
    with explain_write_errors(folder):
        folder.mkdir(exist_ok=True)
        for name in (WEIGHTS, CONFIG):
            if (source / name).exists():
                os.replace(source / name, _new(folder / name))
        _rename_new(folder)
    fsync(folder)
    source.rmdir()


def _new(path: Path) -> Path:
    return path.with_name(f"{path.name}.new")


def _rename_new(folder: Path) -> None:
    """Give the files of a new embedder their names, if both were written."""
    if _new(folder / CONFIG).exists():
        for name in (WEIGHTS, CONFIG):
            if _new(folder / name).exists():
                os.replace(_new(folder / name), folder / name)


def _current(folder: Path) -> tuple[Path, Path]:
    """Return the paths of the configuration and of the weights that belong together, also after a killed save."""
    config, weights = folder / CONFIG, folder / WEIGHTS
    if _new(config).is_file():
        config, weights = _new(config), _new(weights) if _new(weights).is_file() else weights
    return config, weights


def read(folder: str | os.PathLike[str]) -> tuple[dict[str, Any], State]:
    """Read configuration and weights; raise ValueError if they were damaged or changed. No code in it is run."""
    folder = Path(folder)
    best = folder / "best"
    if not (folder / CONFIG).is_file() and (best / CONFIG).is_file():
        raise FileNotFoundError(f"{folder} is the folder of a run, not of an embedder; load {best}")
    if not folder.exists():
        raise FileNotFoundError(f"{folder} does not exist; give a folder of Embedder.save")
    config_file, weights = _current(folder)
    for path, name in ((config_file, CONFIG), (weights, WEIGHTS)):
        if not path.is_file():
            raise FileNotFoundError(f"{folder} holds no embedder: {name} is missing; give a folder of Embedder.save")
    try:
        about = json.loads(config_file.read_text())
        written, config, expected = about["format"], about["config"], about["fingerprint"]
    except (ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(f"{folder / CONFIG} is damaged ({str(error)[:100]}); save the embedder again") from error
    if written != FORMAT:
        raise ValueError(f"{folder / CONFIG} has format {written} and this tuplet reads {FORMAT}; install a newer one")
    try:
        state = load_file(weights)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{folder / WEIGHTS} is damaged ({error}); save the embedder again") from error
    if fingerprint(config, state) != expected:
        raise ValueError(f"{folder} was changed after it was saved: its fingerprint does not match; save it again")
    return config, state
