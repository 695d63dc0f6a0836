"""Charts as inline SVG: an area with two scales, and what is drawn into it.

Colours, strokes and type are the style sheet's: a mark has a class such as "positive", never a colour of its own.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeAlias

WIDTH, HEIGHT = 460, 270
LEFT, RIGHT, TOP, BOTTOM = 50, 16, 12, 42

#: What a mark is called in the legend, and its class in the style sheet.
Key: TypeAlias = tuple[str, str]
Point: TypeAlias = tuple[float, float]


@dataclass(frozen=True)
class Scale:
    """A range of numbers along one side of a chart, with the marks that it is read by."""

    label: str
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]

    def share(self, value: float) -> float:
        """Where a value lies, from 0 at the low end to 1 at the high end."""
        return (value - self.low) / (self.high - self.low)


def scale(label: str, low: float, high: float, written: Callable[[float], str] = "{:g}".format) -> Scale:
    """A scale that holds both numbers, with about five marks at round numbers.

    >>> [text for _, text in scale("step", 0, 930).ticks]
    ['0', '200', '400', '600', '800']
    """
    if not high > low:
        low, high = low - 0.5 * (abs(low) or 1), high + 0.5 * (abs(high) or 1)
    rough = (high - low) / 5
    size = 10 ** math.floor(math.log10(rough))
    step = min((m * size for m in (1, 2, 2.5, 5, 10)), key=lambda s: abs(s - rough))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    values = [round(n * step, 12) for n in range(first, last + 1)]
    return Scale(label, low, high, tuple((value, written(value)) for value in values))


def named_scale(label: str, names: Sequence[str]) -> Scale:
    """A scale of names, at 0, 1, 2 …, with room on both sides.

    >>> named_scale("K", ["1", "2"]).ticks
    ((0.0, '1'), (1.0, '2'))
    """
    return Scale(label, -0.4, len(names) - 0.6, tuple((float(i), name) for i, name in enumerate(names)))


def percent(value: float) -> str:
    """A fraction of 1 as people read it, with a space that does not break.

    >>> percent(0.8734).split()
    ['87.3', '%']
    """
    return f"{100 * value:.1f}\xa0%"


def round_percent(value: float) -> str:
    """A fraction of 1 with no more decimals than it has, for the marks of a scale.

    >>> round_percent(0.2).split(), round_percent(0.005).split()
    (['20', '%'], ['0.5', '%'])
    """
    return f"{round(100 * value, 9):g}\xa0%"


@dataclass(frozen=True)
class Area:
    """Where a chart draws: two scales, and the way from values to pixels."""

    x: Scale
    y: Scale

    def at(self, x: float, y: float) -> Point:
        """The pixel of a pair of values."""
        across = LEFT + (WIDTH - LEFT - RIGHT) * self.x.share(x)
        return across, HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * self.y.share(y)

    def axes(self) -> str:
        """Lines across at the marks of y, the marks of both scales, and what the scales are called."""
        marks = []
        for value, text in self.y.ticks:
            _, y = self.at(self.x.low, value)
            marks.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
            marks.append(f'<text class="tick end" x="{LEFT - 8}" y="{y + 4:.1f}">{escape(text)}</text>')
        for value, text in self.x.ticks:
            x, _ = self.at(value, self.y.low)
            marks.append(f'<text class="tick middle" x="{x:.1f}" y="{HEIGHT - BOTTOM + 17}">{escape(text)}</text>')
        marks.append(f'<path class="axis" d="M{LEFT} {HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>')
        middle = (LEFT + WIDTH - RIGHT) / 2
        marks.append(f'<text class="label middle" x="{middle}" y="{HEIGHT - 6}">{escape(self.x.label)}</text>')
        return "".join(marks)

    def line(self, points: Sequence[Point], kind: str) -> str:
        """A line through points."""
        return f'<path class="line {kind}" d="{self._path(points)}"/>'

    def filled(self, points: Sequence[Point], kind: str) -> str:
        """The area between a line and the bottom of the chart."""
        (first, _), (last, _) = points[0], points[-1]
        closed = [(first, self.y.low), *points, (last, self.y.low)]
        return f'<path class="fill {kind}" d="{self._path(closed)}Z"/>'

    def dots(self, points: Sequence[Point], kind: str, radius: float = 3.5) -> str:
        """A dot at each point."""
        places = (self.at(*point) for point in points)
        dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}"/>' for x, y in places)
        return f'<g class="dots {kind}">{dots}</g>'

    def note(self, point: Point, text: str, kind: str, lift: float = 9) -> str:
        """A few letters above a point."""
        x, y = self.at(*point)
        return f'<text class="note middle {kind}" x="{x:.1f}" y="{y - lift:.1f}">{escape(text)}</text>'

    def _path(self, points: Sequence[Point]) -> str:
        return "M" + "L".join("{:.1f} {:.1f}".format(*self.at(*point)) for point in points)


def chart(
    title: str, says: str, area: Area, marks: str, keys: Sequence[Key] = (), readout: Sequence[tuple[float, str]] = ()
) -> str:
    """A figure: its title, a sentence that says what is to be seen, a legend and the drawing.

    `readout` has a text for places along x, which the page shows under the pointer.
    """
    legend = "".join(f'<span class="key {kind}">{escape(name)}</span>' for name, kind in keys)
    places = [[round(area.at(x, area.y.low)[0], 1), text] for x, text in readout]
    data = f' data-readout="{escape(json.dumps(places))}"' if places else ""
    cursor = f'<path class="cursor" d="M0 {TOP}V{HEIGHT - BOTTOM}"/>' if places else ""
    return (
        f'<figure class="chart"><figcaption><h3>{escape(title)}</h3><p>{escape(says)}</p>'
        f'<div class="legend"><span>{escape(area.y.label)}</span>{legend}<output></output></div></figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(f"{title}. {says}")}"{data}>'
        f"{area.axes()}{marks}{cursor}</svg></figure>"
    )
