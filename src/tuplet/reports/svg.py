"""Draw charts as inline SVG.

Colours, line widths and fonts are in page.css: an SVG element has a class such as "positive" and no colour.
"""

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import TypeAlias

WIDTH, HEIGHT = 460, 270
LEFT, RIGHT, TOP, BOTTOM = 50, 16, 12, 42

#: A name in the legend and its class in the style sheet.
Key: TypeAlias = tuple[str, str]
Point: TypeAlias = tuple[float, float]


@dataclass(frozen=True)
class Scale:
    """The range of an axis, with its ticks: pairs of a value and its text."""

    label: str
    low: float
    high: float
    ticks: tuple[tuple[float, str], ...]

    def position(self, value: float) -> float:
        """Return the position of a value on the axis, from 0 (low) to 1 (high)."""
        return (value - self.low) / (self.high - self.low)


def scale(label: str, low: float, high: float, format_tick: Callable[[float], str] = "{:g}".format) -> Scale:
    """Return a scale from `low` to `high` with about five ticks at round numbers; between integers at integers.

    >>> [text for _, text in scale("step", 0, 930).ticks]
    ['0', '200', '400', '600', '800']
    >>> [text for _, text in scale("trial", 0, 3).ticks], [text for _, text in scale("loss", 0, 3.0).ticks]
    (['0', '1', '2', '3'], ['0', '0.5', '1', '1.5', '2', '2.5', '3'])
    """
    is_whole = isinstance(low, int) and isinstance(high, int)
    if not high > low:
        low, high = low - 0.5 * (abs(low) or 1), high + 0.5 * (abs(high) or 1)
    rough = (high - low) / 5
    size = 10 ** math.floor(math.log10(rough))
    steps = [m * size for m in (1, 2, 2.5, 5, 10)]
    if is_whole:
        steps = [s for s in steps if s % 1 == 0] or [1]
    step = min(steps, key=lambda s: abs(s - rough))
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    values = [round(n * step, 12) for n in range(first, last + 1)]
    return Scale(label, low, high, tuple((value, format_tick(value)) for value in values))


def named_scale(label: str, names: Sequence[str]) -> Scale:
    """Return a scale with names as ticks, at 0, 1, 2 …, and a margin at both ends.

    >>> named_scale("K", ["1", "2"]).ticks
    ((0.0, '1'), (1.0, '2'))
    """
    return Scale(label, -0.4, len(names) - 0.6, tuple((float(i), name) for i, name in enumerate(names)))


def percent(value: float) -> str:
    """Format a fraction of 1 as a percentage with one decimal and a non-breaking space.

    >>> percent(0.8734).split()
    ['87.3', '%']
    """
    return f"{100 * value:.1f}\xa0%"


def round_percent(value: float) -> str:
    """Format a fraction of 1 as a percentage without trailing zeros, for ticks.

    >>> round_percent(0.2).split(), round_percent(0.005).split()
    (['20', '%'], ['0.5', '%'])
    """
    return f"{round(100 * value, 9):g}\xa0%"


@dataclass(frozen=True)
class Area:
    """The plotting area of a chart: two scales, and methods that draw values as SVG."""

    x: Scale
    y: Scale

    def at(self, x: float, y: float) -> Point:
        """Return the pixel of a pair of values."""
        across = LEFT + (WIDTH - LEFT - RIGHT) * self.x.position(x)
        return across, HEIGHT - BOTTOM - (HEIGHT - TOP - BOTTOM) * self.y.position(y)

    def axes(self) -> str:
        """Draw horizontal grid lines, the ticks of both scales and the label of x; the legend has the label of y."""
        marks = []
        for value, text in self.y.ticks:
            _, y = self.at(self.x.low, value)
            marks.append(f'<path class="grid" d="M{LEFT} {y:.1f}H{WIDTH - RIGHT}"/>')
            marks.append(f'<text class="tick end" x="{LEFT - 8}" y="{y + 4:.1f}">{escape(text)}</text>')
        # On a phone a letter is up to 9 units wide. Without a label below them, long names have room in two rows.
        longest = max((len(text) for _, text in self.x.ticks), default=0)
        rows = 2 if not self.x.label and 9 * longest * len(self.x.ticks) > WIDTH - LEFT - RIGHT else 1
        for i, (value, text) in enumerate(self.x.ticks):
            x, y = self.at(value, self.y.low)[0], HEIGHT - BOTTOM + 17 + 16 * (i % rows)
            marks.append(f'<text class="tick middle" x="{x:.1f}" y="{y}">{escape(text)}</text>')
        marks.append(f'<path class="axis" d="M{LEFT} {HEIGHT - BOTTOM}H{WIDTH - RIGHT}"/>')
        middle = (LEFT + WIDTH - RIGHT) / 2
        if self.x.label:
            marks.append(f'<text class="label middle" x="{middle}" y="{HEIGHT - 6}">{escape(self.x.label)}</text>')
        return "".join(marks)

    def line(self, points: Sequence[Point], kind: str) -> str:
        """Draw a line through points."""
        return f'<path class="line {kind}" d="{self._path(points)}"/>'

    def filled(self, points: Sequence[Point], kind: str) -> str:
        """Fill the area between a line and the bottom of the chart."""
        (first, _), (last, _) = points[0], points[-1]
        closed = [(first, self.y.low), *points, (last, self.y.low)]
        return f'<path class="fill {kind}" d="{self._path(closed)}Z"/>'

    def dots(self, points: Sequence[Point], kind: str, radius: float = 3.5) -> str:
        """Draw a dot at each point."""
        pixels = (self.at(*point) for point in points)
        dots = "".join(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="{radius}"/>' for x, y in pixels)
        return f'<g class="dots {kind}">{dots}</g>'

    def note(self, point: Point, text: str, kind: str, lift: float = 9) -> str:
        """Write a short text above a point."""
        x, y = self.at(*point)
        return f'<text class="note middle {kind}" x="{x:.1f}" y="{y - lift:.1f}">{escape(text)}</text>'

    def _path(self, points: Sequence[Point]) -> str:
        return "M" + "L".join("{:.1f} {:.1f}".format(*self.at(*point)) for point in points)


def chart(
    title: str,
    caption: str,
    area: Area,
    marks: str,
    keys: Sequence[Key] = (),
    readout: Sequence[tuple[float, str]] = (),
) -> str:
    """Return a figure with its title, a caption, a legend and the chart.

    `readout` contains texts for values of x; the page shows the one under the pointer.
    """
    legend = "".join(f'<span class="key {kind}">{escape(name)}</span>' for name, kind in keys)
    positions = [[round(area.at(x, area.y.low)[0], 1), text] for x, text in readout]
    data = f' data-readout="{escape(json.dumps(positions))}"' if positions else ""
    cursor = f'<path class="cursor" d="M0 {TOP}V{HEIGHT - BOTTOM}"/>' if positions else ""
    return (
        f'<figure class="chart"><figcaption><h3>{escape(title)}</h3><p>{escape(caption)}</p>'
        f'<div class="legend"><span>{escape(area.y.label)}</span>{legend}<output></output></div></figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(f"{title}. {caption}")}"{data}>'
        f"{area.axes()}{marks}{cursor}</svg></figure>"
    )
