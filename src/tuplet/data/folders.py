"""Class folders, on disk or in a tar."""

import warnings
from collections.abc import Sequence

import torch

from tuplet.data.dataset import Dataset
from tuplet.data.files import Files

#: Files with other endings are not images, and left alone.
IMAGE_ENDINGS = (
    *(".jpg", ".jpeg", ".jfif", ".png", ".webp", ".avif", ".bmp", ".gif", ".tif", ".tiff", ".ppm", ".pgm", ".jp2"),
)
SPLIT_FOLDERS = ("train", "val", "valid", "validation", "test", "query", "gallery")


def class_folders(files: Files) -> Dataset:
    """Images whose folder is their class: `bee/1.jpg`, or `train/bee/1.jpg` where all top folders name splits.

    A split may be in capitals, and several may lie in the one folder that is on top, as in a tar of a folder. The class
    is the whole path of the folder, so `latin/a` and `greek/a` are two.
    """
    names = [name for name in files if name.lower().endswith(IMAGE_ENDINGS)]
    if not names:
        others = next((f", only files such as {name}" for name in files), "")
        raise ValueError(
            f"{files.source} holds no images{others}; expected folders, one a class, with files such as 1.jpg"
        )
    parts = [name.split("/")[:-1] for name in names]
    for name, folders in zip(names, parts, strict=True):
        if not folders:
            raise ValueError(f"the image {name} in {files.source} lies in no class folder; move it into one")
    splits, inside = _splits(parts), [folders[1:] for folders in parts]
    one_on_top = len({folders[0] for folders in parts}) == 1
    if splits is None and one_on_top and len(set(_splits(inside) or ())) > 1:
        splits, parts = _splits(inside), inside
    if splits is not None:
        parts = [folders[1:] for folders in parts]
    else:
        _warn_of_splits_that_are_none(files.source, inside if one_on_top else parts)
    classes = ["/".join(folders) for folders in parts]
    number = {name: label for label, name in enumerate(sorted(set(classes)))}
    labels = torch.tensor([number[name] for name in classes])
    return Dataset(labels, tuple(number), images=[files[name] for name in names], splits=splits)


def _splits(parts: Sequence[Sequence[str]]) -> tuple[str, ...] | None:
    """The splits that the first folders name, where each of them is one and holds classes."""
    if all(map(_in_split, parts)):
        return tuple(folders[0].lower() for folders in parts)
    return None


def _in_split(folders: Sequence[str]) -> bool:
    return len(folders) > 1 and folders[0].lower() in SPLIT_FOLDERS


def _warn_of_splits_that_are_none(source: str, parts: Sequence[Sequence[str]]) -> None:
    """Say so where several folders look like splits, and one that does not makes classes of them all."""
    alike = dict.fromkeys(folders[0] for folders in parts if _in_split(folders))
    if len(alike) > 1:
        other = next("/".join(folders) or "a picture" for folders in parts if not _in_split(folders))
        warnings.warn(
            f"{' and '.join(alike)} in {source} are taken for parts of classes' names, since {other} lies beside them; "
            "if they are splits, move it elsewhere",
            stacklevel=5,
        )
