"""An index in a Milvus collection: a file of milvus-lite, a server or a cluster."""

import base64
import json
import os
import re
from collections.abc import Iterator
from typing import Any
from urllib.parse import unquote

import numpy as np

from tuplet import extras
from tuplet.evaluation.inputs import positive_integer
from tuplet.models import Embedder
from tuplet.search.approximate import similarity
from tuplet.search.base import Searchable
from tuplet.search.files import Manifest
from tuplet.search.filters import Where
from tuplet.search.inputs import (
    Ids,
    Inputs,
    Items,
    as_ids,
    check_conditions,
    choices,
    dim_and_metric,
    in_order,
    is_plain,
    metadata_json,
    query_vectors,
    refuse_known,
)
from tuplet.search.results import MAX_CANDIDATES, Hit, first_distinct

#: Milvus's names of the metrics; its L2 is the squared distance.
MILVUS_METRICS = {"euclidean": "L2", "cosine": "COSINE", "dot": "IP"}
MODEL = "tuplet.model"
ID_BYTES, THUMBNAIL_BYTES = 1024, 65535
#: The items of one request, and the most results that Milvus returns.
BATCH, MAX_RESULTS = 1_000, 16_384


def is_milvus(location: str) -> bool:
    """Return True if a location is a Milvus collection and not a folder.

    >>> is_milvus("things.db#birds"), is_milvus("http://milvus:19530"), is_milvus("things.index")
    (True, True, False)
    """
    return bool(re.match(r"(https?|tcp)://|unix:|[^#]*\.db(#|$)", location))


class MilvusIndex(Searchable):
    """An index in a Milvus collection, used like `Index`.

    The location is a file of milvus-lite, `things.db`, or a server, `http://host:19530`, followed by `#` and the name
    of the collection (the default is `tuplet`). MILVUS_TOKEN may hold a token. Milvus decides about durability, several
    writers, and how exact a search is. The collection stores the fingerprint of its model but not the model.
    Needs `pip install 'tuplet[milvus]'`.
    """

    manifest = Manifest(0, "", None, "")  # read from Milvus on opening

    def __init__(self, location: str, embedder: Embedder | None = None) -> None:
        """Use `MilvusIndex.create` or `MilvusIndex.open`."""
        self.location = location
        file = location.partition("#")[0]
        if file.endswith(".db") and not os.path.exists(file):  # connecting would create it
            raise FileNotFoundError(f"{file} does not exist; make it with tuplet index, or search.create in Python")
        self._client, self._name = _connect(location)
        if not self._client.has_collection(self._name):
            raise FileNotFoundError(
                f"{location} has no collection {self._name!r}; make it with tuplet index, or search.create in Python"
            )
        self._client.load_collection(self._name)  # Milvus only searches collections in memory
        about = self._client.describe_collection(self._name)
        fields = {field["name"]: field for field in about["fields"]}
        theirs = self._client.describe_index(self._name, "vector")["metric_type"]
        metric = next(ours for ours, name in MILVUS_METRICS.items() if name == theirs)
        dim, model = int(fields["vector"]["params"]["dim"]), about["properties"].get(MODEL) or None
        self.manifest = Manifest(dim, metric, model, uid="")
        self._embedder = embedder
        if embedder is not None:
            self.check_model(embedder)

    @classmethod
    def create(
        cls, location: str, *, dim: int | None = None, metric: str | None = None, embedder: Embedder | None = None
    ) -> "MilvusIndex":
        """Create an empty collection; `search.create` describes the arguments. Milvus chooses the kind of its index."""
        dim, metric = dim_and_metric(dim, metric, embedder)
        milvus = _pymilvus()
        client, name = _connect(location)
        if client.has_collection(name):
            raise FileExistsError(f"{location} has a collection {name!r} already; open it, or choose another name")
        schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("id", milvus.DataType.VARCHAR, max_length=ID_BYTES, is_primary=True)
        schema.add_field("vector", milvus.DataType.FLOAT_VECTOR, dim=dim)
        schema.add_field("metadata", milvus.DataType.JSON)
        schema.add_field("thumbnail", milvus.DataType.VARCHAR, max_length=THUMBNAIL_BYTES)
        params = client.prepare_index_params()
        params.add_index("vector", index_type="AUTOINDEX", metric_type=MILVUS_METRICS[metric])
        client.create_collection(
            name,
            schema=schema,
            index_params=params,
            consistency_level="Strong",
            properties={MODEL: "" if embedder is None else embedder.fingerprint()},
        )
        return cls(location, embedder)

    @classmethod
    def open(cls, location: str, embedder: Embedder | None = None) -> "MilvusIndex":
        """Open a collection that `create` made; images need the `embedder` that made it."""
        return cls(location, embedder)

    def __len__(self) -> int:
        return int(self._client.query(self._name, filter="", output_fields=["count(*)"])[0]["count(*)"])

    @property
    def embedder(self) -> Embedder:
        """The model that made the vectors; TypeError if it was not given."""
        if self._embedder is None:
            model = self.manifest.model
            what = "holds plain vectors" if model is None else f"was made by the model {model[:12]}"
            raise TypeError(
                f"{self.location} {what} and does not store a model; "
                "give it with embedder=, on the command line --model, or use vectors"
            )
        return self._embedder

    def close(self) -> None:
        """Close the connection or the file."""
        self._client.close()

    def drop(self) -> None:
        """Delete the collection with all its items, and close it."""
        self._client.drop_collection(self._name)
        self.close()

    def _insert(self, items: Items) -> None:
        rows = [_row(*item) for item in zip(items.ids, items.vectors, items.metadata, items.thumbnails, strict=True)]
        refuse_known(self.known(items.ids))
        for start in range(0, len(rows), BATCH):
            self._client.insert(self._name, rows[start : start + BATCH])

    def delete(self, ids: Ids) -> None:
        """Delete these items; if an id does not exist, raise ValueError and delete none."""
        ids = as_ids(ids)
        in_order(self._rows(ids, []), ids)  # raises if one is missing
        for condition in _id_filters(ids):
            self._client.delete(self._name, filter=condition)

    def search(
        self, queries: Inputs, k: int = 10, *, where: Where | None = None, distinct: float | None = None
    ) -> list[list[Hit]]:
        """Return the k nearest items of each query, as `Index.search` does; equals are in Milvus's order."""
        k, width = positive_integer(k, "k"), k if distinct is None else 4 * k
        check_conditions(where, distinct)
        if k > MAX_RESULTS and len(self) > MAX_RESULTS:
            raise ValueError(f"k is {k}, and Milvus returns at most {MAX_RESULTS:,} results; choose a smaller k")
        vectors = query_vectors(queries, self.dim, self.metric, lambda: self.embedder)
        if not len(vectors):
            return []
        while True:
            found: list[Any] = self._client.search(
                self._name,
                vectors,
                anns_field="vector",
                limit=min(width, MAX_RESULTS),
                filter=_filter(where or {}),
                output_fields=["metadata"] if distinct is None else ["metadata", "vector"],
            )
            if distinct is not None:
                found = [self._distinct(hits, distinct, k) for hits in found]
            if distinct is None or width >= min(MAX_CANDIDATES, len(self)) or all(len(hits) == k for hits in found):
                return [[self._hit(hit) for hit in hits] for hits in found]
            width *= 4

    def vectors(self, ids: Ids) -> np.ndarray:
        """Return the vectors (n, dim) of these ids; ValueError if one does not exist."""
        ids = as_ids(ids)
        rows = in_order(self._rows(ids, ["vector"]), ids)
        return np.array([row["vector"] for row in rows], np.float32).reshape(-1, self.dim)

    def batches(self) -> Iterator[Items]:
        """Iterate over all items in batches that `add` accepts, in Milvus's order."""
        for rows in self._pages("id", "vector", "metadata", "thumbnail"):
            vectors = np.array([row["vector"] for row in rows], np.float32)
            thumbnails = [base64.b64decode(row["thumbnail"]) for row in rows]
            yield Items(vectors, [unquote(row["id"]) for row in rows], [row["metadata"] for row in rows], thumbnails)

    def metadata(self, ids: Ids) -> list[dict[str, Any]]:
        """Return the metadata of these ids; ValueError if one does not exist."""
        ids = as_ids(ids)
        return [dict(row["metadata"]) for row in in_order(self._rows(ids, ["metadata"]), ids)]

    def items(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Iterate over the id and the metadata of all items, in Milvus's order."""
        for rows in self._pages("id", "metadata"):
            for row in rows:
                yield unquote(row["id"]), dict(row["metadata"])

    def thumbnail(self, id: str | int) -> bytes | None:
        """Return the thumbnail of an id as WebP; None if the id or its thumbnail does not exist."""
        row = self._rows([str(id)], ["thumbnail"]).get(str(id))
        return None if row is None else base64.b64decode(row["thumbnail"]) or None

    def known(self, ids: Ids) -> set[str]:
        """Return those of the ids that exist in the collection."""
        return set(self._rows(as_ids(ids), []))

    def _pages(self, *fields: str) -> Iterator[list[dict[str, Any]]]:
        """Iterate over these fields of all items."""
        pages = self._client.query_iterator(self._name, batch_size=BATCH, output_fields=list(fields))
        try:
            while page := pages.next():
                yield page
        finally:
            pages.close()

    def _rows(self, ids: list[str], fields: list[str]) -> dict[str, dict[str, Any]]:
        """Return these fields of the items that exist, by id."""
        return {
            unquote(row["id"]): row
            for condition in _id_filters(ids)
            for row in self._client.query(self._name, filter=condition, output_fields=["id", *fields])
        }

    def _distinct(self, hits: list[Any], threshold: float, k: int) -> list[Any]:
        vectors = np.array([hit["entity"]["vector"] for hit in hits], np.float32).reshape(-1, self.dim)
        return [hits[place] for place in first_distinct(vectors, self.metric, threshold, k)]

    def _hit(self, hit: Any) -> Hit:
        score = float(similarity(np.asarray(hit["distance"]), self.metric))
        return Hit(unquote(hit["id"]), score, dict(hit["entity"]["metadata"]))


def _pymilvus() -> Any:
    return extras.need("pymilvus", extra="milvus", purpose="a Milvus index")


def _connect(location: str) -> tuple[Any, str]:
    """Return a client and the name of the collection."""
    address, _, name = location.partition("#")
    milvus = _pymilvus()
    try:
        client = milvus.MilvusClient(address, token=os.environ.get("MILVUS_TOKEN", ""))
    except milvus.MilvusException as error:
        raise ConnectionError(
            f"{address} does not answer as Milvus: {error.message}; check the address, MILVUS_TOKEN and the server"
        ) from error
    return client, name or "tuplet"


def _row(id: str, vector: np.ndarray, metadata: Any, thumbnail: bytes) -> dict[str, Any]:
    """Return an item as Milvus stores it; ValueError if its id or thumbnail is too long."""
    about, key, small = json.loads(metadata_json(id, metadata)), _key(id), base64.b64encode(thumbnail).decode()
    if len(key.encode()) > ID_BYTES:
        raise ValueError(f"the id {id[:40]!r}… has over {ID_BYTES} bytes, more than Milvus takes; choose a shorter one")
    if len(small) > THUMBNAIL_BYTES:
        raise ValueError(f"the thumbnail of {id!r} has over {THUMBNAIL_BYTES * 3 // 4:,} bytes; give a smaller one")
    return {"id": key, "vector": vector, "metadata": about, "thumbnail": small}


def _key(id: str) -> str:
    r"""Return the primary key of an id, which `unquote` reverses.

    pymilvus puts keys between quotes without escaping them, so quotes, backslashes and control characters are written
    as in a URL.

    >>> print(_key('100% "ü"'))
    100%25 %22ü%22
    """
    return re.sub(r'[%"\\\x00-\x1f\x7f]', lambda found: f"%{ord(found[0]):02x}", id)


def _id_filters(ids: list[str]) -> Iterator[str]:
    """Return filters for these ids, one for each batch.

    >>> print(*_id_filters(["it's", "east"]))
    id in ["it's", "east"]
    """
    for start in range(0, len(ids), BATCH):
        yield f"id in {_literal([_key(id) for id in ids[start : start + BATCH]])}"


def _literal(value: Any) -> str:
    r"""Return text, numbers or a list of them for a filter: JSON, but milvus-lite knows few of its escapes.

    >>> _literal('say "x"'), _literal("a\x01b")
    ('"say \\"x\\""', '"a\x01b"')
    """
    text = json.dumps(value, ensure_ascii=False)
    return re.sub(
        r"\\(u....|.)", lambda escape: json.loads(f'"{escape[0]}"') if escape[1][0] in "ubf" else escape[0], text
    )


def _filter(where: Where) -> str:
    """Return a filter in Milvus's language.

    >>> print(_filter({"label": ["ant", "bee"], "year": 2011}))
    (metadata["label"] == "ant" or metadata["label"] == "bee") and (metadata["year"] == 2011)
    """
    parts = []
    for key, wanted in where.items():
        values = choices(wanted)
        for value in values:
            if not is_plain(value):
                raise ValueError(f"Milvus cannot filter by {key}={value!r}; use text, numbers or booleans")
        terms = [f"metadata[{_literal(key)}] == {_literal(value)}" for value in values]
        parts.append(f"({' or '.join(terms)})" if terms else "id == ''")
    return " and ".join(parts)
