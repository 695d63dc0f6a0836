"""One function that opens whatever holds the data."""

import os
import tarfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from tuplet.data.arrays import features_file
from tuplet.data.dataset import Dataset
from tuplet.data.files import Files
from tuplet.data.folders import IMAGE_ENDINGS, class_folders
from tuplet.data.glyphs import glyphs
from tuplet.data.official import LAYOUTS
from tuplet.data.tables import table

TABLE_ENDINGS = (".csv", ".parquet")
FEATURE_ENDINGS = (".npy", ".npz", ".safetensors")
TAR_ENDINGS = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tbz2", ".tar.xz", ".txz")
_SOURCES = "a folder, a tar, a table, a features file or 'glyphs'"


def open(
    source: str | os.PathLike[str],
    layout: str | None = None,
    columns: Mapping[str, str] | None = None,
    complete: bool = True,
) -> Dataset:
    """Open a dataset.

    `source` is one of
    - `"glyphs"`, the dataset that is drawn on the spot (`tuplet.data.glyphs`);
    - a folder or tar in the official layout of CUB-200-2011, Cars196, Stanford Online Products, In-Shop, LFW,
      Omniglot or MNIST. It is recognised by its files, or named by `layout`: cub200, cars196, sop, inshop, lfw,
      omniglot, mnist. Its splits must have the official sizes, unless `complete=False`;
    - any other folder or tar of class folders (`tuplet.data.folders`);
    - a `.csv` or `.parquet` table of paths and labels (`tuplet.data.tables`, with its `columns`);
    - feature vectors: `.npy`, `.npz` or `.safetensors` (`tuplet.data.arrays`).

    What is not there is a FileNotFoundError, what cannot be read as one of these a ValueError. Pictures are not decoded
    yet: see `tuplet.data.load`.

    >>> import tempfile
    >>> from PIL import Image
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     for name in ("ant", "bee"):
    ...         Path(folder, name).mkdir()
    ...         Image.new("RGB", (8, 8)).save(Path(folder, name, "1.png"))
    ...     open(folder)
    Dataset(2 images, 2 classes)
    """
    if not isinstance(source, str | os.PathLike):
        raise TypeError(
            f"the data are a {type(source).__name__} and no path; "
            "make a dataset of arrays with from_features or from_images of tuplet.data"
        )
    path = Path(source)
    if layout is not None and layout not in LAYOUTS:
        raise ValueError(f"layout is {layout!r}; it must be one of {', '.join(LAYOUTS)}")
    if str(source) == "":  # which as a path is the current folder, and more likely a variable that was not set
        raise ValueError(f"the name of the data is empty; give {_SOURCES}")
    if str(source) == "glyphs" and not path.exists():
        return replace(glyphs(), source="glyphs")
    if not path.exists():
        raise FileNotFoundError(f"{path} does not exist; give {_SOURCES}")
    return replace(_read(path, layout, columns, complete), source=str(path.absolute()))


def _read(path: Path, layout: str | None, columns: Mapping[str, str] | None, complete: bool) -> Dataset:
    ending = path.suffix.lower() if path.is_file() else ""
    is_table, is_features = ending in TABLE_ENDINGS, ending in FEATURE_ENDINGS
    if columns and not is_table:
        raise ValueError(f"columns is given, but {path} is no table ({', '.join(TABLE_ENDINGS)}); leave it out")
    if layout and (is_table or is_features):
        raise ValueError(f"layout is {layout!r}, but {path} is neither a folder nor a tar; leave it out")
    if is_table:
        return table(path, columns)
    if is_features:
        return features_file(path)
    if path.is_file() and path.suffix.lower() in IMAGE_ENDINGS:
        raise ValueError(f"{path} is one picture; give the folder of the class folders that hold such pictures")
    if path.is_file() and not path.name.lower().endswith(TAR_ENDINGS) and not tarfile.is_tarfile(path):
        raise ValueError(
            f"{path} is no folder, tar, table ({', '.join(TABLE_ENDINGS)}) or features file "
            f"({', '.join(FEATURE_ENDINGS)}); unpack it if it is an archive, else save it as one of these"
        )
    files = Files.of(path)
    found = LAYOUTS[layout] if layout else next((known for known in LAYOUTS.values() if known.matches(files)), None)
    if found is None:
        return class_folders(files)
    try:
        data = found.read(files)
    except (KeyError, ValueError) as error:
        reason = f"nothing about {error}" if isinstance(error, KeyError) else error
        raise ValueError(f"{found.title} in {path} is damaged ({reason}); fetch it again") from error
    if complete:
        found.check(data, str(path))
    return data
