"""The base class of backbones: a chain of stages, some of which end a level that can be embedded."""

import math
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from tuplet.errors import OptionError, opt
from tuplet.models.preprocessing import Preprocessing

LEVELS = "LMH"
State = dict[str, Tensor]


class Backbone(nn.Module):
    """A network that returns a map (N, C, h, w), a vector (N, C) or tokens (N, 1 + P, C) for each of its levels.

    Tokens are those of a transformer: the class token, then the patches.

    A subclass sets `channels`, the width of each level, and implements `stages`, the layers in order. Running stops at
    the highest level asked for. An instance can be given to `models.create` in place of a name.

    >>> from tuplet import models
    >>> class Two(models.Backbone):
    ...     channels = {"M": 4, "H": 8}
    ...     def __init__(self):
    ...         super().__init__()
    ...         self.low, self.top = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 8, 3)
    ...     def stages(self):
    ...         return [("M", self.low), ("H", self.top)]
    >>> models.create(Two(), dim=2, levels="MH").width
    4
    """

    #: Level → number of channels, from low to high.
    channels: dict[str, int]
    #: The preprocessing of published weights of this architecture; None where the input is not an image.
    preprocessing: Preprocessing | None = None
    #: The number of maps that it returns for each image, one after another along the batch.
    copies: int = 1
    #: The translated name of the classifier in published files, and prefixes of other layers that are ignored.
    classifier: str = "fc"
    ignored: tuple[str, ...] = ()
    #: True if the levels are tokens.
    class_token: bool = False
    #: The number of blocks of a transformer, which follow the first of `layer_groups`.
    depth: int = 0

    def stages(self) -> list[tuple[str, nn.Module]]:
        """Return the layers in order, each with the level that ends there, or "".

        A network whose layers are not known returns an empty list and overrides `forward`.
        """
        return []

    def forward(self, images: Tensor, levels: str = "H") -> dict[str, Tensor]:
        """Return the maps of `levels`, a string such as "LMH"."""
        maps: dict[str, Tensor] = {}
        x = images
        for level, stage in self.stages():
            x = stage(x)
            if level and level in levels:
                maps[level] = x
                if len(maps) == len(levels):
                    break
        return maps

    def unused_parameters(self, levels: str) -> Iterator[nn.Parameter]:
        """Yield the parameters of the layers above the highest of `levels`, which get no gradient."""
        passed = 0
        for level, stage in self.stages():
            if passed == len(levels):
                yield from stage.parameters()
            passed += bool(level) and level in levels

    def layer_groups(self) -> list[tuple[str, list[nn.Parameter]]]:
        """Return the parameters by depth, from low to high, each group with the level that ends there, or "".

        A BatchNorm belongs to the convolution below it; its own group is empty.
        """
        groups: list[tuple[str, list[nn.Parameter]]] = []
        for level, stage in self.stages():
            own = list(stage.parameters())
            if groups and isinstance(stage, nn.BatchNorm2d):
                groups[-1][1].extend(own)
                own = []
            groups.append((level, own))
        return groups

    def new_parameters(self) -> Iterator[nn.Parameter]:
        """Yield the parameters that published weights do not have; they learn like the heads."""
        yield from ()

    def set_drop_path(self, rate: float) -> None:
        """Set stochastic depth: the probability that an image skips the last block; earlier ones have less."""
        if rate:
            raise OptionError(f"{opt('drop_path')} is {rate}, which is for transformers", "leave it out")

    def set_grad_checkpointing(self, enable: bool) -> None:
        """Keep only the tokens between blocks for the backward pass, which computes the rest again."""
        if enable:
            raise OptionError(
                f"{opt('grad_checkpointing')} is for transformers", f"to save memory give {opt('micro_batch_size')}"
            )

    def may_hide_unused(self, levels: str) -> bool:
        """Return True if there may be parameters without a gradient that `unused_parameters` does not find."""
        return not self.stages() and list(self.channels)[-1] not in levels

    def translate(self, state: State) -> State:
        """Translate the names of published files to those of this class."""
        return state


def initialise(backbone: nn.Module) -> None:
    """Initialise convolutions from N(0, 2 / fan-out); BatchNorm stays the identity."""
    for module in backbone.modules():
        if isinstance(module, nn.Conv2d):
            fan_out = math.prod(module.kernel_size) * module.out_channels // module.groups
            nn.init.normal_(module.weight, std=math.sqrt(2 / fan_out))
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def weight_dtype(network: nn.Module) -> torch.dtype:
    """Return the dtype of a network's first floating-point weight.

    >>> weight_dtype(nn.Linear(2, 2).half())
    torch.float16
    """
    return next((p.dtype for p in network.parameters() if p.is_floating_point()), torch.get_default_dtype())


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Set evaluation mode inside a `with` block, then restore the mode of every module.

    >>> layer = nn.Dropout()
    >>> with evaluating(layer):
    ...     print(layer.training)
    False
    >>> layer.training
    True
    """
    modes = [(module, module.training) for module in network.modules()]
    network.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def embeds_on_cpu(x: Tensor, *weights: Tensor | None) -> bool:
    """Return whether a layer may compute in another way that is faster on a CPU.

    So it is for float32 where no gradient is needed, as in embedding and in frozen layers, and nothing is traced.
    """
    if x.device.type != "cpu" or x.dtype != torch.float32:
        return False
    if torch.is_grad_enabled() and any(each is not None and each.requires_grad for each in (x, *weights)):
        return False
    return not torch.compiler.is_compiling() and not torch.is_autocast_enabled("cpu")


class Conv(nn.Conv2d):
    """A convolution that is faster on a CPU outside of training.

    There torch computes 1×1 convolutions without oneDNN if it has one thread, which took 1.5 times as long.
    """

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return self.convolve(x, weight, bias, self.padding)

    def convolve(self, x: Tensor, weight: Tensor, bias: Tensor | None, padding: Any) -> Tensor:
        """Return the convolution with other weights and padding."""
        if embeds_on_cpu(x, weight, bias) and torch.backends.mkldnn.is_available():
            return torch.mkldnn_convolution(x, weight, bias, padding, self.stride, self.dilation, self.groups)
        return torch.conv2d(x, weight, bias, self.stride, padding, self.dilation, self.groups)


def conv_norm(conv: nn.Conv2d, norm: nn.BatchNorm2d, x: Tensor) -> Tensor:
    """Return norm(conv(x)); when a CPU embeds, as one convolution with scaled weights, which reads the maps once.

    >>> conv, norm, x = nn.Conv2d(2, 3, 1), nn.BatchNorm2d(3).eval(), torch.ones(1, 2, 4, 4)
    >>> with torch.no_grad():
    ...     torch.allclose(conv_norm(conv, norm, x), norm(conv(x)), atol=1e-6)
    True
    """
    weights = conv.weight, conv.bias, norm.weight, norm.bias
    if norm.training or norm.running_var is None or norm.running_mean is None or not embeds_on_cpu(x, *weights):
        return norm(conv(x))
    scale = norm.weight * (norm.running_var + norm.eps).rsqrt()
    shift = norm.bias - scale * (norm.running_mean if conv.bias is None else norm.running_mean - conv.bias)
    return conv._conv_forward(x, conv.weight * scale[:, None, None, None], shift)


class ConvUnit(nn.Module):
    """Convolution, BatchNorm and ReLU; the padding keeps the size at stride 1."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int = 1, *, eps: float = 1e-5, bias: bool = False
    ) -> None:
        super().__init__()
        self.conv = Conv(inputs, outputs, kernel, stride, padding=kernel // 2, bias=bias)
        self.bn = nn.BatchNorm2d(outputs, eps=eps)

    def forward(self, x: Tensor) -> Tensor:
        """Return shape (N, outputs, ⌈h / stride⌉, ⌈w / stride⌉)."""
        return conv_norm(self.conv, self.bn, x).relu_()
