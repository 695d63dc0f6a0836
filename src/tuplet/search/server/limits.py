"""The limits of the server, and its refusals."""

from dataclasses import dataclass
from typing import Any

#: The JSON schema of a refusal, and the meaning of each status.
PROBLEM = {"type": "object", "properties": {"detail": {"type": "string"}}, "required": ["detail"]}
REASONS = {
    401: "the token is missing or wrong",
    403: "the server does not show originals",
    404: "the index has no such item",
    408: "the body came too slowly",
    409: "the index takes no images",
    413: "too many bytes or pixels, or too long to decode",
    415: "not an image that can be read",
    422: "a parameter is missing, wrong or over a limit",
    503: "busy: try again",
}
#: The sentence for an index that is missing or damaged.
UNREADABLE = "the index cannot be read now, see the server's log; try again in a second"


@dataclass(frozen=True)
class Limits:
    """Limits on the size of a request and on the number of requests that wait."""

    bytes: int = 10 * 2**20  # of an image, or of any other body
    pixels: int = 50_000_000  # of an image after decoding
    memory: int = 2**30  # bytes, to decode all images at the same time
    images: int = 32  # being decoded or waiting for the model; `images` × `bytes` may be arriving
    searches: int = 1024  # waiting for the index
    distinct: int = 64  # of them, those that leave out near-duplicates
    results: int = 200  # of one search
    values: int = 256  # in the filter of one search
    seconds: float = 10.0  # to send the headers, then the body, and then to answer it
    connections: int = 512  # in all, or half as many as the process may open files if that is less
    client_connections: int = 256  # of one address
    batch: int = 16  # images that are embedded together


class RefusalError(Exception):
    """A refused request: a status, and a sentence with the reason and the remedy."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence

    @property
    def headers(self) -> dict[str, str]:
        """The headers of the answer: Retry-After if trying again helps."""
        return {"Retry-After": "1"} if self.status == 503 else {}


def busy(what: str, limit: int) -> RefusalError:
    """Return the refusal for when too many requests wait.

    >>> busy("images", 32).sentence
    'the server is busy: 32 images are waiting; try again in a second'
    """
    return RefusalError(503, f"the server is busy: {limit:,} {what} are waiting; try again in a second")


def may_refuse(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI description of a route's refusals; 401 and 422 are always among them."""
    content = {"application/json": {"schema": PROBLEM}}
    return {status: {"description": REASONS[status], "content": content} for status in sorted({401, 422, *statuses})}
