"""What tells one run from another: its settings, its data and its model."""

import hashlib
from pathlib import Path
from typing import Any

from torch import Tensor

from tuplet.data import Dataset
from tuplet.models import Embedder
from tuplet.training.resolve import plain
from tuplet.training.settings import Settings, describe_options

#: Options that another call may change: none of them moves the weights.
FREE = {
    *("device", "cache_folder", "cache_on_device", "log_every", "checkpoint_every", "evaluate_every", "patience"),
    "steps",
}


def identity_of(settings: Settings, data: Dataset, embedder: Embedder) -> dict[str, Any]:
    """What a checkpoint says of its run, as plain data."""
    return {"settings": plain(settings), "data": _facts(data), "model": _shapes(embedder)}


def _facts(data: Dataset) -> dict[str, Any]:
    """What tells one dataset from another: its sizes, and hashes of its labels and of some of what came from memory."""
    labels = hashlib.sha256(data.labels.numpy().tobytes())
    labels.update(repr((data.class_names, data.splits)).encode())
    pictures = data.images if data.source is None else None
    held = pictures if data.features is None else data.features
    some = held[:: max(1, len(held) // 256)].contiguous().cpu().numpy().tobytes() if isinstance(held, Tensor) else b""
    return {
        "examples": len(data),
        "classes": len(data.classes),
        "labels": labels.hexdigest()[:12],
        "contents": hashlib.sha256(some).hexdigest()[:12],
    }


def _shapes(embedder: Embedder) -> str:
    """A hash of the names and shapes of all weights: what must agree for one checkpoint to fit another model."""
    listed = [(name, tuple(value.shape)) for name, value in embedder.state_dict().items()]
    return hashlib.sha256(repr(listed).encode()).hexdigest()[:12]


def refuse_another_run(then: dict[str, Any], now: dict[str, Any], folder: Path) -> None:
    """One sentence where a folder holds a run of other settings, on other data or of another model.

    The number of steps may change unless the schedule depends on it. An option that the run does not know, since a
    later version has it, was at its default then.
    """
    remedy = "give another folder, or resume=False to begin again"
    defaults = {option.name: option.default for option in describe_options()}
    free = FREE - {"steps"} if now["settings"]["schedule"] == "cosine" else FREE
    for name, value in now["data"].items():  # before the settings, some of which follow from the data
        if then["data"].get(name) != value:
            raise ValueError(
                f"{folder} holds a run on other data ({name} {then['data'].get(name)}, here {value}); {remedy}"
            )
    for name, value in now["settings"].items():
        before = then["settings"].get(name, defaults[name])
        if before != value and name not in free:
            why = ", on which its cosine schedule depends" if name == "steps" else ""
            raise ValueError(f"{folder} holds a run with {name}={before!r}{why}, not {name}={value!r}; {remedy}")
    if then["model"] != now["model"]:
        raise ValueError(f"{folder} holds a run of another model, whose weights have other shapes; {remedy}")
