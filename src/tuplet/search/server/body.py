"""The body of a request, read no further than the limits allow."""

import asyncio
from typing import Any

from tuplet.search.server.limits import Limits, RefusalError


class Body:
    """What the sender of a request sends after its headers."""

    def __init__(self, request: Any, limits: Limits) -> None:
        self._request, self._limits, self._complete = request, limits, False

    async def read(self, most: int) -> bytes:
        """All of it; one of more than `most` bytes or one that is too slow is refused."""
        content = bytearray()
        try:
            async with asyncio.timeout(self._limits.seconds):
                while not self._complete:
                    content += await self._part()
                    if len(content) > most:
                        raise RefusalError(413, f"the body has over {most:,} bytes; send a smaller one")
        except TimeoutError:
            raise RefusalError(
                408, f"the body did not arrive within {self._limits.seconds:g} s; send it faster"
            ) from None
        return bytes(content)

    async def discard(self) -> None:
        """Read on for a moment after a refusal: closing the connection on what is being sent would lose the answer."""
        left = self._limits.bytes
        try:
            async with asyncio.timeout(1.0):
                while not self._complete and left > 0:
                    left -= len(await self._part())
        except TimeoutError:
            return

    async def _part(self) -> bytes:
        message = await self._request.receive()
        self._complete = message["type"] == "http.disconnect" or not message.get("more_body")
        return message.get("body", b"")
