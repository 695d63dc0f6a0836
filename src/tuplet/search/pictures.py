"""Photographs on their way into an index or a query: decoded once, to pixels for the model and a small picture."""

import io
from collections.abc import Sequence
from typing import NamedTuple

import torch
from PIL import Image
from torch import Tensor

from tuplet.data.decode import Source, read_image
from tuplet.models import Embedder
from tuplet.progress import silent

#: The longer side of a stored picture.
PICTURE_SIZE = 256


class Prepared(NamedTuple):
    """A photograph ready for the model, and its small picture as WebP."""

    pixels: Tensor
    picture: bytes


def prepare(source: Source, embedder: Embedder, *, aspect: float | None = None) -> Prepared:
    """Read a photograph as the embedder wants it. `aspect` is the true width / height of a squashed one.

    A file that cannot be read is a ValueError with its path.
    """
    image = read_image(source)
    if aspect is not None:
        image = image.resize((max(1, round(image.height * aspect)), image.height), Image.Resampling.BICUBIC)
    return Prepared(pixels(image, embedder), thumbnail(image))


def pixels(image: Image.Image, embedder: Embedder) -> Tensor:
    """An upright RGB picture as the embedder's weights need it."""
    if embedder.preprocessing is None:
        raise TypeError("this embedder takes no pictures: it has no preprocessing; search with vectors instead")
    return embedder.preprocessing.image(image)


def thumbnail(image: Image.Image) -> bytes:
    """A picture of at most 256 × 256 pixels, as WebP."""
    small = image.copy()
    small.thumbnail((PICTURE_SIZE, PICTURE_SIZE), Image.Resampling.BICUBIC, reducing_gap=2.0)
    file = io.BytesIO()
    small.save(file, "WEBP", quality=80)
    return file.getvalue()


def embed(pictures: Sequence[Tensor], embedder: Embedder) -> Tensor:
    """Vectors (n, width) of prepared pictures."""
    with silent():
        return embedder.embed(torch.stack(list(pictures)) if pictures else [])
