"""The report: one HTML file that holds everything it shows and asks nothing of the network."""

import os
from collections.abc import Sequence
from html import escape
from pathlib import Path

from tuplet.data import Dataset
from tuplet.durable import replace_file
from tuplet.reports import curves, sections
from tuplet.reports.findings import confusions, search, similarities
from tuplet.reports.map import draw
from tuplet.reports.panels import confusion_panels, query_panels
from tuplet.reports.run import Run, read
from tuplet.reports.weighing import Weighing, weighing

_NO_CURVE = "There is no curve: fewer than two steps were logged; train with a smaller log_every or evaluate_every."
_ABOUT_TYPICAL = "Those nearest to the median of MAP@R, one of each class: what to expect of the run."
_ABOUT_WEIGHTS = (
    "A pair-based loss is a weight for each pair: its derivative by their similarity. These are the pairs of a batch "
    "of test examples, as {loss} weighs them."
)


def write(folder: str | os.PathLike[str], data: Dataset | str | os.PathLike[str] | None = None) -> Path:
    """Write `report.html` of a run folder, and give its path.

    `data` is the dataset, which spares opening it again, or where it lies now if it was moved. A run that is not
    finished is a FileNotFoundError.
    """
    run = read(folder, data)
    path, text = run.folder / "report.html", page(run)
    replace_file(path, lambda aside: aside.write_text(text, "utf-8", "backslashreplace"))
    return path


def page(run: Run) -> str:
    """The whole page of a run."""
    here, source = Path(__file__), Path(run.about["data"]).name
    style, script = (here.with_name(name).read_text(encoding="utf-8") for name in ("page.css", "page.js"))
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        '<meta name="color-scheme" content="light dark"><link rel="icon" href="data:,">'
        f"<title>{escape(source)} · tuplet</title><style>{style}</style></head>"
        f"<body><main>{''.join(_parts(run))}</main><script>{script}</script></body></html>\n"
    )


def _parts(run: Run) -> list[str]:
    found = search(run)
    drawing, shown = draw(run, found)
    worst, typical = found.worst(run.labels, 6), found.typical(run.labels, 4)
    confused, weighed = confusions(run, found, 8), weighing(run)
    # Whoever has no weights to show has a sentence that says why.
    about_weights, weights = (weighed, []) if isinstance(weighed, str) else _weights(weighed)
    learning = [curves.loss_curve(run), curves.recall_curve(run)]
    retrieval = [curves.recall_at_k(run), curves.similarity_histogram(similarities(run))]
    contents = [
        ("map", "The map", sections.about_map(run, shown), _map(drawing)),
        ("learning", "How it learned", "" if any(learning) else _NO_CURVE, _grid("charts", learning)),
        ("retrieval", "What it retrieves", "", _grid("charts", retrieval)),
        (
            "worst",
            "The worst queries",
            sections.about_worst(run, worst),
            _grid("panels", query_panels(run, found, worst)),
        ),
        ("typical", "Typical queries", _ABOUT_TYPICAL, _grid("panels", query_panels(run, found, typical))),
        (
            "confused",
            "Confused classes",
            sections.about_confused(confused),
            _grid("cards", confusion_panels(run, confused)),
        ),
        ("weights", "How the loss weighs pairs", about_weights, _grid("charts", weights)),
        ("settings", "Settings and versions", "", sections.settings_tables(run)),
    ]
    return [sections.headline(run), *(sections.section(*content) for content in contents)]


def _weights(found: Weighing) -> tuple[str, list[str]]:
    return _ABOUT_WEIGHTS.format(loss=found.loss), curves.weight_charts(found)


def _grid(kind: str, drawn: Sequence[str]) -> str:
    return f'<div class="{kind}">{"".join(drawn)}</div>'


def _map(drawing: str) -> str:
    buttons = (
        '<button data-zoom="in" aria-label="zoom in">+</button><button data-zoom="out" aria-label="zoom out">−</button>'
        '<button data-zoom="whole">whole</button>'
        '<label><input type="checkbox"> only those whose nearest is wrong</label>'
    )
    tip = '<div class="tip" hidden><img alt=""><p></p></div>'
    return f'<div class="map"><div class="tools">{buttons}</div>{drawing}{tip}</div>'
