"""The map of the test set as an SVG that can be zoomed: a dot for each example, a picture where there is room."""

from html import escape

import torch
from torch import Tensor

from tuplet.reports.charts import Point
from tuplet.reports.findings import Search
from tuplet.reports.pictures import thumbnails
from tuplet.reports.projection import layout, sample
from tuplet.reports.run import Run

WIDTH, HEIGHT, MARGIN = 1080, 720, 28
#: The side of a picture on the map, which the style sheet knows too, and in pixels of its own.
SHOWN, STORED = 40, 56
ZOOMS = (1, 2, 4, 8)


def draw(run: Run, search: Search) -> tuple[str, int]:
    """The map, and how many examples are on it."""
    rows = sample(run.labels)
    places = layout(run.embeddings[rows])
    places = MARGIN + places * torch.tensor([WIDTH - 2.0 * MARGIN, HEIGHT - 2.0 * MARGIN])
    pictures = [""] * len(rows)
    if run.data is not None and run.data.images is not None:
        pictures = thumbnails(run.data, run.indices[rows].tolist(), STORED, "drawing the map")
    nearest = dict(zip(search.queries.tolist(), search.found[:, 0].tolist(), strict=True))
    points = zip(zooms(places), rows.tolist(), places.tolist(), pictures, strict=True)
    # What is shown at the first zoom comes last, and so lies above the dots.
    marks = [
        _point(run, row, nearest.get(row, row), (x, y), picture, zoom)
        for zoom, row, (x, y), picture in sorted(points, key=lambda point: -point[0])
    ]
    drawing = (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Map of {len(rows)} test examples; neighbours on '
        f'it are neighbours in the embedding">{"".join(marks)}</svg>'
    )
    return drawing, len(rows)


def _point(run: Run, row: int, nearest: int, place: Point, picture: str, zoom: int) -> str:
    """A dot in the colour of its class, and its picture, which the style sheet shows from a zoom on."""
    label, name = int(run.labels[row]), run.class_name(row)
    wrong = int(run.labels[nearest]) != label
    says = f"{name} · {run.example(row)}" + (f" · nearest is {run.class_name(nearest)}" if wrong else "")
    seen = f'<g class="z{zoom}"><rect/><image href="{picture}"/></g>' if picture else ""
    return (
        f'<g class="point{" miss" if wrong else ""}" data-class="{label}" data-says="{escape(says)}" '
        f'style="--hue:{hue(label):.0f}" transform="translate({place[0]:.1f} {place[1]:.1f})">'
        f'<g class="mark"><circle/>{seen}</g></g>'
    )


def zooms(places: Tensor) -> list[int]:
    """For each point (N, 2) the zoom from which its picture is shown: the first at which it covers no earlier one.

    Points that have no room at any zoom get twice the last one, which is never reached.

    >>> zooms(torch.tensor([[0.0, 0.0], [30.0, 0.0], [100.0, 0.0], [1.0, 1.0]]))
    [1, 2, 1, 16]
    """
    first = torch.full((len(places),), 2 * ZOOMS[-1])
    for zoom in ZOOMS:
        for i in (first > zoom).nonzero()[:, 0].tolist():
            shown = places[first <= zoom]
            gap = (shown - places[i]).abs().amax(1) if len(shown) else torch.tensor([torch.inf])
            if float(gap.min()) * zoom >= SHOWN:
                first[i] = zoom
    return first.tolist()


def hue(label: int) -> float:
    """A colour for a class, in degrees: consecutive classes are a golden angle apart.

    >>> [round(hue(label)) for label in range(3)]
    [0, 138, 275]
    """
    return label * 137.508 % 360
