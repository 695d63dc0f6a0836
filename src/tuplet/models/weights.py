"""Weight files: reading them, and loading them into a backbone."""

import os
import pickle
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import nn

from tuplet.errors import did_you_mean, first_line
from tuplet.models.architectures import ALIASES, ARCHITECTURES, build
from tuplet.models.backbone import Backbone, State
from tuplet.models.find_weights import find_file


def read(path: Path) -> State:
    """Read a .safetensors file, or a .pth or .pt file that holds only tensors. No code in it is run."""
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        if path.suffix in (".pth", ".pt"):
            state = torch.load(path, map_location="cpu", weights_only=True)
            if isinstance(state, dict) and all(isinstance(value, torch.Tensor) for value in state.values()):
                return state
            raise ValueError("it is not a dict of tensors, as state_dict() returns")
    except pickle.UnpicklingError as error:
        if "Unsupported operand" in str(error):  # an error page, or a Git LFS pointer
            raise ValueError(f"weights {path} cannot be read (torch.save did not write it); fetch it again") from error
        raise ValueError(
            f"{path} holds Python objects besides tensors, which are not loaded; save its state_dict() alone"
        ) from error
    except Exception as error:  # a damaged pickle raises anything
        raise ValueError(
            f"weights {path} cannot be read ({first_line(error)}); fetch or save the file again"
        ) from error
    raise ValueError(f"weights {path} has the ending {path.suffix!r}; give a .safetensors, .pth or .pt file")


def differences(given: State, wanted: State) -> str:
    """Describe how two sets of tensors differ, with the first of each kind; "" where they match.

    >>> differences({"a": torch.zeros(2)}, {"a": torch.zeros(3)})
    '1 with another shape, first a (2,) for (3,)'
    """
    # Old files lack this counter, which only cumulative averages need.
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
    """Copy tensors into a backbone, converted to its types; raise ValueError where they do not match."""
    dropped = (f"{backbone.classifier}.", *backbone.ignored)
    given = {name: value for name, value in backbone.translate(state).items() if not name.startswith(dropped)}
    if found := differences(given, backbone.state_dict()):
        raise ValueError(f"{source} does not fit {type(backbone).__name__}: {found}; give weights of this network")
    backbone.load_state_dict(given, strict=False)


def classifier(architecture: str, weights: str | os.PathLike[str]) -> nn.Linear:
    """Return the linear classifier of published weights: mean-pooled features (N, C) to logits (N, classes).

    `weights` are as for `models.create`; a file without a classifier is a ValueError.
    """
    architecture = ALIASES.get(architecture, architecture)
    if architecture not in ARCHITECTURES:
        raise ValueError(f"there is no built-in backbone {architecture!r}; {did_you_mean(architecture, ARCHITECTURES)}")
    path, _ = find_file(weights, architecture)
    backbone = build(architecture, {})
    state = backbone.translate(read(path))
    try:
        weight, bias = state[f"{backbone.classifier}.weight"], state[f"{backbone.classifier}.bias"]
    except KeyError as error:
        raise ValueError(f"{path} holds no classifier: {error} is missing; give a file with all layers") from error
    linear = nn.Linear(weight.shape[1], weight.shape[0])
    linear.load_state_dict({"weight": weight, "bias": bias})
    return linear
