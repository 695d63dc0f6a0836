"""Crops of whole batches of stored squares, on the device, in the true proportions of the images.

A stored image is a square, whatever its true width / height (`aspect`). A box (left, top, right, bottom) gives the part
that a crop shows, in fractions of the image. It reaches below 0 or beyond 1 where the crop is larger than the image;
left and right are exchanged for a flipped crop.
"""

from functools import lru_cache

import torch
from torch import Tensor
from torch.nn import functional

from tuplet.images.crop import MEAN_COLOUR, ResizeMode, check_crop


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


def flipped(boxes: Tensor) -> Tensor:
    """Exchange left and right."""
    left, top, right, bottom = boxes.unbind(1)
    return torch.stack([right, top, left, bottom], 1)


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

    `size`, `resize` and `resize_mode` are those of `CentreCrop`, `aspects` (N,) the true width / height of the images.
    `crops` is 1 for the centre or 5 for the centre and the corners; `mirror` adds the mirror image of each. The result
    is floats (N, V, 3, size, size) from 0 to 255; `MEAN_COLOUR` fills what lies outside an image.

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
    boxes += [flipped(box) for box in boxes] if mirror else []
    with torch.no_grad(), torch.autocast(images.device.type, enabled=False):
        cut = [paint_outside(crop(images, box, size), box) for box in boxes]
    return torch.stack(cut, 1)
