"""What every backbone is: a chain of stages, some of which are levels that an embedding can be read from."""

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from tuplet.models.preprocessing import Preprocessing

LEVELS = "LMH"
State = dict[str, Tensor]


class Backbone(nn.Module):
    """A network that gives its feature map (N, C, h, w), or its vector (N, C), at each of its levels.

    A backbone says which levels it has and how wide each is (`channels`), and lists its layers in order with the
    level that ends there (`stages`). Running stops at the highest level asked for. A subclass of the user's can be
    given to `models.create` in place of a name.

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
    #: What published weights of this architecture were trained with; None where the input is no picture.
    usual: Preprocessing | None = None
    #: The classifier of published files by its translated name, and their other layers that nothing here needs.
    classifier: str = "fc"
    ignored: tuple[str, ...] = ()

    def stages(self) -> list[tuple[str, nn.Module]]:
        """The layers in order, each with the level that ends with it, or with "" where none does.

        A network whose inside is not known here lists nothing and has a `forward` of its own.
        """
        return []

    def forward(self, images: Tensor, levels: str = "H") -> dict[str, Tensor]:
        """The maps of `levels`, a string such as "LMH"."""
        maps: dict[str, Tensor] = {}
        x = images
        for level, stage in self.stages():
            x = stage(x)
            if level and level in levels:
                maps[level] = x
                if len(maps) == len(levels):
                    break
        return maps

    def beyond(self, levels: str) -> Iterator[nn.Parameter]:
        """The parameters after the highest of `levels`, which no gradient reaches."""
        passed = 0
        for level, stage in self.stages():
            if passed == len(levels):
                yield from stage.parameters()
            passed += bool(level) and level in levels

    def hides_unread(self, levels: str) -> bool:
        """Whether parameters that no gradient reaches lie where `beyond` cannot see them."""
        return not self.stages() and list(self.channels)[-1] not in levels

    @staticmethod
    def translate(state: State) -> State:
        """Published names into those of this class; names that are already right stay."""
        return state


def initialise(backbone: nn.Module) -> None:
    """A random start: convolutions from N(0, 2 / fan-out), BatchNorm the identity."""
    for module in backbone.modules():
        if isinstance(module, nn.Conv2d):
            fan_out = math.prod(module.kernel_size) * module.out_channels // module.groups
            nn.init.normal_(module.weight, std=math.sqrt(2 / fan_out))
            if module.bias is not None:
                nn.init.zeros_(module.bias)


def type_of(network: nn.Module) -> torch.dtype:
    """The type of a network's weights, of the first where they differ.

    >>> type_of(nn.Linear(2, 2).half())
    torch.float16
    """
    return next((p.dtype for p in network.parameters() if p.is_floating_point()), torch.get_default_dtype())


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """Evaluation mode for a while; afterwards every module is back in its own.

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


class ConvUnit(nn.Module):
    """Convolution, BatchNorm, ReLU; padded so that stride 1 keeps the size."""

    def __init__(
        self, inputs: int, outputs: int, kernel: int, stride: int = 1, *, eps: float = 1e-5, bias: bool = False
    ) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, outputs, kernel, stride, padding=kernel // 2, bias=bias)
        self.bn = nn.BatchNorm2d(outputs, eps=eps)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (N, outputs, ⌈h / stride⌉, ⌈w / stride⌉)."""
        return self.bn(self.conv(x)).relu_()
