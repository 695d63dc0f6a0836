"""Create an embedder from a name or a module, and load one from a folder."""

import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

import tuplet
from tuplet.errors import refuse_unknown, warn
from tuplet.models import storage
from tuplet.models.architectures import ALIASES, ARCHITECTURES, FACES, build, options_of, timm_model
from tuplet.models.backbone import Backbone, weight_dtype
from tuplet.models.config import Config, Normalize, Pooling
from tuplet.models.embedder import Embedder
from tuplet.models.find_weights import find_file
from tuplet.models.hub import find_model
from tuplet.models.networks.adapters import OwnModule, own_module
from tuplet.models.networks.attention import AttentionEnsemble
from tuplet.models.preprocessing import Preprocessing
from tuplet.models.weights import architecture_in, differences, fill, read

OWN = "own module"
T = TypeVar("T")


def create(
    architecture: str | nn.Module,
    *,
    dim: int | None = 512,
    levels: str = "H",
    pooling: Pooling | None = None,
    layer_norm: bool = False,
    normalize: Normalize = True,
    weights: str | os.PathLike[str] | None = None,
    preprocessing: Preprocessing | Mapping[str, Any] | None = None,
    example: Tensor | None = None,
    heads: Sequence[int] | None = None,
    head_hidden: int | None = None,
    attention: int | None = None,
    part_weights: Sequence[float] | None = None,
    **options: Any,
) -> Embedder:
    """Create an embedder from the name of a backbone or from any module.

    Args:
        architecture: "resnet50" (option `strides`), "bn_inception", "googlenet", "efficientnet_lite0", "casianet"
            (option `channels`), "dlib_face" (option `projection`), a vision transformer such as "dinov2_small"
            (`models.ALIASES`), "convnet" (options `size`, `channels`), "mlp" (options `features`, `hidden`), any name
            of timm, or a module that returns a vector, a map, or maps from low to high.
        dim: the length of a level's embedding; None returns the pooled features without a layer on top.
        levels: the levels of the backbone that have a head: "L", "M", "H" or several, such as "LMH".
        pooling: "mean", "max" or "mean+max", their sum; of a transformer also "class", its class token, or
            "class+mean", both one after the other. None is the class token of a transformer, else the mean.
        layer_norm: normalise the pooled features of each image to mean 0 and standard deviation 1.
        normalize: to unit length always (True), never (False) or outside training only ("eval").
        weights: a known name (`models.KNOWN`) or a file; "auto" for the best at hand (`models.weights_at_hand`); None
            for random weights; "pretrained" for timm's own file.
        preprocessing: replaces that of the weights, or some of its fields, as in
            {"size": 227, "resize_mode": "square"}.
        example: for a module without preprocessing, an input, which is used to find the widths of its levels.
        heads: the widths of several parts of a level's embedding, whose sum is `dim`, for a loss over parts.
        head_hidden: the width of a hidden layer with ReLU in the heads below the highest level.
        attention: the number of attention masks. Each gives a part of `dim` numbers, all by the same layers.
        part_weights: a weight for each part, which its vector is multiplied by; equal ones by default.
        **options: the options of the backbone.

    Raises:
        OptionError: an option is not possible for this backbone, or no weights are at hand for "auto".
        ValueError: no backbone has this name, or the weights do not fit it.
        FileNotFoundError: the weights are not on this machine.

    >>> embedder = create("resnet50", dim=64, levels="MH")
    >>> embedder.width, embedder.preprocessing.size
    (128, 224)
    """
    if isinstance(architecture, nn.Module):
        name, backbone = OWN, _own(architecture, weights, preprocessing, example, options)
        prepared, options = backbone.preprocessing, {"channels": backbone.channels}
    elif not isinstance(architecture, str):
        raise TypeError(f"the architecture is {architecture!r}; give a name, such as 'resnet50', or a module")
    else:
        name = ALIASES.get(architecture, architecture)
        if preprocessing is not None and "size" in options_of(name):
            size = preprocessing.size if isinstance(preprocessing, Preprocessing) else preprocessing.get("size")
            options = options if size is None else {"size": size, **options}
        backbone, prepared = _named(name, weights, options, complete=isinstance(preprocessing, Preprocessing))
    if isinstance(preprocessing, Preprocessing):
        prepared = preprocessing
    elif preprocessing is not None:
        if prepared is None:
            raise ValueError(f"{name} has no preprocessing to change; give a complete models.Preprocessing")
        refuse_unknown("preprocessing", preprocessing, [field.name for field in fields(prepared)])
        prepared = replace(prepared.at(preprocessing.get("size", prepared.size)), **preprocessing)
    pooling = pooling or ("class" if backbone.class_token else "mean")
    parts = (heads, head_hidden, attention, part_weights)
    return _assemble(Config(name, options, dim, levels, pooling, normalize, prepared, layer_norm, *parts), backbone)


def pretrained(source: str | os.PathLike[str], **options: Any) -> Embedder:
    """Create an embedder that needs no training: the pooled features of published weights, at unit length.

    Those of "dlib_face" are dlib's descriptors of faces, whose length is not 1.

    Args:
        source: the name of a network, whose best weights at hand are used, or a weights file.
        **options: other arguments of `create`, such as `preprocessing={"size": 336}` or `pooling="mean"`.

    Raises:
        ValueError: no weights of the network are at hand, or the file fits no network or several.

    >>> pretrained("efficientnet_lite0").width
    1280
    """
    path = Path(source)
    name = architecture_in(path) if path.is_file() else str(source)
    options = {"dim": None, "normalize": name not in FACES, **options}
    return create(name, weights=path if path.is_file() else "auto", **options).eval()


def _own(
    module: nn.Module,
    weights: str | os.PathLike[str] | None,
    preprocessing: Preprocessing | Mapping[str, Any] | None,
    example: Tensor | None,
    options: Mapping[str, Any],
) -> Backbone:
    if weights is not None or options:
        given = "weights" if weights is not None else next(iter(options))
        raise TypeError(f"a module has its own weights and options; leave out {given}=")
    if isinstance(module, Backbone):
        return module
    if example is None and isinstance(preprocessing, Preprocessing):
        size = preprocessing.size
        example = torch.zeros(1, len(preprocessing.mean), size, size, dtype=weight_dtype(module))
    if example is None:
        has = f"only {', '.join(preprocessing)} of the former" if isinstance(preprocessing, Mapping) else "neither"
        raise ValueError(
            f"a module needs preprocessing= if it takes images, or example= otherwise, and has {has}; give a complete "
            "models.Preprocessing, or an input such as torch.zeros(1, 8)"
        )
    return own_module(module, example)


def _named(
    name: str, weights: str | os.PathLike[str] | None, options: dict[str, Any], complete: bool
) -> tuple[Backbone, Preprocessing | None]:
    """Return the backbone with its weights, and their preprocessing; options that the weights need are added."""
    if weights is None:
        backbone = build(name, options)
        return backbone, backbone.preprocessing
    if weights in ("pretrained", "auto") and name not in ARCHITECTURES:
        backbone = timm_model(name, options, pretrained=True)
        return backbone, backbone.preprocessing
    path, known = find_file(weights, name)
    for option, value in (known.options if known else {}).items():
        if options.setdefault(option, value) != value:
            raise ValueError(f"{path} needs {option}={value!r}, but {options[option]!r} was given; leave it out")
    backbone = build(name, options)
    fill(backbone, read(path), str(path))
    if known is not None:
        return backbone, known.preprocessing
    usual = backbone.preprocessing
    if usual is not None and not complete:
        warn(
            f"the preprocessing of {path} is not known: using what {name} usually has, mean {usual.mean} and std "
            f"{usual.std}; if that is wrong, create the embedder in Python with models.create(..., preprocessing=)"
        )
    return backbone, usual


def _assemble(config: Config, backbone: Backbone) -> Embedder:
    if config.attention is not None:
        backbone = AttentionEnsemble(backbone, config.attention)
    embedder = Embedder(config, backbone)
    # Convolutions run up to twice as fast with the channels last.
    embedder.to(memory_format=torch.channels_last)  # type: ignore[call-overload]  # missing from torch's annotations
    # Unused layers get no gradient, and data-parallel training would wait for one.
    for parameter in backbone.unused_parameters(config.levels):
        parameter.requires_grad_(False)
    return embedder


def load(folder: str | os.PathLike[str], backbone: nn.Module | None = None) -> Embedder:
    """Load an embedder that `save` wrote, in evaluation mode on the CPU. It embeds exactly as the saved one.

    Args:
        folder: the folder; of a run its folder `best` or `last`. Or the name of a model on the Hugging Face hub,
            such as "user/model" (`pip install 'tuplet[hub]'`).
        backbone: your module, if the embedder was created from one, since a file holds no code.

    Raises:
        ValueError: the folder was damaged or changed after saving.

    >>> import tempfile
    >>> embedder, folder = create("mlp", features=3, dim=2), tempfile.mkdtemp()
    >>> embedder.save(folder)
    >>> torch.equal(load(folder).embed(torch.eye(3)), embedder.embed(torch.eye(3)))
    True
    """
    folder = find_model(folder)
    about, state = storage.read(folder)
    prepared = _parsed(Preprocessing, about["preprocessing"], folder) if about["preprocessing"] else None
    config = _parsed(Config, {**about, "preprocessing": prepared}, folder)
    # The random weights are overwritten at once, so the caller's random state must not change.
    with torch.random.fork_rng(devices=[]):
        embedder = _assemble(config, _rebuilt(folder, config, backbone))
    embedder.to(next((value.dtype for value in state.values() if value.is_floating_point()), torch.float32))
    if found := differences(state, embedder.weights()):
        raise ValueError(f"{folder} does not fit the {config.architecture}: {found}; give what it was saved from")
    embedder.restore(state, strict=False)
    return embedder.eval()


def _parsed(kind: Callable[..., T], given: Mapping[str, Any], folder: str | os.PathLike[str]) -> T:
    """Build an object from the JSON of a folder; raise an error if a newer version of tuplet wrote it."""
    for name in given:
        if name not in inspect.signature(kind).parameters:
            raise ValueError(
                f"{folder} has the entry {name!r}, which tuplet {tuplet.__version__} does not know; install a newer one"
            )
    return kind(**given)


def _rebuilt(folder: str | os.PathLike[str], config: Config, module: nn.Module | None) -> Backbone:
    if config.architecture != OWN:
        if module is not None:
            raise TypeError(f"{folder} holds a {config.architecture}, which needs no module; leave backbone out")
        return build(config.architecture, config.options)
    if module is None:
        raise ValueError(
            f"{folder} was created from a module, which no file holds; "
            "in Python give it with tuplet.load(folder, backbone=module)"
        )
    return module if isinstance(module, Backbone) else OwnModule(module, config.options["channels"])
