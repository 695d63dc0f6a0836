"""Search hyper-parameters one coordinate at a time; the values that are tried are in hyperparameter_space.py.

The rule: start from plain values and go through the coordinates in order. All values of a coordinate are tried, and the
one with the highest Recall@1 replaces the best so far if it is better by `MARGIN`. If Recall@1 differs by less, which
is chance, MAP@R decides by the same margin; if that is a tie too, the cheaper options stay, which are tried first.
Ordered values, such as learning rates, are followed in one direction for as long as each improves on the one before, so
the best is never the last that was tried. Candidates that are close to each other are compared by the mean over three
seeds.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

#: The least difference of Recall@1 and of MAP@R that counts: half the standard deviation of a difference of two trials.
MARGIN = 0.005
#: A lead in Recall@1 that no other seed makes up for.
CLEAR_LEAD = 0.02

#: Options by their names; "augment.area" is the entry "area" of the option `augment`.
Options: TypeAlias = Mapping[str, Any]


class Ordered(NamedTuple):
    """An option whose values are tried in order.

    Attributes:
        name: the option.
        values: its values, ascending.
        direction: +1 or -1, the direction that is tried first.
        one_way: do not try the other direction if the first step fails.
    """

    name: str
    values: tuple[float, ...]
    direction: int
    one_way: bool = False


#: Alternatives of which the best is taken, or an option with ordered values.
Coordinate: TypeAlias = tuple[Options, ...] | Ordered


class Score(NamedTuple):
    """The result of a trial on the validation classes."""

    recall_at_1: float
    map_at_r: float

    def beats(self, other: "Score") -> bool:
        """Return whether this score replaces that of the cheaper options.

        >>> Score(0.50, 0.20).beats(Score(0.49, 0.30)), Score(0.50, 0.20).beats(Score(0.498, 0.30))
        (True, False)
        """
        for ours, theirs in zip(self, other, strict=True):
            if abs(ours - theirs) >= MARGIN:
                return ours > theirs
        return False


#: Runs trials and returns their scores.
Scorer: TypeAlias = Callable[[Sequence[Options]], list[Score]]


def coordinate_search(start: Options, coordinates: Iterable[Coordinate], score: Scorer) -> Iterator[dict[str, Any]]:
    """Yield the best options so far: the start, then the choice after each coordinate.

    >>> score = lambda tried: [Score(0.1 * o["x"] - 0.1 * o["y"] ** 2, 0.0) for o in tried]
    >>> list(coordinate_search({"x": 0, "y": 3}, [({"x": 1}, {"x": 2}), Ordered("y", (-1, 0, 1, 2, 3), 1)], score))
    [{'x': 0, 'y': 3}, {'x': 2, 'y': 3}, {'x': 2, 'y': 0}]
    """
    chosen = dict(start)
    [best] = score([start])
    yield chosen
    for coordinate in coordinates:
        if isinstance(coordinate, Ordered):
            chosen, best = _follow(coordinate, chosen, best, score)
        else:
            tried: list[Options] = []
            for options in ({**chosen, **alternative} for alternative in coordinate):
                if options not in (chosen, *tried):
                    tried.append(options)
            scores = score(tried)
            if scores and max(scores).beats(best):
                chosen, best = dict(tried[scores.index(max(scores))]), max(scores)
        yield chosen


def _follow(ordered: Ordered, chosen: dict[str, Any], best: Score, score: Scorer) -> tuple[dict[str, Any], Score]:
    """Follow ordered values while each beats the one before; turn round only if the first step fails."""
    start = chosen
    for direction in (ordered.direction,) if ordered.one_way else (ordered.direction, -ordered.direction):
        position = ordered.values.index(chosen[ordered.name]) + direction
        while 0 <= position < len(ordered.values):
            options = {**chosen, ordered.name: ordered.values[position]}
            [found] = score([options])
            if not found.beats(best):
                break
            chosen, best, position = options, found, position + direction
        if chosen is not start:
            break
    return chosen, best


def best_over_seeds(candidates: Sequence[Options], count: int, seeds: Sequence[int], score: Scorer) -> Options:
    """Return the candidate with the best mean over seeds among the `count` best of the first seed.

    Candidates that are behind by `CLEAR_LEAD` with the first seed are not measured again.

    >>> score = lambda tried: [Score(0.01 * o["x"] + 0.03 * (o["x"] == 1) * o.get("seed", 0), 0.0) for o in tried]
    >>> best_over_seeds([{"x": 0}, {"x": 1}, {"x": 2}], 2, (0, 1, 2), score)
    {'x': 1}
    """
    scores = score(candidates)
    order = sorted(range(len(candidates)), key=scores.__getitem__, reverse=True)
    close = [k for k in order[:count] if max(scores).recall_at_1 - scores[k].recall_at_1 < CLEAR_LEAD]
    if len(close) == 1:
        return candidates[close[0]]
    close.sort()  # the cheaper candidates come first
    repeats = len(seeds) - 1
    again = score([{**candidates[k], "seed": seed} for k in close for seed in seeds[1:]])
    means = []
    for number, k in enumerate(close):
        measured = [scores[k], *again[number * repeats : (number + 1) * repeats]]
        means.append(Score(*(sum(values) / len(values) for values in zip(*measured, strict=True))))
    best = 0
    for number, mean in enumerate(means):
        if mean.beats(means[best]):
            best = number
    return candidates[close[best]]


def nest(options: Options) -> dict[str, Any]:
    """Turn names with a dot into dictionaries, as `tuplet.train` takes them.

    >>> nest({"lr": 1e-4, "augment.area": [0.1, 1.0]})
    {'lr': 0.0001, 'augment': {'area': [0.1, 1.0]}}
    """
    result: dict[str, Any] = {}
    for name, value in options.items():
        outer, dot, inner = name.partition(".")
        if dot:
            result.setdefault(outer, {})[inner] = value
        else:
            result[name] = value
    return result
