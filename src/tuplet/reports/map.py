"""Draw the map of the test set: an SVG with a dot for each example and an image where it fits, and its classes."""

from collections import Counter
from html import escape

import torch
from torch import Tensor

from tuplet.reports.analysis import Retrieval
from tuplet.reports.examples import as_uri
from tuplet.reports.projection import layout, sample
from tuplet.reports.run import FinishedRun
from tuplet.reports.svg import Point

WIDTH, HEIGHT, MARGIN = 1080, 720, 28
#: The side of an image on the map (page.css has it too), and the side of its stored thumbnail in pixels.
SHOWN, STORED = 40, 56
ZOOMS = (1, 2, 4, 8)
#: The height of a class name on the map, the mean width of its letters in a wide font, and the most letters shown.
NAME_HEIGHT, LETTER_WIDTH, LETTERS = 22, 10, 26
#: The names of more classes than this would hide the images; the list below the map has them.
NAMED_CLASSES = 40


def draw_map(run: FinishedRun, retrieval: Retrieval) -> tuple[str, int]:
    """Return the map as SVG with a list of its classes, and the number of examples on it."""
    rows = sample(run.labels)
    points = layout(run.embeddings[rows])
    points = MARGIN + points * torch.tensor([WIDTH - 2.0 * MARGIN, HEIGHT - 2.0 * MARGIN])
    images = run.thumbnails(rows.tolist(), STORED, "drawing the map")
    found = zip(retrieval.queries.tolist(), retrieval.results[:, 0].tolist(), strict=True)
    nearest = {query: result for query, result in found if result >= 0}
    marks = zip(zooms(points), rows.tolist(), points.tolist(), images, strict=True)
    # Images that appear at the first zoom come last, so that they lie above the dots.
    drawn = [
        _mark(run, row, nearest.get(row, row), (x, y), image, zoom)
        for zoom, row, (x, y), image in sorted(marks, key=lambda mark: -mark[0])
    ]
    svg = (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="Map of {len(rows)} test examples; neighbours on '
        f'it are neighbours in the embedding">{"".join(drawn)}{_names(run, rows, points)}</svg>'
    )
    return svg + _classes(run, rows), len(rows)


def _mark(run: FinishedRun, row: int, nearest: int, point: Point, image: bytes, zoom: int) -> str:
    """Draw a dot in the colour of its class, and its image, which the style sheet shows from `zoom` on."""
    label = int(run.labels[row])
    wrong = int(run.labels[nearest]) != label
    names, files = run.shown.class_names, run.shown.files
    text, neighbour = (f"{names[each]} · {files[each]}" for each in (row, nearest))
    near = f' data-near="{nearest}" data-near-text="{escape(f"nearest: {neighbour}")}"' if wrong else ""
    shown = f'<g class="z{zoom}"><rect/><image href="{as_uri(image)}"/></g>' if image else ""
    return (
        f'<g class="point{" miss" if wrong else ""}" data-row="{row}" data-class="{label}" '
        f'data-text="{escape(text)}"{near} '
        f'style="--hue:{hue(label):.0f}" transform="translate({point[0]:.1f} {point[1]:.1f})">'
        f'<g class="mark"><circle/>{shown}</g></g>'
    )


def _names(run: FinishedRun, rows: Tensor, points: Tensor) -> str:
    """Write the names of classes where their examples lie, largest class first, as long as no name covers another."""
    drawn, boxes, counts = [], torch.empty(0, 4), Counter(run.labels[rows].tolist())
    if len(counts) > NAMED_CLASSES:
        return ""
    for label, _ in counts.most_common():
        own = (run.labels[rows] == label).nonzero()[:, 0]
        middle = points[own].median(0).values
        place = own[int((points[own] - middle).square().sum(1).argmin())]
        name = run.shown.class_names[int(rows[place])]
        name = name if len(name) <= LETTERS else f"{name[: LETTERS - 1]}…"
        half = torch.tensor([len(name) * LETTER_WIDTH / 2, NAME_HEIGHT / 2])
        x, y = torch.minimum(torch.maximum(points[place], half), torch.tensor([WIDTH, HEIGHT]) - half).tolist()
        box = torch.tensor([x - half[0], y - half[1], x + half[0], y + half[1]])
        covers = (boxes[:, :2] < box[2:]).all(1) & (box[:2] < boxes[:, 2:]).all(1)
        if not covers.any():
            boxes = torch.cat([boxes, box[None]])
            drawn.append(f'<g transform="translate({x:.1f} {y:.1f})"><text>{escape(name)}</text></g>')
    return f'<g class="names" aria-hidden="true">{"".join(drawn)}</g>'


def _classes(run: FinishedRun, rows: Tensor) -> str:
    """List the classes of the map by name, each in its colour and with its number of examples."""
    labels = run.labels[rows].tolist()
    names = {label: run.shown.class_names[row] for label, row in zip(labels, rows.tolist(), strict=True)}
    counts = Counter(labels)
    buttons = [
        f'<button type="button" class="class" data-class="{label}" aria-pressed="false" style="--hue:{hue(label):.0f}">'
        f"{escape(name)} <i>{counts[label]}</i></button>"
        for label, name in sorted(names.items(), key=lambda item: item[1])
    ]
    return f'<div class="classes" role="group" aria-label="Classes">{"".join(buttons)}</div>'


def zooms(points: Tensor) -> list[int]:
    """Return for each point (N, 2) the first zoom at which its image covers no earlier image.

    Points whose image fits at no zoom get twice the last zoom, which is never reached.

    >>> zooms(torch.tensor([[0.0, 0.0], [30.0, 0.0], [100.0, 0.0], [1.0, 1.0]]))
    [1, 2, 1, 16]
    """
    first = torch.full((len(points),), 2 * ZOOMS[-1])
    for zoom in ZOOMS:
        for i in (first > zoom).nonzero()[:, 0].tolist():
            shown = points[first <= zoom]
            gap = (shown - points[i]).abs().amax(1) if len(shown) else torch.tensor([torch.inf])
            if float(gap.min()) * zoom >= SHOWN:
                first[i] = zoom
    return first.tolist()


def hue(label: int) -> float:
    """Return the hue of a class in degrees: consecutive classes are a golden angle apart.

    >>> [round(hue(label)) for label in range(3)]
    [0, 138, 275]
    """
    return label * 137.508 % 360
