"""Thumbnails, and the file examples.zip of a run: names and thumbnails, for a report without the dataset."""

import base64
import io
import json
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from PIL import Image

from tuplet.atomic import write_atomic

FILE, _ABOUT = "examples.zip", "examples.json"


@dataclass(frozen=True)
class ShownExamples:
    """Names, files and thumbnails of the test examples, from the dataset or from what the run has kept of it.

    `indices` are their positions in the dataset. `class_names` have no folder that contains all classes; `files` are
    relative to the dataset, or numbers if it has no files. `images` are the thumbnails that were drawn, as WebP, by
    their side in pixels and the row of the example.
    """

    indices: Sequence[int]
    class_names: Sequence[str]
    files: Sequence[str]
    has_images: bool
    images: dict[tuple[int, int], bytes] = field(default_factory=dict)


def write_kept(folder: Path, examples: ShownExamples) -> None:
    """Write examples.zip; the same examples give the same bytes."""

    def write(part: Path) -> None:
        with zipfile.ZipFile(part, "w") as packed:
            names = ("indices", "class_names", "files", "has_images")
            about = json.dumps({name: getattr(examples, name) for name in names})
            packed.writestr(zipfile.ZipInfo(_ABOUT), about, zipfile.ZIP_DEFLATED)
            for (size, row), content in examples.images.items():
                packed.writestr(zipfile.ZipInfo(f"{size}/{row}.webp"), content)

    write_atomic(folder / FILE, write)


def read_kept(folder: Path, indices: Sequence[int]) -> ShownExamples | None:
    """Read examples.zip; None if there is none, if it is damaged, or if it describes other examples."""
    try:
        with zipfile.ZipFile(folder / FILE) as packed:
            images = {}
            for name in packed.namelist():
                if name != _ABOUT:
                    size, _, row = name.removesuffix(".webp").partition("/")
                    images[int(size), int(row)] = packed.read(name)
            kept = ShownExamples(**json.loads(packed.read(_ABOUT)), images=images)
    except (OSError, zipfile.BadZipFile, ValueError, KeyError, TypeError):
        return None
    return kept if list(kept.indices) == list(indices) else None


def as_webp(image: Image.Image) -> bytes:
    """Encode an image as WebP: the header of a JPEG is larger than the pixels of a thumbnail.

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
