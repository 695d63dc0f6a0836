"""`tuplet data`."""

import os
from collections import Counter
from collections.abc import Sequence
from functools import partial
from hashlib import blake2b
from pathlib import Path
from statistics import median_low
from typing import TYPE_CHECKING, Annotated

import typer

from tuplet.cli.arguments import Boxes, Columns, Data, Pattern, open_options
from tuplet.cli.flags import flag_spelling
from tuplet.cli.tables import print_table
from tuplet.errors import OptionError, first_of
from tuplet.progress import track

if TYPE_CHECKING:
    from tuplet.data import Dataset

#: The number of unreadable files that are named, each in a line, and of names in a line; others are only counted.
_NAMED, _LISTED = 20, 8
#: The smallest side to which a JPEG is decoded: as in training, and several times as fast as full size.
_DECODED = 512


def data(
    source: Data,
    check: Annotated[bool, typer.Option(help="Read every image and name those that cannot be read.")] = True,
    columns: Columns = None,
    pattern: Pattern = None,
    boxes: Boxes = False,
) -> None:
    """Describe a dataset: examples, classes, splits, columns, exact copies and unreadable files.

    If the data have no splits, the train and test halves of tuplet train are shown. Problems that would stop
    tuplet train are printed. The exit code is 1 if an image cannot be read.

    Examples:
      tuplet data photos/
      tuplet data cub200.csv --no-check
    """
    from tuplet import data as datasets

    opened = datasets.open(source, **open_options(columns, pattern, boxes))
    parts = {"all": opened}
    if opened.splits is not None:
        parts |= {name: opened.part(name) for name in Counter(opened.splits)}
    elif len(opened.classes) > 1:
        parts |= dict(zip(("train", "test"), opened.split(), strict=True))
    numbers = ("examples", "classes", "smallest", "median", "largest")
    print_table(["split", *numbers], [[name, *_counts(part)] for name, part in parts.items()], numbers)
    _print_classes(opened)
    _print_columns(opened)
    _print_training_problems(opened)
    if Path(source).is_dir():
        _print_other_files(source)
    if check and opened.images is not None:
        _check_images(opened)


def _counts(part: "Dataset") -> list[str]:
    """Return the numbers of examples and classes, and the smallest, median and largest class size."""
    sizes = part.class_sizes().values()
    return [f"{n:,}" for n in (len(part), len(sizes), min(sizes), median_low(sizes), max(sizes))]


def _print_classes(data: "Dataset") -> None:
    sizes = [(data.class_names[label], size) for label, size in data.class_sizes().items()]
    print(f"\nclasses: {first_of([f'{name} ({size:,})' for name, size in sizes], _LISTED)}")
    single = [name for name, size in sizes if size == 1]
    if single:
        problem = "classes with a single example, which has no positive and cannot be trained on"
        print(f"{problem}: {len(single):,} ({first_of(single, _LISTED)})")


def _print_columns(data: "Dataset") -> None:
    """Print what else a reader saw: vectors, boxes, groups, several labels, levels, pairs and metadata."""
    if data.features is not None:
        print(f"vectors: {data.features.shape[1]:,} numbers each")
    if data.boxes is not None:
        width, height = (data.boxes[:, 2:] - data.boxes[:, :2]).median(0).values.tolist()
        print(f"boxes: every image is cropped to its own, {width:g} × {height:g} pixels in the middle")
    if data.groups is not None:
        count = len(data.groups.codes.unique())
        print(f"groups: {count:,} by {data.groups.name}; a query leaves out its own class in its own group")
    if data.levels is not None:
        print(f"levels: {', '.join(f'{len(names):,} of {name}' for name, names in data.levels.items())}")
    elif data.label_sets is not None:
        mean = float((data.label_sets >= 0).sum() / len(data))
        print(f"labels: {mean:.1f} for each example on average; a shared one makes two examples the same")
    if data.pairs is not None:
        same = int(data.pairs.same.sum())
        kinds = f"{same:,} same and {len(data.pairs.same) - same:,} different"
        triplets = f", from {len(data.pairs.triplets):,} triplets" if len(data.pairs.triplets) else ""
        how = "" if data.protocol == "lfw" else "; images that a chain of same pairs connects are one class"
        print(f"pairs: {kinds}{triplets}{how}")
    for name, values in data.metadata.items():
        given = [value for value in values if value is not None]
        different = list(dict.fromkeys(map(str, given)))
        missing = f", {len(values) - len(given):,} empty" if len(given) < len(values) else ""
        print(f"metadata {name}: {len(different):,} values{missing}: {first_of(different, 5)}")


def _print_training_problems(data: "Dataset") -> None:
    from tuplet.cli.train import train
    from tuplet.training.settings import Settings
    from tuplet.training.split import split_examples

    try:
        rows = split_examples(data, Settings()).train
    except ValueError as error:
        reason = error.spelled(flag_spelling(train)) if isinstance(error, OptionError) else str(error)
        print(f"tuplet train cannot use these data: {reason}")
        return
    usable = sum(size > 1 for size in data.select(rows).class_sizes().values())
    if usable < 2:
        print(f"training needs two classes of two examples or more, and the train split has {usable}; add examples")


def _print_other_files(folder: str) -> None:
    """Count folders without images, and files without the ending of one, which the user may have meant as images."""
    from tuplet.data.files import IMAGE_ENDINGS, Files

    files = Files.of(folder)
    if files.images and (empty := _folders_without(files.images, folder)):
        print(f"folders without images: {len(empty):,} ({first_of(empty, _LISTED)})")
    others = [name for name in files if not name.lower().endswith(IMAGE_ENDINGS)]
    endings = Counter(Path(name).suffix.lower() or "without one" for name in others)
    if endings:
        named = [f"{count:,} {ending}" for ending, count in endings.most_common(8)]
        print(f"files that are not images by their endings: {', '.join(named)}")


def _folders_without(images: Sequence[str], top: str) -> list[str]:
    """Return the folders below `top` that contain none of the images, without the folders inside them."""
    direct = [Path(folder) for folder in {name.rpartition("/")[0] for name in images}]
    filled, empty = {str(path) for folder in direct for path in (folder, *folder.parents)}, []
    for where, names, _ in os.walk(top):
        below = {name: str(Path(where, name).relative_to(top)) for name in names if not name.startswith(".")}
        empty += [path for path in below.values() if path not in filled]
        names[:] = [name for name, path in below.items() if path in filled]
    return sorted(empty)


def _check_images(data: "Dataset") -> None:
    """Read every image, print copies and unreadable ones, and exit with code 1 if there are unreadable ones."""
    from tuplet.threads import map_in_threads

    read = map_in_threads(partial(_read, data), range(len(data)), lead=64)
    hashes, errors = zip(*track(read, "reading images", total=len(data)), strict=True)
    _print_copies(data, hashes)
    unreadable = [error for error in errors if error]
    if not unreadable:
        print(f"all {len(data):,} images can be read")
        return
    print(f"{len(unreadable):,} of {len(data):,} images cannot be read:")
    print("\n".join(f"  {line}" for line in unreadable[:_NAMED]) + ("\n  …" if len(unreadable) > _NAMED else ""))
    print("replace or delete them, or skip them: tuplet train --unreadable skip")
    raise typer.Exit(1)


def _read(data: "Dataset", index: int) -> tuple[bytes, str]:
    """Return a hash of the pixels of an image and "", or b"" and the reason why it cannot be read."""
    try:
        return blake2b(data.image(index, least=_DECODED).tobytes(), digest_size=16).digest(), ""
    except (ValueError, OSError) as error:
        return b"", str(error)


def _print_copies(data: "Dataset", hashes: Sequence[bytes]) -> None:
    """Print how many images are exact copies: a copy is always retrieved first, which flatters a result."""
    first: dict[bytes, int] = {}
    copies = [(i, first.setdefault(each, i)) for i, each in enumerate(hashes) if each]
    copies = [(i, original) for i, original in copies if i != original]
    if copies:
        others = [(i, original) for i, original in copies if data.labels[i] != data.labels[original]]
        elsewhere = f", {len(others):,} of them in another class" if others else ""
        named = " of ".join(map(data.path, (others or copies)[0]))
        print(f"images that are exact copies of others: {len(copies):,}{elsewhere}, such as {named}")
