"""Decode uploaded images in processes of their own, which end at a deadline and are started again."""

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from contextlib import suppress
from dataclasses import asdict, dataclass
from typing import IO

import numpy as np
from PIL import Image, UnidentifiedImageError

from tuplet.errors import first_line
from tuplet.images.crop import CentreCrop, thumbnail
from tuplet.images.decode import UnreadableImageError, read_image
from tuplet.images.limits import LimitError


class RefusedImageError(ValueError):
    """An image that was not decoded.

    Attributes:
        kind: "large" if it exceeds a limit, "slow" if it exceeds the deadline, "unknown" if it is in none of the known
            formats, "broken" if it cannot be decoded.
    """

    def __init__(self, kind: str, reason: str) -> None:
        super().__init__(reason)
        self.kind = kind


def refusal(error: Exception) -> RefusedImageError:
    """Return why an image was not decoded, given what decoding raised."""
    cause = error.__cause__ or error
    if isinstance(cause, MemoryError):
        return RefusedImageError("large", "it takes too much memory to decode")
    is_large, is_unknown = isinstance(cause, LimitError), isinstance(cause, UnidentifiedImageError)
    kind = "large" if is_large else "unknown" if is_unknown else "broken"
    return RefusedImageError(kind, first_line(cause).rstrip(".;"))


@dataclass(frozen=True)
class DecodingLimits:
    """The limits of uploads: pixels and seconds of one, and bytes of memory for all that are decoded together.

    `lock` is the descriptor of a file that the workers lock.
    """

    pixels: int
    seconds: float
    memory: int
    lock: int


class LocalDecoder:
    """Decodes in the thread that calls, within `tuplet.images.limits` but without a deadline. For Windows.

    >>> LocalDecoder().decode(b"GIF87a", CentreCrop(8, 8))
    Traceback (most recent call last):
    tuplet.images.decoding_pool.RefusedImageError: ...
    """

    def start(self) -> None:
        """Do nothing: there is no process."""

    def decode(self, content: bytes, crop: CentreCrop) -> np.ndarray:
        """Decode an image and return its crop, as `DecodingPool.decode` does."""
        return np.asarray(crop.crop(self._read(content))).transpose(2, 0, 1)

    def thumbnail(self, content: bytes) -> bytes:
        """Return a thumbnail as WebP, as `DecodingPool.thumbnail` does."""
        return thumbnail(self._read(content))

    @staticmethod
    def _read(content: bytes) -> Image.Image:
        try:
            return read_image(content)
        except (UnreadableImageError, MemoryError) as error:
            raise refusal(error) from error

    def close(self) -> None:
        """Do nothing: there is no process."""


def make_decoder(count: int, pixels: int, seconds: float, memory: int) -> "DecodingPool | LocalDecoder":
    """Return a decoder of uploaded images; see `DecodingPool` for the arguments.

    On Windows processes cannot be limited, so images are decoded in this one.
    """
    return DecodingPool(count, pixels, seconds, memory) if hasattr(os, "fork") else LocalDecoder()


class DecodingPool:
    """Processes that decode one image each at a time; any thread may call. For Linux and macOS.

    Args:
        count: the number of processes.
        pixels: the most pixels of an image.
        seconds: the most time to decode an image; a process that takes longer ends.
        memory: the most bytes of memory for all images that are decoded at the same time.

    >>> import io
    >>> from PIL import Image
    >>> pool, file = DecodingPool(1, pixels=10_000, seconds=5, memory=2**30), io.BytesIO()
    >>> Image.new("RGB", (64, 48)).save(file, "PNG")
    >>> pool.decode(file.getvalue(), CentreCrop(32, 32)).shape
    (3, 32, 32)
    >>> pool.close()
    """

    def __init__(self, count: int, pixels: int, seconds: float, memory: int) -> None:
        self._lock = tempfile.TemporaryFile()  # noqa: SIM115
        allowed = DecodingLimits(pixels, seconds, memory, self._lock.fileno())
        self._processes = [_Process(allowed) for _ in range(count)]
        self._idle: queue.LifoQueue[_Process] = queue.LifoQueue()  # the last one used has its code in the cache
        for process in self._processes:
            self._idle.put(process)
        self._close = weakref.finalize(self, _close, self._processes, self._lock)  # if nobody calls `close`

    def start(self) -> None:
        """Start the processes, so that the first image need not wait for them."""
        for process in self._processes:
            process.start()

    def decode(self, content: bytes, crop: CentreCrop) -> np.ndarray:
        """Decode an image and return its crop: uint8 (3, size, size).

        Raises:
            RefusedImageError: it was not decoded.
        """
        pixels = self._ask(content, crop)
        return np.frombuffer(pixels, np.uint8).reshape(crop.size, crop.size, 3).transpose(2, 0, 1)

    def thumbnail(self, content: bytes) -> bytes:
        """Decode an image and return a thumbnail of it as WebP; raises like `decode`."""
        return self._ask(content, None)

    def _ask(self, content: bytes, crop: CentreCrop | None) -> bytes:
        process = self._idle.get()
        try:
            return process.decode(content, crop)
        finally:
            self._idle.put(process)

    def close(self) -> None:
        """End the processes at once; images that are being decoded are refused."""
        self._close()


def _close(processes: "list[_Process]", lock: IO[bytes]) -> None:
    for process in processes:
        process.close()
    lock.close()


class _Process:
    """A process that decodes one image at a time."""

    def __init__(self, allowed: DecodingLimits) -> None:
        self._allowed, self._is_closed, self._changing = allowed, False, threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        """Start the process unless it is running."""
        with self._changing:
            if not self._is_closed and (self._process is None or self._process.poll() is not None):
                if self._process is not None:
                    self._end(self._process)
                options = ["-P", "-W", "ignore", "-m", "tuplet.images.decoding_worker"]
                self._process = subprocess.Popen(
                    [sys.executable, *options, json.dumps(asdict(self._allowed))],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "OPENBLAS_NUM_THREADS": "1"},
                    pass_fds=[self._allowed.lock],
                    process_group=0,  # ctrl-C is for the server, which ends this process when it is done
                )

    def decode(self, content: bytes, crop: CentreCrop | None) -> bytes:
        """Decode an image and return the pixels of its crop, or without one a thumbnail as WebP."""
        self.start()
        if self._process is None:
            raise RefusedImageError("broken", "the server stops")
        requests, answers = self._process.stdin, self._process.stdout
        assert requests is not None
        assert answers is not None
        try:
            request = {"bytes": len(content), "crop": None if crop is None else asdict(crop)}
            requests.write(json.dumps(request).encode() + b"\n")
            requests.write(content)
            requests.flush()
            answer = json.loads(answers.readline())
            result = answers.read(answer["bytes"])
        except (OSError, ValueError) as error:  # the process has ended
            raise self._failure() from error
        if "kind" in answer:
            raise RefusedImageError(answer["kind"], answer["reason"])
        return result

    def close(self) -> None:
        """End the process at once."""
        with self._changing:
            self._is_closed = True
            if self._process is not None:
                self._end(self._process)

    def _failure(self) -> RefusedImageError:
        """Start the process again; return why the image was not decoded."""
        assert self._process is not None
        status = self._end(self._process)  # it may have answered nonsense
        self.start()
        if status == -signal.SIGALRM:
            return RefusedImageError("slow", f"it takes over {self._allowed.seconds:g} s to decode")
        return RefusedImageError("broken", "the decoder failed")

    @staticmethod
    def _end(process: "subprocess.Popen[bytes]") -> int:
        """End a process, close its pipes and return its exit status."""
        process.kill()
        status = process.wait()
        for pipe in (process.stdin, process.stdout):
            with suppress(OSError):  # half of a request may be left
                pipe and pipe.close()
        return status
