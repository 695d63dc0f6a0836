"""Crops of whole batches, on the device, in plain torch, in the pictures' true proportions.

A stored picture is a square, whatever the true width / height `aspect` of what it shows. A box (left, top, right,
bottom) says in fractions of the picture what a crop shows. It goes below 0 or beyond 1 where the crop is larger than
the picture, and has left and right exchanged for the mirror image.
"""

from functools import lru_cache

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from tuplet.data.decode import MEAN_COLOUR, Fit


@lru_cache
def constant(values: tuple[float, ...], device: torch.device) -> Tensor:
    """Numbers on a device, copied there once: a copy in every step would make the host wait for the device."""
    return torch.tensor(values, device=device)


def check_sizes(size: int, resize: int) -> None:
    """Refuse sizes of crops, and of the pictures that they are cut from, that are none."""
    if not all(isinstance(side, int | np.integer) and side > 0 for side in (size, resize)):
        raise ValueError(f"size is {size} and resize {resize}; both must be positive whole numbers")


def crop(images: Tensor, boxes: Tensor, size: int) -> Tensor:
    """The boxes (N, 4) of the images (N, 3, H, W), bytes or floats, as floats (N, 3, size, size) from 0 to 255.

    Bilinear; where several stored pixels fall on one, that many samples are averaged. Outside the picture its
    border goes on; `paint_outside` covers it.
    """
    # A box seldom shows more than the whole picture: this bounds the shrinking without waiting for the boxes.
    samples = max(1, round(max(images.shape[-2:]) / size))
    x, y = (2 * at - 1 for at in _positions(boxes, size * samples))
    grid = torch.stack(torch.broadcast_tensors(x[:, None, :], y[:, :, None]), -1)
    fine = functional.grid_sample(images.float(), grid, padding_mode="border", align_corners=False)
    return functional.avg_pool2d(fine, samples) if samples > 1 else fine


def paint_outside(crops: Tensor, boxes: Tensor) -> Tensor:
    """Give `MEAN_COLOUR` to those pixels of the crops that lie outside their picture."""
    x, y = (((at > 0) & (at < 1)) for at in _positions(boxes, crops.shape[-1]))
    colour = constant(MEAN_COLOUR, crops.device)[:, None, None].to(crops.dtype)
    return torch.where((y[:, :, None] & x[:, None, :])[:, None], crops, colour)


def _positions(boxes: Tensor, count: int) -> list[Tensor]:
    """The middles of `count` equal steps across the boxes and down the boxes: two tensors (N, count)."""
    steps = (torch.arange(count, device=boxes.device) + 0.5) / count
    return [boxes[:, i, None] + (boxes[:, i + 2] - boxes[:, i])[:, None] * steps for i in (0, 1)]


def picture_sizes(aspects: Tensor, size: int, how: Fit) -> Tensor:
    """Width and height (N, 2) of pictures of these aspects after `tuplet.data.decode.fit`.

    >>> picture_sizes(torch.tensor([1.5, 0.5]), 100, "shorter").tolist()
    [[150.0, 100.0], [100.0, 200.0]]
    """
    if how not in ("square", "shorter", "longer"):
        raise ValueError(f"how is {how!r}; it must be 'square', 'shorter' or 'longer'")
    sides = torch.stack([aspects, torch.ones_like(aspects)], 1)
    if how == "square":
        return torch.full_like(sides, size)
    reference = sides.amin(1, keepdim=True) if how == "shorter" else sides.amax(1, keepdim=True)
    return (size * sides / reference).round().clamp(min=1)


def boxes_at(lefts: Tensor, pictures: Tensor, size: int) -> Tensor:
    """Boxes of size × size pixels whose left upper corners (N, 2) are given in pixels of pictures (N, 2)."""
    return torch.cat([lefts / pictures, (lefts + size) / pictures], 1)


def mirrored(boxes: Tensor) -> Tensor:
    """The boxes from right to left."""
    left, top, right, bottom = boxes.unbind(1)
    return torch.stack([right, top, left, bottom], 1)


def views(
    images: Tensor,
    size: int,
    resize: int = 256,
    fit: Fit = "shorter",
    aspects: Tensor | None = None,
    crops: int = 1,
    mirror: bool = False,
) -> Tensor:
    """What testing looks at: (N, V, 3, size, size) crops of the pictures resized as `tuplet.data.decode.fit` does.

    `crops=1` is the centre; 5 adds the four corners; `mirror` adds the mirror image of each. Where a picture is
    smaller than the crop, `MEAN_COLOUR` surrounds it.

    >>> views(torch.zeros(2, 3, 64, 64, dtype=torch.uint8), 56, resize=64, crops=5, mirror=True).shape
    torch.Size([2, 10, 3, 56, 56])
    """
    check_sizes(size, resize)
    if crops not in (1, 5):
        raise ValueError(f"crops is {crops}; it must be 1 (the centre) or 5 (with the corners)")
    aspects = torch.ones(len(images), device=images.device) if aspects is None else aspects
    pictures = picture_sizes(aspects, resize, fit)
    room = pictures - size
    corners = [room * constant(at, images.device) for at in ((0, 0), (1, 0), (0, 1), (1, 1))]
    boxes = [boxes_at(left, pictures, size) for left in [(room / 2).floor(), *corners][:crops]]
    boxes += [mirrored(box) for box in boxes] if mirror else []
    with torch.no_grad(), torch.autocast(images.device.type, enabled=False):
        shown = [paint_outside(crop(images, box, size), box) for box in boxes]
    return torch.stack(shown, 1)
