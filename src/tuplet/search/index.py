"""The index: vectors with ids and metadata in one folder, searched exactly unless told otherwise."""

import json
import os
import threading
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tuplet.durable import flush, writing
from tuplet.evaluation.inputs import positive_integer
from tuplet.models import Embedder, load
from tuplet.search import approximate, files
from tuplet.search.approximate import Approximate
from tuplet.search.exact import FEW
from tuplet.search.exact import search as exact_search
from tuplet.search.filters import Columns, Where
from tuplet.search.incoming import (
    Ids,
    Part,
    Things,
    additions,
    as_names,
    check_conditions,
    query_vectors,
    refuse_another_model,
    refuse_known,
    width_and_metric,
)
from tuplet.search.results import Found, distinct_results
from tuplet.search.snapshot import ROW, Snapshot, id_number

MODEL = "model"
#: Rows that are read together.
PART = 4096


class Index:
    """Vectors with ids and metadata, found again by nearness.

    Searching is exact: the evaluator's own blocked top-k over the memory-mapped file, with its ties and its answers.
    Each `add` and each `delete` happens wholly or not at all, and what has returned survives a kill at any moment.
    An open index stands still while others write; `refresh` takes it to the latest state.

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
        self.folder = folder.absolute()  # the process may change its own
        self.snapshot = Snapshot(self.folder, manifest)
        self._columns = Columns()
        self._loaded: tuple[str, Any] = "", None  # the approximate index, by the name of its file
        self._writers, self._writing = threading.RLock(), False
        self._device = torch.device("cpu")  # of the model, which another index may bring again
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
        """An empty index: for vectors of `dim` numbers, or for photographs, with the `embedder` that sees them.

        The embedder is saved inside, so that the folder alone is enough to search with. `metric` is "euclidean",
        "cosine" or "dot"; without one it is "dot" for an embedder that gives unit vectors, where it is the cosine at
        less cost, and else "euclidean".
        """
        folder = Path(folder)
        width, metric = width_and_metric(dim, metric, embedder)
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
        _refuse_others(folder)
        with files.only_writer(folder):
            if (folder / files.MANIFEST).exists():
                raise FileExistsError(f"{folder} is an index already; open it with search.open, or choose another name")
            if embedder is not None:
                embedder.save(folder / MODEL)
                for path in (folder / MODEL).iterdir():
                    flush(path)
                flush(folder / MODEL)
            model = None if embedder is None else embedder.fingerprint()
            files.commit(folder, files.Manifest(width, metric, model, born=uuid.uuid4().hex))
        flush(folder.parent)
        return cls(folder, embedder)

    @classmethod
    def open(cls, folder: str | os.PathLike[str], embedder: Embedder | None = None) -> "Index":
        """The latest state of an index, for searching and for writing.

        Its own model is loaded when a photograph comes. An `embedder` given here must be that very model.
        """
        return cls(Path(folder), embedder)

    def __len__(self) -> int:
        return self.snapshot.count

    def __repr__(self) -> str:
        return f"Index({str(self.folder)!r}, {len(self):,} vectors of {self.dim}, {self.metric})"

    @property
    def dim(self) -> int:
        """The length of its vectors."""
        return self.snapshot.manifest.dim

    @property
    def metric(self) -> str:
        """What makes two vectors near: "euclidean", "cosine" or "dot"."""
        return self.snapshot.manifest.metric

    @property
    def has_model(self) -> bool:
        """Whether photographs can be added and searched for."""
        return self.snapshot.manifest.model is not None

    @cached_property
    def embedder(self) -> Embedder:
        """The model that made the vectors."""
        if not self.has_model:
            raise TypeError(
                f"{self.folder} holds plain vectors and has no model; give it vectors, as a tensor or an array"
            )
        embedder = load(self.folder / MODEL)
        self.check_model(embedder)
        return embedder.to(self._device)

    def check_model(self, embedder: Embedder) -> None:
        """Refuse an embedder that did not make this index."""
        refuse_another_model(self.folder, self.snapshot.manifest.model, embedder)

    def refresh(self) -> bool:
        """Go to the latest state; whether it is another one."""
        manifest = files.read_manifest(self.folder)
        if manifest == self.snapshot.manifest:
            return False
        if manifest.born != self.snapshot.manifest.born and "embedder" in self.__dict__:
            self._device = self.__dict__.pop("embedder").device
        self.snapshot = Snapshot(self.folder, manifest, self.snapshot)
        return True

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Be the only writer for several changes in a row; a single `add` or `delete` does so by itself."""
        with self._writers, nullcontext() if self._writing else files.only_writer(self.folder):
            outermost, self._writing = not self._writing, True
            try:
                born = self.snapshot.manifest.born
                self.refresh()  # within several changes too: one may have happened although its last flush failed
                if self.snapshot.manifest.born != born:
                    raise ValueError(
                        f"{self.folder} is another index than the one that was opened; call again to change it"
                    )
                yield
            finally:
                self._writing = not outermost

    def add(
        self,
        things: Things,
        ids: Ids | None = None,
        metadata: Sequence[Mapping[str, Any]] | None = None,
        *,
        pictures: Sequence[bytes] | None = None,
    ) -> None:
        """Add vectors (n, dim), or photographs as `Embedder.embed` takes them, each under an id that is new.

        Ids are strings; integers are written as such. Those of files are by default their paths. `metadata` are
        mappings that JSON can hold; filters know them by their keys, and `label` is the one that is shown. `pictures`
        are the small ones to show for vectors.
        """
        new = additions(things, ids, metadata, pictures, self.dim, lambda: self.embedder)
        with self.writing():
            refuse_known(set(self.snapshot.find(new.names)))
            manifest = self.snapshot.manifest
            lines = [_line(name, about) for name, about in zip(new.names, new.metadata, strict=True)]
            rows = np.empty(len(lines), ROW)
            rows["line"] = manifest.bytes[files.ITEMS] + np.cumsum([len(line) for line in lines])
            rows["picture"] = manifest.bytes[files.PICTURES] + np.cumsum([len(picture) for picture in new.pictures])
            rows["id"] = [id_number(name) for name in new.names]
            contents = {
                files.VECTORS: new.vectors,
                files.ITEMS: b"".join(lines),
                files.ROWS: rows.tobytes(),
                files.PICTURES: b"".join(new.pictures),
            }
            lengths = files.append(self.folder, manifest, contents)
            self._commit(replace(manifest, rows=manifest.rows + len(lines), bytes=lengths))

    def delete(self, ids: Ids) -> None:
        """Take these out, all or none: an id that is not there is an error. They are never found again."""
        with self.writing():
            rows = self.snapshot.rows_of(list(dict.fromkeys(as_names(ids))))
            manifest = self.snapshot.manifest
            lengths = files.append(self.folder, manifest, {files.DELETED: np.array(rows, "<u8").tobytes()})
            self._commit(replace(manifest, deleted=manifest.deleted + len(rows), bytes=lengths))

    def _commit(self, manifest: files.Manifest) -> None:
        files.commit(self.folder, manifest)
        self.snapshot = Snapshot(self.folder, manifest, self.snapshot)

    def search(
        self,
        queries: Things,
        k: int = 10,
        *,
        where: Where | None = None,
        distinct: float | None = None,
        exact: bool = False,
    ) -> Found:
        """The k nearest of each query, nearest first; of equals the one added first.

        Args:
            queries: vectors (n, dim) or one (dim,); several views of each (n, views, dim), which are averaged, each
                at unit length where the metric is the cosine; or photographs.
            k: how many; fewer are found where the index or the filter holds fewer.
            where: metadata that a result must have, {"label": "bee"} or one of several, {"label": ["ant", "bee"]};
                None is for those that lack the key.
            distinct: leave out a result that scores this or more with one before it, among the 10,000 nearest.
            exact: look at every vector even where an approximate index was built.
        """
        positive_integer(k, "k")
        check_conditions(where, distinct)
        snapshot = self.snapshot  # another thread may refresh
        dim, metric = snapshot.manifest.dim, snapshot.manifest.metric
        vectors = query_vectors(queries, dim, metric, lambda: self.embedder)
        allowed = self._columns.allowed(where, snapshot)
        available = snapshot.count if allowed is None else int(allowed.sum())
        k = min(k, available)

        about = approximate.described(snapshot.manifest.approximate)

        def look(width: int) -> tuple[np.ndarray, np.ndarray]:
            if exact or about is None or available * FEW < len(snapshot.rows):
                return exact_search(snapshot, vectors, width, allowed)
            return approximate.search(snapshot, self._built(about), about, vectors, width, allowed)

        if k == 0 or not len(vectors):
            return Found(snapshot, np.empty((len(vectors), 0)), np.empty((len(vectors), 0), np.int64))
        if distinct is None:
            return Found(snapshot, *look(k))
        return Found(snapshot, *distinct_results(look, k, available, snapshot.vectors, metric, distinct))

    @property
    def approximate(self) -> Approximate | None:
        """The approximate index, where one was built; searches go through it unless they ask for exact ones."""
        return approximate.described(self.snapshot.manifest.approximate)

    def build_approximate(self, kind: str = "hnsw", recall: float = 0.95) -> Approximate:
        """Build an approximate index through faiss, measure its recall@10 on a sample, print and keep it.

        `kind` is "hnsw", a graph, fast and as large as the vectors again, or "ivf_pq", lists of compressed vectors.
        One that stays below `recall` is refused. Rows added later are searched exactly beside it. Needs
        `pip install 'tuplet[search]'`.
        """
        with self.writing():
            before, about = self.approximate, approximate.build(self.snapshot, kind, recall)
            self._commit(replace(self.snapshot.manifest, approximate=asdict(about)))
            # Readers of the state before may not have loaded theirs yet.
            approximate.remove_old(self.folder, before, about)
        print(about)
        return about

    def _built(self, about: Approximate) -> Any:
        loaded = self._loaded
        if loaded[0] != about.file:
            self._loaded = loaded = about.file, approximate.read(self.folder, about)
        return loaded[1]

    def vectors(self, ids: Ids) -> np.ndarray:
        """The vectors stored under these ids, to search from."""
        snapshot = self.snapshot
        return snapshot.vectors[snapshot.rows_of(as_names(ids))]

    def parts(self) -> Iterator[Part]:
        """Everything that is in it, in order and a part at a time, each as `add` takes it."""
        snapshot = self.snapshot
        alive = np.flatnonzero(snapshot.alive).tolist()
        for start in range(0, len(alive), PART):
            rows = alive[start : start + PART]
            items = snapshot.items(rows)
            names = [item.pop("id") for item in items]
            yield Part(snapshot.vectors[rows], names, items, [snapshot.picture(row) or b"" for row in rows])

    def picture(self, name: str | int) -> bytes | None:
        """The small picture of an id as WebP; None where the id or its picture is absent."""
        snapshot = self.snapshot
        row = snapshot.find([str(name)]).get(str(name))
        return None if row is None else snapshot.picture(row)

    def known(self, ids: Ids) -> set[str]:
        """Those of the ids that are in the index."""
        return set(self.snapshot.find(as_names(ids)))

    def counts(self, key: str = "label") -> dict[Any, int]:
        """How many have each value of a metadata key, the most frequent first."""
        return self._columns.counts(key, self.snapshot)


def _refuse_others(folder: Path) -> None:
    """Keep an index from lying among somebody's photographs; what a killed creation left is its own."""
    own = (files.LOCK, MODEL, f"{files.MANIFEST}.part")
    others = sorted(path.name for path in folder.iterdir() if path.name not in own)
    if others and not (folder / files.MANIFEST).exists():
        raise FileExistsError(f"{folder} holds other files, such as {others[0]}; give a folder that is new or empty")


def _line(name: str, metadata: str) -> bytes:
    """The id, and the metadata that are JSON already, as one line."""
    rest = "}" if metadata == "{}" else f", {metadata[1:]}"
    return f'{{"id": {json.dumps(name, ensure_ascii=False)}{rest}\n'.encode()
