"""Write the page of a comparison: every loss with its seeds, mean and deviation, and the papers' numbers."""

import os
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

from tuplet.reports.layout import header, section, wide_table, write_page
from tuplet.reports.metrics import describe_metrics
from tuplet.reports.run import read_json
from tuplet.reports.svg import round_percent, scale

#: Metrics that the table shows beside Recall@K; comparison.json has all of them.
SHOWN = ("map_at_r", "nmi", "f1")


class _Size(NamedTuple):
    """Pixels of the chart of seeds; without a column of names, they are above their rows."""

    width: int
    names: int
    right: int
    row: int


#: The chart of a wide window and that of a phone; the style sheet shows one of them.
_SIZES = {"for-wide": _Size(920, 210, 110, 34), "for-narrow": _Size(340, 0, 0, 54)}


def write_comparison(folder: str | os.PathLike[str]) -> Path:
    """Write `comparison.html` into the folder of a comparison.

    Args:
        folder: the `out` of `tuplet.training.compare`.

    Returns:
        The path of the page.
    """
    found = read_json(Path(folder) / "comparison.json")
    rows = sorted(found["rows"], key=lambda row: -row["mean"]["recall_at_1"])
    runs, source = [run for row in rows for run in row.get("runs", ())], Path(found["data"]).name
    seeds = len({run["seed"] for run in runs})
    losses = sum(bool(row.get("runs")) for row in rows)
    lead = f"{losses} losses on {source} · {seeds} seed{'s' * (seeds > 1)} of each · {len(runs)} runs"
    title = f"<em>{escape(rows[0]['loss'])}</em> is first: Recall@1 {mean_and_std(rows[0], 'recall_at_1')}"
    about_seeds = "A dot is a run, a line the mean. Differences within the spread of the seeds may be chance."
    about_table = "The papers used other networks, so their rows cannot be compared with these runs directly."
    published = any(row.get("published") for row in rows)
    body = (
        header("tuplet comparison", title, lead)
        + section("seeds", "Recall@1 by loss", about_seeds, f'<figure class="chart">{_charts(rows)}</figure>')
        + section("table", "All numbers", about_table if published else "", _table(rows, Path(folder)))
    )
    return write_page(Path(folder) / "comparison.html", f"{source}: losses", body)


def shown_metrics(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the titles of the metrics that a table of a comparison shows, by name."""
    described = describe_metrics({name: value for row in rows for name, value in row["mean"].items()})
    return {name: described[name][0] for name in described if name.startswith("recall_at_") or name in SHOWN}


def _charts(rows: Sequence[Mapping[str, Any]]) -> str:
    return "".join(f'<div class="{name}">{_chart(rows, size)}</div>' for name, size in _SIZES.items())


def _chart(rows: Sequence[Mapping[str, Any]], size: _Size) -> str:
    """Draw Recall@1 of every run, a row for each loss."""
    values = [[run["metrics"]["recall_at_1"] for run in row.get("runs", ())] for row in rows]
    every = [value for row, own in zip(rows, values, strict=True) for value in (row["mean"]["recall_at_1"], *own)]
    margin = max(0.05 * (max(every) - min(every)), 0.005)
    axis = scale("Recall@1", max(0, min(every) - margin), max(every) + margin, round_percent)
    height = size.row * len(rows)
    # The labels of the first and the last tick stay inside.
    left, right = (size.names, size.right) if size.names else (22, 22)

    def x(value: float) -> float:
        return left + (size.width - left - right) * axis.position(value)

    marks = [
        f'<path class="grid" d="M{x(value):.1f} 0V{height}"/>'
        f'<text class="tick middle" x="{x(value):.1f}" y="{height + 20}">{escape(text)}</text>'
        for value, text in axis.ticks[:: 1 if size.names else 2]  # a narrow chart has room for half of them
    ]
    for place, (row, own) in enumerate(zip(rows, values, strict=True)):
        y, mean = size.row * (place + (0.5 if size.names else 0.68)), row["mean"]["recall_at_1"]
        # Beside the row, or above it at the two sides.
        text_y = y + 4 if size.names else y - 18
        name_at, value_at = ("end", size.names - 14), ("", size.width - size.right + 12)
        if not size.names:
            name_at, value_at = ("", 0), ("end", size.width)
        dots = "".join(f'<circle cx="{x(value):.1f}" cy="{y}" r="4.5"/>' for value in own)
        marks += [
            f'<text class="label {name_at[0]}" x="{name_at[1]}" y="{text_y:.1f}">{escape(row["loss"])}</text>',
            f'<g class="dots positive cloud">{dots}</g>',
            f'<path class="line positive" d="M{x(mean):.1f} {y - 10}V{y + 10}"/>',
            f'<text class="note {value_at[0]}" x="{value_at[1]}" y="{text_y:.1f}">'
            f"{mean_and_std(row, 'recall_at_1')}</text>",
        ]
    label = f"Recall@1 of {len(rows)} losses"
    return f'<svg viewBox="0 0 {size.width} {height + 26}" role="img" aria-label="{label}">{"".join(marks)}</svg>'


def table_rows(
    rows: Sequence[Mapping[str, Any]], names: Sequence[str], digits: int
) -> Iterator[tuple[list[str], Sequence[Mapping[str, Any]]]]:
    """Yield the table row of each loss with its runs, followed by the rows that papers print, which have no runs."""
    for row in rows:
        runs = row.get("runs", ())
        where = f"here, {len(runs)} seeds" if len(runs) > 1 else "here"
        yield [row["loss"], where, *(mean_and_std(row, name, digits) for name in names)], runs
        for published in row.get("published", ()):
            source = f"{published['paper']}: {published['method']}, {published['network']}, {published['dim']}-d"
            yield ["", source, *(mean_and_std({"mean": published["metrics"]}, name, digits) for name in names)], ()


def mean_and_std(row: Mapping[str, Any], name: str, digits: int = 1) -> str:
    r"""Format the mean of a metric, with its standard deviation if there is one; "" where a row lacks the metric.

    >>> print(mean_and_std({"mean": {"nmi": 0.5}, "std": {"nmi": 0.0123}}, "nmi").replace("\xa0", " "))
    50.0 ± 1.2 %
    """
    mean, std = row["mean"].get(name), row.get("std", {}).get(name)
    spread = "" if std is None else f"\xa0±\xa0{100 * std:.{digits}f}"
    return "" if mean is None else f"{100 * mean:.{digits}f}{spread}\xa0%"


def _table(rows: Sequence[Mapping[str, Any]], folder: Path) -> str:
    """Return means and deviations of every loss, the papers' rows below them, and links to the reports of the runs."""
    titles, lines = shown_metrics(rows), []
    for (loss, *cells), runs in table_rows(rows, list(titles), digits=1):
        links = " ".join(_link(run, folder) for run in runs)
        lines.append([f"<b>{escape(loss)}</b>", *map(escape, cells), links])
    return wide_table(["loss", "where", *titles.values(), "reports"], lines)


def _link(run: Mapping[str, Any], folder: Path) -> str:
    """Return a link to the report of a run, or its seed where it has none."""
    report = Path(run["folder"]) / "report.html"
    if not report.is_file():
        return f"seed\xa0{run['seed']}"
    address = escape(Path(os.path.relpath(report, folder)).as_posix())
    return f'<a href="{address}">seed\xa0{run["seed"]}</a>'
