"""SVG charts: ticks at round numbers, values at the right pixels, well-formed markup."""

import json
import re
from itertools import pairwise
from xml.etree import ElementTree

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tuplet.reports import svg as drawing
from tuplet.reports.svg import Area, chart, named_scale, scale

LONG = ["multi_similarity", "proxy_anchor", "ranked_list", "npair_angular"]
numbers = st.floats(-1e6, 1e6, allow_subnormal=False).filter(lambda x: x == 0 or abs(x) > 1e-6)


@given(numbers, numbers)
def test_ticks_are_round_few_and_inside(a, b):
    low, high = min(a, b), max(a, b)
    made = scale("x", low, high)
    values = [value for value, _ in made.ticks]
    assert made.low <= low <= high <= made.high
    assert 2 <= len(values) <= 9
    tolerance = 1e-9 * max(abs(made.low), abs(made.high))
    assert all(made.low - tolerance <= value <= made.high + tolerance for value in values)
    steps = {f"{second - first:.3e}" for first, second in pairwise(values)}
    assert all(step[0] in "125" for step in steps), steps


@given(st.integers(-1000, 1000), st.integers(0, 1000))
def test_ticks_between_integers_are_integers(low, span):
    ticks = scale("x", low, low + span).ticks
    assert 1 <= len(ticks) <= 9
    assert all(text == str(round(value)) for value, text in ticks)


def test_values_map_to_pixels():
    area = Area(scale("x", 0, 10), scale("y", 0, 100))
    assert area.at(0, 0) == (drawing.LEFT, drawing.HEIGHT - drawing.BOTTOM)
    assert area.at(10, 100) == (drawing.WIDTH - drawing.RIGHT, drawing.TOP)
    x, y = area.at(5, 50)
    assert x == (drawing.LEFT + drawing.WIDTH - drawing.RIGHT) / 2
    assert y == (drawing.TOP + drawing.HEIGHT - drawing.BOTTOM) / 2


def test_a_chart_is_well_formed_labelled_and_escaped():
    area = Area(named_scale("K & more", ["1", "<2>"]), scale("y", 0, 1))
    points = [(0.0, 0.25), (1.0, 0.5)]
    marks = area.line(points, "positive") + area.filled(points, "negative") + area.dots(points, "other")
    drawn = chart('A "title"', "Says <so>.", area, marks + area.note(points[1], "50 %", "positive"), [("a&b", "other")],
                  [(0.0, 'first "value"'), (1.0, "second")])  # fmt: skip
    figure = ElementTree.fromstring(drawn)
    svg = figure.find("svg")
    assert svg.get("role") == "img"
    assert svg.get("aria-label") == 'A "title". Says <so>.'
    assert json.loads(svg.get("data-readout")) == [[round(area.at(0, 0)[0], 1), 'first "value"'],
                                                   [round(area.at(1, 0)[0], 1), "second"]]  # fmt: skip
    line = next(path for path in svg.findall("path") if path.get("class") == "line positive")
    drawn_at = [tuple(map(float, pair)) for pair in re.findall(r"([\d.]+) ([\d.]+)", line.get("d"))]
    assert drawn_at == [tuple(round(value, 1) for value in area.at(*point)) for point in points]
    assert len(svg.findall("g/circle")) == 2


@pytest.mark.parametrize(("label", "names", "rows"), [("", LONG, 2), ("loss", LONG, 1), ("", ["2", "4", "8"], 1)])
def test_long_names_without_a_label_stand_in_two_rows(label, names, rows):
    drawn = Area(named_scale(label, names), scale("Recall@1", 0, 1)).axes()
    heights = {re.search(rf'y="(\d+)">{name}<', drawn)[1] for name in names}
    assert len(heights) == rows
