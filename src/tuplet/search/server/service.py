"""What the server does, without HTTP: photographs to vectors in batches, vectors to hits in batches, within limits."""

import asyncio
import io
import json
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, UnidentifiedImageError
from torch import Tensor

from tuplet.data.decode import read_image
from tuplet.models import Embedder
from tuplet.search.incoming import choices, is_plain, query_vectors
from tuplet.search.index import Index
from tuplet.search.opening import Searchable
from tuplet.search.pictures import embed, pixels
from tuplet.search.results import Hit
from tuplet.search.server.batching import Batcher
from tuplet.search.server.limits import Limits, RefusalError, busy
from tuplet.search.server.metrics import Metrics

#: What may be uploaded. Pillow reads more, some of it by starting other programs.
Image.init()
FORMATS = tuple(
    name for name in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "PPM", "JPEG2000", "AVIF") if name in Image.OPEN
)
#: How old the server's view of an index that others write to may be.
STALE_SECONDS = 1.0
#: How old the counts of labels may be where the index, as a Milvus does, says nothing of its changes.
RECOUNT_SECONDS = 60.0


@dataclass(frozen=True)
class Ask:
    """A search: the vector, how many, and under what conditions, as JSON so that equal ones can be told."""

    vector: np.ndarray
    k: int
    where: str = "{}"
    distinct: float | None = None


class Service:
    """An index with its model, ready to answer many at once."""

    def __init__(self, index: Searchable, limits: Limits) -> None:
        self.index, self.limits, self.metrics = index, limits, Metrics()
        self.embedder = self._own_embedder()
        self.embeds: Batcher[Tensor, np.ndarray] = Batcher(self._embed, limits.batch, limits.photographs, "photographs")
        self.searches: Batcher[Ask, list[Hit]] = Batcher(self._search, 64, limits.searches, "searches")
        self._decoders = ThreadPoolExecutor(2, thread_name_prefix="decoding")
        self._photographs, self._fresh, self._refreshing = 0, time.monotonic(), threading.Lock()
        self._labels: dict[Any, int] | None = None
        self._counted = 0.0
        self._state, self._is_lost = 0, False  # how many states of the index there were; whether it can be read

    @contextmanager
    def admitted(self) -> Iterator[None]:
        """A place for one photograph, before any of its bytes is read."""
        if self.embedder is None:
            raise RefusalError(409, "this index holds plain vectors and no model; search with a vector or an item")
        if self._photographs >= self.limits.photographs:
            raise busy("photographs", self.limits.photographs)
        self._photographs += 1
        try:
            yield
        finally:
            self._photographs -= 1

    @asynccontextmanager
    async def in_time(self) -> AsyncIterator[None]:
        """The time that an answer may take."""
        try:
            async with asyncio.timeout(self.limits.seconds):
                yield
        except TimeoutError:
            raise RefusalError(
                503, f"no answer within {self.limits.seconds:g} s: the server is busy; try again in a second"
            ) from None

    @asynccontextmanager
    async def one_index(self) -> AsyncIterator[None]:
        """One index for a whole answer, the latest: what was made for another must not be searched for in it."""
        await self.latest()
        before = self._identity()
        try:
            yield
        except Exception:
            if self._identity() == before:
                raise
        if self._identity() != before:
            raise RefusalError(503, "another index took the place of this one; try again in a second")

    async def photograph(self, body: bytes, mirror: bool) -> np.ndarray:
        """The vector of a photograph, or the average of its own and its mirror image's."""
        loop = asyncio.get_running_loop()
        views = await loop.run_in_executor(self._decoders, self._decode, body, mirror)
        vectors = await asyncio.gather(*(self.embeds(view) for view in views))
        index = self.index
        return query_vectors(np.stack(vectors)[None], index.dim, index.metric, lambda: index.embedder)[0]

    def vector(self, numbers: list[float]) -> np.ndarray:
        """A vector that was sent."""
        if len(numbers) != self.index.dim:
            raise RefusalError(422, f"the vector has {len(numbers)} numbers; this index takes {self.index.dim}")
        with np.errstate(over="ignore"):
            vector = np.array(numbers, np.float32)
        if not np.isfinite(vector).all():
            raise RefusalError(422, "the vector holds a number that is not finite in float32; send finite ones")
        return vector

    async def item(self, name: str) -> np.ndarray:
        """The vector of an item of the index."""
        try:
            return (await asyncio.to_thread(self.index.vectors, [name]))[0]
        except ValueError:
            raise RefusalError(404, f"the index holds no {name[:80]!r}; ids are those of search results") from None

    async def picture(self, name: str) -> bytes:
        """The small picture of an item."""
        await self.latest()
        picture = await asyncio.to_thread(self.index.picture, name)
        if picture is None:
            raise RefusalError(404, f"the index holds no picture of {name[:80]!r}")
        return picture

    async def labels(self) -> dict[Any, int]:
        """How many items have each label."""
        await self.latest()
        if self._labels is None or time.monotonic() - self._counted > RECOUNT_SECONDS:
            begun, state, counts = time.monotonic(), self._state, await asyncio.to_thread(self.index.counts)
            if state != self._state:
                return counts
            self._labels, self._counted = counts, begun
        return self._labels

    def where(self, labels: list[str], conditions: str | None) -> str:
        """The conditions of a search as JSON, from labels as text and from a JSON object of metadata."""
        try:
            wanted = json.loads(conditions or "{}")
        except (ValueError, RecursionError):
            wanted = None
        if not isinstance(wanted, dict) or not all(_is_condition(value) for value in wanted.values()):
            raise RefusalError(
                422, 'where must be a JSON object of text, numbers, booleans or lists of them: {"year": [2011, 2012]}'
            )
        if labels:
            also = choices(wanted["label"]) if "label" in wanted else None
            named = [value for label in labels for value in _readings(label)]
            wanted["label"] = [value for value in named if also is None or value in also]
        return json.dumps(wanted, sort_keys=True)

    def about(self) -> dict[str, Any]:
        """What the index is."""
        self._refresh()
        approximate = self.index.approximate if isinstance(self.index, Index) else None
        return {
            "vectors": len(self.index),
            "dim": self.index.dim,
            "metric": self.index.metric,
            "photographs": self.embedder is not None,
            "approximate": None if approximate is None else str(approximate),
            "limits": {"bytes": self.limits.bytes, "pixels": self.limits.pixels, "results": self.limits.results},
        }

    def gauges(self) -> dict[str, tuple[float, str]]:
        """The present values among the metrics."""
        self._refresh()
        return {
            "tuplet_vectors": (len(self.index), "Vectors in the index."),
            "tuplet_photographs_in_progress": (self._photographs, "Photographs being read, decoded or embedded."),
            "tuplet_searches_waiting": (len(self.searches), "Searches that wait for the index."),
        }

    async def latest(self) -> None:
        """Go to the latest state of the index, in a thread if that takes a look at the disk."""
        if self._is_stale() or self._is_lost:
            await asyncio.to_thread(self._refresh)

    def _is_stale(self) -> bool:
        return time.monotonic() - self._fresh > STALE_SECONDS

    def _refresh(self) -> None:
        """Go to the latest state; another index in the place of this one brings its own model."""
        with self._refreshing:
            if self._is_stale():
                self._fresh = time.monotonic()
                try:
                    if self.index.refresh() or self._is_lost:
                        self._state, self._labels = self._state + 1, None
                        self.embedder = self._own_embedder()
                    self._is_lost = False
                except Exception as error:  # with whatever is wrong, the model before must not answer for this index
                    print(f"tuplet: {error}", file=sys.stderr)
                    self._is_lost = True
            if self._is_lost:
                raise RefusalError(503, "the index cannot be read now, as the server's log says; try again in a second")

    def _identity(self) -> tuple[str, Embedder | None]:
        """Which index this is, however it grows, and the model that it is searched with."""
        return self.index.snapshot.manifest.born if isinstance(self.index, Index) else "", self.embedder

    def _own_embedder(self) -> Embedder | None:
        return self.index.embedder.eval() if self.index.has_model else None

    def _decode(self, body: bytes, mirror: bool) -> list[Tensor]:
        assert self.embedder is not None
        try:
            with Image.open(io.BytesIO(body), formats=FORMATS) as image:
                width, height = image.size
        except UnidentifiedImageError:
            raise RefusalError(415, "the body is no photograph; send JPEG, PNG, WebP or the like") from None
        except Image.DecompressionBombError:  # of so many that Pillow does not say how wide and how high
            raise RefusalError(413, "the photograph has too many pixels; send a smaller one") from None
        except Exception as error:  # Pillow's readers of headers raise anything
            raise RefusalError(415, f"the photograph cannot be read: {_reason(error)}; send another") from None
        if width * height > self.limits.pixels:
            raise RefusalError(
                413, f"the photograph has {width}×{height} pixels, over {self.limits.pixels:,}; send a smaller one"
            )
        try:
            picture = pixels(read_image(body), self.embedder)
        except ValueError as error:
            raise RefusalError(
                415, f"the photograph cannot be read: {_reason(error.__cause__ or error)}; send another"
            ) from None
        return [picture, picture.flip(-1)] if mirror else [picture]

    def _embed(self, pictures: list[Tensor]) -> list[np.ndarray]:
        assert self.embedder is not None
        begun = time.perf_counter()
        vectors = embed(pictures, self.embedder).numpy()
        self.metrics.observe("tuplet_embed_seconds", time.perf_counter() - begun)
        self.metrics.observe("tuplet_embed_batch", len(pictures))
        return list(vectors)

    def _search(self, asks: list[Ask]) -> list[list[Hit] | Exception]:
        """Searches under the same conditions are one; where it fails, the others do not."""
        begun = time.perf_counter()
        self._refresh()
        groups: dict[tuple[int, str, float | None], list[int]] = {}
        for place, ask in enumerate(asks):
            groups.setdefault((ask.k, ask.where, ask.distinct), []).append(place)
        hits: dict[int, list[Hit] | Exception] = {}
        for (k, where, distinct), places in groups.items():
            try:
                queries = np.stack([asks[place].vector for place in places])
                found = self.index.search(queries, k, where=json.loads(where), distinct=distinct)
                hits.update(zip(places, found, strict=True))
            except Exception as error:
                hits.update(dict.fromkeys(places, error))
        self.metrics.observe("tuplet_search_seconds", time.perf_counter() - begun)
        self.metrics.observe("tuplet_search_batch", len(asks))
        return [hits[place] for place in range(len(asks))]


def _is_condition(value: Any) -> bool:
    return all(map(is_plain, value if isinstance(value, list) else [value]))


def _readings(label: str) -> list[Any]:
    """What a label that came as text may be: that text, and the number or boolean that it spells in JSON.

    >>> _readings("bee"), _readings("2011")
    (['bee'], ['2011', 2011])
    """
    try:
        spelt = json.loads(label)
    except (ValueError, RecursionError):
        return [label]
    return [label, spelt] if isinstance(spelt, int | float) and is_plain(spelt) else [label]


def _reason(error: BaseException) -> str:
    return str(error).split("\n")[0].rstrip(".;") or type(error).__name__
