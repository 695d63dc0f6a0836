"""The charts of a run: how it learned, what it retrieves, how alike its pairs are, how its loss weighs them."""

from collections.abc import Sequence

import torch

from tuplet.reports.charts import Area, Point, chart, named_scale, percent, round_percent, scale
from tuplet.reports.findings import Similarities
from tuplet.reports.metrics import recalls
from tuplet.reports.run import Run
from tuplet.reports.weighing import Pairs, Weighing

#: Points of a curve: more than this many pixels cannot show.
POINTS = 200


def loss_curve(run: Run) -> str:
    """The loss at each logged step, and its running mean."""
    logged = run.of_kind("train")
    points = _thinned([(each["step"], each["loss"]) for each in logged if each["loss"] is not None])
    if len(points) < 2:
        return ""
    smooth = _running_mean(points)
    highest, lowest = max(y for _, y in points), min(y for _, y in points)
    area = Area(scale("step", 0, points[-1][0]), scale("loss", min(0, lowest), _above(highest)))
    marks = area.line(points, "faint") + area.line(smooth, "positive")
    seconds = logged[-1].get("seconds")
    took = f" in {duration(seconds)}" if seconds else ""
    says = f"From {smooth[0][1]:.3g} to {smooth[-1][1]:.3g} over {points[-1][0]:,} steps{took}."
    readout = [(x, f"step {x:,.0f}: {y:.3g}") for x, y in smooth]
    return chart("Loss", says, area, marks, [("running mean", "positive"), ("as logged", "faint")], readout)


def recall_curve(run: Run) -> str:
    """Recall@1 at each evaluation."""
    points = [(each["step"], each["recall_at_1"]) for each in run.of_kind("evaluation") if "recall_at_1" in each]
    if len(points) < 2:
        return ""
    best = max(points, key=lambda point: point[1])
    area = Area(scale("step", 0, points[-1][0]), scale("Recall@1", 0, _above(1), round_percent))
    marks = (
        area.line(points, "positive") + area.dots(points, "positive") + area.note(best, percent(best[1]), "positive")
    )
    says = f"Best at step {best[0]:,}: {percent(best[1])} on the {run.metrics.get('chosen_on', 'test')} classes."
    return chart(
        "Recall@1 while learning", says, area, marks, readout=[(x, f"step {x:,}: {percent(y)}") for x, y in points]
    )


def recall_at_k(run: Run) -> str:
    """Recall@K of the run, beside what it is to be compared with."""
    values = recalls(run.metrics)
    area = Area(
        named_scale("K, how many nearest are looked at", [str(k) for k in values]),
        scale("Recall@K", 0, _above(1), round_percent),
    )
    marks = ""
    for name, metrics in run.baselines.items():
        points = [(float(i), recall) for i, (k, recall) in enumerate(recalls(metrics).items()) if k in values]
        marks += area.line(points, "other") + area.dots(points, "other", 2.5)
        # All are grey: each has its name beside its line.
        marks += area.note(points[0], percent(points[0][1]), "other") + area.note(points[-2:][0], name, "other")
    points = [(float(i), value) for i, value in enumerate(values.values())]
    marks += area.line(points, "positive") + area.dots(points, "positive")
    marks += "".join(area.note(point, percent(point[1]), "positive") for point in points)
    first, most = min(values), max(values)
    says = f"{percent(values[first])} find their own class at K = {first}, {percent(values[most])} at K = {most}."
    return chart("Recall@K", says, area, marks, [("this run", "positive")])


def similarity_histogram(found: Similarities) -> str:
    """How alike the pairs of one class and the pairs of two classes are."""
    middles = ((found.edges[1:] + found.edges[:-1]) / 2).tolist()
    highest = float(torch.maximum(found.positive, found.negative).max())
    area = Area(
        scale("cosine similarity", float(found.edges[0]), float(found.edges[-1])),
        scale("share of pairs", 0, _above(highest), round_percent),
    )
    marks = ""
    for kind, heights in (("negative", found.negative), ("positive", found.positive)):
        points = list(zip(middles, heights.tolist(), strict=True))
        marks += area.filled(points, kind) + area.line(points, kind)
    says = f"A pair of one class is more alike than a pair of two classes {percent(found.order)} of the time."
    keys = [("same class", "positive"), ("different classes", "negative")]
    both = zip(middles, found.positive.tolist(), found.negative.tolist(), strict=True)
    readout = [(x, f"{x:.2f}: {percent(p)} of same, {percent(n)} of different") for x, p, n in both]
    return chart("Similarity of pairs", says, area, marks, keys, readout)


def weight_charts(found: Weighing) -> list[str]:
    """How hard the loss pulls positive pairs and pushes negative ones, against their similarity."""
    return [
        _weights("Pull on pairs of one class", "positive", found.positive),
        _weights("Push on pairs of two classes", "negative", found.negative),
    ]


def _weights(title: str, kind: str, pairs: Pairs) -> str:
    similarity = [s for s, _ in pairs.points]
    area = Area(
        scale("cosine similarity", min(similarity), max(similarity)),
        scale("weight of a pair, the heaviest having 1", 0, _above(1)),
    )
    heaviest = max(pairs.points, key=lambda point: point[1])[0]
    says = f"{percent(pairs.idle)} of these pairs have no weight; the heaviest has similarity {heaviest:.2f}."
    if pairs.idle == 1:
        says = "None of these pairs has a weight: the loss asks nothing more of them."
    return chart(title, says, area, area.dots(pairs.points, f"{kind} cloud", 1.8))


def duration(seconds: float) -> str:
    """A time as people say it.

    >>> duration(104.5), duration(7260), duration(3.21)
    ('1 min 44 s', '2 h 1 min', '3.2 s')
    """
    if seconds < 60:
        return f"{seconds:.1f} s"
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes} min {rest} s" if minutes < 60 else f"{minutes // 60} h {minutes % 60} min"


def _above(highest: float) -> float:
    """A little more than the highest value, so that nothing touches the upper edge."""
    return highest + 0.07 * abs(highest)


def _thinned(points: Sequence[Point]) -> list[Point]:
    """At most `POINTS` points, each the mean of its neighbours."""
    size = -(-len(points) // POINTS) or 1
    groups = [points[i : i + size] for i in range(0, len(points), size)]
    return [(group[-1][0], sum(y for _, y in group) / len(group)) for group in groups]


def _running_mean(points: Sequence[Point]) -> list[Point]:
    """Each point as the mean of those around it, over a tenth of the curve."""
    reach = max(1, len(points) // 20)
    around = [points[max(0, i - reach) : i + reach + 1] for i in range(len(points))]
    return [(x, sum(y for _, y in near) / len(near)) for (x, _), near in zip(points, around, strict=True)]
