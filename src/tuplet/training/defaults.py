"""Defaults that suit the data and the device, for options that neither the call nor a recipe gives."""

from collections.abc import Mapping
from typing import Any

import torch

from tuplet import models
from tuplet.data import Dataset
from tuplet.errors import opt
from tuplet.losses import RowLoss
from tuplet.models import Embedder
from tuplet.models.architectures import ARCHITECTURES
from tuplet.training.model import choose_weights
from tuplet.training.settings import Settings, describe_options

#: Training images below which pretrained weights are changed only a little.
SMALL = 2_000
#: Tried with efficientnet_lite0 on small folders of birds, cars and characters (`benchmarks/small_data.py`).
_SMALL_DATA = {
    "dim": None,
    # Too much for some data. Averages with the start take a part of it back.
    "lr": 3e-4,
    "augment": {"area": (0.3, 1.0)},
    "select_by": "map_at_r",
    "wise_ft": True,
    "keep_start": True,
}
#: Options that only make sense with a new layer.
_OF_NEW_LAYER = ("head_steps", "head_lr_scale", "layer_norm")


def choose_model(options: Mapping[str, Any], data: Dataset) -> dict[str, Any]:
    """Return the backbone and the weights where they are left open: the best at hand; an mlp for feature vectors."""
    model, weights = options.get("model"), options.get("weights", "auto")
    if data.features is not None:
        return {"model": model or "mlp", "weights": None if weights == "auto" else weights}
    if weights != "auto":
        known = models.KNOWN.get(weights)
        return {"model": model or (known.architecture if known else "resnet50"), "weights": weights}
    name, found = choose_weights(model, options.get("device"))
    return {"model": name, "weights": found}


def suit(options: Mapping[str, Any], data: Dataset) -> dict[str, Any]:
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
    if options["model"] in ARCHITECTURES and not trains_low_layers:
        chosen["freeze_to"] = "M"
    if count < SMALL:
        with_layer = _has_width(options) or set(_OF_NEW_LAYER) & set(options)
        chosen |= {name: value for name, value in _SMALL_DATA.items() if name != "dim" or not with_layer}
    if "steps" in options:  # the user's length needs the evaluations of `Settings`, or fewer
        chosen["evaluate_every"] = max(1, min(100, options["steps"] // 4))
    return chosen


def _has_width(options: Mapping[str, Any]) -> bool:
    """Return whether the loss was made for embeddings of a given length, that of the default `dim`."""
    loss = options.get("loss")
    return isinstance(loss, RowLoss) and loss.proxies is not None


def _training_images(options: Mapping[str, Any], data: Dataset) -> int:
    """Return about how many images are trained on, before the data are split."""
    if data.splits is not None:
        return data.splits.count("train")
    defaults = Settings()
    shares = (options.get(name, getattr(defaults, name)) for name in ("test_share", "validation"))
    share = 1.0
    for held_out in shares:
        share *= 1 - held_out
    return round(len(data) * share)


def _has_gpu(options: Mapping[str, Any]) -> bool:
    return str(options.get("device") or ("cuda" if torch.cuda.is_available() else "cpu")).startswith("cuda")
