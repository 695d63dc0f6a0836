"""From what a caller says to the settings of a run."""

import os
import re
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import numpy as np
from torch import nn

from tuplet.data import Dataset
from tuplet.losses import RowLoss
from tuplet.models import Embedder
from tuplet.training.objective import make_loss
from tuplet.training.recipes import recipe_for
from tuplet.training.sampler import usual_sampler
from tuplet.training.settings import Settings, check_names

#: What belongs to a loss or a model, and goes when a recipe's own is replaced by another.
_BELONGINGS = {
    "loss": ("loss_options", "normalize"),
    "model": ("weights", "model_options", "size", "resize", "fit", "stored_size"),
}
#: What an embedder that is made already has decided.
_DECIDED = ("weights", "model_options", "dim", "levels", "pooling", "layer_norm", "normalize", "size", "resize", "fit")
#: What is done to pictures alone.
_OF_PICTURES = ("size", "resize", "fit", "augment", "stored_size", "mirrored")
#: What every run has: None says nothing of it.
_NEVER_NONE = ("loss", "model", "steps", "seed")


class Unsaid(str):
    """A default that a recipe may replace: equal to its string, and told from it by its type."""


def resolve(recipe: str | None, said: Mapping[str, Any], data: Dataset) -> Settings:
    """Defaults, then the recipe, then what was said.

    What a recipe says of its own loss or model goes with them when another one is named, and so does its sampler where
    the other loss needs pairs or triplets. Feature vectors are trained with an mlp unless another model is said.
    """
    check_names(said)
    said = {k: _as_python(v) for k, v in said.items() if not _is_unsaid(k, v)}
    chosen = {} if recipe is None else recipe_for(recipe, data)
    if data.features is not None:
        if senseless := [name for name in _OF_PICTURES if said.get(name)]:
            what = f"{senseless[0]} is {said[senseless[0]]!r} and the data are feature vectors"
            raise ValueError(f"{what}, which are no pictures; leave it out")
        said.setdefault("model", "mlp")
        chosen.pop("levels", None)
    for name, belongings in _BELONGINGS.items():
        if name in said and said[name] != chosen.get(name):
            chosen = {k: v for k, v in chosen.items() if k not in belongings}
    if (
        "loss" in said
        and usual_sampler(make_loss(said["loss"], said.get("loss_options", {}), 1, 1)) != "class_balanced"
    ):
        chosen.pop("sampler", None)
    if isinstance(said.get("model"), Embedder):
        for name in _DECIDED:
            if name in said:
                raise TypeError(f"{name} was decided when the embedder was made; leave it out, or give a model's name")
            chosen.pop(name, None)
    return Settings(**{**chosen, **said})


def _is_unsaid(name: str, value: Any) -> bool:
    return isinstance(value, Unsaid) or (value is None and name in _NEVER_NONE)


def _as_python(value: Any) -> Any:
    """Paths as text and numpy's numbers as Python's, which files and checkpoints can hold."""
    if isinstance(value, Mapping):
        return {k: _as_python(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(map(_as_python, value))
    if isinstance(value, np.generic):
        return value.item()
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def plain(settings: Settings) -> dict[str, Any]:
    """The settings as data that JSON can hold; objects are described.

    >>> plain(Settings(augment={"area": (0.2, 1.0)}))["augment"]
    {'area': [0.2, 1.0]}
    """
    return {each.name: _plain(getattr(settings, each.name)) for each in fields(settings)}


def _plain(value: Any) -> Any:
    if isinstance(value, Embedder):
        return f"{value.config.architecture} with {sum(p.numel() for p in value.parameters()):,} parameters"
    if isinstance(value, RowLoss):
        return described(value)
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    return value


def described(module: nn.Module) -> str:
    """A loss or a mining rule about as it would be written.

    >>> from tuplet import losses
    >>> described(losses.MultiSimilarityLoss())
    'MultiSimilarityLoss(alpha=2.0, beta=50.0, threshold=0.5, mining=ValidTriplet(epsilon=0.1))'
    """
    public = {k: v for k, v in vars(module).items() if not k.startswith("_") and k != "training" and v is not None}
    # A function's place in memory is another in each process.
    parts = [re.sub(" at 0x[0-9a-f]+", "", f"{k}={v!r}") for k, v in public.items()]
    for name, p in module.named_parameters(recurse=False):
        parts.append(f"{name} learns from {p.item():g}" if p.numel() == 1 else f"{name} of {tuple(p.shape)} learn")
    parts += [f"{k}={described(child)}" for k, child in module.named_children()]
    return f"{type(module).__name__}({', '.join(parts)})"
