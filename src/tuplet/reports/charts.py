"""Draw the charts of a run: loss, Recall@K, similarities of pairs, and the weights that the loss gives to pairs."""

from collections.abc import Sequence

import torch

from tuplet.reports.analysis import Similarities
from tuplet.reports.metrics import recalls
from tuplet.reports.pair_weights import PairWeights, WeightedPairs
from tuplet.reports.run import FinishedRun, RunLog
from tuplet.reports.svg import Area, Point, chart, named_scale, percent, round_percent, scale

#: The largest number of points of a curve: about as many as its pixels can show.
MAX_POINTS = 200
#: How far a number stands above its point, in pixels.
_ABOVE, _BELOW = 9, -17


def loss_chart(run: RunLog) -> str:
    """Draw the loss at each logged step and its running mean; return "" without two steps."""
    logged = run.of_kind("train")
    points = _thin([(each["step"], each["loss"]) for each in logged if each["loss"] is not None])
    if len(points) < 2:
        return ""
    smooth = _running_mean(points)
    highest, lowest = max(y for _, y in points), min(y for _, y in points)
    area = Area(scale("step", 0, points[-1][0]), scale("loss", min(0, lowest), _above(highest)))
    marks = area.line(points, "faint") + area.line(smooth, "positive")
    seconds = logged[-1].get("seconds")
    took = f" in {format_duration(seconds)}" if seconds else ""
    caption = f"From {smooth[0][1]:.3g} to {smooth[-1][1]:.3g} over {points[-1][0]:,} steps{took}."
    readout = [(x, f"step {x:,.0f}: {y:.3g}") for x, y in smooth]
    return chart("Loss", caption, area, marks, [("running mean", "positive"), ("as logged", "faint")], readout)


def selection_chart(run: RunLog) -> str:
    """Draw the metric that selects the best checkpoint at each evaluation; return "" without two evaluations.

    The scale is that of the values: from 0 to 100 % a curve would look flat.
    """
    measured = [each for each in run.of_kind("evaluation") if "recall_at_1" in each]
    if len(measured) < 2:
        return ""
    selects = run.settings.get("select_by", "recall_at_1")
    by = selects if all(selects in each for each in measured) else "recall_at_1"
    title = {"map_at_r": "MAP@R"}.get(by, "Recall@1")
    points = [(each["step"], each[by]) for each in measured]
    best = max(points, key=lambda point: point[1])
    lowest = min(y for _, y in points)
    margin = max(0.15 * (best[1] - lowest), 0.01)  # so that noise does not look like a change
    area = Area(
        scale("step", 0, points[-1][0]),
        scale(title, max(0, lowest - margin), best[1] + 1.5 * margin, round_percent),
    )
    marks, start = "", points[0] if points[0][0] == 0 else None
    if start is not None:
        marks += area.line([start, (points[-1][0], start[1])], "other dashed")
    marks += area.line(points, "positive") + area.dots(points, "positive")
    if best is not start:  # its note would lie on the axis
        marks += area.note(best, percent(best[1]), "positive")
    chosen_on = "validation" if run.settings.get("validation") else "test"
    split = run.metrics.get("chosen_on", chosen_on) if isinstance(run, FinishedRun) else chosen_on
    before = f", before training {percent(start[1])}" if start is not None else ""
    caption = f"Best at step {best[0]:,}: {percent(best[1])} on the {split} split{before}."
    averaged = max((each[by] for each in run.of_kind("wise_ft") if by in each), default=0.0)
    if averaged > best[1]:
        caption += f" An average with the weights before training reached {percent(averaged)} and was taken."
    keys = [("this run", "positive"), ("before training", "other")] if start is not None else []
    return chart(
        f"{title} while learning", caption, area, marks, keys, [(x, f"step {x:,}: {percent(y)}") for x, y in points]
    )


def recall_at_k_chart(run: FinishedRun) -> str:
    """Draw Recall@K of the run and of its baselines."""
    values = recalls(run.metrics)
    area = Area(
        named_scale("K, the number of nearest neighbours", [str(k) for k in values]),
        scale("Recall@K", 0, _above(1), round_percent),
    )
    marks, keys = "", [("this run", "positive")]
    first, most = min(values), max(values)
    lifts = dict.fromkeys(values, _ABOVE)
    for name, metrics in run.baselines.items():
        points = [(float(i), recall) for i, (k, recall) in enumerate(recalls(metrics).items()) if k in values]
        is_higher = points[0][1] > values[first]
        if is_higher:
            lifts[first] = _BELOW
        marks += area.line(points, "other") + area.dots(points, "other", 2.5)
        marks += area.note(points[0], percent(points[0][1]), "other", lift=_ABOVE if is_higher else _BELOW)
        # All baselines are grey. The legend names one; several have their names below their lines.
        if len(run.baselines) == 1:
            keys.append((name, "other"))
        else:
            marks += area.note(points[-2:][0], name, "other", lift=_BELOW)
    points = [(float(i), value) for i, value in enumerate(values.values())]
    marks += area.line(points, "positive") + area.dots(points, "positive")
    for point, lift in zip(points, lifts.values(), strict=True):
        marks += area.note(point, percent(point[1]), "positive", lift)
    caption = f"{percent(values[first])} find their own class at K = {first}, {percent(values[most])} at K = {most}."
    return chart("Recall@K", caption, area, marks, keys)


def similarity_histogram(similarities: Similarities) -> str:
    """Draw the histograms of the similarities of positive and of negative pairs."""
    edges, positive, negative = similarities.edges, similarities.positive, similarities.negative
    middles = ((edges[1:] + edges[:-1]) / 2).tolist()
    highest = float(torch.maximum(positive, negative).max())
    area = Area(
        scale("cosine similarity", float(edges[0]), float(edges[-1])),
        scale("share of pairs", 0, _above(highest), round_percent),
    )
    marks = ""
    for kind, heights in (("negative", negative), ("positive", positive)):
        points = list(zip(middles, heights.tolist(), strict=True))
        marks += area.filled(points, kind) + area.line(points, kind)
    caption = (
        f"A pair of one class is more similar than a pair of two classes {percent(similarities.order)} of the time."
    )
    keys = [("same class", "positive"), ("different classes", "negative")]
    both = zip(middles, positive.tolist(), negative.tolist(), strict=True)
    readout = [(x, f"{x:.2f}: {percent(p)} of same, {percent(n)} of different") for x, p, n in both]
    return chart("Similarity of pairs", caption, area, marks, keys, readout)


def weight_charts(weights: PairWeights) -> list[str]:
    """Draw the weights of positive and of negative pairs against their similarity."""
    return [
        _weight_chart("Pull on pairs of one class", "positive", weights.positive),
        _weight_chart("Push on pairs of two classes", "negative", weights.negative),
    ]


def _weight_chart(title: str, kind: str, pairs: WeightedPairs) -> str:
    similarity = [s for s, _ in pairs.points]
    area = Area(
        scale("cosine similarity", min(similarity), max(similarity)),
        scale("weight of a pair, relative to the heaviest", 0, _above(1)),
    )
    heaviest = max(pairs.points, key=lambda point: point[1])[0]
    caption = f"{percent(pairs.unweighted)} of these pairs have no weight; the heaviest has similarity {heaviest:.2f}."
    if pairs.unweighted == 1:
        caption = "None of these pairs has a weight: the loss is zero for all of them."
    return chart(title, caption, area, area.dots(pairs.points, f"{kind} cloud", 1.8))


def format_duration(seconds: float) -> str:
    """Format a duration.

    >>> format_duration(104.5), format_duration(7260), format_duration(3.21)
    ('1 min 44 s', '2 h 1 min', '3.2 s')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _above(highest: float) -> float:
    """Return a little more than the highest value, so that no line touches the upper edge."""
    return highest + 0.07 * abs(highest)


def _thin(points: Sequence[Point]) -> list[Point]:
    """Reduce a curve to at most `MAX_POINTS` points by averaging neighbours."""
    size = -(-len(points) // MAX_POINTS) or 1
    groups = [points[i : i + size] for i in range(0, len(points), size)]
    return [(group[-1][0], sum(y for _, y in group) / len(group)) for group in groups]


def _running_mean(points: Sequence[Point]) -> list[Point]:
    """Replace each point by the mean over a tenth of the curve around it."""
    reach = max(1, len(points) // 20)
    windows = [points[max(0, i - reach) : i + reach + 1] for i in range(len(points))]
    return [(x, sum(y for _, y in window) / len(window)) for (x, _), window in zip(points, windows, strict=True)]
