"""`tuplet.data.open`: detect what holds the data and read it."""

import os
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from tuplet.data.dataset import Dataset
from tuplet.data.files import IMAGE_ENDINGS, Files
from tuplet.data.official import LAYOUTS
from tuplet.data.readers.arrays import features_file, from_torch
from tuplet.data.readers.columns import Table, dataset_of
from tuplet.data.readers.folders import class_folders
from tuplet.data.readers.glyphs import glyphs
from tuplet.data.readers.tables import TABLE_ENDINGS, is_arrow, match_pattern, read_table
from tuplet.data.readers.webdataset import is_webdataset, read_webdataset
from tuplet.errors import OptionError, did_you_mean, opt

FEATURE_ENDINGS = (".npy", ".npz", ".safetensors")
TAR_ENDINGS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
_SOURCES = "a folder, a tar, a table, a features file or 'glyphs'"


def open(
    source: str | os.PathLike[str] | torch.utils.data.Dataset[Any],
    layout: str | None = None,
    columns: Mapping[str, str] | None = None,
    complete: bool = True,
    pattern: str | None = None,
    boxes: bool = False,
    labelled: bool = True,
) -> Dataset:
    """Open a dataset.

    Images are not decoded yet: see `tuplet.data.load`.

    Args:
        source: one of
            - `"glyphs"`, a dataset that is drawn on the spot (`tuplet.data.glyphs`);
            - a folder or tar in the official layout of CUB-200-2011, Cars196, Stanford Online Products, In-Shop, LFW,
              Omniglot or MNIST, which is recognised by its files;
            - any other folder or tar of class folders (`tuplet.data.readers.folders`), or with `pattern` of any images;
            - a `.csv`, `.parquet` or `.arrow` table of paths or images and their labels, or of pairs or triplets
              (`tuplet.data.readers.tables`); a folder of such files, as Hugging Face's datasets are saved;
            - a WebDataset: a tar, or a folder of tars (`tuplet.data.readers.webdataset`);
            - a `torch.utils.data.Dataset` of (image or tensor, label) (`tuplet.data.from_torch`);
            - feature vectors: `.npy`, `.npz` or `.safetensors` (`tuplet.data.readers.arrays`).
        layout: the official layout: cub200, cars196, sop, inshop, lfw, omniglot or mnist.
        columns: the table's own names of its columns, such as {"label": "species"}; an empty name takes the column as
            plain metadata.
        complete: check that the splits of an official layout have the official sizes.
        pattern: a regular expression whose group `(?P<label>…)` finds the class in each path below the source. Other
            named groups are columns too: `split`, `camera` or any metadata.
        boxes: crop every image of CUB-200-2011, Cars196 or In-Shop to its official bounding box. A table has boxes in
            its columns.
        labelled: rows of a table need a label. If false, those without one get the class `""`.

    Raises:
        FileNotFoundError: the source does not exist.
        ValueError: it cannot be read as one of these.

    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("ant", "bee"):
    ...         Path(folder, name).mkdir()
    ...         Image.new("RGB", (8, 8)).save(Path(folder, name, "1.png"))
    ...     open(folder)
    Dataset(2 images, 2 classes)
    """
    if isinstance(source, torch.utils.data.Dataset):
        return from_torch(source)
    if not isinstance(source, str | os.PathLike):
        raise TypeError(
            f"the data are of type {type(source).__name__}; give a path, or make a dataset of arrays with "
            "tuplet.data.from_features or from_images"
        )
    path = Path(source)
    if layout is not None and layout not in LAYOUTS:
        raise ValueError(f"there is no layout {layout!r}; {did_you_mean(layout, LAYOUTS)}")
    if str(source) == "":  # the current folder as a path, but more likely a variable that was not set
        raise ValueError(f"the name of the data is empty; give {_SOURCES}")
    if str(source) == "glyphs" and not path.exists():
        return replace(glyphs(), source="glyphs")
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; give {_SOURCES}")
    how = {"layout": layout, "columns": dict(columns) if columns else None, "pattern": pattern, "boxes": boxes or None}
    found = _read(path, layout, columns, complete, pattern, boxes, labelled)
    if boxes and found.boxes is None:
        known = ", ".join(known.title for known in LAYOUTS.values() if known.has_boxes)
        raise OptionError(
            f"{opt('boxes')} is given, but {path} has none; leave it out for all but {known} as their authors "
            "distribute them, and tables, which have columns x1, y1, x2 and y2"
        )
    return replace(found, source=str(path.absolute()), opened_with={k: v for k, v in how.items() if v is not None})


def _read(
    path: Path,
    layout: str | None,
    columns: Mapping[str, str] | None,
    complete: bool,
    pattern: str | None,
    boxes: bool,
    labelled: bool,
) -> Dataset:
    if layout and pattern:
        raise ValueError(f"layout is {layout!r} and pattern is given; give one of them")
    ending = path.suffix.lower() if path.is_file() else ""
    is_table, is_features = ending in TABLE_ENDINGS, ending in FEATURE_ENDINGS
    if layout and (is_table or is_features):
        raise ValueError(f"layout is {layout!r}, but {path} is neither a folder nor a tar; leave it out")
    if is_features and (columns or pattern):
        given = opt("columns" if columns else "pattern")
        raise OptionError(f"{given} is given, but {path} is no table; leave it out")
    if is_table:
        return read_table(path, columns, pattern, labelled)
    if is_features:
        return features_file(path)
    if path.is_file() and path.suffix.lower() in IMAGE_ENDINGS:
        raise ValueError(f"{path} is a single image; give the folder that holds the class folders")
    if path.is_file() and not path.name.lower().endswith(TAR_ENDINGS) and not tarfile.is_tarfile(path):
        raise ValueError(
            f"{path} is no folder, tar, table ({', '.join(TABLE_ENDINGS)}) or features file "
            f"({', '.join(FEATURE_ENDINGS)}); unpack it if it is an archive, else save it as one of these"
        )
    files = Files.of(path)
    if layout is None and (read := _columns(path, files, columns, pattern, labelled)) is not None:
        return read
    if columns:
        tables = ", ".join(TABLE_ENDINGS)
        raise OptionError(f"{opt('columns')} is given, but {path} is no table ({tables}); leave it out")
    found = LAYOUTS[layout] if layout else next((known for known in LAYOUTS.values() if known.matches(files)), None)
    if found is None:
        return class_folders(files)
    try:
        data = found.read(files, boxes=True) if boxes and found.has_boxes else found.read(files)
    except (KeyError, ValueError) as error:
        reason = f"no entry {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"{found.title} in {path} is damaged ({reason}); fetch it again") from error
    if complete:
        found.check(data, str(path))
    return data


def _columns(
    path: Path, files: Files, columns: Mapping[str, str] | None, pattern: str | None, labelled: bool
) -> Dataset | None:
    """Read a folder of tables, a WebDataset, or images whose names a pattern explains; None if it is neither."""
    images = files.images
    if pattern is not None:
        if not images:
            raise ValueError(f"{path} holds no images whose names the pattern could match; give another folder")
        table = match_pattern(Table(str(path), {"path": images}, images.__getitem__), images, pattern)
        return dataset_of(table.with_roles(columns), [files[name] for name in images])
    if path.is_dir() and not images:
        if any(map(is_arrow, files)):
            return read_table(path, columns, labelled=labelled)
        tars = [Files.of(path / name) for name in files if name.endswith(".tar")]
        return read_webdataset(tars, columns, labelled) if any(map(is_webdataset, tars)) else None
    return read_webdataset([files], columns, labelled) if path.is_file() and is_webdataset(files) else None
