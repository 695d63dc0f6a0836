"""Networks that are not written here: a module of the user's own, and any model of timm."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tuplet.data.decode import Fit
from tuplet.durable import first_line
from tuplet.extras import need
from tuplet.models.backbone import LEVELS, Backbone, State, evaluating
from tuplet.models.preprocessing import Preprocessing


class OwnModule(Backbone):
    """A user's module as a backbone.

    It gives a vector (N, C) or a map (N, C, h, w), which is level H; or a sequence of maps from low to high, of which
    the last three are L, M and H; or a dict with those keys.

    >>> OwnModule(nn.Conv2d(3, 8, 3), channels={"H": 8})(torch.zeros(2, 3, 6, 6))["H"].shape
    torch.Size([2, 8, 4, 4])
    """

    def __init__(self, module: nn.Module, channels: Mapping[str, int]) -> None:
        super().__init__()
        self.module = module
        self.channels = dict(channels)

    def forward(self, images: Tensor, levels: str = "H") -> dict[str, Tensor]:
        """What the module gives, by level."""
        return {level: x for level, x in by_level(self.module(images)).items() if level in levels}


def by_level(output: Tensor | Iterable[Tensor] | Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Name what a module gave by level.

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
    """Wrap a module, reading the width of its levels off what it gives for `example`."""
    try:
        with evaluating(module), torch.no_grad():
            output = module(example)
    except Exception as error:  # whatever it is that a user's code raises
        raise ValueError(
            f"the module does not take {_in_words(example)} ({first_line(error)}); give the preprocessing= or example= "
            "that it takes"
        ) from error
    maps = by_level(output) if isinstance(output, Iterable) else {}
    if not maps or not all(isinstance(x, Tensor) and x.ndim in (2, 4) for x in maps.values()):
        raise ValueError(
            f"the module gives {_in_words(output)}; it must give a vector (N, C) or a map (N, C, h, w), several "
            "from low to high, or a dict of them with the keys L, M and H"
        )
    return OwnModule(module, {level: x.shape[1] for level, x in maps.items()})


def _in_words(output: Any) -> str:
    """What went into a module or came out of it.

    >>> _in_words((torch.zeros(2, 3), {"loss": None}))
    "(a tensor (2, 3) of torch.float32, {'loss': None})"
    """
    if isinstance(output, Tensor):
        return f"a tensor {tuple(output.shape)} of {output.dtype}"
    if isinstance(output, Mapping):
        return f"{{{', '.join(f'{key!r}: {_in_words(value)}' for key, value in output.items())}}}"
    if isinstance(output, tuple | list):
        return f"({', '.join(map(_in_words, output))})"
    return "None" if output is None else f"a {type(output).__name__}"


class TimmModel(Backbone):
    """A model of timm. H is the map its classifier would pool, L and M are the two stages before its last.

    A transformer's tokens have no map: H is then the vector that timm itself would classify. `built_in` is a name
    that may have been meant, where timm has no such model or is not here.
    """

    def __init__(
        self, name: str, options: Mapping[str, Any], pretrained: bool = False, built_in: str | None = None
    ) -> None:
        super().__init__()
        if hidden := [option for option in options if option.startswith(("pretrained", "checkpoint", "cache"))]:
            raise ValueError(f"the option {hidden[0]!r} would bring weights into {name} unseen; give them as weights=")
        meant = f" (did you mean {built_in!r}?)" if built_in else ""
        aside = "" if name.startswith("timm/") else f", which is not built in{meant},"
        timm = need("timm", extra="timm", purpose=f"the backbone {name!r}{aside}")
        name = name.removeprefix("timm/")
        if not timm.is_model(name):
            raise ValueError(
                f"no backbone is called {name!r}{meant}, here or in timm {timm.__version__}; see timm.list_models()"
            )
        self.model = timm.create_model(name, pretrained=pretrained, num_classes=0, **options)
        info = dict(self.model.pretrained_cfg)
        if "img_size" in options:
            info["input_size"] = (3, options["img_size"], options["img_size"])
        self.usual = timm_preprocessing(info)
        first = info["classifier"] if isinstance(info["classifier"], str) else info["classifier"][0]
        self.classifier = f"model.{first}"
        with evaluating(self.model), torch.no_grad():
            top = self._top(self.model.forward_features(torch.zeros(1, *info["input_size"])))
        self.channels = {"H": top.shape[1]}
        stages = [stage["num_chs"] for stage in self.model.feature_info]
        if hasattr(self.model, "forward_intermediates") and len(stages) > 2:
            low, mid = stages[-3:-1]
            self.channels = {"L": low, "M": mid, **self.channels}

    def _top(self, features: Tensor) -> Tensor:
        if features.ndim == 4 and features.shape[1] == self.model.num_features:
            return features
        return self.model.forward_head(features, pre_logits=True)

    def forward(self, images: Tensor, levels: str = "H") -> dict[str, Tensor]:
        """The maps of `levels`."""
        if levels == "H":
            return {"H": self._top(self.model.forward_features(images))}
        final, (low, mid) = self.model.forward_intermediates(images, indices=[-3, -2])
        return {level: x for level, x in {"L": low, "M": mid, "H": self._top(final)}.items() if level in levels}

    @staticmethod
    def translate(state: State) -> State:
        """A file of timm's holds the model's own names."""
        return {name if name.startswith("model.") else f"model.{name}": value for name, value in state.items()}


def timm_preprocessing(info: Mapping[str, Any]) -> Preprocessing:
    """What timm's `pretrained_cfg` says, in units of 0 … 255.

    >>> info = {"input_size": (3, 224, 224), "crop_pct": 0.875, "mean": (0.5,) * 3, "std": (0.5,) * 3}
    >>> timm_preprocessing(info).resize
    256
    """
    size = info["input_size"][-1]
    how: Fit = "square" if info.get("crop_mode") == "squash" else "shorter"
    mean, std = (tuple(255 * x for x in info[key]) for key in ("mean", "std"))
    return Preprocessing(size, math.floor(size / info["crop_pct"]), how, mean, std)
