"""What a folder that the user names holds."""

from pathlib import Path
from typing import Any

import torch

from tuplet import models
from tuplet.data.files import Files
from tuplet.data.folders import IMAGE_ENDINGS
from tuplet.data.opening import FEATURE_ENDINGS, TABLE_ENDINGS, TAR_ENDINGS
from tuplet.models import Embedder
from tuplet.models.folder import CONFIG
from tuplet.reports.run import read_json


def embedder_of(folder: Path, device: str | None = None) -> Embedder:
    """The embedder in a folder, or the best one of the run in it; on a GPU where there is one, unless told."""
    for place in (folder, folder / "best"):
        if (place / CONFIG).is_file():
            return models.load(place).to(usable_device(device))
    if not folder.exists():
        raise FileNotFoundError(f"{folder} does not exist; give the folder of a run, or one that Embedder.save wrote")
    raise FileNotFoundError(f"{folder} holds no embedder and no run that has saved one; make one with tuplet train")


def picture_embedder_of(folder: Path, device: str | None) -> Embedder:
    """The same, refused where it takes no pictures."""
    embedder = embedder_of(folder, device)
    if embedder.preprocessing is None:
        raise ValueError(f"the embedder in {folder} takes feature vectors and no pictures; use tuplet.load in Python")
    return embedder


def usable_device(name: str | None) -> str:
    """The device of that name, if this machine has it; without a name a GPU, or else the CPU.

    >>> usable_device("cpu")
    'cpu'
    """
    device = name or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        reason = str(error).split("\n")[0].rstrip(".")
        raise ValueError(
            f"the device {device!r} cannot be used here: {reason}; leave --device out, or choose cpu"
        ) from error
    return device


def run_of(folder: Path) -> dict[str, Any] | None:
    """What the run in a folder says of itself, if there is one."""
    path = folder / "run.json"
    return read_json(path) if path.is_file() else None


def pictures_of(given: Path) -> list[Path]:
    """A file as it is; of a folder all pictures below it, in order, as `tuplet.data.open` finds them."""
    if not given.exists():
        raise FileNotFoundError(f"{given} does not exist; give pictures, or folders of pictures")
    if given.name.lower().endswith((*TABLE_ENDINGS, *FEATURE_ENDINGS, *TAR_ENDINGS)) and given.is_file():
        raise ValueError(f"{given} is no picture; give pictures, or folders of pictures")
    if given.is_file():
        return [given]
    found = [given / name for name in Files.of(given) if name.lower().endswith(IMAGE_ENDINGS)]
    if not found:
        raise ValueError(f"{given} holds no pictures; expected files such as 1.jpg")
    return found
