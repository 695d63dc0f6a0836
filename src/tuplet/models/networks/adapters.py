"""Adapters that make backbones of a user's own module and of any model of timm."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tuplet.errors import OptionError, first_line, opt
from tuplet.extras import need
from tuplet.images.crop import ResizeMode
from tuplet.models.backbone import LEVELS, Backbone, State, evaluating
from tuplet.models.preprocessing import Preprocessing


class OwnModule(Backbone):
    """A user's module as a backbone.

    The module returns a vector (N, C) or a map (N, C, h, w), which is level H; a sequence of maps from low to high, of
    which the last three are L, M and H; or a dict with those keys.

    >>> OwnModule(nn.Conv2d(3, 8, 3), channels={"H": 8})(torch.zeros(2, 3, 6, 6))["H"].shape
    torch.Size([2, 8, 4, 4])
    """

    def __init__(self, module: nn.Module, channels: Mapping[str, int]) -> None:
        super().__init__()
        self.module = module
        self.channels = dict(channels)

    def forward(self, images: Tensor, levels: str = "H") -> dict[str, Tensor]:
        """Return the module's output by level."""
        return {level: x for level, x in by_level(self.module(images)).items() if level in levels}


def by_level(output: Tensor | Iterable[Tensor] | Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return the output of a module as a dict by level.

    >>> by_level([torch.zeros(1, 4), torch.ones(1, 8)]).keys()
    dict_keys(['M', 'H'])
    """
    if isinstance(output, Tensor):
        return {"H": output}
    if isinstance(output, Mapping):
        return {level: output[level] for level in LEVELS if level in output}
    last = list(output)[-len(LEVELS) :]
    return dict(zip(LEVELS[len(LEVELS) - len(last) :], last, strict=True))


def own_module(module: nn.Module, example: Tensor) -> OwnModule:
    """Wrap a module, with the widths of its levels taken from its output for `example`."""
    try:
        with evaluating(module), torch.no_grad():
            output = module(example)
    except Exception as error:  # a user's code may raise anything
        raise ValueError(
            f"the module fails on {_describe(example)} ({first_line(error)}); give the preprocessing= or example= "
            "that it takes"
        ) from error
    maps = by_level(output) if isinstance(output, Iterable) else {}
    if not maps or not all(isinstance(x, Tensor) and x.ndim in (2, 4) for x in maps.values()):
        raise ValueError(
            f"the module returns {_describe(output)}; it must return a vector (N, C) or a map (N, C, h, w), several "
            "from low to high, or a dict of them with the keys L, M and H"
        )
    return OwnModule(module, {level: x.shape[1] for level, x in maps.items()})


def _describe(output: Any) -> str:
    """Describe the input or output of a module.

    >>> _describe((torch.zeros(2, 3), {"loss": None}))
    "(a tensor (2, 3) of torch.float32, {'loss': None})"
    """
    if isinstance(output, Tensor):
        return f"a tensor {tuple(output.shape)} of {output.dtype}"
    if isinstance(output, Mapping):
        return f"{{{', '.join(f'{key!r}: {_describe(value)}' for key, value in output.items())}}}"
    if isinstance(output, tuple | list):
        return f"({', '.join(map(_describe, output))})"
    return "None" if output is None else f"a {type(output).__name__}"


class TimmModel(Backbone):
    """A model of timm. H is the map that its classifier would pool, L and M are the two stages before its last.

    A transformer has no map: its H is the vector that timm would classify. `hint` suggests a built-in name in the error
    for a name that timm does not know.
    """

    def __init__(self, name: str, options: Mapping[str, Any], pretrained: bool = False, hint: str = "") -> None:
        super().__init__()
        if hidden := [option for option in options if option.startswith(("pretrained", "checkpoint", "cache"))]:
            raise ValueError(f"the option {hidden[0]!r} would load weights into {name}; give them as weights=")
        meant = f" ({hint})" if hint else ""
        not_built_in = "" if name.startswith("timm/") else f", which is not built in{meant},"
        timm = need("timm", extra="timm", purpose=f"the backbone {name!r}{not_built_in}")
        name = name.removeprefix("timm/")
        if not timm.is_model(name):
            raise ValueError(
                f"no backbone is called {name!r}{meant}, here or in timm {timm.__version__}; see timm.list_models()"
            )
        try:
            self.model = timm.create_model(name, pretrained=pretrained, num_classes=0, **options)
        except (OSError, RuntimeError) as error:
            if not pretrained:
                raise
            raise FileNotFoundError(
                f"timm cannot get its weights of {name} ({first_line(error)}); give a file in their place, or "
                "another model"
            ) from error
        info = dict(self.model.pretrained_cfg)
        if "img_size" in options:
            info["input_size"] = (3, options["img_size"], options["img_size"])
        self.preprocessing = timm_preprocessing(info)
        first = info["classifier"] if isinstance(info["classifier"], str) else info["classifier"][0]
        self.classifier = f"model.{first}"
        with evaluating(self.model), torch.no_grad():
            top = self._top(self.model.forward_features(torch.zeros(1, *info["input_size"])))
        self.channels = {"H": top.shape[1]}
        if top.ndim == 2:  # a transformer
            self.depth = len(getattr(self.model, "blocks", ()))
        stages = [stage["num_chs"] for stage in self.model.feature_info]
        if hasattr(self.model, "forward_intermediates") and len(stages) > 2:
            low, mid = stages[-3:-1]
            self.channels = {"L": low, "M": mid, **self.channels}

    def _top(self, features: Tensor) -> Tensor:
        if features.ndim == 4 and features.shape[1] == self.model.num_features:
            return features
        return self.model.forward_head(features, pre_logits=True)

    def forward(self, images: Tensor, levels: str = "H") -> dict[str, Tensor]:
        """Return the maps of `levels`."""
        if levels == "H":
            return {"H": self._top(self.model.forward_features(images))}
        final, (low, mid) = self.model.forward_intermediates(images, indices=[-3, -2])
        return {level: x for level, x in {"L": low, "M": mid, "H": self._top(final)}.items() if level in levels}

    def layer_groups(self) -> list[tuple[str, list[nn.Parameter]]]:
        """Return the parameters by depth, as timm groups them for layer-wise learning rates."""
        from timm.models import group_parameters

        named = dict(self.model.named_parameters())
        groups = list(group_parameters(self.model, self.model.group_matcher()).values())
        ends = {}
        for level, stage in zip("LM", self.model.feature_info[-3:-1], strict=True) if "L" in self.channels else ():
            prefix = f"{stage['module']}."
            ends[max(i for i, names in enumerate(groups) if any(name.startswith(prefix) for name in names))] = level
        return [(ends.get(i, ""), [named[name] for name in names]) for i, names in enumerate(groups)]

    def set_drop_path(self, rate: float) -> None:
        """Raise an error, since timm sets stochastic depth when it makes the model."""
        if rate:
            raise OptionError(
                f"{opt('drop_path')} is for built-in transformers",
                f"give {opt('model_options', {'drop_path_rate': rate})}",
            )

    def set_grad_checkpointing(self, enable: bool) -> None:
        """Keep less for the backward pass, which computes it again."""
        self.model.set_grad_checkpointing(enable)

    def translate(self, state: State) -> State:
        """Add the prefix `model.` to the names in timm's files."""
        return {name if name.startswith("model.") else f"model.{name}": value for name, value in state.items()}


def timm_preprocessing(info: Mapping[str, Any]) -> Preprocessing:
    """Read timm's `pretrained_cfg`, in units of 0 … 255.

    >>> info = {"input_size": (3, 224, 224), "crop_pct": 0.875, "mean": (0.5,) * 3, "std": (0.5,) * 3}
    >>> timm_preprocessing(info).resize
    256
    """
    size = info["input_size"][-1]
    how: ResizeMode = "square" if info.get("crop_mode") == "squash" else "shorter"
    mean, std = (tuple(255 * x for x in info[key]) for key in ("mean", "std"))
    return Preprocessing(size, math.floor(size / info["crop_pct"]), how, mean, std)
