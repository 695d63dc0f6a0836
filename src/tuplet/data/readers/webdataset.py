"""WebDataset: tars in which the files of one sample share a name, `0001.jpg`, `0001.cls`, `0001.json`."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tuplet.data.dataset import Dataset
from tuplet.data.files import IMAGE_ENDINGS, Files, Location
from tuplet.data.readers.columns import Table, dataset_of
from tuplet.data.readers.folders import split_in
from tuplet.errors import OptionError, opt, warn

#: The endings of the files that describe an image.
_ABOUT = ("cls", "json", "txt")


def is_webdataset(files: Files) -> bool:
    """Return whether an image of a tar shares its name with a file that holds its label."""
    images = {key for key, ending in map(_parts, files) if _is_image(ending)}
    described = {ending: name for name in files for key, ending in [_parts(name)] if key in images}
    return "cls" in described or ("json" in described and "label" in files.text(described["json"]))


def read_webdataset(tars: Sequence[Files], columns: Mapping[str, str] | None = None, labelled: bool = True) -> Dataset:
    """Read the samples of one tar or several.

    The label is in the file `.cls`, or in the entry label of `.json`; the other entries of that are columns, as is the
    text of `.txt`. A tar whose name has a word such as train or test is that split. Unless `labelled` is false, each
    sample needs a label.
    """
    images: list[Location] = []
    rows: list[dict[str, Any]] = []
    places: list[str] = []
    for tar in tars:
        samples: dict[str, dict[str, str]] = {}
        for name in tar:
            key, ending = _parts(name)
            samples.setdefault(key, {})[ending] = name
        named = split_in(Path(tar.source).stem)
        split = {"split": named} if named else {}
        without = [key for key, own in samples.items() if not any(map(_is_image, own))]
        if without:
            warn(f"{len(without):,} samples of {tar.source} have no image and are left out, first {without[0]}")
        for key, own in samples.items():
            found = [name for ending, name in own.items() if _is_image(ending)]
            if len(found) > 1:
                raise ValueError(
                    f"sample {key} of {tar.source} has the images {' and '.join(found)}; give each its own name"
                )
            if found:
                images.append(tar[found[0]])
                places.append(f"sample {key} of {tar.source}")
                rows.append({**split, **_about(tar, own)})
    names = dict.fromkeys(name for row in rows for name in row)
    table = Table(tars[0].source, {name: [row.get(name) for row in rows] for name in names}, lambda row: places[row])
    table = table.with_roles(columns)
    if not labelled:
        table = table.with_empty_labels()
    if "label" not in table and "labels" not in table:
        raise OptionError(
            f"{places[0]} has no label in a .cls file or in the entry label of a .json file; add it, or name another "
            f"entry, {opt('columns', {'label': '…'})}: {', '.join(names) or 'there are none'}"
        )
    return dataset_of(table, images)


def _parts(name: str) -> tuple[str, str]:
    """Return the key of a sample and the ending of one of its files: the name is split at its first dot.

    >>> _parts("a/0001.seg.png")
    ('a/0001', 'seg.png')
    """
    folder, slash, last = name.rpartition("/")
    key, _, ending = last.partition(".")
    return f"{folder}{slash}{key}", ending.lower()


def _is_image(ending: str) -> bool:
    return f".{ending}".endswith(IMAGE_ENDINGS)


def _about(tar: Files, own: Mapping[str, str]) -> dict[str, Any]:
    """Return what the files of a sample say about it."""
    found: dict[str, Any] = {}
    for ending in set(_ABOUT) & own.keys():
        try:
            text = tar.text(own[ending]).strip()
            found[ending] = json.loads(text) if ending == "json" else text or None
        except ValueError as error:
            raise ValueError(f"{own[ending]} in {tar.source} cannot be read ({error}); write it again") from error
    entries = found.pop("json", {})
    if not isinstance(entries, dict):
        raise ValueError(f"{own['json']} in {tar.source} holds no entries by name; write an object, {{…}}")
    if "label" not in entries and "cls" in found:
        found["label"] = found.pop("cls")
    return {**found, **{name: None if value in ("", [], {}) else value for name, value in entries.items()}}
