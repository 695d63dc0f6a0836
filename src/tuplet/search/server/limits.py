"""What the server takes on, and how it says no."""

from dataclasses import dataclass
from typing import Any

#: What a refusal looks like, and what each status means here.
PROBLEM = {"type": "object", "properties": {"detail": {"type": "string"}}, "required": ["detail"]}
REASONS = {
    401: "the token is missing or wrong",
    404: "the index holds no such item",
    408: "the body came too slowly",
    409: "the index takes no photographs",
    413: "too many bytes or pixels",
    415: "no photograph that can be read",
    422: "a parameter is missing or wrong",
    503: "busy: try again",
}


@dataclass(frozen=True)
class Limits:
    """How much one request may ask for, and how many may wait."""

    bytes: int = 10 * 2**20  # of a photograph, or of any other body
    pixels: int = 50_000_000  # of a photograph, once decoded
    photographs: int = 32  # that are being decoded or wait for the model
    searches: int = 1024  # that wait for the index
    results: int = 200  # of one search
    seconds: float = 10.0  # for sending a body, and then for its answer
    batch: int = 16  # photographs that are embedded together


class RefusalError(Exception):
    """A request that gets no answer: a status, and one sentence that says why and what to do."""

    def __init__(self, status: int, sentence: str) -> None:
        super().__init__(sentence)
        self.status, self.sentence = status, sentence

    @property
    def headers(self) -> dict[str, str]:
        """When to come back, where coming back helps."""
        return {"Retry-After": "1"} if self.status == 503 else {}


def busy(what: str, limit: int) -> RefusalError:
    """The refusal where too many wait.

    >>> busy("photographs", 32).sentence
    'the server is busy: 32 photographs are waiting; try again in a second'
    """
    return RefusalError(503, f"the server is busy: {limit:,} {what} are waiting; try again in a second")


def may_refuse(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """These refusals for the description of a route, with those that every route may answer."""
    content = {"application/json": {"schema": PROBLEM}}
    return {status: {"description": REASONS[status], "content": content} for status in sorted({401, 422, *statuses})}
