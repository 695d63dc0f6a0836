"""CASIA's network for faces."""

from torch import nn

from tuplet.models.backbone import Backbone
from tuplet.models.preprocessing import Preprocessing

#: The widths of the two convolutions of each block.
WIDTHS = ((32, 64), (64, 128), (96, 192), (128, 256), (160, 320))


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
        self.usual = Preprocessing(100, 100, "square", mean=(127.5,) * channels, std=(127.5,) * channels)
        inputs = channels
        for k, (first, second) in enumerate(WIDTHS, start=1):
            block = [nn.Conv2d(inputs, first, 3, padding=1), nn.ReLU(), nn.Conv2d(first, second, 3, padding=1)]
            if k < len(WIDTHS):
                block += [nn.ReLU(), nn.MaxPool2d(2, ceil_mode=True)]
            self.add_module(f"block{k}", nn.Sequential(*block))
            inputs = second
        self.channels = {"L": 192, "M": 256, "H": 320}

    def stages(self) -> list[tuple[str, nn.Module]]:
        """Return the five blocks."""
        levels = ("", "", "L", "M", "H")
        return [(level, self.get_submodule(f"block{k}")) for k, level in enumerate(levels, start=1)]
