"""Panels of images: the results of queries, and confused classes."""

from collections.abc import Sequence
from html import escape

from tuplet.reports.analysis import Confusion, Retrieval
from tuplet.reports.examples import as_uri
from tuplet.reports.run import FinishedRun

SIZE = 96


def query_panels(run: FinishedRun, retrieval: Retrieval, queries: Sequence[int]) -> list[str]:
    """Return a panel for each query: its image, then its results, each marked right or wrong."""
    shown = [
        [int(retrieval.queries[query]), *(row for row in retrieval.results[query].tolist() if row >= 0)]
        for query in queries
    ]
    images = iter(run.thumbnails([row for rows in shown for row in rows], SIZE, "drawing panels"))
    panels = []
    for query, rows in zip(queries, shown, strict=True):
        kinds = ["query", *("right" if correct else "wrong" for correct in retrieval.correct[query].tolist())]
        cells = [_cell(run, row, kind, next(images)) for row, kind in zip(rows, kinds, strict=False)]
        rank = int(retrieval.first_correct[query])
        caption = f"first correct result at rank {rank:,}" if rank else "no other example has this class"
        panels.append(_figure("panel", "".join(cells), caption))
    return panels


def confusion_panels(run: FinishedRun, confused: Sequence[Confusion]) -> list[str]:
    """Return a panel for each pair of confused classes, with an image of both."""
    images = iter(run.thumbnails([row for each in confused for row in each.example], SIZE, "drawing panels"))
    cells = ["".join(_cell(run, row, "pair", next(images)) for row in each.example) for each in confused]
    captions = [f"{each.times:,} of {each.queries:,} queries" for each in confused]
    return [_figure("confused", *content) for content in zip(cells, captions, strict=True)]


def _figure(kind: str, cells: str, caption: str) -> str:
    return f'<figure class="{kind}"><div class="strip">{cells}</div><figcaption>{caption}</figcaption></figure>'


def _cell(run: FinishedRun, row: int, kind: str, image: bytes) -> str:
    name, example = escape(run.shown.class_names[row]), escape(run.shown.files[row])
    shown = (
        f'<img src="{as_uri(image)}" alt="" width="{SIZE}" height="{SIZE}">'
        if image
        else f'<div class="blank">{int(run.indices[row])}</div>'
    )
    mark = f'<span class="mark">{kind}</span>'
    return f'<div class="cell {kind}" title="{name} · {example}">{shown}{mark}<span class="name">{name}</span></div>'
