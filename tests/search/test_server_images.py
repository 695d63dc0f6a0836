"""Crafted images do not stop the server: others are answered, memory is bounded, SIGTERM ends it."""

import os
import signal
import subprocess
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress

import httpx
import pytest

import crafted
from crafted import saved
from search.bad_uploads import random_image
from search.server_process import server

pytest.importorskip("uvicorn", reason="serving needs uvicorn")

SLOW = crafted.jpeg_of_scans(90, side=6500)  # within all limits but that of time: a third of a second or more
#: Less time to decode an image than half of that for an answer, which a fast machine would not need for SLOW.
IMPATIENT = """
from tuplet.search.server import uploads
make = uploads.make_decoder
uploads.make_decoder = lambda count, pixels, seconds, memory: make(count, pixels, 0.1, memory)
"""


def post(address, content):
    return httpx.post(f"{address}/api/search/image", content=content, timeout=60)


def post_in_time(address, content):
    """Send an image again if the processor was taken away for so long that it was refused as slow."""
    answers = (post(address, content) for _ in range(50))
    return next(answer for answer in answers if "it takes over 0.1 s" not in answer.text)


def _post_to_nobody(address):
    with suppress(httpx.HTTPError):
        post(address, SLOW)


def memory(process):
    """Return the bytes that a server and its decoders have taken at most."""
    return {pid: _peak(pid) for pid in [process.pid, *children(process)]}


def children(process):
    """Return the ids of a server's decoders."""
    found = subprocess.run(["pgrep", "-P", str(process.pid)], capture_output=True, text=True)
    return [int(pid) for pid in found.stdout.split()]


def _peak(pid):
    with open(f"/proc/{pid}/status") as file:
        return 1024 * next(int(line.split()[1]) for line in file if line.startswith("VmHWM"))


def test_crafted_images_stop_nobody(folder):
    good = saved(random_image(), "PNG")
    with server(folder, prepare=IMPATIENT) as (address, process), ThreadPoolExecutor(4) as threads:
        assert post_in_time(address, good).status_code == 200
        decoders = children(process)
        for pid in decoders:
            os.kill(pid, signal.SIGSTOP)
        slow = [threads.submit(post, address, SLOW) for _ in range(2)]
        assert httpx.get(f"{address}/health", timeout=40).status_code == 200
        assert not any(answer.done() for answer in slow)
        for pid in decoders:
            os.kill(pid, signal.SIGCONT)
        for answer in slow:
            assert (answer.result().status_code, answer.result().json()["detail"]) == (
                413,
                "the image cannot be read: it takes over 0.1 s to decode; send a smaller one",
            )
        before = memory(process)[process.pid]
        refused = {name: post_in_time(address, content) for name, content in crafted.images().items()}
        refused["WebP of 34 bytes"] = post_in_time(address, crafted.webp_of(7000, 7000))
        unknown = {"PPM of comments", "PostScript"}
        assert {name: answer.status_code for name, answer in refused.items()} == {
            name: 415 if name in unknown else 413 for name in refused
        }
        assert "MiB of memory to decode, over 1,024; send" in refused["WebP of 34 bytes"].json()["detail"]
        taken = memory(process)
        assert taken.pop(process.pid) < before + 100 * 2**20
        assert max(taken.values()) < 200 * 2**20
        assert post_in_time(address, good).status_code == 200


def test_sigterm_ends_a_server_that_is_decoding(folder):
    with server(folder) as (address, process):
        pids = memory(process).keys()
        for _ in range(2):
            threading.Thread(target=_post_to_nobody, args=(address,), daemon=True).start()
        time.sleep(0.5)
        process.terminate()
        assert process.wait(60) == 0
        assert len(pids) == 3
        assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)
