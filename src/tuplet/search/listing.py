"""List the images of a folder, a tar or a dataset, with their ids, labels and files."""

import os
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypedDict

from PIL import Image

from tuplet import data
from tuplet.data.dataset import crop_box
from tuplet.data.files import Files, Location, Slice, read_bytes
from tuplet.data.readers.webdataset import is_webdataset
from tuplet.data.sources import TAR_ENDINGS
from tuplet.errors import first_line
from tuplet.images.decode import UnreadableImageError, read_image
from tuplet.search.inputs import is_json


class FileRecord(TypedDict):
    """The file of an image, in its metadata under the key `file`: enough to open it and to notice a change."""

    source: str  # the folder, tar or table that was indexed, and its split after a #
    path: str
    size: int
    modified: int  # the time of the file in nanoseconds
    crc32: int


@dataclass(frozen=True)
class ListedImage:
    """An image to index: its id and metadata, and the file that holds it or a function that returns it.

    `aspect` is the true width / height, if the stored image has other proportions; `box` is the part that is shown.
    """

    id: str
    metadata: Mapping[str, Any]
    origin: Location | Callable[[], Image.Image]
    source: str = ""
    aspect: float | None = None
    box: Sequence[float] | None = None

    def read(self) -> tuple[Image.Image, FileRecord | None]:
        """Read the image, and describe its file if it has one."""
        if callable(self.origin):
            return self.origin(), None
        try:
            size, modified = _stat(self.origin)
            content = read_bytes(self.origin)
        except OSError as error:
            reason = error.strerror or first_line(error)
            raise UnreadableImageError(f"image {self.path} cannot be read: {reason}") from error
        image = read_image(content, name=self.path)
        if self.box is not None:
            image = crop_box(image, self.box, self.path)
        crc32 = zlib.crc32(content)
        return image, FileRecord(source=self.source, path=self.full_path, size=size, modified=modified, crc32=crc32)

    @property
    def path(self) -> str:
        """The path of the file; for one in a tar or a table, the path of that and the name inside."""
        return str(self.origin)

    @property
    def full_path(self) -> str:
        """The path from the root, as text, for the record of the file."""
        return _text(os.path.abspath(self.path))

    def differs(self, record: Mapping[str, object]) -> bool:
        """Compare the file with an earlier record: by path, size and time, and by checksum if only the time differs."""
        if callable(self.origin):
            return False
        if self.full_path != record.get("path"):  # it was moved, and its record no longer leads to it
            return True
        try:
            size, modified = _stat(self.origin)
            if size == record.get("size"):
                return modified != record.get("modified") and zlib.crc32(read_bytes(self.origin)) != record.get("crc32")
        except OSError:
            pass  # `read` will say why
        return True


def _stat(origin: Location) -> tuple[int, int]:
    """Return the size of a file, and the time of it or of the file that holds it."""
    if isinstance(origin, str):
        about = os.stat(origin)
        return about.st_size, about.st_mtime_ns
    size = origin.size if isinstance(origin, Slice) else len(read_bytes(origin))
    return size, os.stat(origin.file).st_mtime_ns


def list_images(source: str | os.PathLike[str], split: str | None = None, **options: Any) -> list[ListedImage]:
    """List the images of a source, or of one split of it; the id of each is its path below the source.

    The source is a folder or tar with images at the top, whose folders are labels; or a source of `tuplet.data.open`
    with these options, which needs no labels. The label and the other columns of a table are metadata. A column `id`
    gives the ids; where images have boxes, their boxes are a part of the ids.
    """
    path = Path(source)
    named = _text(os.path.abspath(path)) + (f"#{split}" if split else "")
    plain = split is None and not options and str(source) and path.exists()
    if plain and (path.is_dir() or path.name.lower().endswith(TAR_ENDINGS)):
        files = Files.of(path)
        names = files.images
        if not all("/" in name for name in names) and not is_webdataset(files):
            labels = [_text(name.rpartition("/")[0]) for name in names]
            pairs = zip(names, labels, strict=True)
            return [ListedImage(_text(name), _labelled(label), files[name], named) for name, label in pairs]
    dataset = data.open(source, complete=False, labelled=False, **options)
    found = dataset if split is None else dataset.part(split)
    if found.images is None:
        raise ValueError(f"{source} holds feature vectors and no images; add them with Index.add(vectors, ids)")
    base = path if path.is_dir() else path.parent
    # Images without files are numbered over the whole dataset, so that two splits never share an id.
    places = [place for place in range(len(dataset)) if split is None or (dataset.splits or ())[place] == split]
    listed = []
    for row, place in enumerate(places):
        aspect = None if found.aspects is None else float(found.aspects[row])
        about = _metadata(found, row)
        if isinstance(found.images, list):
            box = None if found.boxes is None else found.boxes[row].tolist()
            listed.append(ListedImage(_id(found, row, base), about, found.images[row], named, aspect, box))
        else:
            listed.append(ListedImage(f"{path.name}/{place}", about, partial(found.image, row), named, aspect))
    return listed


def _labelled(label: str) -> dict[str, str]:
    return {"label": label} if label else {}


def _metadata(found: data.Dataset, row: int) -> dict[str, Any]:
    """Return the label of an example, all labels where it has several, and the other columns that have a value."""
    about = _labelled(_text(found.class_names[int(found.labels[row])]))
    several = {}
    if found.targets.ndim == 2:
        several = {"labels": [found.class_names[label] for label in found.targets[row].tolist() if label >= 0]}
    rest = {name: values[row] for name, values in found.metadata.items() if name != "id" and values[row] is not None}
    return {**about, **several, **{name: value if is_json(value) else str(value) for name, value in rest.items()}}


def _id(found: data.Dataset, row: int, base: Path) -> str:
    given = found.metadata.get("id")
    if given is not None and given[row] is not None:
        return str(given[row])
    assert isinstance(found.images, list)
    place = found.images[row]
    name = _text(os.path.relpath(place, base) if isinstance(place, str) else place.name)
    return name if found.boxes is None else f"{name}#{','.join(f'{side:g}' for side in found.boxes[row].tolist())}"


def _text(name: str) -> str:
    r"""Return a file name as valid text; bytes that are not UTF-8 are escaped, so that different names stay different.

    >>> print(_text(os.fsdecode(b"caf\xe9.jpg")))
    caf\xe9.jpg
    """
    return os.fsencode(name).decode("utf-8", "backslashreplace")
