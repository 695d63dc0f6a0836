"""The pairs of Labeled Faces in the Wild, from the official `pairs.txt`."""

from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np


class Pairs(NamedTuple):
    """Pairs of photographs, `first` and `second`, by their paths below the dataset's folder.

    `same` says whether both show one person; `folds` is 0 for the pairs of the first fold, and so on.
    """

    first: list[str]
    second: list[str]
    same: np.ndarray
    folds: np.ndarray


def read_pairs(path: str | PathLike[str]) -> Pairs:
    r"""Read `pairs.txt`: folds of as many pairs of one person (`name i j`) as of two (`name i other j`).

    The first line holds the number of folds, where there are several, and the number of pairs of each kind in a fold.
    With embeddings of the photographs in a dictionary by path, the protocol is:

        pairs = read_pairs("lfw/pairs.txt")
        first, second = (np.stack([embeddings[p] for p in side]) for side in (pairs.first, pairs.second))
        pair_verification(pair_scores(first, second, metric="cosine"), pairs.same, folds=pairs.folds)

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "pairs.txt"
    >>> _ = file.write_text("2 1\nAda 1 3\nAda 1 Bob 2\nBob 1 2\nBob 2 Ada 4\n")
    >>> pairs = read_pairs(file)
    >>> pairs.first[1], pairs.second[1], pairs.same.tolist(), pairs.folds.tolist()
    ('Ada/Ada_0001.jpg', 'Bob/Bob_0002.jpg', [True, False, True, False], [0, 0, 1, 1])
    """
    lines = [line.split() for line in Path(path).read_text(encoding="utf-8").splitlines() if line.strip()]
    if not lines or len(lines[0]) > 2 or not all(field.isdigit() for field in lines[0]):
        raise ValueError(f"{path} must begin with the number of folds and of pairs in each; give LFW's own pairs.txt")
    folds, each = (int(number) for number in ["1", *lines.pop(0)][-2:])
    if len(lines) != 2 * folds * each:
        raise ValueError(
            f"{path} promises {folds} folds of {each} pairs of each kind, but has {len(lines)} pairs in all; "
            "fetch it again"
        )
    first, second, same = [], [], []
    for number, fields in enumerate(lines, 2):
        if len(fields) not in (3, 4) or not (fields[1].isdigit() and fields[-1].isdigit()):
            raise ValueError(f"{path} line {number} must be 'name i j' or 'name i other j', got {' '.join(fields)!r}")
        first.append(_photograph(fields[0], fields[1]))
        second.append(_photograph(fields[-2] if len(fields) == 4 else fields[0], fields[-1]))
        same.append(len(fields) == 3)
    return Pairs(first, second, np.array(same), np.arange(len(lines)) // (2 * each))


def _photograph(name: str, number: str) -> str:
    return f"{name}/{name}_{int(number):04d}.jpg"
