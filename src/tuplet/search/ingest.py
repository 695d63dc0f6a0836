"""Bring the images of a folder, a tar or a dataset into an index: compare, decode in threads, embed, add in batches."""

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from tuplet.embedding.pipeline import embed_chunks
from tuplet.progress import track
from tuplet.search.base import Searchable
from tuplet.search.inputs import decode
from tuplet.search.listing import FileRecord, ListedImage

#: The number of vectors from which an approximate index is worth building.
LARGE = 1_000_000


@dataclass(frozen=True)
class Changes:
    """The difference of an index and its images: new ones, changed ones, and the ids of those that are gone."""

    new: list[ListedImage]
    changed: list[ListedImage]
    deleted: list[str]
    known: int  # images that are in the index as they are


@dataclass
class IngestReport:
    """The number of images that were added, replaced, deleted, were in the index already, or could not be read."""

    added: int = 0
    replaced: int = 0
    deleted: int = 0
    known: int = 0
    unreadable: list[str] = field(default_factory=list)  # one error message per file
    seconds: float = 0.0

    def __str__(self) -> str:
        rate = f", {self.added / self.seconds:,.0f} a second" if self.seconds and self.added else ""
        counts = {"replaced": self.replaced, "deleted": self.deleted, "known already": self.known}
        others = "".join(f", {count:,} {what}" for what, count in counts.items() if count)
        images = "image" if self.added == 1 else "images"
        return f"{self.added:,} {images} added{rate}{others}, {len(self.unreadable):,} unreadable"


def find_changes(index: Searchable | None, images: Sequence[ListedImage], sync: bool = False) -> Changes:
    """Compare images with an index; None is an index that does not exist yet.

    Without `sync` an image whose id exists counts as known. With `sync` it is compared by its metadata and by the path,
    the size, the time and the checksum of its file; and items that came from the same source and are not listed any
    more count as deleted.
    """
    listed: dict[str, ListedImage] = {}
    for image in images:
        listed.setdefault(image.id, image)  # a table may list an image twice; the first one counts
    if index is None:
        return Changes(list(listed.values()), [], [], 0)
    if not sync:
        known = index.known(list(listed))
        new = [image for id, image in listed.items() if id not in known]
        return Changes(new, [], [], len(images) - len(new))
    stored = dict(index.items())
    new, changed = [], []
    for id, image in track(listed.items(), "comparing", total=len(listed)):
        if id not in stored:
            new.append(image)
        elif without_file(stored[id]) != image.metadata or image.differs(file_of(stored[id])):
            changed.append(image)
    sources = {image.source for image in images}
    deleted = [id for id, metadata in stored.items() if id not in listed and file_of(metadata).get("source") in sources]
    return Changes(new, changed, deleted, len(images) - len(new) - len(changed))


def file_of(metadata: Any) -> dict[str, Any]:
    """Return the record of an item's file, or {} if its metadata have none.

    >>> file_of({"label": "bee", "file": {"path": "/photos/bee/1.jpg"}}), file_of({"file": 3})
    ({'path': '/photos/bee/1.jpg'}, {})
    """
    record = metadata.get("file")
    return record if isinstance(record, dict) else {}


def without_file(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return metadata without the record of the file."""
    return {name: value for name, value in metadata.items() if name != "file"}


def add_images(index: Searchable, images: Sequence[ListedImage], sync: bool = False) -> IngestReport:
    """Bring images into an index that has a model; see `find_changes` for `sync`.

    Each batch is saved before the next begins, so a stopped run continues where it was. Images that cannot be read are
    reported and left out; a changed one that cannot be read keeps its old vector.
    """
    embedder, begun, report = index.embedder, time.monotonic(), IngestReport()

    def read(listed: ListedImage) -> tuple[Tensor, tuple[bytes, FileRecord | None]]:
        image, record = listed.read()
        pixels, thumbnail = decode(image, embedder, listed.aspect)
        return pixels, (thumbnail, record)

    with index.writing():
        changes = find_changes(index, images, sync)
        report.known, replaced = changes.known, {image.id for image in changes.changed}
        if changes.deleted:
            index.delete(changes.deleted)
            report.deleted = len(changes.deleted)
        for chunk in embed_chunks(embedder, [*changes.new, *changes.changed], read, "skip", "indexing"):
            report.unreadable += chunk.problems
            ids = [image.id for image, _ in chunk.items]
            if old := [id for id in ids if id in replaced]:
                index.delete(old)
            if ids:
                metadata = [_metadata(image, record) for image, (_, record) in chunk.items]
                index.add(chunk.vectors, ids, metadata, thumbnails=[thumbnail for _, (thumbnail, _) in chunk.items])
            report.replaced += len(old)
            report.added += len(ids) - len(old)
    report.seconds = time.monotonic() - begun
    return report


def _metadata(image: ListedImage, record: FileRecord | None) -> dict[str, Any]:
    return {**image.metadata, **({} if record is None else {"file": record})}
