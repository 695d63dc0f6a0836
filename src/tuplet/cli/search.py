"""`tuplet search`."""

import difflib
import json
from pathlib import Path
from typing import Annotated, Any

import typer
from PIL import Image

from tuplet import search as searching
from tuplet.cli.places import embedder_of, pictures_of, usable_device
from tuplet.cli.show import table
from tuplet.data.decode import read_image
from tuplet.search.incoming import choices
from tuplet.search.looking import contact_sheet, query_views


def search(
    index: Annotated[str, typer.Argument(metavar="INDEX", help="What tuplet index wrote.")],
    photographs: Annotated[
        list[Path], typer.Argument(metavar="PHOTOS", help="What to look for: files, and folders of files.")
    ],
    top: Annotated[int, typer.Option(min=1, help="How many results.")] = 10,
    label: Annotated[list[str] | None, typer.Option(help="Only results with this label; may be repeated.")] = None,
    where: Annotated[str | None, typer.Option(help="Only results with these metadata: '{\"year\": 2011}'.")] = None,
    distinct: Annotated[
        float | None, typer.Option(help="Leave out a result that scores this or more with one before it.")
    ] = None,
    mirror: Annotated[bool, typer.Option("--mirror", help="Average each photograph with its mirror image.")] = False,
    together: Annotated[bool, typer.Option("--together", help="All photographs show one thing: average them.")] = False,
    exact: Annotated[bool, typer.Option("--exact", help="Look at every vector, whatever was built.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    sheet: Annotated[Path | None, typer.Option(help="Write the results as one picture.")] = None,
    model: Annotated[Path | None, typer.Option(help="The run, where the index does not hold its model.")] = None,
    device: Annotated[str | None, typer.Option(help="cpu, cuda … [a GPU where there is one]")] = None,
) -> None:
    """Print what is nearest to each photograph, with scores: higher is nearer.

    Examples:
      tuplet search birds.index photo.jpg --top 5
      tuplet search birds.index left.jpg right.jpg --together --json
      tuplet search birds.index photo.jpg --label "Tree Swallow" --sheet found.jpg
    """
    if sheet is not None and Image.registered_extensions().get(sheet.suffix.lower()) not in Image.SAVE:
        raise typer.BadParameter(f"--sheet is {sheet}; its ending must be that of a picture, such as .jpg or .png")
    things = searching.open(index, None if model is None else embedder_of(model))
    things.embedder.to(usable_device(device))
    conditions = _conditions(where)
    if label:
        named = _labels(things, index, label)
        also = choices(conditions["label"]) if "label" in conditions else named
        conditions["label"] = [value for value in named if value in also]
    photographs = [path for given in photographs for path in pictures_of(given)]
    queries = query_views(things, photographs, mirror=mirror, together=together)
    options: dict[str, Any] = {"where": conditions, "distinct": distinct}
    if exact:
        if not isinstance(things, searching.Index):
            raise typer.BadParameter("--exact is for the index in a folder; how exact Milvus is, it decides itself")
        options["exact"] = True
    found = things.search(queries, top, **options)
    names = [" + ".join(map(str, photographs))] if together else [str(path) for path in photographs]
    answers = list(zip(names, found, strict=True))
    if as_json:
        data = [{"photograph": name, "hits": [vars(hit) for hit in hits]} for name, hits in answers]
        print(json.dumps(data, indent=1, ensure_ascii=False))
    else:
        for name, hits in answers:
            print(name if hits else f"{name}: nothing in the index fits")
            rows = [[f"{hit.score:.4f}", "" if hit.label is None else str(hit.label), hit.id] for hit in hits]
            if rows:
                table(("score", "label", "id"), rows, numbers=("score",))
    if sheet is not None:
        shown = photographs[:1] if together else photographs
        drawn = contact_sheet(things, [read_image(path) for path in shown], [hits for _, hits in answers])
        try:
            drawn.save(sheet)
        except (OSError, ValueError) as error:
            if getattr(error, "strerror", None):  # of the disk, and not of a format that knows no picture so wide
                raise
            size = f"{drawn.width:,} × {drawn.height:,} pixels"
            raise ValueError(f"{sheet} cannot hold {size} ({error}); choose a smaller --top, or .png") from error


def _labels(things: searching.Searchable, index: str, typed: list[str]) -> list[Any]:
    """The labels as they are in the index, whatever their type."""
    labels = {str(value): value for value in things.counts()}
    if unknown := [name for name in typed if name not in labels]:
        close = difflib.get_close_matches(unknown[0], labels, 1)
        some = f"it has {len(labels):,}, such as {', '.join(list(labels)[:5])}" if labels else "it has none"
        raise ValueError(f"{index} has no label {unknown[0]!r}; {f'did you mean {close[0]!r}?' if close else some}")
    return [labels[name] for name in typed]


def _conditions(where: str | None) -> dict[str, Any]:
    try:
        wanted = json.loads(where or "{}")
    except json.JSONDecodeError as error:
        raise typer.BadParameter(f"--where is no valid JSON: {error}") from error
    if not isinstance(wanted, dict):
        raise typer.BadParameter(f"--where is {where}; it must be an object, such as '{{\"year\": 2011}}'")
    return wanted
