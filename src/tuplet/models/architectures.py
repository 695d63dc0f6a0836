"""The backbones by name."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from tuplet.errors import did_you_mean, refuse_unknown
from tuplet.models.backbone import Backbone, initialise
from tuplet.models.networks.adapters import TimmModel
from tuplet.models.networks.bn_inception import BNInception
from tuplet.models.networks.dlib_face import DlibFace
from tuplet.models.networks.efficientnet_lite import EfficientNetLite0, EfficientNetLite1, EfficientNetLite2
from tuplet.models.networks.googlenet import GoogLeNet
from tuplet.models.networks.resnet import ResNet50
from tuplet.models.networks.small_networks import MLP, CasiaNet, ConvNet
from tuplet.models.networks.vision_transformer import CONFIGS, VisionTransformer

ARCHITECTURES: dict[str, Callable[..., Backbone]] = {
    "bn_inception": BNInception,
    "casianet": CasiaNet,
    "convnet": ConvNet,
    "dlib_face": DlibFace,
    "efficientnet_lite0": EfficientNetLite0,
    "efficientnet_lite1": EfficientNetLite1,
    "efficientnet_lite2": EfficientNetLite2,
    "googlenet": GoogLeNet,
    "mlp": MLP,
    "resnet50": ResNet50,
    **{name: partial(VisionTransformer, **config) for name, config in CONFIGS.items()},
}

#: Networks for aligned faces alone. They are used where they are named, and never chosen for other images. Their own
#: vectors are not of unit length, and are compared by their Euclidean distance.
FACES = ("dlib_face",)

#: Short names of the transformers.
ALIASES = {
    **{f"lite{i}": f"efficientnet_lite{i}" for i in range(3)},
    **{f"dinov2_{size}": f"vit_{size}_patch14_dinov2" for size in ("small", "base", "large", "giant")},
    **{f"dinov2_{size}_reg": f"vit_{size}_patch14_reg4_dinov2" for size in ("small", "base", "large", "giant")},
    **{f"dino_{size}": f"vit_{size}_patch16_224.dino" for size in ("small", "base")},
    **{f"dino_{size}_patch8": f"vit_{size}_patch8_224.dino" for size in ("small", "base")},
    **{f"vit_{size}": f"vit_{size}_patch16_224" for size in ("tiny", "small", "base", "large")},
    **{
        f"clip_{size}_patch{patch}": f"vit_{size}_patch{patch}_clip_quickgelu_224"
        for size, patch in (("base", 32), ("base", 16), ("large", 14))
    },
}


def build(name: str, options: Mapping[str, Any]) -> Backbone:
    """Build a backbone with random weights. Other names are those of timm; "timm/NAME" always asks for timm.

    >>> build("mlp", {"features": 10, "hidden": [4]}).channels
    {'H': 4}
    """
    if name not in ARCHITECTURES:
        return timm_model(name, options)
    _check_options(name, options)
    backbone = ARCHITECTURES[name](**options)
    initialise(backbone)
    return backbone


def options_of(name: str) -> Mapping[str, inspect.Parameter]:
    """Return the options of a built-in backbone; none for other names.

    >>> list(options_of("convnet"))
    ['size', 'channels']
    """
    return inspect.signature(ARCHITECTURES[name]).parameters if name in ARCHITECTURES else {}


def _check_options(name: str, options: Mapping[str, Any]) -> None:
    """Raise an error for an unknown option, and for a required one that is missing."""
    own = options_of(name)
    refuse_unknown(name, options, own)
    if missing := [option for option, p in own.items() if p.default is p.empty and option not in options]:
        raise TypeError(f"{name} needs its option {missing[0]!r}; give {missing[0]}=")


def timm_model(name: str, options: Mapping[str, Any], pretrained: bool = False) -> TimmModel:
    """Build a model of timm; the error for an unknown name suggests the nearest built-in one."""
    if "/" in name and Path(name).is_dir():
        raise ValueError(
            f"{name} is a folder, not the name of a backbone; in Python load the saved embedder with tuplet.load and "
            "give it as the model"
        )
    hint = "" if name.startswith("timm/") else did_you_mean(name, [*ARCHITECTURES, *ALIASES])
    return TimmModel(name, options, pretrained, hint if hint.startswith("did") else "")
