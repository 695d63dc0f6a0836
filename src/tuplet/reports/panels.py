"""Panels of pictures: what queries find, and which classes are taken for one another."""

from collections.abc import Iterator, Sequence
from html import escape

from tuplet.reports.findings import Confusion, Search
from tuplet.reports.pictures import thumbnails
from tuplet.reports.run import Run

SIZE = 96


def query_panels(run: Run, search: Search, chosen: Sequence[int]) -> list[str]:
    """A row for each chosen query: itself, then its nearest, each marked right or wrong."""
    rows = [[int(search.queries[query]), *search.found[query].tolist()] for query in chosen]
    pictures = _pictures(run, [row for shown in rows for row in shown])
    panels = []
    for query, shown in zip(chosen, rows, strict=True):
        marks = ["query", *("right" if right else "wrong" for right in search.right[query].tolist())]
        cells = [_cell(run, row, kind, next(pictures)) for row, kind in zip(shown, marks, strict=True)]
        rank = int(search.first_right[query])
        first = f"first right answer at rank {rank:,}" if rank else "there is no other of this class to find"
        panels.append(
            f'<figure class="panel"><div class="strip">{"".join(cells)}</div><figcaption>{first}</figcaption></figure>'
        )
    return panels


def confusion_panels(run: Run, confused: Sequence[Confusion]) -> list[str]:
    """A card for each pair of classes, with a picture of both."""
    pictures = _pictures(run, [row for each in confused for row in each.example])
    cards = []
    for each in confused:
        first, second = (_cell(run, row, "pair", next(pictures)) for row in each.example)
        text = f"{each.times:,} of {each.queries:,} queries"
        cards.append(
            f'<figure class="confused"><div class="strip">{first}{second}</div><figcaption>{text}</figcaption></figure>'
        )
    return cards


def _pictures(run: Run, rows: Sequence[int]) -> Iterator[str]:
    if run.data is None or run.data.images is None:
        return iter([""] * len(rows))
    return iter(thumbnails(run.data, run.indices[list(rows)].tolist(), SIZE, "drawing panels"))


def _cell(run: Run, row: int, kind: str, picture: str) -> str:
    name, which = escape(run.class_name(row)), escape(run.example(row))
    seen = (
        f'<img src="{picture}" alt="" width="{SIZE}" height="{SIZE}" loading="lazy">'
        if picture
        else f'<div class="blank">{int(run.indices[row])}</div>'
    )
    mark = f'<span class="mark">{kind}</span>'
    return f'<div class="cell {kind}" title="{name} · {which}">{seen}{mark}<span class="name">{name}</span></div>'
