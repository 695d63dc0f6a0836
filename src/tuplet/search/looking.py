"""Photographs as queries: one or several views of each, and a sheet of what was found."""

import io
from collections.abc import Sequence
from typing import Any

from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from tuplet.data.decode import Source, read_image
from tuplet.search.opening import Searchable
from tuplet.search.pictures import embed, pixels
from tuplet.search.results import Hit

_TILE, _GAP, _TEXT = 160, 12, 40
_INK, _PALE, _PAPER = (28, 30, 33), (110, 115, 122), (255, 255, 255)


def query_views(
    index: Searchable, photographs: Sequence[Source], *, mirror: bool = False, together: bool = False
) -> Tensor:
    """Queries (n, views, dim) for `search`, which averages the views of each.

    `mirror` adds to each photograph its mirror image; `together` takes all of them as views of one thing.
    """
    pictures = [pixels(read_image(source), index.embedder) for source in photographs]
    if mirror:
        pictures = [view for picture in pictures for view in (picture, picture.flip(-1))]
    views = embed(pictures, index.embedder)
    return views.view(1 if together else len(photographs), -1, index.dim)


def contact_sheet(index: Searchable, queries: Sequence[Image.Image], found: Sequence[Sequence[Hit]]) -> Image.Image:
    """One picture: a row for each query, the query first, then what was found, with scores and labels."""
    columns = 1 + max((len(hits) for hits in found), default=0)
    width, height = _GAP + columns * (_TILE + _GAP), _GAP + len(queries) * (_TILE + _TEXT + _GAP)
    sheet = Image.new("RGB", (width, height), _PAPER)
    draw = ImageDraw.Draw(sheet)
    bold, plain = ImageFont.load_default(15), ImageFont.load_default(13)
    for row, (query, hits) in enumerate(zip(queries, found, strict=True)):
        top = _GAP + row * (_TILE + _TEXT + _GAP)
        cells: list[tuple[Any, str, str]] = [(query, "query", "")]
        for hit in hits:
            picture = index.picture(hit.id)
            cells.append(
                (
                    picture and Image.open(io.BytesIO(picture)),
                    f"{hit.score:.3f}",
                    str(hit.label if hit.label is not None else hit.id),
                )
            )
        for column, (image, first, second) in enumerate(cells):
            left = _GAP + column * (_TILE + _GAP)
            if image is not None:
                small = image.convert("RGB")
                small.thumbnail((_TILE, _TILE))
                sheet.paste(small, (left + (_TILE - small.width) // 2, top + (_TILE - small.height) // 2))
            draw.text((left, top + _TILE + 4), first, _INK, bold)
            draw.text((left, top + _TILE + 22), _short(second, plain), _PALE, plain)
    return sheet


def _short(text: str, font: ImageFont.ImageFont | ImageFont.FreeTypeFont) -> str:
    """As much of a text as fits below a tile."""
    if font.getlength(text) <= _TILE:
        return text
    while text and font.getlength(f"{text}…") > _TILE:
        text = text[:-1]
    return f"{text}…"
