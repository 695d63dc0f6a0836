"""`tuplet index`."""

from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tuplet.cli.arguments import Columns, Device, OptionalModel, Pattern, open_options
from tuplet.cli.errors import explain_errors, print_stderr, when_stopped
from tuplet.errors import did_you_mean

if TYPE_CHECKING:
    from tuplet.search import Searchable

#: The number of images of a kind that a dry run names; the others are only counted.
_NAMED = 20


@explain_errors
def _verify(location: str | None) -> None:
    """Check every file of an index, say so and exit."""
    if location is None:
        return
    from tuplet import search
    from tuplet.search.milvus import is_milvus

    if is_milvus(location):
        raise typer.BadParameter(f"{location} is in Milvus, which checks its own files; give the folder of an index")
    print(f"{location}: {search.Index.open(location).verify():,} bytes checked, all as written")
    raise typer.Exit


def index(
    model: OptionalModel = None,
    images: Annotated[
        str | None, typer.Argument(metavar="IMAGES", help="A folder, a tar, a table or a dataset.")
    ] = None,
    out: Annotated[
        str, typer.Option("--out", "-o", help="A folder; or a Milvus address, things.db or http://….")
    ] = ...,  # type: ignore[assignment]  # required
    sync: Annotated[
        bool, typer.Option("--sync", help="Follow IMAGES: also embed changed images again and remove deleted ones.")
    ] = False,
    delete: Annotated[
        list[str] | None,
        typer.Option(metavar="ID", help="Only remove this id, or the ids of a pattern: 'bee/*'; may be repeated."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would be done.")] = False,
    split: Annotated[str | None, typer.Option(help="Only this split of the dataset: test, query …")] = None,
    metric: Annotated[
        Literal["euclidean", "cosine", "dot"] | None, typer.Option(help="How to compare vectors. [as the model needs]")
    ] = None,
    approximate: Annotated[
        Literal["auto", "no", "hnsw", "ivf_pq"],
        typer.Option(help="Build an approximate index; auto does so from a million vectors on."),
    ] = "auto",
    recall: Annotated[
        float, typer.Option(min=0, max=1, help="The recall@10 that the approximate index must reach.")
    ] = 0.95,
    device: Device = None,
    columns: Columns = None,
    pattern: Pattern = None,
    verify: Annotated[
        str | None,
        typer.Option(metavar="INDEX", callback=_verify, is_eager=True, help="Only check the files of an index."),
    ] = None,
) -> None:
    """Embed images and store their vectors, labels, metadata and thumbnails in an index.

    The other columns of a table are metadata, by which searches can filter.

    Every batch is saved at once: after an interruption the same command continues. Images that the index has already,
    by their names below IMAGES, are skipped; with --sync they are compared by path, size, time and checksum.
    Unreadable images are listed and left out.

    Examples:
      tuplet index runs/birds photos/ -o birds.index
      tuplet index runs/birds photos/ -o birds.index --sync --dry-run
      tuplet index runs/birds cub200.csv --split test -o birds.index
      tuplet index -o birds.index --delete 'bee/*'
      tuplet index runs/birds photos/ -o http://milvus:19530#birds
      tuplet index dinov2_small photos/ -o photos.index     without training
      tuplet index --verify birds.index
    """
    from tuplet import search
    from tuplet.cli.runs import load_image_embedder
    from tuplet.search.ingest import LARGE, add_images, find_changes
    from tuplet.search.listing import list_images
    from tuplet.search.milvus import is_milvus

    if delete:
        if model is not None or sync:
            raise typer.BadParameter("--delete takes no MODEL, no IMAGES and no --sync; give it with -o alone")
        _delete(search.open(out), out, delete, dry_run)
        return
    if model is None or images is None:
        raise typer.BadParameter("MODEL and IMAGES are missing: the model, and what to index")
    if is_milvus(out) and approximate in ("hnsw", "ivf_pq"):
        raise typer.BadParameter("--approximate is for an index in a folder; Milvus chooses its own kind of index")
    embedder = load_image_embedder(model, device)
    # Before the index is made, so that a mistyped name leaves no empty index.
    found = list_images(images, split, **open_options(columns, pattern))
    try:
        opened: Searchable | None = search.open(out, embedder)
    except FileNotFoundError:
        opened = None if dry_run else search.create(out, metric=metric, embedder=embedder)
    if opened is not None and metric not in (None, opened.metric):
        raise ValueError(
            f"{out} has the metric {opened.metric}, not {metric}; leave out --metric, or choose another --out"
        )
    if dry_run or opened is None:
        changes = find_changes(opened, found, sync)
        ids = ([image.id for image in images] for images in (changes.new, changes.changed))
        _print_plan(dict(zip(("add", "replace", "delete"), (*ids, changes.deleted), strict=True)))
        return
    with when_stopped(lambda: _kept(opened, out)):
        report = add_images(opened, found, sync)
    for message in report.unreadable:
        print_stderr(message)
    print(f"{out}: {report}; {len(opened):,} in all")
    if isinstance(opened, search.Index):
        large = approximate == "auto" and len(opened) >= LARGE and opened.approximate is None
        if large or approximate in ("hnsw", "ivf_pq"):
            with when_stopped(lambda: f"; all images are in {out}, and the same command builds the approximate index"):
                opened.build_approximate("hnsw" if large else approximate, recall)


def _kept(opened: "Searchable", location: str) -> str:
    """Say what a stopped command leaves in the index."""
    from tuplet.search import Index

    # Milvus would have to be asked, and it may be what the user did not want to wait for.
    count = None
    if isinstance(opened, Index):
        opened.refresh()  # a batch may be saved that it does not count yet
        count = len(opened)
    if count == 0:
        return f"; no image is in {location} yet, and the same command adds them"
    images = "some images" if count is None else "1 image" if count == 1 else f"{count:,} images"
    return f"; {location} has {images} and can be searched, and the same command adds the rest"


def _delete(opened: "Searchable", location: str, wanted: Sequence[str], dry_run: bool) -> None:
    """Remove items by id, or by a pattern that their ids match; raise a ValueError if one matches none."""
    known = [id for id, _ in opened.items()]
    chosen: dict[str, None] = {}
    for pattern in wanted:
        matching = [pattern] if pattern in known else [id for id in known if fnmatchcase(id, pattern)]
        if not matching:
            remedy = did_you_mean(pattern, known) if known else "it is empty"
            raise ValueError(f"{location} has no id {pattern!r}; {remedy}")
        chosen |= dict.fromkeys(matching)
    if dry_run:
        _print_plan({"delete": list(chosen)})
        return
    opened.delete(list(chosen))
    print(f"{location}: {len(chosen):,} deleted; {len(opened):,} in all")


def _print_plan(plan: dict[str, list[str]]) -> None:
    """Print what would be done, and the ids of the first images of each kind."""
    for action, ids in plan.items():
        if ids:
            print(f"would {action} {len(ids):,}:")
            print("\n".join(f"  {id}" for id in ids[:_NAMED]) + ("\n  …" if len(ids) > _NAMED else ""))
    if not any(plan.values()):
        print("nothing to do")
