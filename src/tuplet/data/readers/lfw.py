"""Faces in the layout of Labeled Faces in the Wild (LFW)."""

import re
from typing import NamedTuple

import torch

from tuplet.data.dataset import Dataset, ListedPairs
from tuplet.data.files import IMAGE_ENDINGS, Files
from tuplet.errors import warn

#: The lists of pairs: of the test in ten folds, and of development.
LISTS = ("pairs.txt", "pairsDevTest.txt")
#: Files that tell the layout.
MARKERS = ("George_W_Bush/George_W_Bush_0001.jpg", *LISTS)
_FACE = re.compile(r"(?:^|/)([^/]+)/\1_(\d{4})\.\w+$")
_WHOLE = 13_233


class Face(NamedTuple):
    """An image of a person, by the number in its name."""

    person: str
    number: int


def has_faces(files: Files) -> bool:
    """Return whether there is an image such as `Ada_Lovelace/Ada_Lovelace_0001.jpg`."""
    return any(map(_face_of, files))


def read_lfw(files: Files) -> Dataset:
    """Read one folder per person, all for testing, with the pairs of `pairs.txt`, or else of `pairsDevTest.txt`.

    Aligned copies in other formats than JPEG are read too. They often lack faces that were not found: a warning counts
    the pairs that are left out.
    """
    found = [(face, name) for name in files if (face := _face_of(name))]
    if not found:
        raise ValueError("no image is called as in Ada_Lovelace/Ada_Lovelace_0001.jpg")
    names: dict[Face, str] = {}
    for face, name in found:
        if names.setdefault(face, name) != name:
            raise ValueError(f"{names[face]} and {name} are the same image: give the folder of one of them")
    if files.root_of(MARKERS[0]) is not None and len(names) != _WHOLE:
        warn(f"LFW has {_WHOLE:,} images, but {files.source} has {len(names):,}; results on others are not comparable")
    people = {person: label for label, person in enumerate(sorted({face.person for face in names}))}
    return Dataset(
        labels=torch.tensor([people[face.person] for face in names]),
        class_names=tuple(people),
        images=[files[name] for name in names.values()],
        splits=("test",) * len(names),
        pairs=_listed_pairs(files, {face: i for i, face in enumerate(names)}),
        protocol="lfw",
    )


def _face_of(name: str) -> Face | None:
    match = _FACE.search(name) if name.lower().endswith(IMAGE_ENDINGS) else None
    return match and Face(match[1], int(match[2]))


def _listed_pairs(files: Files, position: dict[Face, int]) -> ListedPairs | None:
    """Read the pairs of which both images exist; None if there is no list."""
    root, name = next(((root, name) for name in LISTS if (root := files.root_of(name)) is not None), (None, ""))
    if root is None:
        return None
    pairs = parse_pairs(files.text(root + name), name)
    kept = [
        (position[a], position[b], a.person == b.person, fold)
        for a, b, fold in pairs
        if a in position and b in position
    ]
    if not kept:
        raise ValueError(f"none of the {len(pairs):,} pairs of {name} has both of its images")
    if len(kept) < len(pairs):
        lost = next(face for a, b, _ in pairs for face in (a, b) if face not in position)
        warn(
            f"{len(pairs) - len(kept):,} of the {len(pairs):,} pairs of {name} are left out: an image is missing, "
            f"such as {lost.person}_{lost.number:04d}"
        )
    first, second, same, folds = map(torch.tensor, zip(*kept, strict=True))
    return ListedPairs(first, second, same, torch.empty(0, 3, dtype=torch.int64), folds)


def parse_pairs(text: str, name: str) -> list[tuple[Face, Face, int]]:
    r"""Return the two images and the fold of each pair of a list.

    The first line holds the number of folds, where there are several, and the number of pairs of each kind in a fold. A
    line `person i j` is a pair of one person, a line `person i other j` a pair of two.

    >>> parse_pairs("1\nAda 1 3\nAda 1 Bob 2\n", "pairsDevTest.txt")[1]
    (Face(person='Ada', number=1), Face(person='Bob', number=2), 0)
    """
    lines = [(number, line.split()) for number, line in enumerate(text.splitlines(), 1) if line.strip()]
    header = lines.pop(0)[1] if lines else []
    if len(header) not in (1, 2) or not all(field.isdecimal() for field in header):
        raise ValueError(f"{name} does not begin with the numbers of folds and of pairs in each")
    folds, each = (int(number) for number in ["1", *header][-2:])
    if len(lines) != 2 * folds * each:
        raise ValueError(f"{name} announces {folds} × 2 × {each} pairs, but has {len(lines)}")
    pairs = []
    for count, (number, fields) in enumerate(lines):
        if len(fields) not in (3, 4) or not (fields[1].isdecimal() and fields[-1].isdecimal()):
            raise ValueError(f"{name} line {number} is not 'name i j' or 'name i other j': {' '.join(fields)!r}")
        other = fields[-2] if len(fields) == 4 else fields[0]
        pairs.append((Face(fields[0], int(fields[1])), Face(other, int(fields[-1])), count // (2 * each)))
    return pairs
