"""Decode image files: any image becomes upright 8-bit RGB."""

import errno
import io
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import BinaryIO, TypeAlias

import numpy as np
from PIL import Image, UnidentifiedImageError

from tuplet.errors import first_line
from tuplet.images import limits
from tuplet.images.limits import LimitError, check_file, check_memory, check_size

ImageSource: TypeAlias = str | os.PathLike[str] | bytes | BinaryIO | Image.Image

#: The formats that are read. Pillow knows more: some start other programs, some take hours for a small file.
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "AVIF", "HEIF")
#: The colour behind transparent pixels.
BACKGROUND = (255, 255, 255)

_TRANSPOSE = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}


class UnreadableImageError(ValueError):
    """An image that cannot be read.

    Attributes:
        problem: the image and the reason, in one clause.

    >>> str(UnreadableImageError("image a.jpg cannot be read: it is empty"))
    'image a.jpg cannot be read: it is empty; replace it or leave it out'
    """

    def __init__(self, problem: str) -> None:
        super().__init__(f"{problem}; replace it or leave it out")
        self.problem = problem


class MissingImageError(UnreadableImageError, FileNotFoundError):
    """An image file that does not exist."""


def read_image(source: ImageSource, name: str | None = None, least: int | None = None) -> Image.Image:
    """Decode an image as upright 8-bit RGB.

    The EXIF orientation is applied; one that cannot be read is ignored. Transparent pixels are laid over
    `BACKGROUND`. 16-bit greys are divided by 257. Greyscale, palette, CMYK and YCbCr images become RGB. An animation
    gives its first frame.

    Args:
        source: a path, the bytes of a file, an open binary file, or a PIL image, which is left as it is.
        name: what error messages call the image; the path by default.
        least: decode a JPEG file at a half, a quarter or an eighth of its size where both sides keep this length. This
            is up to three times as fast, for thumbnails and checks; see `CentreCrop` for why vectors do without.

    Raises:
        UnreadableImageError: the file is corrupt, truncated, of another format than `FORMATS`, or exceeds
            one of `tuplet.images.limits`.
        MissingImageError: there is no such file.

    >>> read_image(Image.new("LA", (4, 3), (0, 0))).getpixel((0, 0))
    (255, 255, 255)
    """
    if isinstance(source, str | os.PathLike):
        name = name or str(source)
        try:
            with open_file(source) as file:
                return _decode(file, name, least)
        except OSError as error:
            kind = MissingImageError if isinstance(error, FileNotFoundError) else UnreadableImageError
            raise kind(f"image {name} cannot be read: {error.strerror}") from error
    if isinstance(source, bytes):
        return _decode(io.BytesIO(source), name or f"of {len(source)} bytes in memory", least)
    if not isinstance(source, Image.Image) and not hasattr(source, "read"):
        raise TypeError(f"an image is a path, bytes, a binary file or a PIL image, not a {type(source).__name__}")
    return _decode(source, name or str(getattr(source, "filename", "") or getattr(source, "name", "in memory")), least)


def open_file(path: str | os.PathLike[str]) -> BinaryIO:
    """Open a file to read it; OSError for a pipe or a device, which might never end."""
    mode = os.stat(path).st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise OSError(errno.EINVAL, "it is a pipe or a device and not a file", str(path))
    return Path(path).open("rb")


@contextmanager
def open_image(file: BinaryIO, least: int | None = None) -> Iterator[Image.Image]:
    """Open a file of one of `FORMATS` within the limits; its pixels are not decoded yet.

    The memory that decoding takes is reserved inside the block: see `tuplet.images.limits`.

    Raises:
        LimitError: the image exceeds a limit.
        UnidentifiedImageError: the file is of another format.
    """
    needed = check_file(file)
    with limits.MEMORY.reserve(needed):
        try:
            image = Image.open(file, formats=available_formats())
        except Image.DecompressionBombError:  # Pillow does not tell the size then
            raise LimitError("it has too many pixels", "MAX_PIXELS") from None
        except UnidentifiedImageError:  # its own message names a Python object
            raise UnidentifiedImageError(_unknown(file)) from None
        check_size(*image.size)
        if least is not None:
            image.draft(image.mode, (least, least))
        pixels, progressive = image.width * image.height, bool(image.info.get("progressive"))
        with limits.MEMORY.reserve(0 if needed else check_memory(pixels, image.mode, image.format, progressive)):
            yield image


@cache
def available_formats() -> tuple[str, ...]:
    """Return those of `FORMATS` that this installation reads: HEIF needs an extra, AVIF a recent Pillow."""
    Image.init()
    if find_spec("pillow_heif"):
        from pillow_heif import register_heif_opener

        register_heif_opener()
    return tuple(name for name in FORMATS if name in Image.OPEN)


def _decode(source: BinaryIO | Image.Image, name: str, least: int | None) -> Image.Image:
    try:
        if isinstance(source, Image.Image):
            check_size(*source.size)
            return _upright(source)
        if not source.seekable():
            source = io.BytesIO(source.read())
        with open_image(source, least) as image:
            image.load()
            if image.format == "PNG":
                source.seek(0)
                Image.open(source, formats=["PNG"]).verify()  # decoding does not check the checksums of a PNG
            return _upright(image)
    except LimitError as error:
        raise UnreadableImageError(
            f"image {name} cannot be read: {error} (tuplet.images.limits.{error.limit})"
        ) from error
    except Exception as error:  # Pillow's decoders raise anything from SyntaxError to struct.error
        raise UnreadableImageError(f"image {name} cannot be read: {first_line(error).rstrip('.')}") from error


def _unknown(file: BinaryIO) -> str:
    """Say why a file is of no known format."""
    if file.seek(0, os.SEEK_END) == 0:
        return "it is empty"
    file.seek(4)
    if file.read(8) in (b"ftypheic", b"ftypheix", b"ftypmif1") and "HEIF" not in available_formats():
        return "it is HEIC, which needs pip install 'tuplet[heif]'"
    return f"it is not {', '.join(FORMATS[:-1])} or HEIC"


def _upright(image: Image.Image) -> Image.Image:
    if not image.width * image.height:
        raise ValueError(f"it is {image.width}×{image.height} pixels")
    image.load()
    rgb = _to_rgb(image)
    transpose = _TRANSPOSE.get(_orientation(image))
    if transpose is None:
        return rgb
    upright = rgb.transpose(transpose)
    upright.info = {}  # Pillow copies the orientation, which must not be applied twice
    return upright


def _orientation(image: Image.Image) -> int:
    try:
        return int(image.getexif().get(0x0112, 1))
    except Exception:
        return 1


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith("I"):
        values = np.asarray(image)
        if values.min() < 0 or values.max() > 65535:
            raise ValueError(f"its values run from {values.min()} to {values.max()}, outside 16 bits")
        scaled = values.astype(np.uint32)
        scaled += 128
        scaled //= 257
        return Image.fromarray(scaled.astype(np.uint8)).convert("RGB")
    if image.mode == "F":
        raise ValueError("its pixels are floating-point numbers without a range")
    if image.has_transparency_data:
        rgba = image.convert("RGBA")
        return Image.alpha_composite(Image.new("RGBA", rgba.size, (*BACKGROUND, 255)), rgba).convert("RGB")
    return image if image.mode == "RGB" else image.convert("RGB")
