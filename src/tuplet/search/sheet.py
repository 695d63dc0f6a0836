"""Draw the results of a search as one image."""

from collections.abc import Sequence
from typing import Any

from PIL import Image, ImageDraw, ImageFont

from tuplet.images.decode import read_image
from tuplet.search.base import Searchable
from tuplet.search.results import Hit

_TILE, _GAP, _TEXT = 160, 12, 40
_INK, _PALE, _PAPER = (28, 30, 33), (110, 115, 122), (255, 255, 255)


def contact_sheet(index: Searchable, queries: Sequence[Image.Image], found: Sequence[Sequence[Hit]]) -> Image.Image:
    """Draw one image with a row for each query: the query, then its hits with scores and labels."""
    columns = 1 + max((len(hits) for hits in found), default=0)
    width, height = _GAP + columns * (_TILE + _GAP), _GAP + len(queries) * (_TILE + _TEXT + _GAP)
    sheet = Image.new("RGB", (width, height), _PAPER)
    draw = ImageDraw.Draw(sheet)
    bold, plain = ImageFont.load_default(15), ImageFont.load_default(13)
    for row, (query, hits) in enumerate(zip(queries, found, strict=True)):
        top = _GAP + row * (_TILE + _TEXT + _GAP)
        cells: list[tuple[Any, str, str]] = [(query, "query", "")]
        for hit in hits:
            thumbnail = index.thumbnail(hit.id)
            image = thumbnail and read_image(thumbnail)
            cells.append((image, f"{hit.score:.3f}", str(hit.label if hit.label is not None else hit.id)))
        for column, (image, first, second) in enumerate(cells):
            left = _GAP + column * (_TILE + _GAP)
            if image is not None:
                small = image.copy()
                small.thumbnail((_TILE, _TILE))
                sheet.paste(small, (left + (_TILE - small.width) // 2, top + (_TILE - small.height) // 2))
            draw.text((left, top + _TILE + 4), first, _INK, bold)
            draw.text((left, top + _TILE + 22), _short(second, plain), _PALE, plain)
    return sheet


def _short(text: str, font: ImageFont.ImageFont | ImageFont.FreeTypeFont) -> str:
    """Return as much of a text as fits below a tile."""
    if font.getlength(text) <= _TILE:
        return text
    while text and font.getlength(f"{text}…") > _TILE:
        text = text[:-1]
    return f"{text}…"
