"""An embedder on disk: one folder with `model.safetensors` and `embedder.json`, which vouch for each other."""

import hashlib
import json
import os
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

import tuplet
from tuplet.durable import writing
from tuplet.models.backbone import State
from tuplet.rights import like_any_new_file

FORMAT = 1
WEIGHTS = "model.safetensors"
CONFIG = "embedder.json"


def fingerprint(config: dict[str, Any], state: State) -> str:
    """SHA-256 over the configuration and every tensor's name, type, shape and bytes.

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
    """Write both files, each under another name first, so that a reader never meets a half-written one."""
    folder = Path(folder)
    # Tied weights share memory, which the format refuses; copies do not.
    state = {name: value.detach().cpu().clone(memory_format=torch.contiguous_format) for name, value in state.items()}
    about = {
        "format": FORMAT,
        "config": config,
        "fingerprint": fingerprint(config, state),
        "versions": {"tuplet": tuplet.__version__, "torch": torch.__version__},
    }
    weights, config_file = (folder / f"{name}.part" for name in (WEIGHTS, CONFIG))
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        try:
            save_file(state, weights)
            like_any_new_file(weights)
            config_file.write_text(json.dumps(about, indent=2) + "\n")
            os.replace(weights, folder / WEIGHTS)
            os.replace(config_file, folder / CONFIG)
        finally:
            weights.unlink(missing_ok=True)
            config_file.unlink(missing_ok=True)


def read(folder: str | os.PathLike[str]) -> tuple[dict[str, Any], State]:
    """Configuration and weights of a saved embedder; a damaged or changed folder is refused. No code in it is run."""
    folder = Path(folder)
    best = folder / "best"
    if not (folder / CONFIG).is_file() and (best / CONFIG).is_file():
        raise FileNotFoundError(f"{folder} is the folder of a run and no saved embedder; load {best}")
    for name in (CONFIG, WEIGHTS):
        if not (folder / name).is_file():
            raise FileNotFoundError(f"{folder} is no saved embedder: it has no {name}; give a folder that save() wrote")
    try:
        about = json.loads((folder / CONFIG).read_text())
        written, config, expected = about["format"], about["config"], about["fingerprint"]
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"{folder / CONFIG} is damaged ({error}); save the embedder again") from error
    if written != FORMAT:
        raise ValueError(f"{folder / CONFIG} has format {written} and this tuplet reads {FORMAT}; install a newer one")
    try:
        state = load_file(folder / WEIGHTS)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"{folder / WEIGHTS} is damaged ({error}); save the embedder again") from error
    if fingerprint(config, state) != expected:
        raise ValueError(f"{folder} was changed after it was saved: its fingerprint no longer fits; save it again")
    return config, state
