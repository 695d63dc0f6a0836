"""The parts of the page that are words, numbers and tables."""

import json
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from tuplet.reports.charts import percent
from tuplet.reports.curves import duration
from tuplet.reports.findings import Confusion
from tuplet.reports.metrics import described, recalls
from tuplet.reports.run import Run

#: The metrics that head the page beside Recall@K, where an evaluation has them.
TILES = ("map_at_r", "mean_average_precision", "nmi", "f1")


def section(name: str, title: str, says: str, content: str) -> str:
    """A part of the page under a heading, with a paragraph that says how to read it."""
    about = f"<p>{escape(says)}</p>" if says else ""
    return f'<section id="{name}"><h2>{escape(title)}</h2>{about}{content}</section>'


def examples(run: Run) -> str:
    """What the examples of a run are called."""
    return "examples" if run.data is None or run.data.images is None else "pictures"


def headline(run: Run) -> str:
    """The result in a sentence, what was done, and the most telling numbers."""
    ks, recall = list(recalls(run.metrics)), percent(run.metrics["recall_at_1"])
    shown = {f"recall_at_{ks[0]}", f"recall_at_{ks[-1]}", *TILES}
    known = [each for name, each in described(run.metrics).items() if name in shown]
    tiles = "".join(
        f'<div class="tile"><h3>{title}</h3><strong>{percent(value)}</strong><p>{escape(meaning)}</p></div>'
        for title, value, meaning in known
    )
    return (
        f'<header id="headline"><p class="brand">tuplet report</p>'
        f"<h1><em>{recall}</em> of the unseen {examples(run)} find their own class first</h1>"
        f'<p class="lead">{escape(what_was_done(run))}</p>{_bars(run)}<div class="tiles">{tiles}</div></header>'
    )


def what_was_done(run: Run) -> str:
    """Network, loss, data, length and time in a line."""
    settings, end = run.settings, run.of_kind("end")
    parts = [f"{settings['model']} trained with {settings['loss']} on {Path(run.about['data']).name}"]
    if run.about.get("recipe"):
        parts.append(f"recipe {run.about['recipe']}")
    if end and "step" in end[-1]:
        took = f" in {duration(end[-1]['seconds'])}" if "seconds" in end[-1] else ""
        parts.append(f"{end[-1]['step']:,} steps{took}")
    parts.append(f"tested on {run.metrics['queries']:,} {examples(run)} of {run.metrics['classes']:,} classes")
    return " · ".join(parts)


def _bars(run: Run) -> str:
    """Recall@1 beside that of the baselines, as bars."""
    if not run.baselines:
        return ""
    rows = [(name, metrics["recall_at_1"], "other") for name, metrics in run.baselines.items()]
    rows.append(("this run", run.metrics["recall_at_1"], "positive"))
    bars = "".join(
        f'<dt>{escape(name)}</dt><dd><span class="bar {kind}" style="width:{100 * value:.1f}%"></span>'
        f"<b>{percent(value)}</b></dd>"
        for name, value, kind in rows
    )
    return f'<dl class="bars" aria-label="Recall@1 beside the baselines">{bars}</dl>'


def about_map(run: Run, shown: int) -> str:
    """How to read the map."""
    some = "" if shown == len(run.labels) else f", chosen evenly from all classes out of {len(run.labels):,}"
    return (
        f"{shown:,} test {examples(run)}{some}, laid out by t-SNE so that neighbours here are neighbours in the "
        "embedding. A colour is a class. Point at one to see it with the others of its class; zoom for more detail. "
        f"{run.missing}"
    )


def about_worst(run: Run, chosen: Sequence[int]) -> str:
    """What the worst queries are."""
    if not chosen:
        return "There are none: every query finds its own class first."
    which = "Point at a picture to see its file." if examples(run) == "pictures" else "Numbers are places in the data."
    return f"Those whose first right answer comes last, one of each class: the query, then its nearest. {which}"


def about_confused(confused: Sequence[Confusion]) -> str:
    """What the confused classes are."""
    if not confused:
        return "There are none: every query finds its own class first."
    return "The pairs of classes whose members most often have one of the other as nearest, with the first such case."


def settings_tables(run: Run) -> str:
    """Every metric, every setting and the versions, folded away; and the run as JSON."""
    measured = {
        title: f"{percent(value)}: {meaning[0].lower()}{meaning[1:]}"
        for title, value, meaning in described(run.metrics).values()
    }
    versions = {"tuplet": run.about["tuplet"], **run.about.get("versions", {})}
    return (
        _folded("Every metric", _table(measured), "open")
        + _folded("Settings", _table(run.settings))
        + _folded("Versions", _table(versions))
        + _folded("All as JSON", f"<pre>{escape(json.dumps({**run.about, 'evaluation': run.metrics}, indent=2))}</pre>")
    )


def _folded(title: str, content: str, state: str = "") -> str:
    return f"<details {state}><summary>{title}</summary>{content}</details>"


def _table(rows: Mapping[str, Any]) -> str:
    written = {name: value if isinstance(value, str) else json.dumps(value) for name, value in rows.items()}
    cells = (f'<tr><th scope="row">{escape(name)}</th><td>{escape(text)}</td></tr>' for name, text in written.items())
    return f'<div class="scroll"><table>{"".join(cells)}</table></div>'
