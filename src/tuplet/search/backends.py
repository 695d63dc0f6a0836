"""Create, open and copy an index by its address: a folder, or a Milvus collection."""

import os
import re
import shutil
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from tuplet.atomic import fsync
from tuplet.models import Embedder
from tuplet.search import files
from tuplet.search.base import Searchable
from tuplet.search.index import Index
from tuplet.search.milvus import MilvusIndex, is_milvus


def create(
    location: str | os.PathLike[str],
    *,
    dim: int | None = None,
    metric: str | None = None,
    embedder: Embedder | None = None,
) -> Searchable:
    """Create an empty index.

    Args:
        location: a folder, `things.index`; a file of milvus-lite, `things.db`; or a collection of a Milvus server,
            `http://host:19530#name`.
        dim: the length of the vectors, for an index of plain vectors.
        metric: "euclidean", "cosine" or "dot". The default is "dot" if the embedder gives unit vectors, where it equals
            the cosine and is faster, and "euclidean" otherwise.
        embedder: the model, for an index of images. A folder stores it; Milvus stores its fingerprint only.

    Raises:
        FileExistsError: if there is an index already (use `open`), or the folder holds other files.

    >>> import tempfile, torch
    >>> index = create(tempfile.mkdtemp() + "/points.index", dim=2, metric="cosine")
    >>> index.add(torch.eye(2), ids=["east", "north"])
    >>> [hit.id for hit in index.search(torch.tensor([0.2, 3.0]), k=1)[0]]
    ['north']
    """
    return _backend(location).create(os.fspath(location), dim=dim, metric=metric, embedder=embedder)


def open(location: str | os.PathLike[str], embedder: Embedder | None = None) -> Searchable:
    """Open the index at a location, as `create` takes it.

    Args:
        location: a folder or a Milvus address.
        embedder: the model that made the index; needed for images in Milvus, which does not store the model.

    Raises:
        FileNotFoundError: if there is no index.
        ValueError: if the index was made by another model.
    """
    return _backend(location).open(os.fspath(location), embedder)


def _backend(location: str | os.PathLike[str]) -> Any:
    return MilvusIndex if is_milvus(os.fspath(location)) else Index


def copy(source: str | os.PathLike[str], to: str | os.PathLike[str], embedder: Embedder | None = None) -> Searchable:
    """Copy an index to a new location, without its deleted rows, and open the copy.

    An approximate index is not copied: build it again. A folder appears when it is complete. A copy that fails leaves
    nothing behind. One that is killed leaves a folder whose name ends in `.part`, which the next copy to the same
    location deletes, or an incomplete Milvus collection, which you must delete.

    Args:
        source: the index to copy.
        to: the new location, as `create` takes it.
        embedder: the model, if `source` is a Milvus collection of images.

    Raises:
        FileExistsError: if `to` exists.

    >>> import tempfile, torch
    >>> folder = Path(tempfile.mkdtemp())
    >>> index = create(folder / "points.index", dim=2)
    >>> index.add(torch.eye(2), ids=["east", "north"])
    >>> index.delete("east")
    >>> copy(folder / "points.index", folder / "smaller.index").search(torch.tensor([1.0, 0.0]))[0]
    [Hit(id='north', score=-1.4142..., metadata={})]
    """
    opened = open(source, embedder)
    if is_milvus(os.fspath(to)):
        made = _create_like(opened, to)
        try:
            _copy_items(opened, made)
        except BaseException:
            made.drop()
            raise
        return made
    folder = Path(to).absolute()  # the current folder may change
    if os.path.lexists(folder):
        raise FileExistsError(f"{folder} exists; copy to a new name")
    _delete_abandoned(folder)
    part = folder.with_name(f"{folder.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        made = _create_like(opened, part)
        with made.writing():  # the lock shows other copies that this one is alive
            _copy_items(opened, made)
            part.rename(folder)
    except BaseException:
        shutil.rmtree(part, ignore_errors=True)
        raise
    fsync(folder.parent)
    return open(folder, embedder)


def _delete_abandoned(folder: Path) -> None:
    """Delete the unfinished folders of killed copies: the lock of a writer ends with its process."""
    name = re.compile(re.escape(folder.name) + r"\.[0-9a-f]{8}\.part")
    for path in folder.parent.iterdir() if folder.parent.exists() else ():
        if name.fullmatch(path.name) and (path / files.LOCK).exists():
            with suppress(BlockingIOError), files.writer_lock(path):
                shutil.rmtree(path)


def _create_like(index: Searchable, location: str | os.PathLike[str]) -> Any:
    """Create an empty index with the dimension, metric and model of another."""
    if index.has_model:
        return create(location, metric=index.metric, embedder=index.embedder)
    return create(location, dim=index.dim, metric=index.metric)


def _copy_items(source: Searchable, to: Searchable) -> None:
    for items in source.batches():
        to.add(items.vectors, items.ids, items.metadata, thumbnails=items.thumbnails)
