"""From a file to pixels: every image becomes upright 8-bit RGB, or one sentence that names the file."""

import io
import os
from pathlib import Path
from typing import BinaryIO, Literal, TypeAlias

import numpy as np
import torch
from PIL import Image, UnidentifiedImageError
from torch import Tensor

Source: TypeAlias = str | os.PathLike[str] | bytes | BinaryIO | Image.Image
Fit: TypeAlias = Literal["square", "shorter", "longer"]

#: A picture of more pixels than this is refused before a byte of it is decoded: small files that unpack to
#: gigabytes stop a run otherwise. 10,000 × 8,000 pixels pass.
MAX_PIXELS = 80_000_000
#: What shows through a transparent picture.
BACKGROUND = (255, 255, 255)
#: The mean colour of ImageNet, which fills what a crop has no picture for.
MEAN_COLOUR = (124, 116, 104)

_UPRIGHT = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


def read_image(source: Source, name: str | None = None, least: int | None = None) -> Image.Image:
    """Read an image as upright RGB.

    `source` is a path, the bytes of a file, a binary file or an image. The EXIF orientation is applied (one that
    cannot be read counts as upright), transparency is laid over `BACKGROUND`, 16-bit greys are divided by 257 and
    so keep their range, greyscale, palette, CMYK and YCbCr pictures become RGB; of an animation the first frame
    counts. A corrupt or truncated file, and one of more than `MAX_PIXELS` pixels, is a ValueError with its path,
    or with `name` where there is no path. The file of a JPEG may be decoded at a half, a quarter or an eighth of its
    size, which is several times faster, where both sides stay at `least` so long.

    >>> read_image(Image.new("LA", (4, 3), (0, 0))).getpixel((0, 0))
    (255, 255, 255)
    """
    if isinstance(source, str | os.PathLike):
        with _opened(Path(source), name or str(source)) as file:
            return _decode(file, name or str(source), least)
    if isinstance(source, bytes):
        return _decode(io.BytesIO(source), name or f"of {len(source)} bytes in memory", least)
    if not isinstance(source, Image.Image) and not hasattr(source, "read"):
        raise TypeError(f"a picture is a path, bytes, a binary file or a PIL image, not a {type(source).__name__}")
    name = name or str(getattr(source, "filename", "") or getattr(source, "name", "in memory"))
    return _decode(source, name, least)


def _opened(path: Path, name: str) -> BinaryIO:
    """The file, or an error of the same kind that says it in the words of all pictures that cannot be read."""
    try:
        return path.open("rb")
    except OSError as error:
        raise type(error)(f"image {name} cannot be read: {error.strerror}; replace it or leave it out") from error


def _decode(source: BinaryIO | Image.Image, name: str, least: int | None) -> Image.Image:
    try:
        image = source if isinstance(source, Image.Image) else Image.open(source)
        width, height = image.size
        if not width * height:
            raise ValueError(f"it is {width}×{height} pixels")
        if width * height > MAX_PIXELS:
            raise ValueError(f"its {width}×{height} pixels exceed tuplet.data.decode.MAX_PIXELS = {MAX_PIXELS:,}")
        if least is not None and image is not source:  # an image that was given stays as it is
            image.draft(image.mode, (least, least))
        image.load()
        if image.format == "PNG" and not isinstance(source, Image.Image):
            source.seek(0)
            Image.open(source).verify()  # decoding a PNG passes over its checksums
        upright = _UPRIGHT.get(_orientation(image))
        rgb = _to_rgb(image)
        return rgb if upright is None else rgb.transpose(upright)
    except UnidentifiedImageError as error:  # whose own words name a Python object
        raise ValueError(f"image {name} cannot be read: it is of no known kind; replace it or leave it out") from error
    except Exception as error:  # Pillow's decoders raise anything from SyntaxError to struct.error
        reason = str(error).split("\n")[0].rstrip(".") or type(error).__name__
        raise ValueError(f"image {name} cannot be read: {reason}; replace it or leave it out") from error


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(0x0112, 1))
    except Exception:
        return 1


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        values = np.asarray(image).astype(np.int64)
        if values.min() < 0 or values.max() > 65535:
            raise ValueError(f"its values run from {values.min()} to {values.max()}, outside 16 bits")
        return Image.fromarray(((values + 128) // 257).astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers without a range")
    if image.has_transparency_data:
        picture = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", picture.size, (*BACKGROUND, 255)), picture).convert("RGB")
    return image.convert("RGB")


def fit(image: Image.Image, size: int, how: Fit = "shorter", aspect: float | None = None) -> Image.Image:
    """Resize with an antialiased bicubic filter.

    `how`: `"square"` gives size × size whatever the proportions, `"shorter"` makes the shorter side `size`,
    `"longer"` the longer one; both keep the proportions. `aspect` is the true width / height of a picture that
    was squashed; without it the proportions of the pixels are the true ones.

    >>> fit(Image.new("RGB", (40, 20)), 10, "shorter").size
    (20, 10)
    >>> fit(Image.new("RGB", (256, 256)), 120, "longer", aspect=1.5).size
    (120, 80)
    """
    width, height = fitted_size(image.width / image.height if aspect is None else aspect, size, how)
    if image.size == (width, height):
        return image
    return image.resize((width, height), Image.Resampling.BICUBIC)


def fitted_size(aspect: float, size: int, how: Fit) -> tuple[int, int]:
    """The width and height that `fit` gives a picture of this width / height.

    >>> fitted_size(1.5, 256, "shorter")
    (384, 256)
    """
    if how not in ("square", "shorter", "longer"):
        raise ValueError(f"how is {how!r}; it must be 'square', 'shorter' or 'longer'")
    if size < 1 or not aspect > 0:
        raise ValueError(f"size is {size} and aspect {aspect}; both must be positive")
    if how == "square" or aspect == 1:
        return size, size
    if (aspect > 1) == (how == "shorter"):
        return max(1, round(size * aspect)), size
    return size, max(1, round(size / aspect))


def fit_centre(
    image: Image.Image, resize: int, size: int, how: Fit = "shorter", aspect: float | None = None
) -> Image.Image:
    """The size × size middle of what `fit` gives with `resize`; where that does not reach, `MEAN_COLOUR`.

    The rest is not computed: that of a strip, 10,000 pixels long and one high, would take gigabytes.

    >>> fit_centre(Image.new("RGB", (300, 200)), 256, 224).size
    (224, 224)
    """
    width, height = fitted_size(image.width / image.height if aspect is None else aspect, resize, how)
    left, top = (width - size) // 2, (height - size) // 2
    shown = (max(left, 0), max(top, 0), min(left + size, width), min(top + size, height))
    across, down = image.width / width, image.height / height
    box = (
        *(shown[0] * across, shown[1] * down),
        *(min(shown[2] * across, image.width), min(shown[3] * down, image.height)),  # which rounding may pass
    )
    canvas = Image.new("RGB", (size, size), MEAN_COLOUR)
    middle = image.resize((shown[2] - shown[0], shown[3] - shown[1]), Image.Resampling.BICUBIC, box)
    canvas.paste(middle, (shown[0] - left, shown[1] - top))
    return canvas


def to_tensor(image: Image.Image) -> Tensor:
    """The pixels of an RGB image as uint8 (3, H, W).

    >>> to_tensor(Image.new("RGB", (4, 2))).shape
    torch.Size([3, 2, 4])
    """
    if image.mode != "RGB":
        raise ValueError(f"to_tensor takes an RGB image, got mode {image.mode!r}; read it with read_image first")
    return torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous()
