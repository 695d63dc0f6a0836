"""An index once more at another address: a folder without the rows that were deleted, or a Milvus collection."""

import os
import re
import shutil
import uuid
from contextlib import suppress
from pathlib import Path
from typing import Any

from tuplet.durable import flush
from tuplet.models import Embedder
from tuplet.search import files
from tuplet.search.milvus import is_milvus
from tuplet.search.opening import Searchable, create, open


def copy(where: str | os.PathLike[str], to: str | os.PathLike[str], embedder: Embedder | None = None) -> Searchable:
    """Copy what an index holds to an address that is new, as `create` takes it; and open the copy.

    Deleted rows stay behind, and so does an approximate index: build it again. A collection of Milvus does not hold
    its model: give it as `embedder`. A folder is there when it is complete, and not before. A copy that fails leaves
    nothing. One that is killed leaves a folder whose name ends in `.part`, which the next copy to the same place takes
    away, or a part of a collection: delete it.

    >>> import tempfile, torch
    >>> folder = Path(tempfile.mkdtemp())
    >>> index = create(folder / "points.index", dim=2)
    >>> index.add(torch.eye(2), ids=["east", "north"])
    >>> index.delete("east")
    >>> copy(folder / "points.index", folder / "smaller.index").search(torch.tensor([1.0, 0.0]))[0]
    [Hit(id='north', score=-1.4142..., metadata={})]
    """
    source = open(where, embedder)
    if is_milvus(os.fspath(to)):
        made = _empty(source, to)
        try:
            return _filled(made, source)
        except BaseException:
            made.drop()
            raise
    folder = Path(to).absolute()  # the process may change its own
    if os.path.lexists(folder):
        raise FileExistsError(f"{folder} exists; copy to a name that is new")
    _remove_abandoned(folder)
    aside = folder.with_name(f"{folder.name}.{uuid.uuid4().hex[:8]}.part")
    try:
        made = _empty(source, aside)
        with made.writing():  # until it has its name: see above
            _filled(made, source)
            aside.rename(folder)
    except BaseException:
        shutil.rmtree(aside, ignore_errors=True)
        raise
    flush(folder.parent)
    return open(folder, embedder)


def _remove_abandoned(folder: Path) -> None:
    """Delete what killed copies to this place have left: the lock of a writer ends with its process."""
    name = re.compile(re.escape(folder.name) + r"\.[0-9a-f]{8}\.part")
    for path in folder.parent.iterdir() if folder.parent.exists() else ():
        if name.fullmatch(path.name) and (path / files.LOCK).exists():
            with suppress(BlockingIOError), files.only_writer(path):
                shutil.rmtree(path)


def _empty(source: Searchable, to: str | os.PathLike[str]) -> Any:
    """An index of the same kind."""
    if source.has_model:
        return create(to, metric=source.metric, embedder=source.embedder)
    return create(to, dim=source.dim, metric=source.metric)


def _filled(made: Searchable, source: Searchable) -> Searchable:
    for part in source.parts():
        made.add(part.vectors, part.ids, part.metadata, pictures=part.pictures)
    return made
