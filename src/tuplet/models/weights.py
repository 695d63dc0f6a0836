"""Weight files: read them, recognise their network, and load them into a backbone."""

import pickle
from pathlib import Path

import torch
from safetensors.torch import load_file

from tuplet.errors import first_line
from tuplet.models.architectures import ARCHITECTURES, options_of
from tuplet.models.backbone import Backbone, State
from tuplet.models.dlib_file import read_layers
from tuplet.models.find_weights import architecture_of, recognise
from tuplet.models.networks.dlib_face import weights_of


def read(path: Path) -> State:
    """Read a .safetensors file, a .pth or .pt file that holds only tensors, or dlib's .dat file of its face network.

    No code in it is run.
    """
    try:
        if path.suffix == ".safetensors":
            return load_file(path)
        if path.suffix == ".dat":
            return weights_of(read_layers(path))
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
    raise ValueError(f"weights {path} has the ending {path.suffix!r}; give a .safetensors, .pth, .pt or .dat file")


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


def _used(backbone: Backbone, state: State) -> State:
    """Return the tensors of a file under the names of a backbone, without the classifier and what it ignores."""
    dropped = (f"{backbone.classifier}.", *backbone.ignored)
    return {name: value for name, value in backbone.translate(state).items() if not name.startswith(dropped)}


def fill(backbone: Backbone, state: State, source: str) -> None:
    """Copy tensors into a backbone, converted to its types; raise ValueError if they do not match."""
    given = _used(backbone, state)
    if found := differences(given, backbone.state_dict()):
        raise ValueError(f"{source} does not fit {type(backbone).__name__}: {found}; give weights of this network")
    backbone.load_state_dict(given, strict=False)


def architecture_in(path: Path) -> str:
    """Return the network that a file holds: that of a known file, the one in its name, or the one that its tensors fit.

    Raises:
        ValueError: the tensors fit no built-in network, or several.
    """
    known = recognise(path)
    if name := known.architecture if known else architecture_of(path):
        return name
    state = read(path)
    fits = [name for name in ARCHITECTURES if _fits(name, state)]
    if len(fits) == 1:
        return fits[0]
    if fits:
        raise ValueError(f"{path} fits {' and '.join(fits)}; rename it so that it begins with one of them")
    raise ValueError(
        f"{path} fits no built-in network; give weights of one, or rename the file so that it begins with its network, "
        "whose error then names the tensors that differ: see models.ARCHITECTURES"
    )


def _fits(architecture: str, state: State) -> bool:
    if any(option.default is option.empty for option in options_of(architecture).values()):
        return False
    with torch.device("meta"):
        backbone = ARCHITECTURES[architecture]()
    try:
        return not differences(_used(backbone, state), backbone.state_dict())
    except (KeyError, RuntimeError):  # names of this network for tensors of other shapes
        return False
