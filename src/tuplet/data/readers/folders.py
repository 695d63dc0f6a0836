"""Class folders, on disk or in a tar."""

import re
from collections.abc import Sequence

import torch

from tuplet.data.dataset import Dataset
from tuplet.data.files import Files
from tuplet.errors import OptionError, opt, warn

#: The names of splits: of folders on top, and of words in the names of tars and tables.
SPLITS = ("train", "val", "valid", "validation", "test", "query", "gallery")


def split_in(name: str) -> str | None:
    """Return the split that a word in the name of a file or of its folders is.

    >>> split_in("birds/Train-00000-of-00001.parquet"), split_in("trainers.tar")
    ('train', None)
    """
    return next((word for word in re.split(r"[^a-z]+", name.lower()) if word in SPLITS), None)


def class_folders(files: Files) -> Dataset:
    """Read images whose folder is their class: `bee/1.jpg`, or `train/bee/1.jpg` where all top folders name splits.

    Split names may be in capitals. The splits may also lie in a single top folder, as in a tar of a folder. The class
    is the whole path of the folder, so `latin/a` and `greek/a` are two classes. Images that lie in no folder are
    ignored, with a warning that counts them.
    """
    if not files.images:
        others = next((f", only files such as {name}" for name in files), "")
        raise ValueError(
            f"{files.source} holds no images{others}; expected one folder per class with files such as 1.jpg"
        )
    names = _leave_out_strays(files.images, files.source)
    # Folders are looked at once, not once for each of their files: there may be a million of those.
    paths = [name.rpartition("/")[0] for name in names]
    folders = dict.fromkeys(paths)
    parts = [path.split("/") for path in folders]
    splits, inside = _splits(parts), [each[1:] for each in parts]
    one_on_top = len({each[0] for each in parts}) == 1
    if splits is None and one_on_top and len(set(_splits(inside) or ())) > 1:
        splits, parts = _splits(inside), inside
    if splits is not None:
        parts = [each[1:] for each in parts]
    else:
        _warn_of_ignored_splits(files.source, inside if one_on_top else parts)
    classes = ["/".join(each) for each in parts]
    number = {name: label for label, name in enumerate(sorted(set(classes)))}
    label_of = dict(zip(folders, map(number.__getitem__, classes), strict=True))
    split_of = dict(zip(folders, splits, strict=True)) if splits else {}
    return Dataset(
        torch.tensor([label_of[path] for path in paths]),
        tuple(number),
        images=[files[name] for name in names],
        splits=tuple(split_of[path] for path in paths) if splits else None,
    )


def _leave_out_strays(names: Sequence[str], source: str) -> list[str]:
    """Return the images in folders; warn of those beside the folders, and raise an error if there are no others."""
    inside, strays = [name for name in names if "/" in name], [name for name in names if "/" not in name]
    if not inside:
        raise OptionError(
            f"all {len(strays):,} images in {source}, such as {strays[0]}, lie in no class folder",
            "make a folder for each class and move them there, or find the class in the names of the files: "
            f"{opt('pattern', '(?P<label>.+)_')} takes what comes before the last _",
        )
    if strays:
        count = f"1 image, {strays[0]}, is" if len(strays) == 1 else f"{len(strays):,} images, such as {strays[0]}, are"
        warn(f"{count} ignored: in {source} but in no class folder; move such images into one or away")
    return inside


def _splits(parts: Sequence[Sequence[str]]) -> tuple[str, ...] | None:
    """Return the splits that the first folders name, or None unless all of them name one and hold classes."""
    if all(map(_in_split, parts)):
        return tuple(folders[0].lower() for folders in parts)
    return None


def _in_split(folders: Sequence[str]) -> bool:
    return len(folders) > 1 and folders[0].lower() in SPLITS


def _warn_of_ignored_splits(source: str, parts: Sequence[Sequence[str]]) -> None:
    """Warn where several folders look like splits, but another folder beside them makes them classes."""
    alike = dict.fromkeys(folders[0] for folders in parts if _in_split(folders))
    if len(alike) > 1:
        other = next("/".join(folders) or "an image" for folders in parts if not _in_split(folders))
        warn(
            f"{' and '.join(alike)} in {source} are read as parts of class names, since {other} lies beside them; "
            "if they are splits, move it elsewhere"
        )
