"""From a name or a module to an embedder, and from a folder back to one."""

import inspect
import os
import warnings
from collections.abc import Callable, Mapping
from dataclasses import fields, replace
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

import tuplet
from tuplet.models import folder as storage
from tuplet.models.architectures import ARCHITECTURES, build, timms
from tuplet.models.backbone import Backbone, type_of
from tuplet.models.embedder import Config, Embedder, Normalize, Pooling
from tuplet.models.foreign import OwnModule, own_module
from tuplet.models.preprocessing import Preprocessing
from tuplet.models.weights import differences, fill, find, read

OWN = "own module"
T = TypeVar("T")


def create(
    architecture: str | nn.Module,
    *,
    dim: int | None = 512,
    levels: str = "H",
    pooling: Pooling = "mean",
    layer_norm: bool = False,
    normalize: Normalize = True,
    weights: str | os.PathLike[str] | None = None,
    preprocessing: Preprocessing | Mapping[str, Any] | None = None,
    example: Tensor | None = None,
    **options: Any,
) -> Embedder:
    """An embedder from a backbone's name or from any module.

    Args:
        architecture: "resnet50" (option `strides`), "bn_inception", "googlenet", "efficientnet_lite0", "convnet"
            (options `size`, `channels`), "mlp" (options `features`, `hidden`), any name of timm's, or a module that
            gives a vector, a map, or maps from low to high.
        dim: the length of a level's embedding; None gives the pooled features without a layer on top.
        levels: which of the backbone's levels have a head: "L", "M", "H" or several, such as "LMH".
        pooling: "mean", "max" or "mean+max", their sum.
        layer_norm: bring the pooled features of each picture to mean 0 and deviation 1 before the layer on top.
        normalize: to unit length always (True), never (False) or outside training only ("eval").
        weights: a known name (`models.KNOWN`) or a file; None is a random start; "pretrained" is timm's own choice.
        preprocessing: what the weights say unless this says otherwise: all of it, or only some fields, as in
            {"size": 227, "how": "square"}.
        example: for a module without preprocessing, an input from which the widths of its levels are read.
        **options: the backbone's own.

    >>> embedder = create("resnet50", dim=64, levels="MH")
    >>> embedder.width, embedder.preprocessing.size
    (128, 224)
    """
    if isinstance(architecture, nn.Module):
        name, backbone = OWN, _own(architecture, weights, preprocessing, example, options)
        prepared, options = backbone.usual, {"channels": backbone.channels}
    elif not isinstance(architecture, str):
        raise TypeError(f"the backbone is {architecture!r}; give a name, such as 'resnet50', or a module")
    else:
        name = architecture
        backbone, prepared = _named(architecture, weights, options, told=isinstance(preprocessing, Preprocessing))
    if isinstance(preprocessing, Preprocessing):
        prepared = preprocessing
    elif preprocessing is not None:
        if prepared is None:
            raise ValueError(f"{name} has no preprocessing to change; give a whole models.Preprocessing")
        names = [field.name for field in fields(prepared)]
        if unknown := [name for name in preprocessing if name not in names]:
            raise TypeError(f"preprocessing has no {unknown[0]!r}; it has {', '.join(names)}")
        prepared = replace(prepared, **preprocessing)
    return _assemble(Config(name, options, dim, levels, pooling, normalize, prepared, layer_norm), backbone)


def _own(
    module: nn.Module,
    weights: str | os.PathLike[str] | None,
    preprocessing: Preprocessing | Mapping[str, Any] | None,
    example: Tensor | None,
    options: Mapping[str, Any],
) -> Backbone:
    if weights is not None or options:
        given = "weights" if weights is not None else next(iter(options))
        raise TypeError(f"a module comes with its weights and options, so {given}= cannot be given beside it")
    if isinstance(module, Backbone):
        return module
    if example is None and isinstance(preprocessing, Preprocessing):
        size = preprocessing.size
        example = torch.zeros(1, len(preprocessing.mean), size, size, dtype=type_of(module))
    if example is None:
        raise ValueError(
            "a module needs preprocessing=, a whole models.Preprocessing, where it takes pictures, or example=, an "
            "input to measure it by"
        )
    return own_module(module, example)


def _named(
    name: str, weights: str | os.PathLike[str] | None, options: dict[str, Any], told: bool
) -> tuple[Backbone, Preprocessing | None]:
    """The backbone with its weights, and the preprocessing that these need; what they demand is put into `options`."""
    if weights is None:
        backbone = build(name, options)
        return backbone, backbone.usual
    if weights == "pretrained" and name not in ARCHITECTURES:
        backbone = timms(name, options, pretrained=True)
        return backbone, backbone.usual
    path, known = find(weights, name)
    for option, value in (known.options if known else {}).items():
        if options.setdefault(option, value) != value:
            raise ValueError(f"{path} needs {option}={value!r}, and {options[option]!r} was given; leave it out")
    backbone = build(name, options)
    fill(backbone, read(path), str(path))
    if known is not None:
        return backbone, known.preprocessing
    if backbone.usual is not None and not told:
        warnings.warn(
            f"{path} does not say how its images were prepared: taking what {name} usually has, mean "
            f"{backbone.usual.mean} and std {backbone.usual.std}; if that is wrong, make the embedder in Python with "
            "models.create(..., preprocessing=)",
            stacklevel=3,
        )
    return backbone, backbone.usual


def _assemble(config: Config, backbone: Backbone) -> Embedder:
    embedder = Embedder(config, backbone)
    # With the channels last, convolutions run up to twice as fast.
    embedder.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing from torch's annotations
    # Layers that nothing reads get no gradient; data-parallel training would wait for it.
    for parameter in backbone.beyond(config.levels):
        parameter.requires_grad_(False)
    return embedder


def load(folder: str | os.PathLike[str], backbone: nn.Module | None = None) -> Embedder:
    """The embedder that `save` wrote, in evaluation mode on the CPU. It embeds exactly as the saved one did.

    Of a run that is its folder `best` or `last`. One that was created from a module of the user's needs such a module
    again, since a file holds no code: `backbone`. A damaged or changed folder is a ValueError.

    >>> import tempfile
    >>> embedder, folder = create("mlp", features=3, dim=2), tempfile.mkdtemp()
    >>> embedder.save(folder)
    >>> torch.equal(load(folder).embed(torch.eye(3)), embedder.embed(torch.eye(3)))
    True
    """
    about, state = storage.read(folder)
    prepared = _stated(Preprocessing, about["preprocessing"], folder) if about["preprocessing"] else None
    config = _stated(Config, {**about, "preprocessing": prepared}, folder)
    # The random start is overwritten at once: it should cost the caller's generator nothing.
    with torch.random.fork_rng(devices=[]):
        embedder = _assemble(config, _rebuilt(folder, config, backbone))
    embedder.to(next((value.dtype for value in state.values() if value.is_floating_point()), torch.float32))
    if found := differences(state, embedder.weights()):
        raise ValueError(f"{folder} does not fit the {config.architecture}: {found}; give what it was saved from")
    embedder.restore(state, strict=False)
    return embedder.eval()


def _stated(kind: Callable[..., T], given: Mapping[str, Any], folder: str | os.PathLike[str]) -> T:
    """What a folder states, unless a later version of this package wrote more than this one could follow."""
    for name in given:
        if name not in inspect.signature(kind).parameters:
            raise ValueError(
                f"{folder} states {name!r} of its embedder, which tuplet {tuplet.__version__} does not know; install a "
                "newer one"
            )
    return kind(**given)


def _rebuilt(folder: str | os.PathLike[str], config: Config, module: nn.Module | None) -> Backbone:
    if config.architecture != OWN:
        if module is not None:
            raise TypeError(f"{folder} holds a {config.architecture}, which is built from its name; leave backbone out")
        return build(config.architecture, config.options)
    if module is None:
        raise ValueError(
            f"{folder} was made from a module, which no file holds; "
            "in Python give one to tuplet.load(folder, backbone=module)"
        )
    return module if isinstance(module, Backbone) else OwnModule(module, config.options["channels"])
