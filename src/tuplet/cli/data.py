"""`tuplet data`."""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path
from typing import Annotated

import typer

from tuplet import data as datasets
from tuplet.cli import show
from tuplet.data import Dataset
from tuplet.data.batches import ahead
from tuplet.data.files import Files
from tuplet.data.folders import IMAGE_ENDINGS
from tuplet.progress import track
from tuplet.training.settings import Settings
from tuplet.training.split import split_examples

#: Unreadable files that are named; the others are counted.
_NAMED = 20
#: What a side of a JPEG is decoded to at least: as training does, and several times as fast as all of it.
_DECODED = 512


def data(
    source: Annotated[str, typer.Argument(metavar="DATA", help="As for tuplet train.")],
    check: Annotated[bool, typer.Option(help="Read every picture, and name those that cannot be read.")] = True,
) -> None:
    """Describe a dataset: examples, classes, splits, exact copies, and the files that cannot be read.

    Where the data come without splits, the halves of the classes are shown that tuplet train would take. What
    keeps it from these data, if anything does, is said too. The exit code is 1 when a picture cannot be read.

    Examples:
      tuplet data photos/
      tuplet data cub200.csv --no-check
    """
    opened = datasets.open(source)
    parts = {"all": opened}
    if opened.splits is not None:
        parts |= {name: opened.part(name) for name in Counter(opened.splits)}
    elif len(opened.classes) > 1:
        parts |= dict(zip(("train", "test"), opened.split(), strict=True))
    numbers = ("examples", "classes", "smallest", "median", "largest")
    show.table(["split", *numbers], [[name, *_counts(part)] for name, part in parts.items()], numbers)
    _say_of_classes(opened)
    _say_of_training(opened)
    if Path(source).is_dir():
        _say_of_other_files(source)
    if check and opened.images is not None:
        _check(opened)


def _counts(part: Dataset) -> list[str]:
    """Examples, classes, and the sizes of the smallest, the middle and the largest class."""
    sizes = part.labels.unique(return_counts=True)[1]
    return [f"{int(n):,}" for n in (len(part), len(sizes), sizes.min(), sizes.median(), sizes.max())]


def _say_of_classes(data: Dataset) -> None:
    labels, sizes = data.labels.unique(return_counts=True)
    named = [
        f"{data.class_names[label]} ({size:,})" for label, size in zip(labels.tolist(), sizes.tolist(), strict=True)
    ]
    print(f"\nclasses: {', '.join(named[:8])}{', …' if len(named) > 8 else ''}")
    alone = int((sizes == 1).sum())
    if alone:
        print(f"classes of a single example, which has no positive and is of no use for training: {alone:,}")


def _say_of_training(data: Dataset) -> None:
    """What keeps `tuplet train` from these data, if anything does, and what it would warn of."""
    try:
        train = split_examples(data, Settings()).train
    except ValueError as error:
        print(f"tuplet train cannot take these data: {error}")
        return
    useful = int((data.labels[train].unique(return_counts=True)[1] > 1).sum())
    if useful < 2:
        print(f"training needs two classes of two examples or more, and the train split has {useful}; add examples")


def _say_of_other_files(folder: str) -> None:
    """What may have been meant to be a picture: the photographs of a telephone, say."""
    others = [name for name in Files.of(folder) if not name.lower().endswith(IMAGE_ENDINGS)]
    endings = Counter(Path(name).suffix.lower() or "without one" for name in others)
    if endings:
        named = [f"{count:,} {ending}" for ending, count in endings.most_common(8)]
        print(f"files that are no pictures by their endings: {', '.join(named)}")


def _check(data: Dataset) -> None:
    """Read every picture; what cannot be read is an exit code."""
    read = ahead(partial(_read, data), range(len(data)), lead=64)
    contents, troubles = zip(*track(read, "reading pictures", total=len(data)), strict=True)
    _say_of_copies(data, contents)
    unreadable = [said for said in troubles if said]
    if not unreadable:
        print(f"all {len(data):,} pictures can be read")
        return
    print(f"{len(unreadable):,} of {len(data):,} pictures cannot be read:")
    print("\n".join(f"  {line}" for line in unreadable[:_NAMED]) + ("\n  …" if len(unreadable) > _NAMED else ""))
    raise typer.Exit(1)


def _read(data: Dataset, index: int) -> tuple[bytes, str]:
    """A hash of the pixels of a picture that can be read, and what keeps another from being so."""
    try:
        return blake2b(data.image(index, least=_DECODED).tobytes(), digest_size=16).digest(), ""
    except (ValueError, OSError) as error:
        return b"", str(error)


def _say_of_copies(data: Dataset, contents: Sequence[bytes]) -> None:
    """A copy is found first without anything learned, so that it flatters a result."""
    first: dict[bytes, int] = {}
    copies = [(i, first.setdefault(each, i)) for i, each in enumerate(contents) if each]
    copies = [(i, of) for i, of in copies if i != of]
    if copies:
        others = sum(bool(data.labels[i] != data.labels[of]) for i, of in copies)
        elsewhere = f", {others:,} of them under another class" if others else ""
        named = " of ".join(map(data.path, copies[0]))
        print(f"pictures that are exact copies of others: {len(copies):,}{elsewhere}; first {named}")
