"""The backbones by name."""

import difflib
import inspect
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tuplet.models.backbone import Backbone, initialise
from tuplet.models.bn_inception import BNInception
from tuplet.models.efficientnet_lite import EfficientNetLite0
from tuplet.models.foreign import TimmModel
from tuplet.models.googlenet import GoogLeNet
from tuplet.models.resnet import ResNet50
from tuplet.models.small import MLP, ConvNet

ARCHITECTURES: dict[str, type[Backbone]] = {
    "bn_inception": BNInception,
    "convnet": ConvNet,
    "efficientnet_lite0": EfficientNetLite0,
    "googlenet": GoogLeNet,
    "mlp": MLP,
    "resnet50": ResNet50,
}


def build(name: str, options: Mapping[str, Any]) -> Backbone:
    """A backbone with random weights. Names that are not built in are timm's; "timm/…" asks for timm's in any case.

    >>> build("mlp", {"features": 10, "hidden": [4]}).channels
    {'H': 4}
    """
    if name not in ARCHITECTURES:
        return timms(name, options)
    _check(name, options)
    backbone = ARCHITECTURES[name](**options)
    initialise(backbone)
    return backbone


def _check(name: str, options: Mapping[str, Any]) -> None:
    """Refuse options that a backbone does not have, and the lack of one that it needs."""
    own = inspect.signature(ARCHITECTURES[name]).parameters
    if unknown := [option for option in options if option not in own]:
        close = difflib.get_close_matches(unknown[0], own, 1)
        others = f"its options are {', '.join(own)}" if own else "it has none, so leave it out"
        raise TypeError(f"{name} has no option {unknown[0]!r}; {f'did you mean {close[0]!r}?' if close else others}")
    if missing := [option for option, p in own.items() if p.default is p.empty and option not in options]:
        raise TypeError(f"{name} needs its option {missing[0]!r}; give {missing[0]}=")


def timms(name: str, options: Mapping[str, Any], pretrained: bool = False) -> TimmModel:
    """A model of timm's; a name that it cannot make brings the nearest one that is built in to mind."""
    if "/" in name and Path(name).is_dir():
        raise ValueError(
            f"{name} is a folder and no backbone's name; in Python a saved embedder is read by tuplet.load, and trains "
            "on where it is given as the model"
        )
    close = difflib.get_close_matches(name, ARCHITECTURES, 1) if not name.startswith("timm/") else []
    return TimmModel(name, options, pretrained, built_in=close[0] if close else None)
