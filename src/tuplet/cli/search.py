"""`tuplet search`."""

import json
import re
import shlex
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tuplet.cli.arguments import Device, IndexModel, json_or_text, split_pairs
from tuplet.cli.tables import print_table
from tuplet.errors import did_you_mean

if TYPE_CHECKING:
    from PIL import Image

    from tuplet.search import Hit, Searchable


def search(
    index: Annotated[str, typer.Argument(metavar="INDEX", help="An index made by tuplet index.")],
    images: Annotated[
        list[Path] | None, typer.Argument(metavar="IMAGES", help="The queries: files and folders of files.")
    ] = None,
    text: Annotated[
        list[str] | None, typer.Option(help="A query in words, for an index of CLIP; may be repeated.")
    ] = None,
    text_model: Annotated[
        str | None, typer.Option(help="The CLIP model of --text: a folder or a name on the hub.")
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="The number of results.")] = 10,
    label: Annotated[list[str] | None, typer.Option(help="Only results with this label; may be repeated.")] = None,
    where: Annotated[str | None, typer.Option(help="Only results with these metadata: year=2011, or as JSON.")] = None,
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
    """Print the nearest entries of the index for each query: score, label and file. A higher score is nearer.

    The score is the cosine (1 is the same direction), the dot product or minus the distance, as the index compares.

    Examples:
      tuplet search birds.index photo.jpg --top 5
      tuplet search birds.index left.jpg right.jpg --together --json
      tuplet search birds.index photo.jpg --label "Tree Swallow" --sheet found.jpg
      tuplet search photos.index --text "a red bird on snow"
    """
    from PIL import Image

    from tuplet import search as searching
    from tuplet.cli.runs import list_images, load_embedder
    from tuplet.images.decode import read_image
    from tuplet.models import TextEncoder
    from tuplet.search.filters import with_labels
    from tuplet.search.inputs import query_views
    from tuplet.search.sheet import contact_sheet
    from tuplet.training.distributed import usable_device

    if not images and not text:
        raise typer.BadParameter("there is no query; give images, or --text 'a red bird on snow'")
    if sheet is not None and text:
        raise typer.BadParameter("--sheet shows the images of queries, and --text has none; leave one of them out")
    if sheet is not None and Image.registered_extensions().get(sheet.suffix.lower()) not in Image.SAVE:
        raise typer.BadParameter(f"--sheet is {sheet}; its ending must be that of an image, such as .jpg or .png")
    opened = searching.open(index, None if model is None else load_embedder(model))
    opened.embedder.to(usable_device(device))
    conditions = _parse_conditions(where)
    if label:
        conditions = with_labels(conditions, _find_labels(opened, index, label))
    paths = [path for given in images or () for path in list_images(given)]
    names = [str(path) for path in paths]
    if together and names:
        names = [" + ".join(names if len(names) < 4 else [*names[:2], f"{len(names) - 2} more"])]
    options: dict[str, Any] = {"where": conditions, "distinct": distinct}
    if exact:
        if not isinstance(opened, searching.Index):
            raise typer.BadParameter("--exact is for an index in a folder; Milvus chooses its own kind of search")
        options["exact"] = True
    results: list[Sequence[Hit]] = []
    if paths:
        results += opened.search(query_views(opened.embedder, paths, mirror=mirror, together=together), top, **options)
    if text:
        results += opened.search(TextEncoder(opened.embedder, text_model).embed(text), top, **options)
    kinds = ["image"] * len(names) + ["text"] * len(text or ())
    names += text or ()
    if not any(results):
        _check_conditions(opened, index, conditions)
    if as_json:
        found = zip(kinds, names, results, strict=True)
        data = [{kind: name, "hits": [asdict(hit) for hit in hits]} for kind, name, hits in found]
        print(json.dumps(data, indent=1, ensure_ascii=False))
    else:
        nothing = "nothing in the index matches" if len(opened) else "the index is empty"
        for name, hits in zip(names, results, strict=True):
            _print_hits(name, hits, nothing)
    if sheet is not None:
        shown = [read_image(path) for path in (paths[:1] if together else paths)]
        _save_sheet(contact_sheet(opened, shown, results), sheet)


def _print_hits(query: str, hits: "Sequence[Hit]", nothing: str) -> None:
    from tuplet.search.ingest import file_of

    print(query if hits else f"{query}: {nothing}")
    rows = [
        (f"{hit.score:.4f}", "" if hit.label is None else str(hit.label), file_of(hit.metadata).get("path", hit.id))
        for hit in hits
    ]
    if rows:
        print_table(("score", "label", "image"), rows, numbers=("score",))


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
    labels = [(str(value), value) for value in opened.counts()]
    known = {text for text, _ in labels}
    for name in names:
        if name not in known:
            remedy = did_you_mean(name, known) if known else "it has no labels"
            raise ValueError(f"{index} has no label {name!r}; {remedy}")
    return [value for text, value in labels if text in names]


def _parse_conditions(where: str | None) -> dict[str, Any]:
    """Return the conditions in `year=2011`, `year=2011,colour=red` or a JSON object; a value is JSON or text."""
    text = (where or "{}").strip()
    try:
        if not text.startswith(("{", "[", '"')):
            return {key: json_or_text(value) for key, value in split_pairs("--where", text).items()}
        conditions = json.loads(text)
    except (ValueError, RecursionError, typer.BadParameter):
        conditions = None
    if not isinstance(conditions, dict):
        form = "give year=2011, or a JSON object, such as '{\"year\": [2011, 2012]}'"
        raise typer.BadParameter(f"--where is {text[:80]}; {form}")
    return conditions


def _check_conditions(opened: "Searchable", index: str, conditions: dict[str, Any]) -> None:
    """Raise a ValueError if no item has a key, or none a value of that kind, text or number: nothing can match."""
    from tuplet.search.ingest import without_file
    from tuplet.search.inputs import choices

    for key, wanted in conditions.items():
        given = choices(wanted)
        kinds = {isinstance(value, str) for value in given}
        if not given or None in given:  # no value is left beside --label, or items without the key are wanted
            continue
        if not any(isinstance(value, str) in kinds for value in opened.counts(key)):
            columns = {name: value for _, data in opened.items() for name, value in without_file(data).items()}
            have = ", ".join(_condition(*column) for column in list(columns.items())[:20]) or "no metadata"
            asked = f"{key} {json.dumps(wanted, ensure_ascii=False)}"
            raise ValueError(f"--where asks for {asked}, and no item of {index} has such a value; they have {have}")


def _condition(key: str, value: Any) -> str:
    """Return a condition as the user would type it.

    >>> _condition("year", 2011), _condition("label", "Tree Swallow")
    ('year=2011', "'label=Tree Swallow'")
    >>> print(_condition("code", "7"))
    '{"code": "7"}'
    """
    is_plain = re.fullmatch(r"\w+=[^,]*", f"{key}={value}") and json_or_text(str(value)) == value
    return shlex.quote(f"{key}={value}" if is_plain else json.dumps({key: value}, ensure_ascii=False))
