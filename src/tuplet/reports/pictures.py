"""Small pictures as data URIs, so that a page needs nothing but itself."""

import base64
import io
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from PIL import Image

from tuplet.data import Dataset
from tuplet.data.decode import fit_centre
from tuplet.progress import track


def thumbnail(data: Dataset, index: int, size: int) -> str:
    """The central square of an example's picture, in its true proportions, as a data URI."""
    aspect = None if data.aspects is None else float(data.aspects[index])
    return as_uri(fit_centre(data.image(index, least=2 * size), size, size, "shorter", aspect))


def as_uri(image: Image.Image) -> str:
    """A picture as a data URI. WebP, since the head of a JPEG is larger than the pixels of a small picture.

    >>> as_uri(Image.new("RGB", (8, 8)))[:22]
    'data:image/webp;base64'
    """
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", quality=75, method=4)
    return f"data:image/webp;base64,{base64.b64encode(buffer.getvalue()).decode()}"


def thumbnails(data: Dataset, indices: Sequence[int], size: int, what: str) -> list[str]:
    """Many thumbnails in order, decoded by a few threads."""
    with ThreadPoolExecutor() as pool:
        made = pool.map(lambda index: thumbnail(data, index, size), indices)
        return list(track(made, what, total=len(indices)))
