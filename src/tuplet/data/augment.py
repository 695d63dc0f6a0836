"""Augmentation of whole batches, on the device: every draw is a function of the seed, the step and the sample."""

import math
from dataclasses import dataclass
from numbers import Integral, Real
from typing import get_args

import numpy as np
import torch
from torch import Tensor

from tuplet.counter import uniform
from tuplet.data.crops import boxes_at, check_sizes, constant, crop, mirrored, paint_outside, picture_sizes
from tuplet.data.decode import MEAN_COLOUR, Fit

_GREY = (0.299, 0.587, 0.114)
#: From RGB to the YIQ of analogue television: Y is grey, and a turn of I and Q changes nothing but the hue.
_YIQ = np.array([_GREY, [0.595716, -0.274453, -0.321263], [0.211456, -0.522591, 0.311135]])
_TURN = np.linalg.inv(_YIQ) @ np.array([[0, 0, 0], [0, 0, -1], [0, 1, 0]]) @ _YIQ
#: What a colour becomes: its grey, all but its grey, and all but its grey after a quarter turn of the hue.
_PARTS = np.stack([np.outer(np.ones(3), _GREY), np.eye(3) - np.outer(np.ones(3), _GREY), _TURN])
_DRAWS = 14


def _two_numbers(value: object) -> bool:
    """Whether this is a pair of numbers; what a command line or a file gives may be anything."""
    return isinstance(value, tuple | list) and len(value) == 2 and all(isinstance(x, Real) for x in value)


@dataclass(frozen=True)
class Augment:
    """Random crop, mirror image, colour jitter and erasing.

    **Crop.** Without `area`, a size × size crop at a random place of the picture resized as `tuplet.data.decode.fit`
    does (the papers' augmentation); where the picture is smaller, `MEAN_COLOUR` surrounds it. With `area`, a random
    resized crop: a share of the picture's area between the two, of a width / height between those of `ratio`
    (uniform in its logarithm), shrunk where it does not fit, shown at size × size. Both are in the true proportions
    that `aspects` say.

    **Mirror** with this probability. **Brightness, contrast, saturation**: factors up to 1 ± the value;
    contrast is about the picture's mean grey. **Hue**: a turn of up to ± the value, in full circles. The four
    are one 3×3 matrix a picture, clamped to 0–255 once at the end. **Erase**: with this probability a
    rectangle of 2 to 33 % of the crop becomes `MEAN_COLOUR`.

    The draws depend on `seed`, on `step`, on a sample's number and, if it is in the batch more than once, on which time
    it is: not on the batch around it, nor on the number of workers or processes. The host never waits for the device.

    >>> augment = Augment(size=56, area=(0.2, 1.0), brightness=0.4)
    >>> augment(torch.zeros(2, 3, 64, 64, dtype=torch.uint8), torch.tensor([7, 3]), step=0).shape
    torch.Size([2, 3, 56, 56])
    """

    size: int = 224
    resize: int = 256
    fit: Fit = "shorter"
    area: tuple[float, float] | None = None
    ratio: tuple[float, float] = (3 / 4, 4 / 3)
    mirror: float = 0.5
    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0
    hue: float = 0.0
    erase: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        check_sizes(self.size, self.resize)
        if self.fit not in get_args(Fit):
            raise ValueError(f"fit is {self.fit!r}; it must be 'square', 'shorter' or 'longer'")
        if self.area is not None and not (_two_numbers(self.area) and 0 < self.area[0] <= self.area[1] <= 1):
            raise ValueError(f"area is {self.area!r}; it must be two shares in order, above 0 and up to 1")
        if not (_two_numbers(self.ratio) and 0 < self.ratio[0] <= self.ratio[1]):
            raise ValueError(f"ratio is {self.ratio!r}; it must be two positive numbers in order")
        for name in ("mirror", "brightness", "contrast", "saturation", "hue", "erase"):
            value, most = getattr(self, name), 0.5 if name == "hue" else 1
            if not (isinstance(value, Real) and 0 <= float(value) <= most):
                raise ValueError(f"{name} is {value!r}; it must be between 0 and {most}")
        if not isinstance(self.seed, Integral):
            raise ValueError(f"seed is {self.seed!r}; it must be a whole number")

    def __call__(self, images: Tensor, index: Tensor, step: int, aspects: Tensor | None = None) -> Tensor:
        """Images (N, 3, H, W), bytes or floats from 0 to 255, become floats (N, 3, size, size) from 0 to 255.

        `index` (N,) numbers the samples in their dataset, `step` the training step or the epoch.
        """
        for name, given in (("index", index), ("aspects", index if aspects is None else aspects)):
            if len(given) != len(images):
                raise ValueError(f"{name} has {len(given)} entries for {len(images)} images; they must agree")
        with torch.no_grad(), torch.autocast(images.device.type, enabled=False):
            aspects = torch.ones(len(images), device=images.device) if aspects is None else aspects
            chance = self._chances(index, step)
            boxes = self._boxes(aspects, chance[:, :4])
            boxes = torch.where(chance[:, 4:5] < self.mirror, mirrored(boxes), boxes)
            out = self._colour(crop(images, boxes, self.size), chance[:, 5:9])
            if self.area is None and (self.fit == "longer" or self.resize < self.size):
                out = paint_outside(out, boxes)
            return self._erase(out, chance[:, 9:14]) if self.erase else out

    def _chances(self, index: Tensor, step: int) -> Tensor:
        """Uniform numbers (N, 14)."""
        earlier = (index[:, None] == index).tril(-1).sum(1)
        draws = _DRAWS * earlier[:, None] + torch.arange(_DRAWS, device=index.device)
        return uniform(self.seed, step, index[:, None], draws)

    def _boxes(self, aspects: Tensor, chance: Tensor) -> Tensor:
        if self.area is None:
            pictures = picture_sizes(aspects, self.resize, self.fit)
            room = pictures - self.size
            return boxes_at(room.sign() * ((room.abs() + 1) * chance[:, 2:]).floor(), pictures, self.size)
        share = self.area[0] + (self.area[1] - self.area[0]) * chance[:, 0]
        low, high = map(math.log, self.ratio)
        ratio = (low + (high - low) * chance[:, 1]).exp() / aspects
        sides = torch.stack([(share * ratio).sqrt(), (share / ratio).sqrt()], 1)
        sides = sides / sides.amax(1, keepdim=True).clamp(min=1)
        left = (1 - sides) * chance[:, 2:]
        return torch.cat([left, left + sides], 1)

    def _colour(self, images: Tensor, chance: Tensor) -> Tensor:
        """Brightness, contrast, saturation and hue as one matrix and one offset a picture."""
        if not (self.brightness or self.contrast or self.saturation or self.hue):
            return images
        amounts = constant((self.brightness, self.contrast, self.saturation, 2 * math.pi * self.hue), images.device)
        *factors, turn = ((2 * chance - 1) * amounts).unbind(1)
        bright, contrast, saturation = (1 + factor for factor in factors)
        shares = torch.stack([torch.ones_like(turn), saturation * turn.cos(), saturation * turn.sin()], 1)
        parts = constant(tuple(_PARTS.flatten().tolist()), images.device).view(3, 9)
        matrix = ((bright * contrast)[:, None] * shares @ parts).view(-1, 3, 3)
        out = (matrix @ images.flatten(2)).view_as(images)
        if self.contrast:
            mean_grey = images.mean((2, 3)) @ constant(_GREY, images.device)
            out += (bright * (1 - contrast) * mean_grey)[:, None, None, None]
        return out.clamp_(0, 255)

    def _erase(self, images: Tensor, chance: Tensor) -> Tensor:
        """Paint a rectangle of 2 to 33 % of the area, up to 3.3 times as wide as high or as high as wide."""
        share = 0.02 + 0.31 * chance[:, 1]
        ratio = (math.log(3.3) * (2 * chance[:, 2] - 1)).exp()
        sides = torch.stack([(share * ratio).sqrt(), (share / ratio).sqrt()], 1).clamp(max=1)
        start = (1 - sides) * chance[:, 3:5]
        at = (torch.arange(self.size, device=images.device) + 0.5) / self.size
        across, down = ((at > start[:, i, None]) & (at < (start + sides)[:, i, None]) for i in (0, 1))
        hole = down[:, :, None] & across[:, None, :] & (chance[:, 0] < self.erase)[:, None, None]
        return torch.where(hole[:, None], constant(MEAN_COLOUR, images.device)[:, None, None], images)
