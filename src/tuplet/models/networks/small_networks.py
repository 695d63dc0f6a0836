"""Small networks: two convolutional ones, for small images and for faces, and an MLP for feature vectors."""

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from torch import Tensor, nn

from tuplet.errors import OptionError, opt
from tuplet.models.backbone import Backbone
from tuplet.models.preprocessing import Preprocessing

#: The widths of the two convolutions of each block of CASIA's network.
CASIA_WIDTHS = ((32, 64), (64, 128), (96, 192), (128, 256), (160, 320))


class ConvNet(Backbone):
    """Two convolutions, each halved by max-pooling; with the embedding layer, the network of NRA's 2-D maps.

    It takes square images of `size` pixels, grey (`channels=1`) or RGB (`channels=3`). Its output is the last map as a
    vector of 64 · ⌊size / 4⌋² numbers, so the embedding layer sees positions.

    >>> ConvNet(size=28).channels
    {'H': 3136}
    """

    def __init__(self, size: int = 28, channels: int = 1) -> None:
        super().__init__()
        if not isinstance(size, int | np.integer) or size < 4 or channels not in (1, 3):
            raise ValueError(
                f"size is {size!r} and channels {channels!r}; convnet needs an integer size of 4 or more, and 1 or 3 "
                "channels"
            )
        self.size = size
        self.preprocessing = Preprocessing(size, size, "square", mean=(127.5,) * channels, std=(127.5,) * channels)
        self.layers = nn.Sequential(
            *(nn.Conv2d(channels, 32, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        )
        self.channels = {"H": 64 * (size // 4) ** 2}

    def stages(self) -> list[tuple[str, nn.Module]]:
        """Return the layers in order."""
        *lower, top = self.layers
        return [*(("", layer) for layer in lower), ("H", top)]

    def forward(self, images: Tensor, levels: str = "H") -> dict[str, Tensor]:
        """Return the last map as a vector; raise ValueError for images of another size."""
        height, width = images.shape[-2:]
        if (height, width) != (self.size, self.size):
            raise OptionError(
                f"images are {height}×{width} and this convnet takes {self.size}×{self.size}; "
                f"resize them, or create it with its own option 'size' ({opt('model_options')} in training)"
            )
        return super().forward(images, levels)


class CasiaNet(Backbone):
    """Yi et al. 2014: ten 3×3 convolutions in five blocks, with max-pooling between; levels: blocks 3, 4 and 5.

    It takes images of 100 × 100 pixels, grey (`channels=1`) or RGB (`channels=3`); other sizes pass too. The mean
    of the last map, 320 numbers, is the authors' representation: `models.create("casianet", dim=None)`. The last
    convolution has no ReLU, as theirs is said to have none. Their dropout is not known; there is none here.

    >>> CasiaNet().channels
    {'L': 192, 'M': 256, 'H': 320}
    """

    def __init__(self, channels: int = 1) -> None:
        super().__init__()
        if channels not in (1, 3):
            raise ValueError(f"channels is {channels!r}; casianet takes 1, grey, or 3, RGB")
        self.preprocessing = Preprocessing(100, 100, "square", mean=(127.5,) * channels, std=(127.5,) * channels)
        inputs = channels
        for k, (first, second) in enumerate(CASIA_WIDTHS, start=1):
            block = [nn.Conv2d(inputs, first, 3, padding=1), nn.ReLU(), nn.Conv2d(first, second, 3, padding=1)]
            if k < len(CASIA_WIDTHS):
                block += [nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True)]
            self.add_module(f"block{k}", nn.Sequential(*block))
            inputs = second
        self.channels = {"L": 192, "M": 256, "H": 320}

    def stages(self) -> list[tuple[str, nn.Module]]:
        """Return the five blocks."""
        levels = ("", "", "L", "M", "H")
        return [(level, self.get_submodule(f"block{k}")) for k, level in enumerate(levels, start=1)]


class MLP(Backbone):
    """Fully connected layers with ReLU over feature vectors (N, features); the embedding layer follows.

    >>> MLP(features=100, hidden=(64, 32)).channels
    {'H': 32}
    """

    def __init__(self, features: int, hidden: Sequence[int] = (512,)) -> None:
        super().__init__()
        widths = [features, *hidden] if isinstance(hidden, Sequence) else []
        if not widths or not all(isinstance(width, int | np.integer) and width > 0 for width in widths):
            raise ValueError(
                f"features is {features!r} and hidden {hidden!r}; they must be a positive integer and a list of them, "
                "such as 512 and [64, 64]"
            )
        self.features = features
        layers = [nn.Sequential(nn.Linear(a, b), nn.ReLU()) for a, b in pairwise(widths)]
        self.layers = nn.Sequential(*layers)
        self.channels = {"H": widths[-1]}

    def stages(self) -> list[tuple[str, nn.Module]]:
        """Return the layers in order; without any the vectors stay as they are."""
        *lower, top = self.layers or [self.layers]
        return [*(("", layer) for layer in lower), ("H", top)]

    def forward(self, images: Tensor, levels: str = "H") -> dict[str, Tensor]:
        """Return the output of the last layer; raise ValueError for vectors of another length."""
        if images.ndim != 2 or images.shape[1] != self.features:
            raise ValueError(
                f"vectors have shape {tuple(images.shape)} and this mlp takes (N, {self.features}); give such vectors, "
                "or create it with another number of features"
            )
        return super().forward(images, levels)
