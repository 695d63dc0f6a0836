"""`tuplet embed`."""

import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from tuplet import extras
from tuplet.atomic import explain_write_errors, write_atomic
from tuplet.cli.arguments import Columns, Device, Model, Pattern, open_options
from tuplet.cli.errors import NOTHING_KEPT, print_stderr, when_stopped

if TYPE_CHECKING:
    import numpy as np
    from torch import Tensor

    from tuplet.search.listing import ListedImage


def embed(
    model: Model,
    images: Annotated[list[Path], typer.Argument(metavar="IMAGES", help="Files, folders of files, tables and tars.")],
    out: Annotated[Path, typer.Option(help="The file to write: .npy, .npz, .safetensors or .parquet.")],
    device: Device = None,
    unreadable: Annotated[
        Literal["stop", "skip"], typer.Option(help="Stop at an image that cannot be read, or skip it.")
    ] = "stop",
    columns: Columns = None,
    pattern: Pattern = None,
) -> None:
    """Write the embeddings of images or of the rows of a table, with paths, and classes where they are known.

    The ending of the file chooses the format:
      .npz          arrays `embeddings` (n, d), `paths` (n) and `labels` (n), names of classes
      .safetensors  tensors `embeddings` and `labels`; in the metadata, one per line, the paths and the classes
      .parquet      columns `path`, `embedding` and `label` (needs pyarrow)
      .npy          the embeddings alone; the paths, one per line, in a .txt file beside it, the labels in _labels.npy

    tuplet train takes the file with labels, except .parquet.

    Examples:
      tuplet embed runs/photos new/ --out vectors.npz
      tuplet embed runs/photos a.jpg b.jpg --out two.npy
      tuplet embed dinov2_small new/ --out vectors.npz     without training
    """
    from tuplet.cli.runs import load_image_embedder
    from tuplet.embedding import embed_in_shards, image_pixels
    from tuplet.embedding.pipeline import suggest_skipping

    if out.suffix not in FORMATS:
        raise typer.BadParameter(f"--out is {out}; its ending must be one of {', '.join(FORMATS)}")
    embedder = load_image_embedder(model, device)
    paths, classes, rows = _list(images, open_options(columns, pattern))

    def pixels(name: str) -> "Tensor":
        row = rows.get(name)
        return image_pixels(embedder, name) if row is None else image_pixels(embedder, row.read()[0], row.aspect)

    if not out.parent.is_dir():
        out.parent.mkdir(parents=True)
        print_stderr(f"the folder {out.parent} did not exist and was created")
    # Fail now, not after the last image, if nothing can be written there.
    with explain_write_errors(out):
        TemporaryFile(dir=out.parent).close()
    shards = out.with_name(f"{out.name}.shards")
    with suggest_skipping(), when_stopped(lambda: _kept(shards, len(paths))):
        embedded = embed_in_shards(embedder, paths, shards, unreadable, pixels=pixels)
    kept = embedded.items
    if not kept:
        raise ValueError(f"none of the {len(paths):,} images can be read, first: {embedded.problems[0]}")
    for problem in embedded.problems:
        print_stderr(problem)
    labels = [classes[path] for path in kept] if all(path in classes for path in kept) else None
    _write(out, embedded.vectors.numpy(), kept, labels)
    shutil.rmtree(shards, ignore_errors=True)
    skipped = f", {len(paths) - len(kept):,} unreadable" if len(kept) < len(paths) else ""
    print(f"{out}: {len(kept):,} vector{'s' * (len(kept) > 1)} of {embedder.width:,} numbers{skipped}")


def _list(
    images: Sequence[Path], options: dict[str, Any]
) -> "tuple[list[str], dict[str, str], dict[str, ListedImage]]":
    """Return the names of all images, the classes of those that have one, and the rows of tables, both by name.

    A file is named by its path, and its class is its folder below the given one. A row is named as in an index; it may
    have a box and other proportions than its file.
    """
    from tuplet.cli.runs import list_images
    from tuplet.data.sources import TABLE_ENDINGS, TAR_ENDINGS
    from tuplet.search.listing import list_images as list_rows

    names: list[str] = []
    classes: dict[str, str] = {}
    rows: dict[str, ListedImage] = {}
    for given in images:
        if given.is_file() and given.name.lower().endswith((*TABLE_ENDINGS, *TAR_ENDINGS)):
            listed = {row.id: row for row in list_rows(given, **options)}
            rows |= listed
            classes |= {id: row.metadata["label"] for id, row in listed.items() if "label" in row.metadata}
            names += map(_check_name, listed)
        else:
            for path in list_images(given):
                names.append(_check_name(path))
                if given.is_dir() and path.parent != given:
                    classes[str(path)] = path.parent.relative_to(given).as_posix()
    return names, classes, rows


def _kept(shards: Path, count: int) -> str:
    """Say what a stopped command leaves."""
    from tuplet.embedding.shards import SHARD

    done = SHARD * len(list(shards.glob("*.safetensors")))
    if not done:
        return NOTHING_KEPT
    return f"; {min(done, count):,} of {count:,} images are done in {shards}, and the same command continues from there"


def _check_name(path: Path | str) -> str:
    """Return a path as text; raise a ValueError if a list with one path per line cannot contain it."""
    name = str(path)
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"the name of {name!r} is not UTF-8 text, so no list of paths can contain it; rename it"
        ) from None
    if "\n" in name:
        raise ValueError(f"the name of {name!r} has a line break, and paths are listed one per line; rename it")
    return name


def _write(out: Path, vectors: "np.ndarray", paths: Sequence[str], labels: Sequence[str] | None) -> None:
    """Write the file, and those beside an .npy file."""
    write_atomic(out, lambda part: FORMATS[out.suffix](part, vectors, paths, labels))
    if out.suffix == ".npy":
        lines = "".join(f"{path}\n" for path in paths)
        write_atomic(out.with_suffix(".txt"), lambda part: part.write_text(lines, encoding="utf-8"))
        if labels is not None:
            write_atomic(out.with_name(f"{out.stem}_labels.npy"), lambda part: _save_array(part, labels))


def _save_array(path: Path, array: "np.ndarray | Sequence[str]") -> None:
    import numpy as np

    with path.open("wb") as file:
        np.save(file, array)


def _npy(path: Path, vectors: "np.ndarray", paths: Sequence[str], labels: Sequence[str] | None) -> None:
    _save_array(path, vectors)


def _npz(path: Path, vectors: "np.ndarray", paths: Sequence[str], labels: Sequence[str] | None) -> None:
    import zipfile

    import numpy as np

    arrays: dict[str, Any] = {"embeddings": vectors, "paths": np.array(paths)}
    if labels is not None:
        arrays["labels"] = np.array(labels)
    # np.savez of numpy 1.26 leaves its archive open when the disk is full, and a traceback follows at exit.
    with zipfile.ZipFile(path, "w") as archive:
        for name, array in arrays.items():
            with archive.open(f"{name}.npy", "w", force_zip64=True) as file:
                np.lib.format.write_array(file, array, allow_pickle=False)


def _safetensors(path: Path, vectors: "np.ndarray", paths: Sequence[str], labels: Sequence[str] | None) -> None:
    import numpy as np
    from safetensors.numpy import save_file

    tensors, metadata = {"embeddings": vectors}, {"paths": "\n".join(paths)}
    if labels is not None:
        names, numbers = np.unique(labels, return_inverse=True)
        tensors["labels"], metadata["classes"] = numbers.astype(np.int64), "\n".join(names)
    save_file(tensors, path, metadata=metadata)


def _parquet(path: Path, vectors: "np.ndarray", paths: Sequence[str], labels: Sequence[str] | None) -> None:
    arrow = extras.need("pyarrow", extra="tables", purpose="writing a Parquet file")
    parquet = extras.need("pyarrow.parquet", extra="tables", purpose="writing a Parquet file")
    rows = arrow.FixedSizeListArray.from_arrays(arrow.array(vectors.reshape(-1)), vectors.shape[1])
    named = {} if labels is None else {"label": arrow.array(labels)}
    parquet.write_table(arrow.table({"path": arrow.array(paths), "embedding": rows, **named}), path)


FORMATS: dict[str, Callable[[Path, "np.ndarray", Sequence[str], Sequence[str] | None], None]] = {
    ".npy": _npy,
    ".npz": _npz,
    ".safetensors": _safetensors,
    ".parquet": _parquet,
}
