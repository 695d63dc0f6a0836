"""BN-Inception, which papers also call GoogLeNet V2, Inception V2 and InceptionBN."""

import re
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn.functional import avg_pool2d, max_pool2d, pad

from tuplet.models.backbone import Backbone, ConvUnit, State
from tuplet.models.preprocessing import BN_INCEPTION


class Widths(NamedTuple):
    """A block's branches: 1×1 | 3×3 reduced, 3×3 | double 3×3 reduced, double 3×3 | after pooling."""

    one: int
    reduce3: int
    three: int
    reduce_double: int
    double: int
    pool: int


# 3c and 4e halve the map: they have no 1×1 branch and no projection after pooling.
BLOCKS = {
    "inception_3a": Widths(64, 64, 64, 64, 96, 32),
    "inception_3b": Widths(64, 64, 96, 64, 96, 64),
    "inception_3c": Widths(0, 128, 160, 64, 96, 0),
    "inception_4a": Widths(224, 64, 96, 96, 128, 128),
    "inception_4b": Widths(192, 96, 128, 96, 128, 128),
    "inception_4c": Widths(160, 128, 160, 128, 160, 128),
    "inception_4d": Widths(96, 128, 192, 160, 192, 128),
    "inception_4e": Widths(0, 128, 192, 192, 256, 0),
    "inception_5a": Widths(352, 192, 320, 160, 224, 128),
    "inception_5b": Widths(352, 192, 320, 192, 224, 128),
}

LEVEL_ENDS = {"inception_3c": "L", "inception_4e": "M", "inception_5b": "H"}


def _unit(inputs: int, outputs: int, kernel: int, stride: int = 1) -> ConvUnit:
    return ConvUnit(inputs, outputs, kernel, stride, bias=True)


class InceptionBlock(nn.ModuleDict):
    """The branches of one inception block, under the names that published files give them."""

    def __init__(self, inputs: int, widths: Widths, last: bool) -> None:
        super().__init__()
        self.halves = widths.one == 0
        self.average = not self.halves and not last
        stride = 2 if self.halves else 1
        if not self.halves:
            self["1x1"] = _unit(inputs, widths.one, 1)
            self["pool_proj"] = _unit(inputs, widths.pool, 1)
        self["3x3_reduce"] = _unit(inputs, widths.reduce3, 1)
        self["3x3"] = _unit(widths.reduce3, widths.three, 3, stride)
        self["double_3x3_reduce"] = _unit(inputs, widths.reduce_double, 1)
        self["double_3x3_1"] = _unit(widths.reduce_double, widths.double, 3)
        self["double_3x3_2"] = _unit(widths.double, widths.double, 3, stride)
        self.outputs = widths.one + widths.three + widths.double + (inputs if self.halves else widths.pool)

    def forward(self, x: Tensor) -> Tensor:
        """Concatenate the maps of the branches."""
        three = self["3x3"](self["3x3_reduce"](x))
        double = self["double_3x3_2"](self["double_3x3_1"](self["double_3x3_reduce"](x)))
        if self.halves:
            # Pad odd sides with zeros, so that the pooled map is rounded up like those of the convolutions. A maximum
            # over outputs of ReLU does not change by zeros.
            even = pad(x, (0, x.shape[3] % 2, 0, x.shape[2] % 2))
            return torch.cat([three, double, max_pool2d(even, 3, 2, ceil_mode=True)], 1)
        pooled = avg_pool2d(x, 3, 1, padding=1) if self.average else max_pool2d(x, 3, 1, padding=1)
        return torch.cat([self["1x1"](x), three, double, self["pool_proj"](pooled)], 1)


class BNInception(Backbone):
    """Ioffe and Szegedy 2015, as its Caffe weights have it. Levels: 3c, 4e and 5b, as for the ranked list loss.

    Reads the published PyTorch files, whose names are flat (`inception_3a_3x3_reduce_bn.weight`) and whose first
    convolution expects BGR: its channels are reversed, since images here are RGB.

    >>> BNInception().channels
    {'L': 576, 'M': 1056, 'H': 1024}
    """

    preprocessing = BN_INCEPTION
    classifier = "last_linear"

    def __init__(self) -> None:
        super().__init__()
        self.conv1_7x7_s2 = _unit(3, 64, 7, 2)
        self.pool1 = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.conv2_3x3_reduce = _unit(64, 64, 1)
        self.conv2_3x3 = _unit(64, 192, 3)
        self.pool2 = nn.MaxPool2d(3, 2, ceil_mode=True)
        self.channels = {}
        inputs = 192
        for name, widths in BLOCKS.items():
            block = InceptionBlock(inputs, widths, last=name == "inception_5b")
            self.add_module(name, block)
            inputs = block.outputs
            if name in LEVEL_ENDS:
                self.channels[LEVEL_ENDS[name]] = inputs

    def stages(self) -> list[tuple[str, nn.Module]]:
        """Return the stem, then the blocks."""
        chain = ["conv1_7x7_s2", "pool1", "conv2_3x3_reduce", "conv2_3x3", "pool2", *BLOCKS]
        return [(LEVEL_ENDS.get(name, ""), self.get_submodule(name)) for name in chain]

    def translate(self, state: State) -> State:
        """`inception_3a_3x3_bn.weight` → `inception_3a.3x3.bn.weight`, and the first convolution from BGR to RGB."""
        result = {}
        for name, value in state.items():
            match = re.fullmatch(r"(conv\d|inception_\d[a-e])_([^.]+?)(_bn)?\.(\w+)", name)
            if match is None:
                result[name] = value
                continue
            block, unit, bn, kind = match.groups()
            where = f"{block}_{unit}" if block.startswith("conv") else f"{block}.{unit}"
            if name == "conv1_7x7_s2.weight":
                value = value.flip(1)
            # Some of the files keep BatchNorm's vectors as (1, C).
            result[f"{where}.{'bn' if bn else 'conv'}.{kind}"] = value.flatten() if bn and value.ndim else value
        return result
