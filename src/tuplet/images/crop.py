"""From an image to the pixels that a network takes: resize it and cut out the centre. There is no other way."""

import io
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, TypeAlias, get_args

import numpy as np
from PIL import Image

from tuplet.errors import OptionError, opt
from tuplet.images.decode import ImageSource, read_image

if TYPE_CHECKING:
    from torch import Tensor

ResizeMode: TypeAlias = Literal["square", "shorter", "longer"]

#: The longer side of a thumbnail.
THUMBNAIL_SIZE = 256
#: The mean colour of ImageNet. It fills the part of a crop that lies outside the image.
MEAN_COLOUR = (124, 116, 104)


def check_crop(size: int, resize: int, resize_mode: str) -> None:
    """Raise an error unless both sizes are positive integers and the mode is a `ResizeMode`."""
    if not all(isinstance(side, int | np.integer) and side > 0 for side in (size, resize)):
        raise OptionError(f"{opt('size')} is {size} and {opt('resize')} {resize}; both must be positive integers")
    if resize_mode not in get_args(ResizeMode):
        raise OptionError(f"{opt('resize_mode')} is {resize_mode!r}; it must be 'square', 'shorter' or 'longer'")


@dataclass(frozen=True)
class CentreCrop:
    """Resize an image and cut out its centre: the one way from an image to the pixels that a network takes.

    An image of many times the size is first reduced by 2, 4 or 8 with a box filter, then resized with an antialiased
    bicubic filter. JPEGs are decoded at full size, not at a fraction of it as libjpeg can: its pixels differ by one
    level here and there, which moves a vector to a cosine of 0.9995, and an image that is decoded already could not
    follow.

    Args:
        size: the side of the crop.
        resize: the side that the image is resized to before.
        resize_mode: `"square"` gives resize × resize whatever the proportions; `"shorter"` and `"longer"` keep the
            proportions and make that side `resize`.

    >>> CentreCrop(224, 256)(Image.new("RGB", (300, 200))).shape
    torch.Size([3, 224, 224])
    """

    size: int
    resize: int
    resize_mode: ResizeMode = "shorter"

    def __post_init__(self) -> None:
        check_crop(self.size, self.resize, self.resize_mode)

    def __call__(self, source: ImageSource, aspect: float | None = None) -> "Tensor":
        """Return the crop as uint8 (3, size, size). See `crop` for `aspect`."""
        return to_tensor(self.crop(read_image(source), aspect))

    def crop(self, image: Image.Image, aspect: float | None = None) -> Image.Image:
        """Return the crop of an upright RGB image; `MEAN_COLOUR` fills what lies outside.

        `aspect` is the true width / height, where the pixels have other proportions. Only the crop is computed: the
        rest of a strip of 10,000 × 1 pixels would take gigabytes.
        """
        width, height = resized_size(aspect or image.width / image.height, self.resize, self.resize_mode)
        shrink = min(image.size) // (2 * self.resize)
        if shrink >= 2:
            image = image.reduce(8 if shrink >= 8 else 4 if shrink >= 4 else 2)
        left, top = (width - self.size) // 2, (height - self.size) // 2
        shown = (max(left, 0), max(top, 0), min(left + self.size, width), min(top + self.size, height))
        across, down = image.width / width, image.height / height
        # Rounding may exceed the side.
        right, bottom = min(shown[2] * across, image.width), min(shown[3] * down, image.height)
        box = (shown[0] * across, shown[1] * down, right, bottom)
        middle = image.resize((shown[2] - shown[0], shown[3] - shown[1]), Image.Resampling.BICUBIC, box)
        if middle.size == (self.size, self.size):
            return middle
        canvas = Image.new("RGB", (self.size, self.size), MEAN_COLOUR)
        canvas.paste(middle, (shown[0] - left, shown[1] - top))
        return canvas


def resized_size(aspect: float, size: int, resize_mode: ResizeMode) -> tuple[int, int]:
    """Return the width and height of an image of this width / height after it is resized.

    >>> resized_size(1.5, 256, "shorter")
    (384, 256)
    """
    if resize_mode == "square" or aspect == 1:
        return size, size
    if (aspect > 1) == (resize_mode == "shorter"):
        return max(1, round(size * aspect)), size
    return size, max(1, round(size / aspect))


def to_tensor(image: Image.Image) -> "Tensor":
    """Return the pixels of an RGB image as uint8 (3, H, W).

    >>> to_tensor(Image.new("RGB", (4, 2))).shape
    torch.Size([3, 2, 4])
    """
    import torch  # here, since a process that decodes uploads does without

    if image.mode != "RGB":
        raise ValueError(f"to_tensor takes an RGB image, got mode {image.mode!r}; read it with read_image first")
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()


def thumbnail(image: Image.Image, aspect: float | None = None, size: int = THUMBNAIL_SIZE) -> bytes:
    """Return the image as WebP of at most `size` × `size` pixels."""
    width, height = (image.height * aspect if aspect else image.width), image.height
    scale = min(1, size / max(width, height))
    sides = (max(1, round(width * scale)), max(1, round(height * scale)))
    file = io.BytesIO()
    image.resize(sides, Image.Resampling.BICUBIC, reducing_gap=2.0).save(file, "WEBP", quality=80)
    return file.getvalue()
