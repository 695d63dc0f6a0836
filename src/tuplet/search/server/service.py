"""The work of the server without HTTP: embed images and search for vectors, in batches and within limits."""

import asyncio
import json
import random
import sys
import threading
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial
from itertools import zip_longest
from typing import Any, TypeAlias

import numpy as np
from torch import Tensor

from tuplet.cancel import cancel_when
from tuplet.cancel import check as check_cancelled
from tuplet.embedding import embed_pixels
from tuplet.images.crop import thumbnail
from tuplet.images.decode import UnreadableImageError, read_image
from tuplet.models import Embedder
from tuplet.search.base import Searchable
from tuplet.search.ingest import file_of, without_file
from tuplet.search.inputs import UnknownIdError, is_plain, query_vectors
from tuplet.search.results import Hit
from tuplet.search.server.batching import Batcher, Shared
from tuplet.search.server.limits import UNREADABLE, Limits, RefusalError
from tuplet.search.server.metrics import Metrics
from tuplet.search.server.middleware import Receive
from tuplet.search.server.uploads import Uploads

#: The longer side of the image of an item's file.
ORIGINAL_SIZE = 1600
#: Look for changes of the index at most this often.
STALE_SECONDS = 1.0
#: Count the labels again after this time if the index, like Milvus, does not report its changes.
RECOUNT_SECONDS = 60.0
#: Draw items to start from again after this time.
START_SECONDS = 10.0
#: Tells whether somebody still waits for the result at a place of a batch.
IsWanted: TypeAlias = Callable[[int], bool]


@dataclass(frozen=True)
class SearchRequest:
    """A search for one vector; `where` is JSON text, so that equal filters can be grouped."""

    vector: np.ndarray
    k: int
    where: str = "{}"
    distinct: float | None = None


class Service:
    """An index with its model, ready to answer many requests at once."""

    def __init__(self, index: Searchable, limits: Limits, originals: bool = False) -> None:
        self.index, self.limits, self.metrics, self.originals = index, limits, Metrics(), originals
        self._loaded = self._load()  # the uid of the index and its model
        self.uploads = Uploads(limits)
        self._embeds: Batcher[Tensor, np.ndarray] = Batcher(self._embed, limits.batch, limits.images, "images")
        self._searches: Batcher[SearchRequest, list[Hit]] = Batcher(self._search, 64, limits.searches, "searches")
        # They take longer than others, which must not wait for them.
        self._distinct_searches: Batcher[SearchRequest, list[Hit]] = Batcher(
            self._search, 8, limits.distinct, "searches for distinct results"
        )
        self._labels: Shared[dict[Any, int]] = Shared(lambda: asyncio.to_thread(self.index.counts))
        self._starts: dict[int, Shared[list[Hit]]] = {}  # by the number of items that are drawn
        self._refreshed, self._lock = time.monotonic(), threading.Lock()
        self._changes, self._is_lost = 0, False  # the changes of the index so far; True while it cannot be read

    @property
    def embedder(self) -> Embedder | None:
        """The model of the index, if it has one."""
        return self._loaded[1]

    def start(self) -> None:
        """Start the processes that decode images, if the index takes images."""
        if self.embedder is not None:
            self.uploads.start()

    def close(self) -> None:
        """Return when the threads have finished what they are doing; nothing new is begun."""
        self.uploads.close()
        for batcher in (self._embeds, self._searches, self._distinct_searches):
            batcher.close()

    def check_takes_images(self) -> None:
        """Refuse an image to search with if the index has no model."""
        if self.embedder is None:
            raise RefusalError(409, "this index holds plain vectors and no model; search with a vector or an item")

    @asynccontextmanager
    async def time_limit(self, receive: Receive) -> AsyncIterator[None]:
        """Refuse a request whose answer takes too long, and give up one whose client is gone.

        `receive` is the request's, whose body has been read.
        """
        try:
            async with asyncio.timeout(self.limits.seconds) as limit:

                async def watch() -> None:
                    while (await receive())["type"] != "http.disconnect":
                        pass
                    limit.reschedule(0)

                watcher = asyncio.create_task(watch())
                try:
                    yield
                finally:
                    watcher.cancel()
        except TimeoutError:
            raise RefusalError(
                503, f"no answer within {self.limits.seconds:g} s: the server is busy; try again in a second"
            ) from None

    @asynccontextmanager
    async def same_index(self) -> AsyncIterator[None]:
        """Refuse a request if another index takes the place of this one before the answer is complete."""
        await self.refresh()
        before = self._loaded
        try:
            yield
        except Exception:
            if self._is_current(before):
                raise
        if not self._is_current(before):
            raise RefusalError(503, "another index took the place of this one; try again in a second")

    async def image_vector(self, body: bytes, mirror: bool) -> np.ndarray:
        """Return the vector of an image, averaged with that of its mirror image if `mirror`."""
        assert self.embedder is not None
        assert self.embedder.preprocessing is not None
        image = await self.uploads.crop(body, self.embedder.preprocessing.crop)
        views = [image, image.flip(-1)] if mirror else [image]
        vectors = await asyncio.gather(*(self._embeds(view) for view in views))
        index = self.index
        return query_vectors(np.stack(vectors)[None], index.dim, index.metric, lambda: index.embedder)[0]

    def check_vector(self, numbers: list[float]) -> np.ndarray:
        """Return the numbers as a vector; refuse them if they do not fit the index."""
        if len(numbers) != self.index.dim:
            raise RefusalError(422, f"the vector has {len(numbers)} numbers; this index takes {self.index.dim}")
        with np.errstate(over="ignore"):
            vector = np.array(numbers, np.float32)
        if not np.isfinite(vector).all():
            raise RefusalError(422, "the vector has a number that is not finite in float32; send finite ones")
        return vector

    async def item_vector(self, id: str) -> np.ndarray:
        """Return the vector of an item of the index."""
        try:
            return (await asyncio.to_thread(self.index.vectors, [id]))[0]
        except UnknownIdError:
            raise RefusalError(404, f"the index has no id {id[:80]!r}; use the ids of search results") from None

    async def thumbnail(self, id: str) -> bytes:
        """Return the thumbnail of an item."""
        await self.refresh()
        small = await asyncio.to_thread(self.index.thumbnail, id)
        if small is None:
            raise RefusalError(404, f"the index has no thumbnail of {id[:80]!r}")
        return small

    async def original(self, id: str) -> bytes:
        """Return the image of an item's file, at most `ORIGINAL_SIZE` pixels wide or high."""
        if not self.originals:
            raise RefusalError(403, "this server shows thumbnails only; tuplet serve --originals shows more")
        await self.refresh()
        return await self.uploads.run(self._original, id)

    def _original(self, id: str) -> bytes:
        """Decode and encode, so that no file that is not an image is ever sent."""
        try:
            path = str(file_of(self.index.metadata([id])[0]).get("path", ""))
            return thumbnail(read_image(path), size=ORIGINAL_SIZE)
        except (UnknownIdError, UnreadableImageError):
            raise RefusalError(404, f"the file of {id[:80]!r} cannot be shown: it is gone or no image") from None

    async def starting_items(self, k: int) -> list[Hit]:
        """Return items to start from: one of each class, then a second one of each, then any."""
        size = 1 << (k - 1).bit_length()  # a few sizes serve all numbers, so that drawing takes little of the time
        drawn = self._starts.setdefault(size, Shared(partial(self._draw_items, size)))
        return (await drawn(self._changes, START_SECONDS))[:k]

    async def _draw_items(self, k: int) -> list[Hit]:
        labels = [label for label in await self.labels() if is_plain(label)]
        labels = random.sample(labels, min(k, len(labels)))
        vector = np.random.default_rng().normal(size=self.index.dim).astype(np.float32)
        each = -(-k // len(labels)) if labels else 0
        # One after another, so that other searches come in between.
        classes = [await self.search(SearchRequest(vector, each, json.dumps({"label": label}))) for label in labels]
        others = await self.search(SearchRequest(vector, k))
        rounds = [hit for hits in zip_longest(*classes) for hit in hits if hit is not None]
        return list({hit.id: hit for hit in (*rounds, *others)}.values())[:k]

    async def labels(self) -> dict[Any, int]:
        """Return the number of items with each label."""
        await self.refresh()
        return await self._labels(self._changes, RECOUNT_SECONDS)

    async def search(self, request: SearchRequest) -> list[Hit]:
        """Search together with the other requests that wait."""
        return await (self._searches if request.distinct is None else self._distinct_searches)(request)

    def about(self) -> dict[str, Any]:
        """Return the size, metric and limits of the index."""
        self._refresh()
        approximate = self.index.approximate
        return {
            "vectors": len(self.index),
            "dim": self.index.dim,
            "metric": self.index.metric,
            "scores": self._scores(),
            "cosine": self._is_cosine(),
            "images": self.embedder is not None,
            "originals": self.originals,
            "approximate": None if approximate is None else str(approximate),
            "limits": {name: getattr(self.limits, name) for name in ("bytes", "pixels", "results", "values")},
        }

    def _scores(self) -> str:
        """Say what a score means."""
        if self._is_cosine():
            return "cosine similarity: 1 is the same, about 0 unrelated"
        if self.index.metric == "euclidean":
            return "minus the distance of the vectors: 0 is the same, lower is farther"
        return "dot product of the vectors: higher is nearer"

    def _is_cosine(self) -> bool:
        """Return True if scores are cosines; the dot product of unit vectors is one."""
        unit = self.embedder is not None and bool(self.embedder.config.normalize)
        return self.index.metric == "cosine" or (self.index.metric == "dot" and unit)

    def metrics_text(self) -> bytes:
        """Return the metrics as Prometheus reads them."""
        self._refresh()
        self.metrics.vectors.set(len(self.index))
        self.metrics.images.set(self.uploads.images)
        self.metrics.searches.set(len(self._searches) + len(self._distinct_searches))
        return self.metrics.text()

    async def refresh(self) -> None:
        """Load the latest state of the index, in a thread if the disk must be read."""
        if self._is_stale() or self._is_lost:
            await asyncio.to_thread(self._refresh)

    def _is_stale(self) -> bool:
        return time.monotonic() - self._refreshed > STALE_SECONDS

    def _refresh(self) -> None:
        """Load the latest state; another index in the place of this one brings its own model."""
        with self._lock:
            if self._is_stale():
                self._refreshed = time.monotonic()
                try:
                    if self.index.refresh() or self._is_lost:
                        self._changes += 1
                        self._loaded = self._load()
                    self._is_lost = False
                except Exception as error:  # whatever is wrong, the old model must not answer for a new index
                    print(f"tuplet: {error}", file=sys.stderr)
                    self._is_lost = True
            if self._is_lost:
                raise RefusalError(503, UNREADABLE)

    def _is_current(self, loaded: tuple[str, Embedder | None]) -> bool:
        """Return False if another index has come, also while its model is still being loaded."""
        return loaded == self._loaded and loaded[0] == self.index.manifest.uid

    def _load(self) -> tuple[str, Embedder | None]:
        return self.index.manifest.uid, self.index.embedder.eval() if self.index.has_model else None

    def _embed(self, images: list[Tensor], is_wanted: IsWanted) -> list[np.ndarray]:
        assert self.embedder is not None
        begun = time.perf_counter()
        vectors = embed_pixels(self.embedder, images).numpy()
        self.metrics.embed_seconds.observe(time.perf_counter() - begun)
        self.metrics.embed_batch.observe(len(images))
        return list(vectors)

    def _search(self, requests: list[SearchRequest], is_wanted: IsWanted) -> list[list[Hit] | Exception]:
        """Run searches with the same options together. If one group fails, the others do not.

        A group is stopped once nobody waits for any of its results.
        """
        begun = time.perf_counter()
        self._refresh()
        groups: dict[tuple[int, str, float | None], list[int]] = {}
        for place, request in enumerate(requests):
            groups.setdefault((request.k, request.where, request.distinct), []).append(place)
        hits: dict[int, list[Hit] | Exception] = {}
        for (k, where, distinct), places in groups.items():
            try:
                queries = np.stack([requests[place].vector for place in places])
                with cancel_when(partial(_nobody_waits, is_wanted, places)):
                    check_cancelled()
                    found = self.index.search(queries, k, where=json.loads(where), distinct=distinct)
                    hits.update(zip(places, map(self._shown, found), strict=True))
            except Exception as error:
                hits.update(dict.fromkeys(places, error))
        self.metrics.search_seconds.observe(time.perf_counter() - begun)
        self.metrics.search_batch.observe(len(requests))
        return [hits[place] for place in range(len(requests))]

    def _shown(self, hits: list[Hit]) -> list[Hit]:
        """Remove the paths of files, unless the server shows originals."""
        return hits if self.originals else [Hit(hit.id, hit.score, without_file(hit.metadata)) for hit in hits]


def _nobody_waits(is_wanted: IsWanted, places: list[int]) -> bool:
    return not any(map(is_wanted, places))
