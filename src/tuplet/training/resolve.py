"""From what a caller says to the settings of a run."""

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from torch import nn

from tuplet.data import Dataset
from tuplet.losses import RowLoss
from tuplet.models import Embedder
from tuplet.training.recipes import RECIPES
from tuplet.training.settings import Settings, check_names, nearest


class Unsaid(str):
    """A default that a recipe may replace: equal to its string, and told from it by its type."""


def resolve(recipe: str | None, said: Mapping[str, Any], data: Dataset) -> Settings:
    """Defaults, then the recipe, then what was said.

    What a recipe says of its own loss or model goes with them when another one is named. Feature vectors are
    trained with an mlp unless something else is said.
    """
    check_names(said)
    said = {k: v for k, v in said.items() if not isinstance(v, Unsaid)}
    chosen: dict[str, Any] = dict(_recipe(recipe))
    for name, belongings in (("loss", ("loss_options",)), ("model", ("weights", "model_options"))):
        if name in said and said[name] != chosen.get(name):
            for belonging in belongings:
                chosen.pop(belonging, None)
    if data.features is not None and "model" not in said:
        for name in ("model", "weights", "model_options"):
            chosen.pop(name, None)
        chosen["model"] = "mlp"
    return Settings(**{**chosen, **said})


def _recipe(name: str | None) -> Mapping[str, Any]:
    if name is None:
        return {}
    if name not in RECIPES:
        raise ValueError(f"there is no recipe {name!r}; {nearest(name, RECIPES)}")
    return RECIPES[name]


def plain(settings: Settings) -> dict[str, Any]:
    """The settings as data that JSON can hold; objects are described.

    >>> plain(Settings())["loss"]
    'multi_similarity'
    """
    return {each.name: _plain(getattr(settings, each.name)) for each in fields(settings)}


def _plain(value: Any) -> Any:
    if isinstance(value, Embedder):
        return f"{value.config.architecture}, {sum(p.numel() for p in value.parameters()):,} parameters"
    if isinstance(value, RowLoss):
        return described(value)
    if isinstance(value, Mapping):
        return {str(k): _plain(v) for k, v in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(v) for v in value]
    return value


def described(module: nn.Module) -> str:
    """A loss or a mining rule as it would be written.

    >>> from tuplet import losses
    >>> described(losses.MultiSimilarityLoss())
    'MultiSimilarityLoss(alpha=2.0, beta=50.0, threshold=0.5, mining=ValidTriplet(epsilon=0.1))'
    """
    public = {k: v for k, v in vars(module).items() if not k.startswith("_") and k != "training" and v is not None}
    parts = [f"{k}={v!r}" for k, v in public.items()]
    parts += [f"{k}={described(child)}" for k, child in module.named_children()]
    return f"{type(module).__name__}({', '.join(parts)})"
