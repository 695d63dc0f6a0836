"""ResNet-50 with the strides of the paper (v1) or of torchvision (v1.5)."""

from typing import Literal, TypeAlias

from torch import Tensor, nn

from tuplet.models.backbone import Backbone, Conv, conv_norm
from tuplet.models.preprocessing import IMAGENET

Strides: TypeAlias = Literal["v1", "v1.5"]
DEPTHS = (3, 4, 6, 3)
EXPANSION = 4


class Bottleneck(nn.Module):
    """1×1 down, 3×3, 1×1 up, beside a shortcut. The stride sits on the first convolution (v1) or the second (v1.5)."""

    def __init__(self, inputs: int, width: int, stride: int, strides: Strides) -> None:
        super().__init__()
        first, second = (stride, 1) if strides == "v1" else (1, stride)
        outputs = EXPANSION * width
        self.conv1 = Conv(inputs, width, 1, first, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = Conv(width, width, 3, second, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = Conv(width, outputs, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(outputs)
        self.downsample: nn.Module = nn.Identity()
        if stride != 1 or inputs != outputs:
            self.downsample = nn.Sequential(Conv(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """Return shape (N, 4 · width, ⌈h / stride⌉, ⌈w / stride⌉)."""
        y = conv_norm(self.conv1, self.bn1, x).relu_()
        y = conv_norm(self.conv2, self.bn2, y).relu_()
        return (conv_norm(self.conv3, self.bn3, y) + self.downsample(x)).relu_()


class ResNet50(Backbone):
    """He et al. 2015, with torchvision's (and timm's) names. Levels: layers 2, 3 and 4.

    `strides="v1"` is for the paper's Caffe weights, `"v1.5"` for those of torchvision and timm. The weights of one load
    into the other without an error and give wrong features, so known weights set their strides.

    >>> ResNet50().channels
    {'L': 512, 'M': 1024, 'H': 2048}
    """

    preprocessing = IMAGENET

    def __init__(self, strides: Strides = "v1.5") -> None:
        super().__init__()
        if strides not in ("v1", "v1.5"):
            raise ValueError(f"strides is {strides!r}; it must be 'v1' or 'v1.5'")
        self.conv1 = Conv(3, 64, 7, 2, padding=3, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2, padding=1)
        inputs = 64
        for i, depth in enumerate(DEPTHS):
            width = 64 * 2**i
            blocks = [Bottleneck(inputs, width, 1 if i == 0 else 2, strides)]
            inputs = EXPANSION * width
            blocks += [Bottleneck(inputs, width, 1, strides) for _ in range(depth - 1)]
            self.add_module(f"layer{i + 1}", nn.Sequential(*blocks))
        self.channels = {"L": 512, "M": 1024, "H": 2048}

    def stages(self) -> list[tuple[str, nn.Module]]:
        """Return the stem, then the four layers."""
        stem = [("", self.conv1), ("", self.bn1), ("", self.relu), ("", self.maxpool)]
        return stem + [(level, self.get_submodule(f"layer{i}")) for i, level in enumerate(("", "L", "M", "H"), start=1)]
