"""The same few calls on a Milvus collection: an embedded file of milvus-lite, a server, or a cluster."""

import base64
import json
import os
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from tuplet import extras
from tuplet.evaluation.inputs import positive_integer
from tuplet.models import Embedder
from tuplet.search.filters import Where, most_frequent
from tuplet.search.incoming import (
    Ids,
    Part,
    Things,
    additions,
    as_names,
    check_conditions,
    choices,
    in_order,
    is_plain,
    query_vectors,
    refuse_another_model,
    refuse_known,
    width_and_metric,
)
from tuplet.search.results import FARTHEST, Hit, unlike

#: What Milvus calls our metrics; its L2 is the squared distance.
MILVUS_METRICS = {"euclidean": "L2", "cosine": "COSINE", "dot": "IP"}
MODEL = "tuplet.model"
ID_BYTES, PICTURE_BYTES = 1024, 65535
#: Items that one request names or brings, and results that Milvus gives at most.
PORTION, MOST = 1_000, 16_384


def is_milvus(uri: str) -> bool:
    """Whether this names a Milvus collection rather than a folder.

    >>> is_milvus("things.db#birds"), is_milvus("http://milvus:19530"), is_milvus("things.index")
    (True, True, False)
    """
    return uri.partition("#")[0].endswith(".db") or uri.startswith(("http://", "https://", "tcp://", "unix:"))


class MilvusIndex:
    """A Milvus collection, used like an `Index`; which of the two is chosen by the address alone.

    The address is a file of milvus-lite, `things.db`, or a server, `http://host:19530`, with the name of the
    collection behind a `#` (without one, `tuplet`). A token is read from MILVUS_TOKEN. Durability, several writers
    and how exact a search is are Milvus's own; the collection knows the fingerprint of its model but does not hold it.
    Needs `pip install 'tuplet[milvus]'`.
    """

    def __init__(self, uri: str, embedder: Embedder | None = None) -> None:
        """Use `MilvusIndex.create` or `MilvusIndex.open`."""
        self.uri = uri
        file = uri.partition("#")[0]
        if file.endswith(".db") and not os.path.exists(file):  # connecting would make one
            raise FileNotFoundError(f"{file} does not exist; make it with tuplet index, or search.create in Python")
        self._client, self._name = _connect(uri)
        if not self._client.has_collection(self._name):
            raise FileNotFoundError(
                f"{uri} has no collection {self._name!r}; make it with tuplet index, or search.create in Python"
            )
        self._client.load_collection(self._name)  # Milvus searches only what is in its memory
        about = self._client.describe_collection(self._name)
        fields = {field["name"]: field for field in about["fields"]}
        self.dim = int(fields["vector"]["params"]["dim"])
        theirs = self._client.describe_index(self._name, "vector")["metric_type"]
        self.metric = next(ours for ours, name in MILVUS_METRICS.items() if name == theirs)
        self._model = about["properties"].get(MODEL) or None
        self._embedder = embedder
        if embedder is not None:
            self.check_model(embedder)

    @classmethod
    def create(
        cls, uri: str, *, dim: int | None = None, metric: str | None = None, embedder: Embedder | None = None
    ) -> "MilvusIndex":
        """An empty collection, as `Index.create` makes an empty folder. Milvus chooses the kind of its index."""
        width, metric = width_and_metric(dim, metric, embedder)
        milvus = _pymilvus()
        client, name = _connect(uri)
        if client.has_collection(name):
            raise FileExistsError(f"{uri} has a collection {name!r} already; open it, or choose another name")
        schema = client.create_schema(auto_id=False, enable_dynamic_field=False)
        schema.add_field("id", milvus.DataType.VARCHAR, max_length=ID_BYTES, is_primary=True)
        schema.add_field("vector", milvus.DataType.FLOAT_VECTOR, dim=width)
        schema.add_field("metadata", milvus.DataType.JSON)
        schema.add_field("picture", milvus.DataType.VARCHAR, max_length=PICTURE_BYTES)
        params = client.prepare_index_params()
        params.add_index("vector", index_type="AUTOINDEX", metric_type=MILVUS_METRICS[metric])
        client.create_collection(
            name,
            schema=schema,
            index_params=params,
            consistency_level="Strong",
            properties={MODEL: "" if embedder is None else embedder.fingerprint()},
        )
        return cls(uri, embedder)

    @classmethod
    def open(cls, uri: str, embedder: Embedder | None = None) -> "MilvusIndex":
        """A collection that `create` made; `embedder`, for photographs, must be the model that made it."""
        return cls(uri, embedder)

    def __len__(self) -> int:
        return int(self._client.query(self._name, filter="", output_fields=["count(*)"])[0]["count(*)"])

    def __repr__(self) -> str:
        return f"MilvusIndex({self.uri!r}, {len(self):,} vectors of {self.dim}, {self.metric})"

    @property
    def has_model(self) -> bool:
        """Whether photographs can be added and searched for."""
        return self._model is not None

    @property
    def embedder(self) -> Embedder:
        """The model that made the vectors."""
        if self._embedder is None:
            what = "holds plain vectors" if self._model is None else f"was made by the model {self._model[:12]}"
            raise TypeError(
                f"{self.uri} {what} and holds no model itself; "
                "give it with embedder=, on the command line --model, or use vectors"
            )
        return self._embedder

    def check_model(self, embedder: Embedder) -> None:
        """Refuse an embedder that did not make this collection."""
        refuse_another_model(self.uri, self._model, embedder)

    def refresh(self) -> bool:
        """Nothing: every call sees the latest state."""
        return False

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Nothing: Milvus takes several writers."""
        yield

    def close(self) -> None:
        """Let go of the connection, or of the file."""
        self._client.close()

    def drop(self) -> None:
        """Take the collection away, with all that is in it."""
        self._client.drop_collection(self._name)
        self.close()

    def add(
        self,
        things: Things,
        ids: Ids | None = None,
        metadata: Sequence[Mapping[str, Any]] | None = None,
        *,
        pictures: Sequence[bytes] | None = None,
    ) -> None:
        """Add vectors or photographs, as `Index.add` does."""
        new = additions(things, ids, metadata, pictures, self.dim, lambda: self.embedder)
        encoded = [base64.b64encode(picture).decode() for picture in new.pictures]
        for name, picture in zip(new.names, encoded, strict=True):
            if len(name.encode()) > ID_BYTES:
                raise ValueError(f"the id {name[:40]!r}… has over {ID_BYTES} bytes; Milvus takes no longer ones")
            if len(picture) > PICTURE_BYTES:
                raise ValueError(
                    f"the picture of {name!r} has over {PICTURE_BYTES * 3 // 4:,} bytes; give a smaller one"
                )
        refuse_known(self.known(new.names))
        columns = zip(new.names, new.vectors, new.metadata, encoded, strict=True)
        rows = [{"id": n, "vector": v, "metadata": json.loads(about), "picture": p} for n, v, about, p in columns]
        for start in range(0, len(rows), PORTION):
            self._client.insert(self._name, rows[start : start + PORTION])

    def delete(self, ids: Ids) -> None:
        """Take these out; an id that is not there is an error, and then none is taken out."""
        names = as_names(ids)
        self._get(names, [])
        for condition in _among(names):
            self._client.delete(self._name, filter=condition)

    def search(
        self, queries: Things, k: int = 10, *, where: Where | None = None, distinct: float | None = None
    ) -> list[list[Hit]]:
        """The k nearest of each query, as `Index.search` gives them; of equals, in Milvus's order."""
        k, width = positive_integer(k, "k"), k if distinct is None else 4 * k
        check_conditions(where, distinct)
        if k > MOST and len(self) > MOST:
            raise ValueError(f"k is {k}, and Milvus gives at most {MOST:,} results; ask for no more")
        vectors = query_vectors(queries, self.dim, self.metric, lambda: self.embedder)
        if not len(vectors):
            return []
        while True:
            found = self._search(vectors, min(width, MOST), where, distinct is not None)
            if distinct is not None:
                found = [self._apart(hits, distinct, k) for hits in found]
            if distinct is None or width >= min(FARTHEST, len(self)) or all(len(hits) == k for hits in found):
                return [[self._hit(hit) for hit in hits] for hits in found]
            width *= 4

    def vectors(self, ids: Ids) -> np.ndarray:
        """The vectors stored under these ids, to search from."""
        rows = self._get(as_names(ids), ["vector"])
        return np.array([row["vector"] for row in rows], np.float32).reshape(-1, self.dim)

    def parts(self) -> Iterator[Part]:
        """Everything that is in it, a part at a time, each as `add` takes it; in Milvus's order."""
        for rows in self._pages("id", "vector", "metadata", "picture"):
            vectors = np.array([row["vector"] for row in rows], np.float32)
            names, pictures = [row["id"] for row in rows], [base64.b64decode(row["picture"]) for row in rows]
            yield Part(vectors, names, [dict(row["metadata"]) for row in rows], pictures)

    def picture(self, name: str | int) -> bytes | None:
        """The small picture of an id as WebP; None where the id or its picture is absent."""
        rows = self._rows([str(name)], ["picture"])
        return base64.b64decode(rows[0]["picture"]) or None if rows else None

    def known(self, ids: Ids) -> set[str]:
        """Those of the ids that are in the collection."""
        return {row["id"] for row in self._rows(as_names(ids), [])}

    def counts(self, key: str = "label") -> dict[Any, int]:
        """How many have each value of a metadata key, the most frequent first. It reads all metadata."""
        counted: Counter[Any] = Counter()
        for rows in self._pages("metadata"):
            values = [row["metadata"].get(key) for row in rows]
            counted.update(value for value in values if isinstance(value, str | int | float))
        return most_frequent(counted)

    def _pages(self, *fields: str) -> Iterator[list[dict[str, Any]]]:
        """These fields of all items."""
        pages = self._client.query_iterator(self._name, batch_size=PORTION, output_fields=list(fields))
        try:
            while page := pages.next():
                # Its next filter begins behind the last id, which it would put between quotes as it is.
                pages._next_id = _quoted(page[-1]["id"])[1:-1]
                yield page
        finally:
            pages.close()

    def _rows(self, names: list[str], fields: list[str]) -> list[dict[str, Any]]:
        """Those of the items that are there."""
        return [
            row
            for condition in _among(names)
            for row in self._client.query(self._name, filter=condition, output_fields=["id", *fields])
        ]

    def _get(self, names: list[str], fields: list[str]) -> list[dict[str, Any]]:
        """All of the items, in their order; one that is missing is an error."""
        return in_order({row["id"]: row for row in self._rows(names, fields)}, names)

    def _search(self, vectors: np.ndarray, k: int, where: Where | None, with_vectors: bool) -> list[Any]:
        fields = ["metadata", "vector"] if with_vectors else ["metadata"]
        condition = _condition(where or {})
        return self._client.search(
            self._name, vectors, anns_field="vector", limit=k, filter=condition, output_fields=fields
        )

    def _apart(self, hits: list[Any], threshold: float, k: int) -> list[Any]:
        vectors = np.array([hit["entity"]["vector"] for hit in hits], np.float32).reshape(-1, self.dim)
        return [hits[place] for place in unlike(vectors, self.metric, threshold, k)]

    def _hit(self, hit: Any) -> Hit:
        score = -(max(0.0, hit["distance"]) ** 0.5) if self.metric == "euclidean" else hit["distance"]
        return Hit(hit["id"], float(score), dict(hit["entity"]["metadata"]))


def _pymilvus() -> Any:
    return extras.need("pymilvus", extra="milvus", purpose="a Milvus index")


def _connect(uri: str) -> tuple[Any, str]:
    address, _, name = uri.partition("#")
    milvus = _pymilvus()
    try:
        client = milvus.MilvusClient(address, token=os.environ.get("MILVUS_TOKEN", ""))
    except milvus.MilvusException as error:
        raise ConnectionError(
            f"{address} cannot be reached as a Milvus: {error.message}; check the address, MILVUS_TOKEN and the server"
        ) from error
    return client, name or "tuplet"


def _among(names: list[str]) -> Iterator[str]:
    r"""Filters for these ids, a portion each. Milvus's own way with ids leaves the quotes in them as they are.

    >>> print(*_among(["it's", 'an "x"']))
    id in ["it's", "an \"x\""]
    """
    for start in range(0, len(names), PORTION):
        yield f"id in {_quoted(names[start : start + PORTION])}"


def _quoted(value: Any) -> str:
    r"""Text, numbers or a list of them as Milvus's filters write them: as JSON, but milvus-lite knows few escapes.

    >>> _quoted('say "x"'), _quoted("a\x01b")
    ('"say \\"x\\""', '"a\x01b"')
    """
    text = json.dumps(value, ensure_ascii=False)
    return re.sub(
        r"\\(u....|.)", lambda escape: json.loads(f'"{escape[0]}"') if escape[1][0] in "ubf" else escape[0], text
    )


def _condition(where: Where) -> str:
    """A filter in Milvus's own words.

    >>> print(_condition({"label": ["ant", "bee"], "year": 2011}))
    (metadata["label"] == "ant" or metadata["label"] == "bee") and (metadata["year"] == 2011)
    """
    parts = []
    for key, wanted in where.items():
        asked = choices(wanted)
        for value in asked:
            if not is_plain(value):
                raise ValueError(f"the filter {key}={value!r} is not one for Milvus; use text, numbers or booleans")
        terms = [f"metadata[{_quoted(key)}] == {_quoted(value)}" for value in asked]
        parts.append(f"({' or '.join(terms)})" if terms else "id == ''")
    return " and ".join(parts)
