"""Crops of whole batches of stored squares on the device: random ones for training (`Augment`), fixed ones (`views`).

A stored image is a square, whatever its true width / height (`aspect`). A box (left, top, right, bottom) gives the part
that a crop shows, in fractions of the image. It reaches below 0 or beyond 1 where the crop is larger than the image;
left and right are exchanged for a mirrored crop.
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from numbers import Integral, Real

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from tuplet.images.crop import MEAN_COLOUR, ResizeMode, check_crop
from tuplet.rng import uniform

_GREY = (0.299, 0.587, 0.114)
#: RGB to the YIQ of analogue television: Y is grey, and a rotation of I and Q changes only the hue.
_YIQ = np.array([_GREY, [0.595716, -0.274453, -0.321263], [0.211456, -0.522591, 0.311135]])
_ROTATION = np.linalg.inv(_YIQ) @ np.array([[0, 0, 0], [0, 0, -1], [0, 1, 0]]) @ _YIQ
#: The parts of a colour: its grey, the rest, and the rest after the hue is rotated by a quarter.
_PARTS = np.stack([np.outer(np.ones(3), _GREY), np.eye(3) - np.outer(np.ones(3), _GREY), _ROTATION])
_DRAWS = 14


def _two_numbers(value: object) -> bool:
    """Return whether this is a pair of numbers; a command line or a file may give anything."""
    return isinstance(value, tuple | list) and len(value) == 2 and all(isinstance(x, Real) for x in value)


@dataclass(frozen=True)
class Augment:
    """Random crop, mirror image, colour jitter and erasing.

    Without `area` the crop is size × size at a random place of the image resized by `resize` and `resize_mode`: the
    papers' augmentation. With `area` it is a random resized crop.

    The random numbers depend on `seed`, on `step`, on the number of a sample and, where a batch repeats it, on the
    repetition. They do not depend on the rest of the batch, nor on workers or processes. The host never waits for the
    device.

    Args:
        size: the side of the crop.
        resize: the side that images are resized to before the crop.
        resize_mode: which side `resize` means, as in `tuplet.data.CentreCrop`.
        area: the smallest and largest share of the image that a random resized crop shows.
        ratio: its smallest and largest width / height, uniform in the logarithm; it shrinks where it does not fit.
        mirror: the probability of the mirror image.
        brightness: a factor of up to 1 ± the value.
        contrast: the same, about the image's mean grey.
        saturation: the same, about the grey of each pixel.
        hue: a rotation of up to ± the value, in full circles. The four are one 3×3 matrix per image.
        erase: the probability that a rectangle of 2 to 33 % of the crop becomes `MEAN_COLOUR`.
        seed: the seed of all random numbers.

    >>> augment = Augment(size=56, area=(0.2, 1.0), brightness=0.4)
    >>> augment(torch.zeros(2, 3, 64, 64, dtype=torch.uint8), torch.tensor([7, 3]), step=0).shape
    torch.Size([2, 3, 56, 56])
    """

    size: int = 224
    resize: int = 256
    resize_mode: ResizeMode = "shorter"
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
        check_crop(self.size, self.resize, self.resize_mode)
        if self.area is not None and not (_two_numbers(self.area) and 0 < self.area[0] <= self.area[1] <= 1):
            raise ValueError(f"area is {self.area!r}; it must be two shares in order, above 0 and up to 1")
        if not (_two_numbers(self.ratio) and 0 < self.ratio[0] <= self.ratio[1]):
            raise ValueError(f"ratio is {self.ratio!r}; it must be two positive numbers in order")
        for name in ("mirror", "brightness", "contrast", "saturation", "hue", "erase"):
            value, most = getattr(self, name), 0.5 if name == "hue" else 1
            if not (isinstance(value, Real) and 0 <= float(value) <= most):
                raise ValueError(f"{name} is {value!r}; it must be between 0 and {most}")
        if not isinstance(self.seed, Integral):
            raise ValueError(f"seed is {self.seed!r}; it must be an integer")

    def __call__(self, images: Tensor, index: Tensor, step: int, aspects: Tensor | None = None) -> Tensor:
        """Augment a batch.

        Args:
            images: (N, 3, H, W), uint8 or floats from 0 to 255.
            index: (N,), the numbers of the samples in their dataset.
            step: the step of the training.
            aspects: (N,), the true width / height of the images; 1 by default.

        Returns:
            Floats (N, 3, size, size) from 0 to 255.
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
            if self.area is None and (self.resize_mode == "longer" or self.resize < self.size):
                out = paint_outside(out, boxes)
            return self._erase(out, chance[:, 9:14]) if self.erase else out

    def _chances(self, index: Tensor, step: int) -> Tensor:
        """Return uniform numbers (N, 14)."""
        earlier = (index[:, None] == index).tril(-1).sum(1)
        draws = _DRAWS * earlier[:, None] + torch.arange(_DRAWS, device=index.device)
        return uniform(self.seed, step, index[:, None], draws)

    def _boxes(self, aspects: Tensor, chance: Tensor) -> Tensor:
        if self.area is None:
            sizes = resized_sizes(aspects, self.resize, self.resize_mode)
            margin = sizes - self.size
            return boxes_at(margin.sign() * ((margin.abs() + 1) * chance[:, 2:]).floor(), sizes, self.size)
        share = self.area[0] + (self.area[1] - self.area[0]) * chance[:, 0]
        low, high = map(math.log, self.ratio)
        ratio = (low + (high - low) * chance[:, 1]).exp() / aspects
        sides = torch.stack([(share * ratio).sqrt(), (share / ratio).sqrt()], 1)
        sides = sides / sides.amax(1, keepdim=True).clamp(min=1)
        left = (1 - sides) * chance[:, 2:]
        return torch.cat([left, left + sides], 1)

    def _colour(self, images: Tensor, chance: Tensor) -> Tensor:
        """Change brightness, contrast, saturation and hue by one matrix and one offset per image."""
        if not (self.brightness or self.contrast or self.saturation or self.hue):
            return images
        amounts = constant((self.brightness, self.contrast, self.saturation, 2 * math.pi * self.hue), images.device)
        *factors, angle = ((2 * chance - 1) * amounts).unbind(1)
        bright, contrast, saturation = (1 + factor for factor in factors)
        shares = torch.stack([torch.ones_like(angle), saturation * angle.cos(), saturation * angle.sin()], 1)
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


def views(
    images: Tensor,
    size: int,
    resize: int = 256,
    resize_mode: ResizeMode = "shorter",
    aspects: Tensor | None = None,
    crops: int = 1,
    mirror: bool = False,
) -> Tensor:
    """Cut fixed crops out of a batch of stored squares.

    These are quick, and good enough to find hard classes. Results are measured on the crops of `CentreCrop`.

    Args:
        images: (N, 3, H, W), uint8 or floats from 0 to 255.
        size: the side of the crops; this and the next two are those of `CentreCrop`.
        resize: the side that images are resized to before.
        resize_mode: which side `resize` means.
        aspects: (N,), the true width / height of the images; 1 by default.
        crops: 1 for the centre, 5 for the centre and the corners.
        mirror: add the mirror image of each crop.

    Returns:
        Floats (N, V, 3, size, size) from 0 to 255; `MEAN_COLOUR` fills what lies outside an image.

    >>> views(torch.zeros(2, 3, 64, 64, dtype=torch.uint8), 56, resize=64, crops=5, mirror=True).shape
    torch.Size([2, 10, 3, 56, 56])
    """
    check_crop(size, resize, resize_mode)
    if crops not in (1, 5):
        raise ValueError(f"crops is {crops}; it must be 1 (the centre) or 5 (with the corners)")
    aspects = torch.ones(len(images), device=images.device) if aspects is None else aspects
    sizes = resized_sizes(aspects, resize, resize_mode)
    margin = sizes - size
    corners = [margin * constant(at, images.device) for at in ((0, 0), (1, 0), (0, 1), (1, 1))]
    boxes = [boxes_at(corner, sizes, size) for corner in [(margin / 2).floor(), *corners][:crops]]
    boxes += [mirrored(box) for box in boxes] if mirror else []
    with torch.no_grad(), torch.autocast(images.device.type, enabled=False):
        cut = [paint_outside(crop(images, box, size), box) for box in boxes]
    return torch.stack(cut, 1)


@lru_cache
def constant(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Return numbers as a tensor on a device, cached: a copy in every step would make the host wait."""
    return torch.tensor(values, device=device)


def crop(images: Tensor, boxes: Tensor, size: int) -> Tensor:
    """Cut the boxes (N, 4) out of images (N, 3, H, W): floats (N, 3, size, size) from 0 to 255.

    The interpolation is bilinear and averages several samples where the crop shrinks the image. Outside the image its
    border is repeated; `paint_outside` covers it.
    """
    # A box seldom shows more than the image: this bounds the shrinking without waiting for the boxes.
    samples = max(1, round(max(images.shape[-2:]) / size))
    x, y = (2 * at - 1 for at in _positions(boxes, size * samples))
    grid = torch.stack(torch.broadcast_tensors(x[:, None, :], y[:, :, None]), -1)
    fine = functional.grid_sample(images.float(), grid, padding_mode="border", align_corners=False)
    return functional.avg_pool2d(fine, samples) if samples > 1 else fine


def paint_outside(crops: Tensor, boxes: Tensor) -> Tensor:
    """Paint the pixels of the crops that lie outside their image with `MEAN_COLOUR`."""
    x, y = (((at > 0) & (at < 1)) for at in _positions(boxes, crops.shape[-1]))
    colour = constant(MEAN_COLOUR, crops.device)[:, None, None].to(crops.dtype)
    return torch.where((y[:, :, None] & x[:, None, :])[:, None], crops, colour)


def _positions(boxes: Tensor, count: int) -> list[Tensor]:
    """Return the centres of `count` equal steps across and down the boxes: two tensors (N, count)."""
    steps = (torch.arange(count, device=boxes.device) + 0.5) / count
    return [boxes[:, i, None] + (boxes[:, i + 2] - boxes[:, i])[:, None] * steps for i in (0, 1)]


def resized_sizes(aspects: Tensor, size: int, resize_mode: ResizeMode) -> Tensor:
    """Return width and height (N, 2) as `tuplet.images.crop.resized_size` does, for a whole batch on the device.

    >>> resized_sizes(torch.tensor([1.5, 0.5]), 100, "shorter").tolist()
    [[150.0, 100.0], [100.0, 200.0]]
    """
    sides = torch.stack([aspects, torch.ones_like(aspects)], 1)
    if resize_mode == "square":
        return torch.full_like(sides, size)
    reference = sides.amin(1, keepdim=True) if resize_mode == "shorter" else sides.amax(1, keepdim=True)
    return (size * sides / reference).round().clamp(min=1)


def boxes_at(corners: Tensor, images: Tensor, size: int) -> Tensor:
    """Return boxes of size × size pixels from their upper left corners (N, 2) and the image sizes (N, 2) in pixels."""
    return torch.cat([corners / images, (corners + size) / images], 1)


def mirrored(boxes: Tensor) -> Tensor:
    """Exchange left and right of the boxes."""
    left, top, right, bottom = boxes.unbind(1)
    return torch.stack([right, top, left, bottom], 1)
