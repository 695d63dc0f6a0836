"""The options that tuning tries: the default choice, checks of the user's own, and their values in Optuna's terms."""

import json
from collections.abc import Callable, Collection, Mapping
from typing import Any, TypeAlias

from tuplet.data import Dataset
from tuplet.errors import OptionError, OptionTypeError, opt
from tuplet.training.checkpoint import plain_settings
from tuplet.training.sampler import sampler_class
from tuplet.training.settings import Settings, check_names

#: A list holds alternatives, a tuple the smallest and the largest number of a range.
Values: TypeAlias = list[Any] | tuple[float, float]
Space: TypeAlias = dict[str, Values]

#: One loss of each kind: pairs with mining, proxies, one that keeps classes wide, a softmax over the batch.
_LOSSES = ("multi_similarity", "proxy_anchor", "ranked_list", "supcon")
#: The smallest shares of an image that a random crop shows.
_AREAS = (0.1, 0.3, 0.6)


def default_space(settings: Settings, given: Collection[str], data: Dataset, on_gpu: bool) -> Space:
    """Return what to try around some settings, without the options that are given.

    >>> from tuplet.data import from_features
    >>> import torch
    >>> vectors = from_features(torch.eye(4), [0, 0, 1, 1])
    >>> default_space(Settings(weights=None, model="mlp"), ["loss", "per_class"], vectors, on_gpu=False)
    {'lr': (3e-05, 0.01), 'steps': (500, 2000)}
    """
    pretrained = data.features is None and settings.weights is not None
    sizes = sorted(size for size in data.class_sizes().values() if size > 1)
    typical = sizes[len(sizes) // 2]
    low, high = (0.1, 10) if pretrained else (0.3, 100)
    space: Space = {
        "loss": [settings.loss, *(name for name in _LOSSES if name != settings.loss)],
        "lr": (_rounded(low * settings.lr), _rounded(high * settings.lr)),
        "steps": (max(1, settings.steps // 2), 2 * settings.steps),
    }
    if not sampler_class(settings).group_size:
        space["per_class"] = sorted({*(n for n in (2, 4, 8) if n <= typical), settings.per_class})
    if data.features is None and settings.transform is None:
        usual = plain_settings(settings)["augment"]
        crops = [{**usual, "area": [area, 1.0]} for area in _AREAS]
        space["augment"] = [usual, *(each for each in crops if each != usual)]
    if pretrained and settings.dim is not None:
        space["head_lr_scale"] = (min(1.0, settings.head_lr_scale), max(10.0, settings.head_lr_scale))
    if pretrained and not settings.lora:
        # Without a GPU, training the first layers takes most of the time.
        frozen = ["M", "L", *([None] if on_gpu or settings.freeze_to is None else [])]
        space["freeze_to"] = [settings.freeze_to, *(each for each in frozen if each != settings.freeze_to)]
    if settings.loss_options:  # they belong to this loss
        del space["loss"]
    return {name: values for name, values in space.items() if name not in given}


def check_space(space: Mapping[str, Any], given: Collection[str]) -> Space:
    """Return the options that the user wants to try; raise an error for what cannot be tried.

    >>> check_space({"lr": (1e-3, 1e-5)}, given=[])
    Traceback (most recent call last):
    tuplet.errors.OptionError: space has (0.001, 1e-05) for lr; give a list of values, or (smallest, largest)
    """
    check_names(space)
    for name, values in space.items():
        if name in given:
            raise OptionTypeError(f"{opt(name)} is given and in the space; leave it out of one of them")
        if name in ("test_on", "final", "validation", "validation_from", "seed", "select_by"):
            raise OptionError(f"{opt(name)} decides how trials are measured, which must be the same for all of them")
        numbers = isinstance(values, tuple) and all(type(value) in (int, float) for value in values)
        is_range = numbers and len(values) == 2 and values[0] < values[1]
        if not is_range and not (isinstance(values, list) and values):
            raise OptionError(f"space has {values!r} for {name}; give a list of values, or (smallest, largest)")
        if isinstance(values, list):
            _named(values)
    return dict(space)


def keep_usable(space: Space, check: Callable[[dict[str, Any]], object]) -> Space:
    """Leave out alternatives for which `check` raises a ValueError, and options that have only one left."""

    def passes(options: dict[str, Any]) -> bool:
        try:
            check(options)
        except ValueError:
            return False
        return True

    usable = {
        name: [value for value in values if passes({name: value})] if isinstance(values, list) else values
        for name, values in space.items()
    }
    return {name: values for name, values in usable.items() if len(values) > 1}


def suggest(trial: Any, space: Space) -> dict[str, Any]:
    """Let an Optuna trial choose a value for each option. Ranges above 0 are logarithmic; numbers have three digits."""
    chosen: dict[str, Any] = {}
    for name, values in space.items():
        if isinstance(values, list):
            named = _named(values)
            chosen[name] = named[trial.suggest_categorical(name, list(named))]
        elif all(isinstance(value, int) for value in values):
            chosen[name] = trial.suggest_int(name, *values, log=values[0] > 0)
        else:
            found = trial.suggest_float(name, *values, log=values[0] > 0)
            chosen[name] = min(max(_rounded(found, 3), values[0]), values[1])
    return chosen


def first_parameters(defaults: Mapping[str, Any], space: Space) -> tuple[dict[str, Any], bool]:
    """Return the parameters of the first Optuna trial, and whether all of them are defaults.

    Where the space lacks a default, its first alternative or the nearest number takes its place; that of None is the
    smallest.

    >>> first_parameters({"loss": "raw", "lr": 1e-4}, {"loss": ["raw", "nca"], "lr": (1e-3, 1e-2)})
    ({'loss': 'raw', 'lr': 0.001}, False)
    """
    found, are_defaults = {}, True
    for name, values in space.items():
        value = defaults[name]
        if isinstance(values, tuple):
            found[name] = values[0] if value is None else min(max(value, values[0]), values[1])
            are_defaults &= found[name] == value
        else:
            keys = [key for key, each in _named(values).items() if each == value]
            found[name] = keys[0] if keys else next(iter(_named(values)))
            are_defaults &= bool(keys)
    return found, are_defaults


def plain_space(space: Space) -> dict[str, Any]:
    """Return a space as data that JSON can hold.

    >>> plain_space({"loss": ["raw", "nca"], "lr": (1e-4, 1e-2)})
    {'loss': ['raw', 'nca'], 'lr': {'low': 0.0001, 'high': 0.01}}
    """
    return {k: dict(zip(("low", "high"), v, strict=True)) if isinstance(v, tuple) else v for k, v in space.items()}


def _named(values: list[Any]) -> dict[Any, Any]:
    """Return the values by what Optuna can store: numbers and strings as they are, others as JSON."""
    try:
        return {v if v is None or isinstance(v, str | int | float) else json.dumps(v): v for v in values}
    except TypeError as error:
        raise OptionTypeError(f"space has {values!r}; give values that JSON can hold, losses by name") from error


def _rounded(value: float, digits: int = 2) -> float:
    return float(f"{value:.{digits}g}")
