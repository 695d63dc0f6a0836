"""The backbones by name."""

import difflib
import inspect
from collections.abc import Mapping
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
    try:
        inspect.signature(ARCHITECTURES[name]).bind(**options)
    except TypeError as error:
        raise TypeError(f"{name} takes the options {inspect.signature(ARCHITECTURES[name])}: {error}") from error
    backbone = ARCHITECTURES[name](**options)
    initialise(backbone)
    return backbone


def timms(name: str, options: Mapping[str, Any], pretrained: bool = False) -> TimmModel:
    """A model of timm's; a name that it cannot make brings the nearest one that is built in to mind."""
    close = difflib.get_close_matches(name, ARCHITECTURES, 1) if not name.startswith("timm/") else []
    return TimmModel(name.removeprefix("timm/"), options, pretrained, built_in=close[0] if close else None)
