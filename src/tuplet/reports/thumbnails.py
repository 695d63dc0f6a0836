"""Encode thumbnails. WebP, because the header of a JPEG is larger than the pixels of a thumbnail."""

import base64
import io

from PIL import Image


def as_webp(image: Image.Image) -> bytes:
    """Encode an image as WebP.

    >>> as_webp(Image.new("RGB", (8, 8)))[:4]
    b'RIFF'
    """
    buffer = io.BytesIO()
    image.save(buffer, "WEBP", quality=75, method=4)
    return buffer.getvalue()


def as_uri(webp: bytes) -> str:
    """Return a WebP file as a data URI; "" for b"".

    >>> as_uri(b"RIFF"), as_uri(b"")
    ('data:image/webp;base64,UklGRg==', '')
    """
    return f"data:image/webp;base64,{base64.b64encode(webp).decode()}" if webp else ""
