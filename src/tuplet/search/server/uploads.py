"""Read bodies within the limits, and decode images in processes of their own."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, contextmanager, suppress
from typing import Any, TypeVar

import torch
from torch import Tensor

from tuplet.images.crop import CentreCrop
from tuplet.images.decoding_pool import RefusedImageError, make_decoder
from tuplet.search.server.limits import Limits, RefusalError, busy

#: Images that are decoded at the same time, each in a process of its own.
DECODERS = 2
#: Seconds in which the rest of a refused body is read: a client that is still sending would miss the answer otherwise.
REST_SECONDS = 1.0
T = TypeVar("T")


class Uploads:
    """The bodies that arrive, and the images that are decoded or wait for the model."""

    def __init__(self, limits: Limits) -> None:
        self._limits = limits
        self.images = 0  # in progress
        self._arriving = 0  # bytes of all bodies that are not complete
        # Half of the time for an answer, so that there is time to say that decoding took too long.
        self._pool = make_decoder(DECODERS, limits.pixels, limits.seconds / 2, limits.memory)
        self._threads = ThreadPoolExecutor(DECODERS, thread_name_prefix="decoding")

    def start(self) -> None:
        """Start the processes that decode images, so that the first image need not wait for them."""
        self._pool.start()

    def close(self) -> None:
        """End the processes, and return when the threads have finished what they are doing."""
        self._pool.close()
        self._threads.shutdown(cancel_futures=True)

    @asynccontextmanager
    async def chunks(self, request: Any) -> AsyncIterator[AsyncIterator[bytes]]:
        """Yield the chunks of a request's body; after a refusal inside this block, read on for a second."""
        from starlette.requests import ClientDisconnect

        chunks = request.stream()
        try:
            yield chunks
        except ClientDisconnect:
            raise RefusalError(408, "the client closed the connection before the body was complete") from None
        except RefusalError:
            left = self._limits.bytes
            with suppress(TimeoutError, ClientDisconnect):
                async with asyncio.timeout(REST_SECONDS):
                    async for chunk in chunks:
                        left -= len(chunk)
                        if left < 0:
                            break
            raise

    async def read(self, chunks: AsyncIterator[bytes], most: int) -> bytes:
        """Return the whole body; refuse one that has more than `most` bytes or is too slow."""
        content = bytearray()
        try:
            async with asyncio.timeout(self._limits.seconds):
                async for chunk in chunks:
                    content += chunk
                    self._arriving += len(chunk)
                    if len(content) > most:
                        raise RefusalError(413, f"the body has over {most:,} bytes; send a smaller one")
                    if self._arriving > self._limits.images * self._limits.bytes:
                        raise RefusalError(503, "the server is busy: many others are sending; try again in a second")
        except TimeoutError:
            seconds = f"{self._limits.seconds:g} s"
            raise RefusalError(408, f"the body did not arrive within {seconds}; send it faster") from None
        finally:
            self._arriving -= len(content)
        return bytes(content)

    def check_place(self) -> None:
        """Refuse an image, before it is read, if too many are in progress."""
        if self.images >= self._limits.images:
            raise busy("images", self._limits.images)

    @contextmanager
    def place(self) -> Iterator[None]:
        """Count an image as in progress, once its body has arrived, so that slow clients block no others."""
        self.check_place()
        self.images += 1
        try:
            yield
        finally:
            self.images -= 1

    async def crop(self, content: bytes, crop: CentreCrop) -> Tensor:
        """Decode an image and return its crop, uint8 (3, size, size)."""
        return torch.from_numpy((await self.run(self._pool.decode, content, crop)).copy())

    async def thumbnail(self, content: bytes) -> bytes:
        """Decode an image and return its thumbnail as WebP."""
        return await self.run(self._pool.thumbnail, content)

    async def run(self, function: Callable[..., T], *arguments: Any) -> T:
        """Call a function in one of the threads that decode; refuse an image that it cannot decode."""
        try:
            return await asyncio.get_running_loop().run_in_executor(self._threads, function, *arguments)
        except RefusedImageError as error:
            raise _refusal(error) from None


def _refusal(error: RefusedImageError) -> RefusalError:
    """Return the status and the sentence for an image that was not decoded."""
    if error.kind == "unknown":
        return RefusalError(415, "the body is not an image; send a JPEG, PNG or WebP file")
    status, remedy = (413, "send a smaller one") if error.kind in ("large", "slow") else (415, "send another")
    return RefusalError(status, f"the image cannot be read: {error}; {remedy}")
