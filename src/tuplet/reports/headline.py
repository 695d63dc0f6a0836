"""The head of a report: Recall@1, what it was before training, a summary and the main metrics."""

from html import escape

from tuplet.reports import charts
from tuplet.reports.layout import bars, header
from tuplet.reports.metrics import describe_gain, describe_metrics, recalls
from tuplet.reports.run import FinishedRun, RunLog
from tuplet.reports.svg import percent

#: Metrics that the headline shows beside Recall@K.
TILES = ("map_at_r", "mean_average_precision", "nmi", "f1")


def headline(run: FinishedRun) -> str:
    """Return the title with Recall@1, a summary line, the baselines and the main metrics."""
    ks, recall = list(recalls(run.metrics)), percent(run.metrics["recall_at_1"])
    shown = {f"recall_at_{ks[0]}", f"recall_at_{ks[-1]}", *TILES}
    tiles = "".join(
        f'<div class="tile"><h3>{title}</h3><strong>{percent(value)}</strong><p>{escape(meaning)}</p></div>'
        for name, (title, value, meaning) in describe_metrics(run.metrics).items()
        if name in shown
    )
    title = f"<em>{recall}</em> of the unseen {unit(run)} find their own class first"
    content = f'{_gain(run)}{_baselines(run)}<div class="tiles">{tiles}</div>'
    return header("tuplet report", title, _summary(run), content)


def unfinished_headline(run: RunLog) -> str:
    """Return the title of a run that is not finished: its step, and Recall@1 so far."""
    steps, done = run.settings.get("steps"), max((each.get("step", 0) for each in run.events), default=0)
    measured = [each for each in run.of_kind("evaluation") if "recall_at_1" in each]
    recall = f": Recall@1 <em>{percent(measured[-1]['recall_at_1'])}</em> at step {measured[-1]['step']:,}"
    of = f" of {steps:,}" if isinstance(steps, int) else ""
    title = f"Step {done:,}{of}{recall if measured else ''}"
    lead = f"{_made(run)} · not finished: the same tuplet train command continues it, tuplet report updates this page"
    return header("tuplet report", title, lead)


def unit(run: FinishedRun) -> str:
    """Return what the examples are called."""
    return "images" if run.shown.has_images else "examples"


def _made(run: RunLog) -> str:
    recipe = f" · recipe {run.about['recipe']}" if run.about.get("recipe") else ""
    how = f"trained with {run.settings['loss']}" if run.settings.get("steps") else "without training,"
    return f"{run.settings['model']} {how} on {run.source}{recipe}"


def _summary(run: FinishedRun) -> str:
    """Return model, loss, dataset, steps and time in one line."""
    parts, end = [_made(run)], run.of_kind("end")
    if end and "step" in end[-1]:
        took = f" in {charts.format_duration(end[-1]['seconds'])}" if "seconds" in end[-1] else ""
        parts.append(f"{end[-1]['step']:,} steps{took}")
    parts.append(f"tested on {run.metrics['queries']:,} {unit(run)} of {run.metrics['classes']:,} classes")
    return " · ".join(parts)


def _gain(run: FinishedRun) -> str:
    """Return Recall@1 before and after training with the gain, or "" if the start was not measured."""
    gain = describe_gain(run.metrics)
    if gain is None:
        return ""
    kind = "worse" if run.metrics["gain"]["recall_at_1"] < 0 else "better"
    return f'<p class="gain {kind}">{escape(gain)}</p>'


def _baselines(run: FinishedRun) -> str:
    """Return Recall@1 of the baselines and of the run as bars, or "" without baselines."""
    if not run.baselines:
        return ""
    rows = [(name, metrics["recall_at_1"], "other") for name, metrics in run.baselines.items()]
    rows.append(("this run", run.metrics["recall_at_1"], "positive"))
    return bars("Recall@1 and baselines", rows)
