"""How the options of the protocol are chosen: by coordinate steps, on validation classes of the training split alone.

The rule. It starts from the papers' plain choices and takes one coordinate after another. Every alternative is tried
beside the best so far, and the one with the highest Recall@1 on the validation classes challenges it. It takes its
place if its Recall@1 is higher by `MARGIN` at least. Within `MARGIN`, which is chance, MAP@R decides by the same
margin. Where that too is a tie, the cheaper one is taken. Each trial is kept, so that the whole choice can be replayed
from the files. (The first nine trials were made before MAP@R decided ties; no test class had been seen.)
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, NamedTuple

#: A third of the training classes, drawn with seed 0, measures; the other two thirds train.
VALIDATION = {"validation": 0.33, "test_on": "validation", "seed": 0}
#: A table's run trains on half as many classes again as a trial, so it takes half as many steps again: equal epochs.
LONGER = 1.5
#: Of Recall@1 and of MAP@R. About half of the deviation that chance gives the difference of two trials.
MARGIN = 0.005

Change = Mapping[str, Any]


class Score(NamedTuple):
    """What a trial reached on the validation classes."""

    recall_at_1: float
    map_at_r: float

    def beats(self, other: "Score", cheaper: bool) -> bool:
        """Whether it takes the other's place.

        >>> Score(0.50, 0.20).beats(Score(0.49, 0.30), False), Score(0.50, 0.20).beats(Score(0.498, 0.30), False)
        (True, False)
        >>> Score(0.50, 0.20).beats(Score(0.502, 0.202), True)
        True
        """
        for ours, theirs in zip(self, other, strict=True):
            if abs(ours - theirs) >= MARGIN:
                return ours > theirs
        return cheaper


#: Where the search starts. `augment.area` is the option `area` of `augment`.
START: Change = {"rate": 1e-4, "pooling": "mean", "augment.area": [0.25, 1.0]}

_RATES = ({"rate": 5e-5}, {"rate": 2e-4})
_AREAS = ({"augment.area": [0.1, 1.0]}, {"augment.area": [0.06, 1.0]})
_POOLING = ({"pooling": "mean+max"},)
_FROZEN = ({"frozen_to": "L"},)
_COLOURS = ({"augment.brightness": 0.4, "augment.contrast": 0.4, "augment.saturation": 0.4},)
_LOWER = ({"rate": 2e-5},)
_HEADS = ({"head_rate": 1.0},)
_AVERAGES = ({"average": 0.995},)
_NORMS = ({"layer_norm": True},)
#: What makes a run take less time.
CHEAPER = _FROZEN

#: The coordinates of what all methods share, with the alternatives of each, in the order in which they are tried.
SHARED: dict[str, tuple[tuple[Change, ...], ...]] = {
    "cub200": (_RATES, _AREAS, _POOLING, _FROZEN, _LOWER, _HEADS, _COLOURS, _AVERAGES, _NORMS),
    # It starts from what CUB-200-2011 has chosen.
    "cars196": (({"rate": 1e-4},), ({"frozen_to": None},), _COLOURS, _AVERAGES),
    "glyphs": (_RATES, _POOLING),
}
#: What the best recipe varies beyond what is shared: the loss, the levels, more augmentation, decay, and length.
BEST: tuple[tuple[Change, ...], ...] = (
    ({"method": "proxy_anchor"}, {"method": "rll_h"}),
    ({"levels": "MH"},),
    ({"augment.erase": 0.5},),
    ({"weight_decay": 0.1},),
    ({"steps": 1200}, {"steps": 2400}),
)
#: The families' rates, tried with what is shared.
RATES: tuple[Change, ...] = ({"rate": 2e-5}, {"rate": 5e-5}, {"rate": 1e-4})


def climb(
    start: Change, coordinates: Iterable[Iterable[Change]], score: Callable[[Change], Score]
) -> Iterator[dict[str, Any]]:
    """The best options so far: the start, and what the rule has chosen after each coordinate.

    >>> score = lambda o: Score(0.1 * o["x"] - 0.1 * o["y"], 0.0)
    >>> list(climb({"x": 0, "y": 0}, [[{"x": 1}, {"x": 2}], [{"y": 1}]], score))
    [{'x': 0, 'y': 0}, {'x': 2, 'y': 0}, {'x': 2, 'y': 0}]
    """
    chosen = dict(start)
    best = score(chosen)
    yield chosen
    for alternatives in coordinates:
        tried = [change for change in alternatives if {**chosen, **change} != chosen]
        scores = [score({**chosen, **change}) for change in tried]
        if scores and (challenger := max(scores)).beats(best, tried[scores.index(challenger)] in CHEAPER):
            best = challenger
            chosen = {**chosen, **tried[scores.index(challenger)]}
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
