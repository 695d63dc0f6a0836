"""Decode uploaded images in a process of its own, which `tuplet.images.decoding_pool` starts.

It reads requests from standard input and writes answers to standard output, each a line of JSON and the bytes that it
announces. It ends when the input does, or when an image takes too long.
"""

import fcntl
import json
import os
import resource
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, BinaryIO

from PIL import AvifImagePlugin

from tuplet.images import limits
from tuplet.images.crop import CentreCrop, thumbnail
from tuplet.images.decode import available_formats, read_image
from tuplet.images.decoding_pool import DecodingLimits, refusal

#: Memory of the process beside that for an image.
MARGIN = 256 * 2**20


class SharedBudget(limits.MemoryBudget):
    """The budget of several workers: small images are decoded together, one that needs over half of it alone."""

    def __init__(self, allowed: DecodingLimits) -> None:
        self._allowed = allowed

    @contextmanager
    def reserve(self, amount: int) -> Iterator[None]:
        """Wait for the other workers if need be; the deadline counts from then on."""
        if not amount:
            yield
            return
        set_deadline(0)
        fcntl.lockf(self._allowed.lock, fcntl.LOCK_EX if amount > self._allowed.memory / 2 else fcntl.LOCK_SH)
        set_deadline(self._allowed.seconds)
        try:
            yield
        finally:
            fcntl.lockf(self._allowed.lock, fcntl.LOCK_UN)


def set_deadline(seconds: float) -> None:
    """End the process after this time, whatever it is doing; 0 is never."""
    signal.setitimer(signal.ITIMER_REAL, seconds)  # nobody handles its signal, so the system ends the process


def work(allowed: DecodingLimits, requests: BinaryIO, answers: BinaryIO) -> None:
    """Answer requests until there are no more."""
    limits.MAX_PIXELS, limits.MAX_MEMORY = allowed.pixels, allowed.memory
    limits.MEMORY = SharedBudget(allowed)
    AvifImagePlugin.DEFAULT_MAX_THREADS = 2  # each takes memory
    available_formats()
    # In case a decoder takes more than it should.
    resource.setrlimit(resource.RLIMIT_DATA, (allowed.memory + MARGIN,) * 2)
    while line := requests.readline():
        request = json.loads(line)
        content = requests.read(request["bytes"])
        set_deadline(allowed.seconds)
        answer, result = _answer(content, request["crop"])
        set_deadline(0)
        answers.write(json.dumps(answer | {"bytes": len(result)}).encode() + b"\n" + result)
        answers.flush()


def _answer(content: bytes, crop: dict[str, Any] | None) -> tuple[dict[str, Any], bytes]:
    """Return the pixels of a crop, without one a thumbnail, or a problem: its kind and the reason."""
    try:
        image = read_image(content)
        return {}, thumbnail(image) if crop is None else CentreCrop(**crop).crop(image).tobytes()
    except (ValueError, MemoryError) as error:
        problem = refusal(error)
        return {"kind": problem.kind, "reason": str(problem)}, b""


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "wb")
    for output in (1, 2):  # decoders must not write into the answers, nor into the log
        os.dup2(os.open(os.devnull, os.O_WRONLY), output)
    work(DecodingLimits(**json.loads(sys.argv[1])), sys.stdin.buffer, answers)
