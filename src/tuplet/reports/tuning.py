"""Write the page of a tuning: the best options, what mattered, and every trial."""

import math
import os
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from statistics import fmean
from typing import Any

from tuplet.reports.layout import bars, grid, header, section, wide_table, write_page
from tuplet.reports.metrics import describe_metrics
from tuplet.reports.run import read_json
from tuplet.reports.svg import Area, Scale, chart, named_scale, percent, round_percent, scale

_ABOUT_TABLE = "Best first. The best trials have one score for each seed; seeds draw different validation splits."


def write_tuning(folder: str | os.PathLike[str], command: str = "") -> Path:
    """Write `tuning.html` into the folder of a tuning.

    Args:
        folder: the `out` of `tuplet.training.tune`.
        command: the command that trains with the best options; without it the page shows the call in Python.

    Returns:
        The path of the page.
    """
    found = read_json(Path(folder) / "tuning.json")
    trials, best, source = found["trials"], found["best"], Path(found["data"]).name
    metric = metric_title(found)
    stopped = sum(trial["state"] != "complete" for trial in trials)
    lead = f"{len(trials)} trials on {source} · {stopped} stopped early or failed · measured on the validation split"
    title = f"<em>{metric} {percent(fmean(best['scores']))}</em>: {escape(gain_over_first(found))}"
    chosen = f"Trial {best['trial']}: {describe(best['options'], found['space'])}."
    about = f"{chosen} The test split was not used: this run is the first to measure it."
    arguments = {"recipe": found["recipe"]} if found["recipe"] else {}
    arguments |= best["options"]
    call = f"tuplet.train(data, out, {', '.join(f'{name}={value!r}' for name, value in arguments.items())})"
    body = (
        header("tuplet tuning", title, lead)
        + section("command", "Train with these options", about, f"<pre>{escape(command or call)}</pre>")
        + section("course", "The course of the search", "", grid("charts", [_course(found), *_importance(found)]))
        + section("options", "Every option", "A dot is a trial that was not stopped.", grid("charts", _options(found)))
        + section("table", "Every trial", _ABOUT_TABLE, _table(found))
    )
    return write_page(Path(folder) / "tuning.html", f"{source}: tuning", body)


def metric_title(found: Mapping[str, Any]) -> str:
    """Return the title of the metric by which a tuning chooses."""
    return describe_metrics({found["metric"]: 0.0})[found["metric"]][0]


def describe(options: Mapping[str, Any], space: Mapping[str, Any]) -> str:
    """Return the options of a trial that were searched, in words.

    >>> describe({"loss": "raw", "lr": 0.001, "steps": 20}, {"loss": ["raw", "nca"], "lr": {"low": 1e-4, "high": 0.01}})
    'loss raw, lr 0.001'
    """
    return ", ".join(f"{name} {_text(options[name])}" for name in space)


def gain_over_first(found: Mapping[str, Any]) -> str:
    """Say how the best trial compares with the first one over the same seeds."""
    best, first = found["best"], found["trials"][0]
    what = "the defaults" if found["first_is_default"] else "the first trial"
    if best["trial"] == first["trial"]:
        return f"no trial was better than {what}"
    if first["state"] != "complete":
        return f"{what} did not reach the end of training"
    over = f" over {len(best['scores'])} seeds" if len(best["scores"]) > 1 else ""
    return f"with {what} it is {percent(fmean(first['scores']))}{over}"


def ranked(found: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the trials, the best first, and those that were stopped or failed last.

    Those with several seeds come first: other seeds have other validation classes, so their means are not comparable
    with the scores of one seed.

    >>> rows = [("a", [0.9]), ("b", [0.8, 0.5]), ("c", [0.8, 0.6])]
    >>> found = {"trials": [{"trial": name, "state": "complete", "scores": scores} for name, scores in rows]}
    >>> [row["trial"] for row in ranked(found)]
    ['c', 'b', 'a']
    """

    def order(row: Mapping[str, Any]) -> tuple[bool, int, float]:
        return row["state"] != "complete", -len(row["scores"]), -fmean(row["scores"] or [0.0])

    return sorted(found["trials"], key=order)


def _course(found: Mapping[str, Any]) -> str:
    """Draw the score of every trial in order, and the best so far."""
    rows = [row for row in found["trials"] if row["score"] is not None]
    points = [(float(row["trial"]), row["score"]) for row in rows]
    complete = [(float(row["trial"]), row["score"]) for row in rows if row["state"] == "complete"]
    so_far = [(x, max(y for at, y in complete if at <= x)) for x, _ in points if complete[0][0] <= x]
    x = scale("trial", 0, max(row["trial"] for row in rows))
    area = Area(x, _scores(metric_title(found), [y for _, y in points]))
    stopped = [point for point in points if point not in complete]
    marks = area.line(so_far, "positive") + area.dots(stopped, "faint", 2.5) + area.dots(complete, "positive")
    keys = [("trial, and the best so far", "positive"), *([("stopped early", "faint")] if stopped else [])]
    readout = [(float(row["trial"]), f"trial {row['trial']}: {percent(row['score'])}") for row in rows]
    best = max((row for row in rows if row["state"] == "complete"), key=lambda row: float(row["score"]))
    caption = f"The best of one seed is trial {best['trial']}."
    return chart("Score by trial", caption, area, marks, keys, readout)


def _importance(found: Mapping[str, Any]) -> list[str]:
    """Draw a bar for each option; nothing if there were too few trials."""
    if not found["importance"]:
        return []
    rows = [(name, share, "positive") for name, share in found["importance"].items()]
    drawn = bars("What mattered", rows, max(found["importance"].values()) or 1.0)
    about = "The share of each option in what makes a trial one of the best (PED-ANOVA). A rough guide."
    caption = f"<figcaption><h3>What mattered</h3><p>{about}</p></figcaption>"
    return [f'<figure class="chart importance">{caption}{drawn}</figure>']


def _options(found: Mapping[str, Any]) -> list[str]:
    """Draw the score over the values of each option."""
    rows = [row for row in found["trials"] if row["state"] == "complete"]
    title, charts = metric_title(found), []
    y = _scores(title, [row["score"] for row in rows])
    for name, values in found["space"].items():
        tried = [row["options"][name] for row in rows]
        if isinstance(values, list):
            x = named_scale("", [_text(value) for value in values])
            places = [float(values.index(value)) for value in tried]
        elif values["low"] > 0:
            x, places = _log_scale(name, values["low"], values["high"]), [math.log10(value) for value in tried]
        else:
            x, places = scale(name, values["low"], values["high"]), [float(value) for value in tried]
        area = Area(x, y)
        points = [(place, row["score"]) for place, row in zip(places, rows, strict=True)]
        best = [point for point, row in zip(points, rows, strict=True) if row["trial"] == found["best"]["trial"]]
        marks = area.dots(points, "other cloud") + area.dots(best, "positive", 5)
        value = _text(found["best"]["options"][name])
        charts.append(chart(name, f"Chosen: {value}.", area, marks, [("the best trial", "positive")]))
    return charts


def _table(found: Mapping[str, Any]) -> str:
    """Return every trial: its scores, its options, and how long it took."""
    titles = ["trial", metric_title(found), *(escape(name) for name in found["space"]), "seconds", "ended"]
    lines = []
    for row in ranked(found):
        scores = " ".join(percent(score) for score in row["scores"])
        chosen = [escape(_text(row["options"][name])) for name in found["space"]]
        seconds = "" if row["seconds"] is None else f"{row['seconds']:.1f}"
        ended = escape(row.get("failure", "")) or {"complete": "", "stopped": "stopped early"}[row["state"]]
        number = f"<b>{row['trial']}</b>" if row["trial"] == found["best"]["trial"] else str(row["trial"])
        lines.append([number, scores, *chosen, seconds, ended])
    return wide_table(titles, lines)


def _scores(label: str, values: Sequence[float]) -> Scale:
    """Return the scale of scores, with a margin so that noise does not look like a change."""
    margin = max(0.1 * (max(values) - min(values)), 0.01)
    return scale(label, max(0, min(values) - margin), max(values) + margin, round_percent)


def _log_scale(label: str, low: float, high: float) -> Scale:
    """Return a scale of logarithms with ticks at 1, 2 and 5 times the powers of ten, or at the powers alone.

    >>> [text for _, text in _log_scale("lr", 1e-5, 1e-3).ticks], [text for _, text in _log_scale("", 150, 600).ticks]
    (['1e-05', '0.0001', '0.001'], ['200', '500'])
    """
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    factors = (1,) if high / low > 50 else (1, 2, 5)
    values = [factor * 10.0**power for power in decades for factor in factors]
    ticks = [(math.log10(value), f"{value:g}") for value in values if 0.999 * low <= value <= 1.001 * high]
    margin = 0.04 * math.log10(high / low)
    return Scale(label, math.log10(low) - margin, math.log10(high) + margin, tuple(ticks))


def _text(value: Any) -> str:
    """Return a value as a short text.

    >>> _text(0.0001), _text({"mirror": 0.0, "area": [0.3, 1.0]}), _text(None), _text({})
    ('0.0001', 'mirror 0, area 0.3 to 1', 'none', 'as usual')
    """
    if isinstance(value, Mapping):
        return ", ".join(f"{name} {_text(each)}" for name, each in value.items()) or "as usual"
    if isinstance(value, list):
        return " to ".join(_text(each) for each in value)
    return f"{value:g}" if isinstance(value, float) else "none" if value is None else str(value)
