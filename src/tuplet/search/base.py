"""The interface of every index, wherever its vectors are stored, and the code that all of them share."""

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from tuplet.models import Embedder
from tuplet.search.files import Approximate, Manifest
from tuplet.search.filters import Where, most_frequent
from tuplet.search.inputs import Ids, Inputs, Items, check_items
from tuplet.search.results import Hit


class Searchable(ABC):
    """Base class of every index: vectors with ids, metadata and thumbnails.

    `Index` is one in a folder, `MilvusIndex` one in Milvus. Make or open one with `search.create` and `search.open`.
    """

    #: The folder or the address, for messages.
    location: object

    @property
    @abstractmethod
    def manifest(self) -> Manifest:
        """The dimension, the metric and the fingerprint of the model."""

    @property
    @abstractmethod
    def embedder(self) -> Embedder:
        """The model that made the vectors; TypeError if the index has none."""

    @abstractmethod
    def __len__(self) -> int: ...

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self.location)!r}, {len(self):,} vectors of {self.dim}, {self.metric})"

    @property
    def dim(self) -> int:
        """The length of the vectors."""
        return self.manifest.dim

    @property
    def metric(self) -> str:
        """The metric: "euclidean", "cosine" or "dot"."""
        return self.manifest.metric

    @property
    def approximate(self) -> Approximate | None:
        """The approximate index, if one was built; searches use it unless they ask for `exact`."""
        return self.manifest.approximate

    @property
    def has_model(self) -> bool:
        """True if images can be added and searched for."""
        return self.manifest.model is not None

    def check_model(self, embedder: Embedder) -> None:
        """Raise ValueError if `embedder` is not the model that made this index."""
        own, given = self.manifest.model, embedder.fingerprint()
        if own != given:
            by = "no model, from plain vectors" if own is None else f"the model {own[:12]}"
            raise ValueError(f"{self.location} was made by {by}, not by {given[:12]}; index again with the new model")

    def refresh(self) -> bool:
        """Load the latest state. Return True if it differs from the one before."""
        return False

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Keep other writers out during several changes; a single `add` or `delete` does so by itself."""
        yield

    def add(
        self,
        inputs: Inputs,
        ids: Ids | None = None,
        metadata: Sequence[Mapping[str, Any]] | None = None,
        *,
        thumbnails: Sequence[bytes] | None = None,
    ) -> None:
        """Add vectors or images. If anything is wrong with one of them, none is added.

        Args:
            inputs: vectors (n, dim), or images as `Embedder.embed` takes them.
            ids: one new id for each, text or integers, which are stored as text. The default for files is their paths.
            metadata: a mapping for each that JSON can hold. Filters use its keys; `label` is shown with results.
            thumbnails: for vectors, a small image to show for each, as WebP or b"". Those of images are made here.

        Raises:
            ValueError: if an id exists, the vectors do not fit the index, or JSON cannot hold the metadata.
        """
        self._insert(check_items(inputs, ids, metadata, thumbnails, self.dim, lambda: self.embedder))

    @abstractmethod
    def _insert(self, items: Items) -> None:
        """Store checked items; ValueError if an id exists."""

    @abstractmethod
    def delete(self, ids: Ids) -> None:
        """Delete these items; if an id does not exist, raise ValueError and delete none."""

    @abstractmethod
    def search(
        self, queries: Inputs, k: int = 10, *, where: Where | None = None, distinct: float | None = None
    ) -> Sequence[list[Hit]]:
        """Return the k nearest items of each query, nearest first. See `Index.search`."""

    @abstractmethod
    def vectors(self, ids: Ids) -> np.ndarray:
        """Return the vectors (n, dim) of these ids; ValueError if one does not exist."""

    @abstractmethod
    def batches(self) -> Iterator[Items]:
        """Iterate over all items in batches that `add` accepts."""

    @abstractmethod
    def metadata(self, ids: Ids) -> list[dict[str, Any]]:
        """Return the metadata of these ids; ValueError if one does not exist."""

    @abstractmethod
    def items(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Iterate over the id and the metadata of all items."""

    @abstractmethod
    def thumbnail(self, id: str | int) -> bytes | None:
        """Return the thumbnail of an id as WebP; None if the id or its thumbnail does not exist."""

    @abstractmethod
    def known(self, ids: Ids) -> set[str]:
        """Return those of the ids that exist in the index."""

    def counts(self, key: str = "label") -> dict[Any, int]:
        """Count the items by their value of a metadata key, most frequent first; lists and mappings are left out."""
        values = (metadata.get(key) for _, metadata in self.items())
        return most_frequent(Counter(value for value in values if isinstance(value, str | int | float)))
