"""An index by its address: a folder of this machine, or a Milvus collection."""

import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np

from tuplet.models import Embedder
from tuplet.search.filters import Where
from tuplet.search.incoming import Ids, Part, Things
from tuplet.search.index import Index
from tuplet.search.milvus import MilvusIndex, is_milvus
from tuplet.search.results import Hit


class Searchable(Protocol):
    """The few calls that every index has, wherever its vectors lie. `Index` describes them."""

    @property
    def dim(self) -> int: ...  # noqa: D102
    @property
    def metric(self) -> str: ...  # noqa: D102
    @property
    def has_model(self) -> bool: ...  # noqa: D102
    @property
    def embedder(self) -> Embedder: ...  # noqa: D102
    def __len__(self) -> int: ...
    def check_model(self, embedder: Embedder) -> None: ...  # noqa: D102
    def refresh(self) -> bool: ...  # noqa: D102
    def writing(self) -> AbstractContextManager[None]: ...  # noqa: D102
    def add(  # noqa: D102
        self,
        things: Things,
        ids: Ids | None = None,
        metadata: Sequence[Mapping[str, Any]] | None = None,
        *,
        pictures: Sequence[bytes] | None = None,
    ) -> None: ...
    def delete(self, ids: Ids) -> None: ...  # noqa: D102
    def search(  # noqa: D102
        self, queries: Things, k: int = 10, *, where: Where | None = None, distinct: float | None = None
    ) -> Sequence[list[Hit]]: ...
    def vectors(self, ids: Ids) -> np.ndarray: ...  # noqa: D102
    def parts(self) -> Iterator[Part]: ...  # noqa: D102
    def picture(self, name: str | int) -> bytes | None: ...  # noqa: D102
    def known(self, ids: Ids) -> set[str]: ...  # noqa: D102
    def counts(self, key: str = "label") -> dict[Any, int]: ...  # noqa: D102


def create(
    where: str | os.PathLike[str],
    *,
    dim: int | None = None,
    metric: str | None = None,
    embedder: Embedder | None = None,
) -> Searchable:
    """An empty index at an address: `things.index` is a folder; `things.db` and `http://host:19530#name` are Milvus.

    The arguments are those of `Index.create`. Where there is one already, it is a FileExistsError: see `open`.

    >>> import tempfile, torch
    >>> index = create(tempfile.mkdtemp() + "/points.index", dim=2, metric="cosine")
    >>> index.add(torch.eye(2), ids=["east", "north"])
    >>> [hit.id for hit in index.search(torch.tensor([0.2, 3.0]), k=1)[0]]
    ['north']
    """
    kind: Any = MilvusIndex if is_milvus(os.fspath(where)) else Index
    return kind.create(os.fspath(where), dim=dim, metric=metric, embedder=embedder)


def open(where: str | os.PathLike[str], embedder: Embedder | None = None) -> Searchable:
    """The index at an address, as `create` takes it; a FileNotFoundError where there is none."""
    kind: Any = MilvusIndex if is_milvus(os.fspath(where)) else Index
    return kind.open(os.fspath(where), embedder)
