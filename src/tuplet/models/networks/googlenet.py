"""GoogLeNet with BatchNorm."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from tuplet.models.backbone import LEVELS, Backbone, ConvUnit
from tuplet.models.preprocessing import INCEPTION

# Inputs, then the widths of: 1×1 | 3×3 reduced, 3×3 | third branch reduced, third branch | after pooling.
BLOCKS = {
    "inception3a": (192, 64, 96, 128, 16, 32, 32),
    "inception3b": (256, 128, 128, 192, 32, 96, 64),
    "inception4a": (480, 192, 96, 208, 16, 48, 64),
    "inception4b": (512, 160, 112, 224, 24, 64, 64),
    "inception4c": (512, 128, 128, 256, 24, 64, 64),
    "inception4d": (512, 112, 144, 288, 32, 64, 64),
    "inception4e": (528, 256, 160, 320, 32, 128, 128),
    "inception5a": (832, 256, 160, 320, 32, 128, 128),
    "inception5b": (832, 384, 192, 384, 48, 128, 128),
}


def _unit(inputs: int, outputs: int, kernel: int, stride: int = 1) -> ConvUnit:
    return ConvUnit(inputs, outputs, kernel, stride, eps=1e-3)


class Inception(nn.Module):
    """Four branches side by side; the third has the 3×3 kernels of the published weights where the paper has 5×5."""

    def __init__(self, inputs: int, one: int, reduce3: int, three: int, reduce5: int, five: int, pool: int) -> None:
        super().__init__()
        self.branch1 = _unit(inputs, one, 1)
        self.branch2 = nn.Sequential(_unit(inputs, reduce3, 1), _unit(reduce3, three, 3))
        self.branch3 = nn.Sequential(_unit(inputs, reduce5, 1), _unit(reduce5, five, 3))
        self.branch4 = nn.Sequential(nn.MaxPool2d(3, 1, padding=1), _unit(inputs, pool, 1))

    def forward(self, x: Tensor) -> Tensor:
        """Concatenate the maps of the branches."""
        return torch.cat([self.branch1(x), self.branch2(x), self.branch3(x), self.branch4(x)], 1)


class GoogLeNet(Backbone):
    """Szegedy et al. 2014, with torchvision's names. `ends` are the blocks that end the levels L, M and H.

    The cascade of HDC has its heads on ("inception4a", "inception4d", "inception5b").

    >>> GoogLeNet().channels
    {'L': 480, 'M': 832, 'H': 1024}
    """

    preprocessing = INCEPTION
    ignored = ("aux1.", "aux2.")

    def __init__(self, ends: Sequence[str] = ("inception3b", "inception4e", "inception5b")) -> None:
        super().__init__()
        if sorted(set(ends)) != list(ends) or len(ends) != len(LEVELS) or not set(ends) <= set(BLOCKS):
            raise ValueError(f"ends is {ends!r}; give three blocks from low to high, such as ['inception4a', …]")
        self.ends = dict(zip(ends, LEVELS, strict=True))
        self.conv1 = _unit(3, 64, 7, 2)
        self.maxpool1 = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.conv2 = _unit(64, 64, 1)
        self.conv3 = _unit(64, 192, 3)
        self.maxpool2 = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.maxpool3 = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.maxpool4 = nn.MaxPool2d(2, 2, ceil_mode=True)
        self.channels = {}
        for name, widths in BLOCKS.items():
            self.add_module(name, Inception(*widths))
            if name in self.ends:
                _, one, _, three, _, five, pool = widths
                self.channels[self.ends[name]] = one + three + five + pool

    def stages(self) -> list[tuple[str, nn.Module]]:
        """Return the stem, then the blocks with a pooling before 4a and 5a."""
        chain = ["conv1", "maxpool1", "conv2", "conv3", "maxpool2"]
        pools = {"inception4a": "maxpool3", "inception5a": "maxpool4"}
        for name in BLOCKS:
            chain += [pools[name], name] if name in pools else [name]
        return [(self.ends.get(name, ""), self.get_submodule(name)) for name in chain]
