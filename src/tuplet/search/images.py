"""Decode images for an index: pixels for the embedder, and a small thumbnail."""

from typing import NamedTuple

from torch import Tensor

from tuplet.embedding import image_pixels
from tuplet.images.crop import thumbnail
from tuplet.images.decode import ImageSource, read_image
from tuplet.models import Embedder


class Prepared(NamedTuple):
    """The pixels of an image for the embedder, and its thumbnail as WebP."""

    pixels: Tensor
    thumbnail: bytes


def prepare(source: ImageSource, embedder: Embedder, aspect: float | None = None) -> Prepared:
    """Decode an image once, for the embedder and for its thumbnail. See `Preprocessing.image` for the arguments."""
    image = read_image(source)
    return Prepared(image_pixels(embedder, image, aspect), thumbnail(image, aspect))
