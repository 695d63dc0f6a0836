"""`tuplet search`."""

import json
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuplet.cli.arguments import Device, IndexModel
from tuplet.cli.tables import print_table
from tuplet.errors import did_you_mean

if TYPE_CHECKING:
    from PIL import Image

    from tuplet.search import Searchable


def search(
    index: Annotated[str, typer.Argument(metavar="INDEX", help="An index made by tuplet index.")],
    images: Annotated[list[Path], typer.Argument(metavar="IMAGES", help="The queries: files and folders of files.")],
    top: Annotated[int, typer.Option(min=1, help="The number of results.")] = 10,
    label: Annotated[list[str] | None, typer.Option(help="Only results with this label; may be repeated.")] = None,
    where: Annotated[str | None, typer.Option(help="Only results with these metadata: '{\"year\": 2011}'.")] = None,
    distinct: Annotated[
        float | None, typer.Option(help="Leave out results whose score with an earlier result is this or more.")
    ] = None,
    mirror: Annotated[bool, typer.Option("--mirror", help="Average each image with its mirror image.")] = False,
    together: Annotated[bool, typer.Option("--together", help="All images show one object: average them.")] = False,
    exact: Annotated[
        bool, typer.Option("--exact", help="Compare with every vector, not with the approximate index.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    sheet: Annotated[Path | None, typer.Option(help="Write the results as one image.")] = None,
    model: IndexModel = None,
    device: Device = None,
) -> None:
    """Print the nearest entries of the index for each image: score, label and file. A higher score is nearer.

    The score is the cosine (1 is the same direction), the dot product or minus the distance, as the index compares.

    Examples:
      tuplet search birds.index photo.jpg --top 5
      tuplet search birds.index left.jpg right.jpg --together --json
      tuplet search birds.index photo.jpg --label "Tree Swallow" --sheet found.jpg
    """
    from PIL import Image

    from tuplet import search as searching
    from tuplet.cli.runs import list_images, load_embedder, usable_device
    from tuplet.images.decode import read_image
    from tuplet.search.filters import with_labels
    from tuplet.search.ingest import file_of
    from tuplet.search.inputs import query_views
    from tuplet.search.sheet import contact_sheet

    if sheet is not None and Image.registered_extensions().get(sheet.suffix.lower()) not in Image.SAVE:
        raise typer.BadParameter(f"--sheet is {sheet}; its ending must be that of an image, such as .jpg or .png")
    opened = searching.open(index, None if model is None else load_embedder(model))
    opened.embedder.to(usable_device(device))
    conditions = _parse_conditions(where)
    if label:
        conditions = with_labels(conditions, _find_labels(opened, index, label))
    paths = [path for given in images for path in list_images(given)]
    queries = query_views(opened.embedder, paths, mirror=mirror, together=together)
    options: dict[str, Any] = {"where": conditions, "distinct": distinct}
    if exact:
        if not isinstance(opened, searching.Index):
            raise typer.BadParameter("--exact is for an index in a folder; Milvus chooses its own kind of search")
        options["exact"] = True
    results = opened.search(queries, top, **options)
    names = [" + ".join(map(str, paths))] if together else [str(path) for path in paths]
    if as_json:
        pairs = zip(names, results, strict=True)
        data = [{"image": name, "hits": [asdict(hit) for hit in hits]} for name, hits in pairs]
        print(json.dumps(data, indent=1, ensure_ascii=False))
    else:
        for name, hits in zip(names, results, strict=True):
            print(name if hits else f"{name}: nothing in the index matches")
            labels = ["" if hit.label is None else str(hit.label) for hit in hits]
            files = [file_of(hit.metadata).get("path", hit.id) for hit in hits]
            scores = [f"{hit.score:.4f}" for hit in hits]
            rows = list(zip(scores, labels, files, strict=True))
            if rows:
                print_table(("score", "label", "image"), rows, numbers=("score",))
    if sheet is not None:
        shown = [read_image(path) for path in (paths[:1] if together else paths)]
        _save_sheet(contact_sheet(opened, shown, results), sheet)


def _save_sheet(image: "Image.Image", path: Path) -> None:
    try:
        image.save(path)
    except (OSError, ValueError) as error:
        if getattr(error, "strerror", None):  # an error of the disk; others are limits of the format
            raise
        size = f"{image.width:,} × {image.height:,} pixels"
        raise ValueError(f"{path} cannot hold {size} ({error}); choose a smaller --top, or .png") from error


def _find_labels(opened: "Searchable", index: str, names: list[str]) -> list[Any]:
    """Return the labels of the index, of any type, whose text the user typed."""
    labels = {str(value): value for value in opened.counts()}
    for name in names:
        if name not in labels:
            remedy = did_you_mean(name, labels) if labels else "it has no labels"
            raise ValueError(f"{index} has no label {name!r}; {remedy}")
    return [labels[name] for name in names]


def _parse_conditions(where: str | None) -> dict[str, Any]:
    try:
        conditions = json.loads(where or "{}")
    except (ValueError, RecursionError):
        conditions = None
    if not isinstance(conditions, dict):
        raise typer.BadParameter(f"--where is {str(where)[:80]}; give a JSON object, such as '{{\"price\": 10}}'")
    return conditions
