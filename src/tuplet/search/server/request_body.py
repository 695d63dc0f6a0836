"""Read the body of a request within the limits."""

import asyncio
from typing import Any

from tuplet.search.server.limits import Limits, RefusalError


class RequestBody:
    """The body of a request."""

    def __init__(self, request: Any, limits: Limits) -> None:
        self._request, self._limits, self._complete = request, limits, False

    async def read(self, most: int) -> bytes:
        """Read the body; refuse one of more than `most` bytes or one that is too slow."""
        content = bytearray()
        try:
            async with asyncio.timeout(self._limits.seconds):
                while not self._complete:
                    content += await self._chunk()
                    if len(content) > most:
                        raise RefusalError(413, f"the body has over {most:,} bytes; send a smaller one")
        except TimeoutError:
            raise RefusalError(
                408, f"the body did not arrive within {self._limits.seconds:g} s; send it faster"
            ) from None
        return bytes(content)

    async def discard(self) -> None:
        """Read on for a second after a refusal: a client that is still sending would miss the answer otherwise."""
        left = self._limits.bytes
        try:
            async with asyncio.timeout(1.0):
                while not self._complete and left > 0:
                    left -= len(await self._chunk())
        except (TimeoutError, RefusalError):
            return

    async def _chunk(self) -> bytes:
        message = await self._request.receive()
        if message["type"] == "http.disconnect":
            self._complete = True
            raise RefusalError(408, "the client closed the connection before the body was complete")
        self._complete = not message.get("more_body")
        return message.get("body", b"")
