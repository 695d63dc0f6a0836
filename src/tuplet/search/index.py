"""An index in a folder, searched exactly unless an approximate index was built."""

import os
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tuplet.atomic import explain_write_errors, fsync
from tuplet.errors import warn
from tuplet.evaluation.inputs import positive_integer
from tuplet.models import Embedder, load
from tuplet.search import approximate, files
from tuplet.search.base import Searchable
from tuplet.search.exact import RARE
from tuplet.search.exact import search as exact_search
from tuplet.search.files import Approximate, CheckedFile
from tuplet.search.filters import Columns, Where
from tuplet.search.inputs import (
    Ids,
    Inputs,
    Items,
    as_ids,
    check_conditions,
    dim_and_metric,
    query_vectors,
    refuse_known,
)
from tuplet.search.results import SearchResults, distinct_results
from tuplet.search.snapshot import Snapshot, encode_items

#: Rows in one of the batches of `Index.batches`.
BATCH = 4096


class Index(Searchable):
    """An index in a folder.

    Search is exact: it uses the blocked top-k of `tuplet.evaluation` on the memory-mapped vectors, with the same order
    of ties and the same scores. Each `add` and `delete` happens completely or not at all, and survives a kill once it
    has returned. An open index shows the state it was opened with; `refresh` loads the latest one.

    >>> import tempfile, torch
    >>> index = Index.create(Path(tempfile.mkdtemp()) / "points.index", dim=2)
    >>> index.add(torch.eye(2), ids=["east", "north"], metadata=[{"label": "x"}, {"label": "y"}])
    >>> [hit.id for hit in index.search(torch.tensor([2.0, 1.0]))[0]]
    ['east', 'north']
    >>> index.search(torch.tensor([[2.0, 1.0]]), where={"label": "y"})[0]
    [Hit(id='north', score=-2.0, metadata={'label': 'y'})]
    """

    def __init__(self, folder: Path, embedder: Embedder | None = None) -> None:
        """Use `Index.create` or `Index.open`."""
        manifest = files.read_manifest(folder)
        self.folder = self.location = folder.absolute()  # the current folder may change
        self.snapshot = Snapshot(self.folder, manifest)
        self._columns = Columns()
        self._faiss: tuple[str, Any, CheckedFile | None] = "", None, None  # the approximate index, and its file
        self._thread_lock, self._is_writing = threading.RLock(), False
        self._device = torch.device("cpu")  # where to put the model of an index that takes the place of this one
        if embedder is not None:
            self.check_model(embedder)
            self.embedder = embedder

    @classmethod
    def create(
        cls,
        folder: str | os.PathLike[str],
        *,
        dim: int | None = None,
        metric: str | None = None,
        embedder: Embedder | None = None,
    ) -> "Index":
        """Create an empty index in a new or empty folder; `search.create` describes the arguments.

        The embedder is saved in the folder, so that the folder alone is enough to search.
        """
        folder = Path(folder)
        dim, metric = dim_and_metric(dim, metric, embedder)
        with explain_write_errors(folder):
            folder.mkdir(parents=True, exist_ok=True)
        files.refuse_other_files(folder)
        with files.writer_lock(folder):
            if (folder / files.MANIFEST).exists():
                raise FileExistsError(f"{folder} is an index already; open it with search.open, or choose another name")
            if embedder is not None:
                embedder.save(folder / files.MODEL)
            model = None if embedder is None else embedder.fingerprint()
            manifest = files.Manifest(dim, metric, model, uid=uuid.uuid4().hex)
            files.commit(folder, files.with_model(folder, manifest))
        fsync(folder.parent)
        return cls(folder, embedder)

    @classmethod
    def open(cls, folder: str | os.PathLike[str], embedder: Embedder | None = None) -> "Index":
        """Open the latest state of an index; its model is loaded when it is needed, unless `embedder` is given."""
        return cls(Path(folder), embedder)

    def __len__(self) -> int:
        return self.snapshot.count

    @property
    def manifest(self) -> files.Manifest:
        """The content of `index.json` in the state that is open."""
        return self.snapshot.manifest

    @cached_property
    def embedder(self) -> Embedder:
        """The model that made the vectors; TypeError if the index has none."""
        if not self.has_model:
            raise TypeError(f"{self.folder} holds plain vectors and has no model; give vectors, a tensor or an array")
        embedder = load(self.folder / files.MODEL)
        self.check_model(embedder)
        return embedder.to(self._device)

    def refresh(self) -> bool:
        """Load the latest state. Return True if it differs from the one before."""
        manifest = files.read_manifest(self.folder)
        is_damaged = self.snapshot.is_damaged  # its files may have been restored
        if manifest == self.manifest and not is_damaged:
            return False
        if manifest.uid != self.manifest.uid and "embedder" in self.__dict__:
            self._device = self.__dict__.pop("embedder").device
        self.snapshot = Snapshot(self.folder, manifest, None if is_damaged else self.snapshot)
        return True

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Keep other writers out during several changes; a single `add` or `delete` does so by itself.

        Raises:
            BlockingIOError: if another process is writing.
            ValueError: if another index took the place of this one.
        """
        with self._thread_lock, nullcontext() if self._is_writing else files.writer_lock(self.folder):
            outermost, self._is_writing = not self._is_writing, True
            try:
                uid = self.manifest.uid
                self.refresh()  # inside a series too: a change may be committed although its last sync failed
                if self.manifest.uid != uid:
                    raise ValueError(f"{self.folder} was replaced by another index; call again to change that one")
                yield
            finally:
                self._is_writing = not outermost

    def _insert(self, items: Items) -> None:
        with self.writing():
            refuse_known(set(self.snapshot.find(items.ids)))
            manifest = self.snapshot.manifest
            appended = files.append(self.folder, manifest, encode_items(items, manifest))
            self._commit(replace(appended, rows=manifest.rows + len(items.ids)))

    def delete(self, ids: Ids) -> None:
        """Delete these items; if an id does not exist, raise ValueError and delete none."""
        with self.writing():
            rows = self.snapshot.rows_of(list(dict.fromkeys(as_ids(ids))))
            manifest = self.snapshot.manifest
            appended = files.append(self.folder, manifest, {files.DELETED: np.array(rows, "<u8").tobytes()})
            self._commit(replace(appended, deleted=manifest.deleted + len(rows)))

    def _commit(self, manifest: files.Manifest) -> None:
        files.commit(self.folder, manifest)
        self.snapshot = Snapshot(self.folder, manifest, self.snapshot)

    def search(
        self,
        queries: Inputs,
        k: int = 10,
        *,
        where: Where | None = None,
        distinct: float | None = None,
        exact: bool = False,
    ) -> SearchResults:
        """Return the k nearest items of each query, nearest first; among equals the one added first.

        Args:
            queries: vectors (n, dim) or one (dim,); several views of each query (n, views, dim), which are averaged,
                for the cosine after scaling each to unit length; or images.
            k: the number of results; fewer if the index or the filter leaves fewer.
            where: metadata that a result must have: {"label": "bee"}, or one of several, {"label": ["ant", "bee"]}.
                None matches items without the key.
            distinct: leave out a result that scores this or more with a nearer one, among the 10,000 nearest.
            exact: compare with every vector even if an approximate index was built.

        Returns:
            For each query a list of hits: `id`, `score` (higher is nearer), `metadata` and `label`.
        """
        positive_integer(k, "k")
        check_conditions(where, distinct)
        snapshot = self.snapshot  # another thread may refresh
        dim, metric = snapshot.manifest.dim, snapshot.manifest.metric
        vectors = query_vectors(queries, dim, metric, lambda: self.embedder)
        allowed = self._columns.allowed(where, snapshot)
        available = snapshot.count if allowed is None else int(allowed.sum())
        built = snapshot.manifest.approximate
        k = min(k, available)

        def nearest(width: int, queries: np.ndarray | slice) -> tuple[np.ndarray, np.ndarray]:
            if not (exact or built is None or available * RARE < len(snapshot.rows)):
                faiss_index = self._load_faiss(built)
                if faiss_index is not None:
                    return approximate.search(snapshot, faiss_index, built, vectors[queries], width, allowed)
            return exact_search(snapshot, vectors[queries], width, allowed)

        if k == 0 or not len(vectors):
            return SearchResults(snapshot, np.empty((len(vectors), 0)), np.empty((len(vectors), 0), np.int64))
        if distinct is None:
            return SearchResults(snapshot, *nearest(k, slice(None)))
        found = distinct_results(nearest, len(vectors), k, available, snapshot.vectors, metric, distinct)
        return SearchResults(snapshot, *found)

    def build_approximate(self, kind: str = "hnsw", recall: float = 0.95) -> Approximate:
        """Build an approximate index with faiss, measure its recall@10 on a sample, print it and save the index.

        Rows added later are searched exactly beside it. Needs `pip install 'tuplet[search]'`.

        Args:
            kind: "hnsw", a graph: fast, as large as the vectors; or "ivf_pq", lists of compressed vectors: small.
            recall: the recall@10 to reach.

        Raises:
            ValueError: if the index cannot reach `recall`, or holds too few vectors.
        """
        with self.writing():
            before, built = self.approximate, approximate.build(self.snapshot, kind, recall)
            self._commit(replace(self.manifest, approximate=built))
            # Readers of the state before may not have loaded their file yet.
            approximate.remove_old(self.folder, before, built)
        print(built)
        return built

    def _load_faiss(self, built: Approximate) -> Any | None:
        """Return the approximate index; None if it was built twice again since this state was loaded."""
        name, index, file = self._faiss
        if file is None or name != built.file:
            if not (self.folder / built.file).exists() and files.read_manifest(self.folder).approximate != built:
                warn("the approximate index was built again; searching exactly until refresh()")
                return None
            index, file = approximate.read(self.folder, built)
            self._faiss = built.file, index, file
        file.read()  # raises if it was made shorter
        return index

    def verify(self) -> int:
        """Read every file of the index and compare it with the checksum of what was written.

        Each file is checked before its first use too, except the large ones: of vectors, items and thumbnails with more
        than 1 GiB. Vectors are always checked before they are searched exactly, an approximate index always.

        Returns:
            The number of bytes that were checked.

        Raises:
            DamagedIndexError: if a file is not as it was written. It is a ValueError.
        """
        manifest = files.read_manifest(self.folder)
        Snapshot(self.folder, manifest).verify()
        sizes = dict(manifest.bytes)
        for name in sizes.keys() - set(files.FILES):
            CheckedFile(self.folder / name, sizes[name], manifest.crc32[name]).read(always=True)
        if manifest.approximate is not None:
            sizes[manifest.approximate.file] = manifest.approximate.bytes
            approximate.checked(self.folder, manifest.approximate)
        return sum(sizes.values())

    def vectors(self, ids: Ids) -> np.ndarray:
        """Return the vectors (n, dim) of these ids; ValueError if one does not exist."""
        snapshot = self.snapshot
        return snapshot.vectors[snapshot.rows_of(as_ids(ids))]

    def batches(self) -> Iterator[Items]:
        """Iterate over all items in batches that `add` accepts, in the order in which they were added.

        Reads and checks all files first, so that no damage is copied.
        """
        snapshot = self.snapshot
        snapshot.verify()
        alive = np.flatnonzero(snapshot.alive).tolist()
        for start in range(0, len(alive), BATCH):
            rows = alive[start : start + BATCH]
            metadata = snapshot.items(rows)
            ids = [item.pop("id") for item in metadata]
            yield Items(snapshot.vectors[rows], ids, metadata, [snapshot.thumbnail(row) or b"" for row in rows])

    def metadata(self, ids: Ids) -> list[dict[str, Any]]:
        """Return the metadata of these ids; ValueError if one does not exist."""
        snapshot = self.snapshot
        items = snapshot.items(snapshot.rows_of(as_ids(ids)))
        return [{key: value for key, value in item.items() if key != "id"} for item in items]

    def items(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Iterate over the id and the metadata of all items, in the order in which they were added."""
        snapshot = self.snapshot
        alive = np.flatnonzero(snapshot.alive).tolist()
        for start in range(0, len(alive), BATCH):
            for item in snapshot.items(alive[start : start + BATCH]):
                yield item.pop("id"), item

    def thumbnail(self, id: str | int) -> bytes | None:
        """Return the thumbnail of an id as WebP; None if the id or its thumbnail does not exist."""
        snapshot = self.snapshot
        row = snapshot.find([str(id)]).get(str(id))
        return None if row is None else snapshot.thumbnail(row)

    def known(self, ids: Ids) -> set[str]:
        """Return those of the ids that exist in the index."""
        return set(self.snapshot.find(as_ids(ids)))

    def counts(self, key: str = "label") -> dict[Any, int]:
        """Count the items by their value of a metadata key, most frequent first."""
        return self._columns.counts(key, self.snapshot)
