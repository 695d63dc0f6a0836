"""`tuplet embed`."""

from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from tempfile import TemporaryFile
from typing import Annotated, Literal

import numpy as np
import typer
from safetensors.numpy import save_file
from torch import Tensor

from tuplet import extras
from tuplet.cli.places import picture_embedder_of, pictures_of
from tuplet.cli.trouble import say
from tuplet.data.batches import ahead
from tuplet.data.decode import read_image
from tuplet.durable import replace_file, writing
from tuplet.models import Embedder
from tuplet.progress import track
from tuplet.rights import like_any_new_file
from tuplet.search.pictures import embed as embed_pixels
from tuplet.search.pictures import pixels

#: Pictures that are embedded together.
_TOGETHER = 128


def embed(
    model: Annotated[Path, typer.Argument(metavar="MODEL", help="The folder of a run, or of an embedder.")],
    pictures: Annotated[list[Path], typer.Argument(metavar="PICTURES", help="Files, and folders of files.")],
    out: Annotated[Path, typer.Option(help="The file to write: .npy, .npz, .safetensors or .parquet.")],
    device: Annotated[str | None, typer.Option(help="cpu, cuda, cuda:1 … [a GPU where there is one]")] = None,
    unreadable: Annotated[
        Literal["stop", "skip"], typer.Option(help="What to do about a picture that cannot be read.")
    ] = "stop",
) -> None:
    """Write the vectors of pictures, and which file each belongs to.

    The format is the ending of the file:
      .npz          arrays `embeddings` (n, d) and `paths` (n)
      .safetensors  the tensor `embeddings`; the paths, one a line, in the metadata
      .parquet      columns `path` and `embedding` (needs pyarrow)
      .npy          the vectors alone; the paths, one a line, in a .txt file beside it

    Examples:
      tuplet embed runs/photos new/ --out vectors.npz
      tuplet embed runs/photos a.jpg b.jpg --out two.npy
    """
    if out.suffix not in FORMATS:
        raise typer.BadParameter(f"--out is {out}; its ending must be one of {', '.join(FORMATS)}")
    embedder = picture_embedder_of(model, device)
    paths = [_as_text(path) for given in pictures for path in pictures_of(given)]
    out.parent.mkdir(parents=True, exist_ok=True)
    # Better to hear now than after the last picture that nothing can be written there.
    with writing(out):
        TemporaryFile(dir=out.parent).close()
    vectors, kept = _vectors(embedder, paths, unreadable == "skip")
    skipped, paths = len(paths) - len(kept), kept
    replace_file(out, lambda aside: FORMATS[out.suffix](aside, vectors, paths))
    if out.suffix == ".npy":
        lines = "".join(f"{path}\n" for path in paths)
        replace_file(out.with_suffix(".txt"), lambda aside: aside.write_text(lines, encoding="utf-8"))
    left_out = f", {skipped:,} unreadable" if skipped else ""
    print(f"{out}: {len(vectors):,} vectors of {vectors.shape[1]:,} numbers{left_out}")


def _vectors(embedder: Embedder, paths: Sequence[str], skip: bool) -> tuple[np.ndarray, list[str]]:
    """The vectors of the pictures, and their paths; one that cannot be read is an error, or is said and left out."""
    kept: list[str] = []
    unreadable: list[str] = []

    def read(path: str) -> Tensor | str:
        try:
            return pixels(read_image(path), embedder)
        except (ValueError, OSError) as error:
            if not skip:
                raise type(error)(f"{error} with --unreadable skip") from error
            return str(error)

    def readable() -> Iterator[Tensor]:
        decoded = ahead(read, paths, lead=2 * _TOGETHER)
        for path, picture in zip(paths, track(decoded, "embedding", total=len(paths)), strict=True):
            if isinstance(picture, str):
                unreadable.append(picture)
            else:
                kept.append(path)
                yield picture

    parts, pictures = [], readable()
    while batch := list(islice(pictures, _TOGETHER)):
        parts.append(embed_pixels(batch, embedder).numpy())
    if not kept:
        raise ValueError(f"none of the {len(paths):,} pictures can be read, first: {unreadable[0]}")
    for sentence in unreadable:
        say(sentence)
    return np.concatenate(parts), kept


def _as_text(path: Path) -> str:
    """A path as the lists of all formats can hold it."""
    name = str(path)
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError(
            f"the name of {name!r} is no UTF-8 text, so that no list of paths can hold it; rename it"
        ) from None
    if "\n" in name:
        raise ValueError(f"the name of {name!r} has a line break, and paths are listed one a line; rename it")
    return name


def _npy(path: Path, vectors: np.ndarray, paths: Sequence[str]) -> None:
    with path.open("wb") as file:
        np.save(file, vectors)


def _npz(path: Path, vectors: np.ndarray, paths: Sequence[str]) -> None:
    with path.open("wb") as file:
        np.savez(file, embeddings=vectors, paths=np.array(paths))


def _safetensors(path: Path, vectors: np.ndarray, paths: Sequence[str]) -> None:
    save_file({"embeddings": vectors}, path, metadata={"paths": "\n".join(paths)})
    like_any_new_file(path)


def _parquet(path: Path, vectors: np.ndarray, paths: Sequence[str]) -> None:
    arrow = extras.need("pyarrow", extra="tables", purpose="writing a Parquet file")
    parquet = extras.need("pyarrow.parquet", extra="tables", purpose="writing a Parquet file")
    rows = arrow.FixedSizeListArray.from_arrays(arrow.array(vectors.reshape(-1)), vectors.shape[1])
    parquet.write_table(arrow.table({"path": arrow.array(paths), "embedding": rows}), path)


FORMATS: dict[str, Callable[[Path, np.ndarray, Sequence[str]], None]] = {
    ".npy": _npy,
    ".npz": _npz,
    ".safetensors": _safetensors,
    ".parquet": _parquet,
}
