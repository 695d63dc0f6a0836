"""Write the report of a run as one HTML file that loads nothing from the network."""

import json
import os
from html import escape
from pathlib import Path

from tuplet.data import Dataset
from tuplet.errors import warn
from tuplet.reports import charts
from tuplet.reports.analysis import confusions, retrieve, similarities
from tuplet.reports.examples import write_kept
from tuplet.reports.headline import headline, unfinished_headline, unit
from tuplet.reports.layout import details, grid, section, table, write_page
from tuplet.reports.map import draw_map
from tuplet.reports.metrics import describe_metrics
from tuplet.reports.pair_weights import pair_weights
from tuplet.reports.panels import confusion_panels, query_panels
from tuplet.reports.run import FinishedRun, RunLog, read_run
from tuplet.reports.svg import percent

_NO_CURVE = "There is no curve: fewer than two steps were logged; train with a smaller log_every or evaluate_every."
_NO_CURVE_YET = "There is no curve yet: fewer than two steps are logged."
_NO_MISTAKES = "There are none: the nearest neighbour of every query has its class."
_WORST = "The queries whose first correct result has the largest rank, at most one per class, with their results."
_TYPICAL = "The queries closest to the median of MAP@R, at most one per class: what to expect of the run."
_CONFUSED = "The pairs of classes whose examples most often have an example of the other class as nearest neighbour."
_WEIGHTS = (
    "The weight of a pair is the derivative of the loss by the similarity of the pair. These are the pairs of a batch "
    "of test examples and their weights in {loss}."
)


def write(folder: str | os.PathLike[str], data: Dataset | str | os.PathLike[str] | None = None) -> Path:
    """Write `report.html` into the folder of a run.

    The run keeps the class names and thumbnails of a report in `examples.zip`. If the dataset is gone later, the report
    is written from them, with a warning. A run that is still training gets a report of what it has logged.

    Args:
        folder: the folder of a run.
        data: the dataset of the run, or the path to which it was moved; by default the path that the run names.

    Returns:
        The path of the report.

    Raises:
        FileNotFoundError: the folder contains no run.
        ValueError: `data` is not the dataset of the run.
    """
    run = read_run(folder, data)
    path = run.folder / "report.html"
    if not isinstance(run, FinishedRun):
        return write_page(path, run.source, unfinished_headline(run) + _learning(run) + _settings(run))
    if run.missing:
        shows = (
            "with the class names and thumbnails that the run has kept" if run.shown.has_images else "without images"
        )
        warn(f"the report is written {shows}: {run.missing}; if the dataset was moved, name its new place")
    written = write_page(path, run.source, headline(run) + _sections(run))
    if run.data is not None:
        write_kept(run.folder, run.shown)
    return written


def _sections(run: FinishedRun) -> str:
    retrieval = retrieve(run)
    map_svg, shown = draw_map(run, retrieval)
    worst, typical = retrieval.worst(run.labels, 6), retrieval.typical(run.labels, 4)
    worst_panels, typical_panels = (query_panels(run, retrieval, queries) for queries in (worst, typical))
    confused = confusions(run, retrieval, 8)
    retrieved = [charts.recall_at_k_chart(run), charts.similarity_histogram(similarities(run))]
    weights = pair_weights(run)
    about_weights = weights if isinstance(weights, str) else _WEIGHTS.format(loss=weights.loss)
    weight_charts = [] if isinstance(weights, str) else charts.weight_charts(weights)
    which = "Point at an image to see its file." if run.shown.has_images else "Numbers are positions in the dataset."
    about_worst = f"{_WORST} {which}" if worst else _NO_MISTAKES
    about_confused = _CONFUSED if confused else _NO_MISTAKES
    sections = [
        section("map", "The map", _about_map(run, shown), _map(map_svg)),
        _learning(run),
        section("retrieval", "What it retrieves", "", grid("charts", retrieved)),
        section("worst", "The worst queries", about_worst, grid("panels", worst_panels)),
        section("typical", "Typical queries", _TYPICAL, grid("panels", typical_panels)),
        section("confused", "Confused classes", about_confused, grid("cards", confusion_panels(run, confused))),
        section("weights", "How the loss weighs pairs", about_weights, grid("charts", weight_charts)),
        _settings(run),
    ]
    return "".join(sections)


def _learning(run: RunLog) -> str:
    curves = [charts.loss_chart(run), charts.selection_chart(run)]
    missing = _NO_CURVE if isinstance(run, FinishedRun) else _NO_CURVE_YET
    return section("learning", "How it learned", "" if any(curves) else missing, grid("charts", curves))


def _about_map(run: FinishedRun, shown: int) -> str:
    some = "" if shown == len(run.labels) else f", chosen evenly from all classes out of {len(run.labels):,}"
    kept = "Images are those that the run has kept" if run.shown.has_images else "Images are not shown"
    missing = f" {kept}: {run.missing}." if run.missing else ""
    return (
        f"{shown:,} test {unit(run)}{some}, placed by t-SNE so that neighbours on the map are neighbours in the "
        "embedding. A colour is a class. Point at an example or at a name below to see the others of the class; zoom "
        f"in for more detail.{missing}"
    )


def _map(svg: str) -> str:
    buttons = (
        '<button data-zoom="in" aria-label="zoom in">+</button><button data-zoom="out" aria-label="zoom out">−</button>'
        '<button data-zoom="whole">whole</button>'
        '<label><input type="checkbox"> only those whose nearest is wrong</label>'
    )
    tip = '<div class="tip" hidden><img alt=""><p></p><div class="near" hidden><img alt=""><p></p></div></div>'
    return f'<div class="map"><div class="tools">{buttons}</div>{svg}{tip}</div>'


def _settings(run: RunLog) -> str:
    """Return collapsible tables of all metrics, settings and versions, and the run as JSON."""
    metrics = run.metrics if isinstance(run, FinishedRun) else {}
    described = {title: f"{percent(value)}: {meaning}" for title, value, meaning in describe_metrics(metrics).values()}
    versions = {"tuplet": run.about["tuplet"], **run.about.get("versions", {})}
    everything = escape(json.dumps({**run.about, "evaluation": metrics}, indent=2))
    tables = (
        (details("Every metric", table(described), "open") if described else "")
        + details("Settings", table(run.settings))
        + details("Versions", table(versions))
        + details("All as JSON", f"<pre>{everything}</pre>")
    )
    return section("settings", "Settings and versions", "", tables)
