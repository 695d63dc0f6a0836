"""How the options of the protocol are chosen: by coordinate steps, on validation classes of the training split alone.

The rule was written down before the first trial. It starts from the papers' plain choices and takes one coordinate
after another. Every alternative is tried beside the best so far; the best alternative takes its place if its Recall@1
on the validation classes is higher by `MARGIN` at least, else the cheaper and plainer one stays. Each trial is kept, so
the whole choice can be replayed from the files.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

#: A third of the training classes, drawn with seed 0, measures; the other two thirds train.
VALIDATION = {"validation": 0.33, "test_on": "validation", "seed": 0}
#: A table's run trains on half as many classes again as a trial, so it takes half as many steps again: equal epochs.
LONGER = 1.5
#: Of Recall@1. About half of the deviation that chance gives the difference of two trials.
MARGIN = 0.005

Change = Mapping[str, Any]

#: Where the search starts. `augment.area` is the option `area` of `augment`.
START: Change = {"rate": 1e-4, "pooling": "mean", "augment.area": [0.25, 1.0]}

_RATES = ({"rate": 5e-5}, {"rate": 2e-4})
_AREAS = ({"augment.area": [0.1, 1.0]}, {"augment.area": [0.06, 1.0]})
_COLOURS = ({"augment.brightness": 0.4, "augment.contrast": 0.4, "augment.saturation": 0.4},)
_AVERAGES = ({"average": 0.995},)

#: The coordinates of what all methods share, with the alternatives of each, in the order in which they are tried.
SHARED: dict[str, tuple[tuple[Change, ...], ...]] = {
    "cub200": (
        _RATES,
        _AREAS,
        ({"pooling": "mean+max"},),
        ({"layer_norm": True},),
        _COLOURS,
        ({"frozen_batchnorm": "statistics"},),
        _AVERAGES,
        ({"warmup": 100},),
    ),
    # It starts from what CUB-200-2011 has chosen.
    "cars196": (_RATES, _AREAS, _COLOURS, _AVERAGES),
    "glyphs": (_RATES, ({"pooling": "mean+max"},)),
}
#: The families' rates, tried with what is shared.
RATES: tuple[Change, ...] = ({"rate": 5e-5}, {"rate": 1e-4}, {"rate": 2e-4})


def climb(
    start: Change, coordinates: Iterable[Iterable[Change]], score: Callable[[Change], float]
) -> Iterator[dict[str, Any]]:
    """The best options so far: the start, and what the rule has chosen after each coordinate.

    >>> list(climb({"x": 0, "y": 0}, [[{"x": 1}, {"x": 2}], [{"y": 1}]], lambda o: 0.1 * o["x"] - 0.1 * o["y"]))
    [{'x': 0, 'y': 0}, {'x': 2, 'y': 0}, {'x': 2, 'y': 0}]
    """
    chosen = dict(start)
    best = score(chosen)
    yield chosen
    for alternatives in coordinates:
        tried = [{**chosen, **change} for change in alternatives if {**chosen, **change} != chosen]
        scores = [score(options) for options in tried]
        if scores and max(scores) >= best + MARGIN:
            best = max(scores)
            chosen = tried[scores.index(best)]
        yield chosen


def nested(options: Change) -> dict[str, Any]:
    """Options as `tuplet.train` takes them.

    >>> nested({"rate": 1e-4, "augment.area": [0.1, 1.0]})
    {'rate': 0.0001, 'augment': {'area': [0.1, 1.0]}}
    """
    result: dict[str, Any] = {}
    for name, value in options.items():
        outer, dot, inner = name.partition(".")
        if dot:
            result.setdefault(outer, {})[inner] = value
        else:
            result[name] = value
    return result
