"""Write the page of a comparison: every loss with its seeds, mean and deviation, and the papers' numbers."""

import os
from collections.abc import Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

from tuplet.reports.layout import header, section, write_page
from tuplet.reports.metrics import describe_metrics
from tuplet.reports.run import read_json
from tuplet.reports.svg import percent, round_percent, scale

#: Metrics that the table shows beside Recall@K; comparison.json has all of them.
SHOWN = ("map_at_r", "nmi", "f1")
#: Pixels of the chart of seeds: its width, the column of names, the margin at the right, the height of a row.
_WIDTH, _NAMES, _RIGHT, _ROW = 920, 210, 110, 34


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
    about_table = "Papers' rows have their own networks and are no reproduction of these runs."
    published = any(row.get("published") for row in rows)
    body = (
        header("tuplet comparison", title, lead)
        + section("seeds", "Recall@1 by loss", about_seeds, f'<figure class="chart seeds">{_chart(rows)}</figure>')
        + section("table", "All numbers", about_table if published else "", _table(rows, Path(folder)))
    )
    return write_page(Path(folder) / "comparison.html", f"{source}: losses", body)


def mean_and_std(row: Mapping[str, Any], name: str) -> str:
    r"""Format the mean of a metric with its standard deviation over the seeds; "" where a row lacks the metric.

    >>> print(mean_and_std({"mean": {"nmi": 0.5}, "std": {"nmi": 0.0123}}, "nmi").replace("\xa0", " "))
    50.0 ± 1.2 %
    """
    if name not in row["mean"]:
        return ""
    mean, std = row["mean"][name], row["std"].get(name)
    return percent(mean) if std is None else f"{100 * mean:.1f} ± {100 * std:.1f}\xa0%"


def shown_metrics(rows: Sequence[Mapping[str, Any]]) -> dict[str, str]:
    """Return the titles of the metrics that a table of a comparison shows, by name."""
    described = describe_metrics({name: value for row in rows for name, value in row["mean"].items()})
    return {name: described[name][0] for name in described if name.startswith("recall_at_") or name in SHOWN}


def _chart(rows: Sequence[Mapping[str, Any]]) -> str:
    """Draw Recall@1 of every run, a row for each loss."""
    values = [[run["metrics"]["recall_at_1"] for run in row.get("runs", ())] for row in rows]
    every = [value for row, own in zip(rows, values, strict=True) for value in (row["mean"]["recall_at_1"], *own)]
    margin = max(0.05 * (max(every) - min(every)), 0.005)
    axis = scale("Recall@1", max(0, min(every) - margin), max(every) + margin, round_percent)
    height = _ROW * len(rows)

    def x(value: float) -> float:
        return _NAMES + (_WIDTH - _NAMES - _RIGHT) * axis.position(value)

    marks = [
        f'<path class="grid" d="M{x(value):.1f} 0V{height}"/>'
        f'<text class="tick middle" x="{x(value):.1f}" y="{height + 20}">{escape(text)}</text>'
        for value, text in axis.ticks
    ]
    for place, (row, own) in enumerate(zip(rows, values, strict=True)):
        y, mean = _ROW * (place + 0.5), row["mean"]["recall_at_1"]
        dots = "".join(f'<circle cx="{x(value):.1f}" cy="{y}" r="4.5"/>' for value in own)
        marks += [
            f'<text class="label end" x="{_NAMES - 14}" y="{y + 4}">{escape(row["loss"])}</text>',
            f'<g class="dots positive cloud">{dots}</g>',
            f'<path class="line positive" d="M{x(mean):.1f} {y - 10}V{y + 10}"/>',
            f'<text class="note" x="{_WIDTH - _RIGHT + 12}" y="{y + 4}">{mean_and_std(row, "recall_at_1")}</text>',
        ]
    label = f"Recall@1 of {len(rows)} losses"
    return f'<svg viewBox="0 0 {_WIDTH} {height + 26}" role="img" aria-label="{label}">{"".join(marks)}</svg>'


def _table(rows: Sequence[Mapping[str, Any]], folder: Path) -> str:
    """Return means and deviations of every loss, the papers' rows below them, and links to the reports of the runs."""
    titles = shown_metrics(rows)
    lines = [["loss", "where", *titles.values(), "reports"]]
    for row in rows:
        links = " ".join(_link(run, folder) for run in row.get("runs", ()))
        lines.append([f"<b>{escape(row['loss'])}</b>", "here", *(mean_and_std(row, name) for name in titles), links])
        for published in row.get("published", ()):
            metrics = published["metrics"]
            source = f"{published['paper']}: {published['method']}, {published['network']}, {published['dim']}-d"
            numbers = [percent(metrics[name]) if name in metrics else "" for name in titles]
            lines.append(["", escape(source), *numbers, ""])
    head, *body = lines
    cells = "".join(f'<th scope="col">{title}</th>' for title in head)
    content = "".join(f"<tr>{''.join(f'<td>{cell}</td>' for cell in line)}</tr>" for line in body)
    return f'<div class="scroll wide"><table><thead><tr>{cells}</tr></thead><tbody>{content}</tbody></table></div>'


def _link(run: Mapping[str, Any], folder: Path) -> str:
    """Return a link to the report of a run, or its seed where it has none."""
    report = Path(run["folder"]) / "report.html"
    if not report.is_file():
        return f"seed {run['seed']}"
    address = escape(Path(os.path.relpath(report, folder)).as_posix())
    return f'<a href="{address}">seed {run["seed"]}</a>'
