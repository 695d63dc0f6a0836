"""Photographs from wherever they lie into an index: listed, decoded in threads, embedded and added batch by batch."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from PIL import Image

from tuplet import data
from tuplet.data.batches import ahead
from tuplet.data.decode import read_image
from tuplet.data.files import Files, Location, read_bytes
from tuplet.data.folders import IMAGE_ENDINGS
from tuplet.data.opening import TAR_ENDINGS
from tuplet.models import Embedder
from tuplet.progress import track
from tuplet.search.opening import Searchable
from tuplet.search.pictures import Prepared, embed, prepare

#: From so many vectors on, searching through an approximate index is worth its building.
LARGE = 1_000_000
#: Photographs that are added together: what a killed run has to do again at most.
BATCH = 256


@dataclass
class Gathered:
    """What became of the photographs."""

    added: int = 0
    known: int = 0  # were there already
    unreadable: list[str] = field(default_factory=list)  # a sentence for each
    seconds: float = 0.0

    def __str__(self) -> str:
        rate = f", {self.added / self.seconds:,.0f} a second" if self.seconds and self.added else ""
        known = f", {self.known:,} were there already" if self.known else ""
        return f"{self.added:,} photographs added{rate}{known}, {len(self.unreadable):,} unreadable"


@dataclass(frozen=True)
class Photograph:
    """A picture that is to be read, and what is known of it."""

    id: str
    label: str
    read: Callable[[], Image.Image]
    aspect: float | None = None  # the true width / height of one that was squashed


def photographs(source: str | os.PathLike[str], split: str | None = None) -> list[Photograph]:
    """The pictures of a source; the id of each is its name below the source.

    The source is a folder or tar in which some pictures lie at the top, and whose folders are labels; or whatever
    `tuplet.data.open` reads, of which `split` chooses a part.
    """
    path = Path(source)
    if split is None and str(source) and path.exists() and (path.is_dir() or path.name.lower().endswith(TAR_ENDINGS)):
        files = Files.of(path)
        names = [name for name in files if name.lower().endswith(IMAGE_ENDINGS)]
        if not all("/" in name for name in names):
            return [
                Photograph(_text(name), _text(name.rpartition("/")[0]), partial(_read, files[name])) for name in names
            ]
    whole = data.open(source, complete=False)
    found = whole if split is None else whole.part(split)
    if found.images is None:
        raise ValueError(f"{source} holds feature vectors and no photographs; add them with Index.add(vectors, ids)")
    base = path if path.is_dir() else path.parent
    # What has no file is called by its place in the whole, so that no two splits have an id in common.
    places = [place for place in range(len(whole)) if split is None or (whole.splits or ())[place] == split]
    return [
        Photograph(
            _text(_name(found.images[row], base)) if isinstance(found.images, list) else f"{path.name}/{place}",
            _text(found.class_names[int(found.labels[row])]),
            partial(found.image, row),
            None if found.aspects is None else float(found.aspects[row]),
        )
        for row, place in enumerate(places)
    ]


def gather(index: Searchable, found: Sequence[Photograph]) -> Gathered:
    """Add photographs to an index that has a model. Those that are there already are passed over.

    Every `BATCH` of them is kept for good at once, so what was stopped goes on where it was. A photograph that cannot
    be read is listed and left out.
    """
    embedder, begun, report = index.embedder, time.monotonic(), Gathered()
    with index.writing():
        known = index.known([photograph.id for photograph in found])
        # A table may list a photograph twice.
        new = list({photograph.id: photograph for photograph in reversed(found) if photograph.id not in known}.values())
        new.reverse()
        report.known = len(found) - len(new)
        decoded = track(_decoded(new, embedder), "indexing", total=len(new))
        for start in range(0, len(new), BATCH):
            pairs = list(zip(new[start : start + BATCH], decoded, strict=False))
            report.unreadable += [ready for _, ready in pairs if isinstance(ready, str)]
            good = [(photograph, ready) for photograph, ready in pairs if isinstance(ready, Prepared)]
            if good:
                index.add(
                    embed([ready.pixels for _, ready in good], embedder),
                    [photograph.id for photograph, _ in good],
                    [{"label": photograph.label} if photograph.label else {} for photograph, _ in good],
                    pictures=[ready.picture for _, ready in good],
                )
            report.added += len(good)
    report.seconds = time.monotonic() - begun
    return report


def _decoded(photographs: list[Photograph], embedder: Embedder) -> Iterator[Prepared | str]:
    """Each photograph ready for the model, or a sentence that says why it is not."""

    def decode(photograph: Photograph) -> Prepared | str:
        try:
            return prepare(photograph.read(), embedder, aspect=photograph.aspect)
        except (ValueError, OSError) as error:
            return str(error)

    return ahead(decode, photographs, workers=min(8, os.cpu_count() or 1), lead=2 * BATCH)


def _read(location: Location) -> Image.Image:
    return read_image(location if isinstance(location, str) else read_bytes(location), name=str(location))


def _name(location: Location, base: Path) -> str:
    return os.path.relpath(location, base) if isinstance(location, str) else location.name


def _text(name: str) -> str:
    r"""A file name as text; bytes that are none are written out, for names that differ must go on to differ.

    >>> print(_text(os.fsdecode(b"caf\xe9.jpg")))
    caf\xe9.jpg
    """
    return os.fsencode(name).decode("utf-8", "backslashreplace")
