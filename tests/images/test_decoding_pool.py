"""Images of strangers are decoded in processes, which end at a deadline, in bounded memory and with their parent."""

import fcntl
import gc
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from unittest.mock import Mock

import numpy as np
import pytest
from PIL import Image

import crafted
from crafted import saved
from tuplet.images import limits
from tuplet.images.crop import CentreCrop
from tuplet.images.decoding_pool import DecodingPool, LocalDecoder, RefusedImageError, make_decoder

CROP = CentreCrop(48, 64, "shorter")


@pytest.fixture
def pool():
    pool = DecodingPool(1, pixels=20_000_000, seconds=60, memory=2**30)
    yield pool
    pool.close()


def photo(size=(90, 70), seed=0):
    pixels = np.random.default_rng(seed).integers(0, 256, (size[1] // 10, size[0] // 10, 3), np.uint8)
    return Image.fromarray(pixels).resize(size)


def worker(pool):
    return pool._processes[0]._process


def test_a_process_decodes_as_this_one_does(pool):
    exif = Image.Exif()
    exif[0x0112] = 6
    for content in (
        saved(photo(), "PNG"),
        saved(photo((900, 400)), "JPEG", exif=exif.tobytes()),
        saved(photo().convert("RGBA"), "WEBP"),
        saved(photo((3000, 2000)), "JPEG", progressive=True),
    ):
        for crop in (CROP, CentreCrop(32, 32, "square"), CentreCrop(64, 48, "longer")):
            assert (pool.decode(content, crop) == crop(content).numpy()).all()


@pytest.mark.parametrize(
    ("content", "kind", "reason"),
    [
        (b"", "unknown", "it is empty"),
        (b"GIF", "unknown", "it is not JPEG, PNG, WEBP, GIF, BMP, TIFF, AVIF or HEIC"),
        (crafted.POSTSCRIPT, "unknown", "it is not JPEG"),
        (saved(photo(), "PNG")[:2000], "broken", "image file is truncated"),
        (crafted.webp_of(5000, 5000), "large", "it has 5000×5000 pixels, over 20,000,000"),
        (crafted.tall_png(), "large", "over 65,535 on a side"),
        (crafted.jpeg_of_scans(1000, side=16), "large", "it has over 100 scans"),
    ],
)
def test_what_is_not_decoded_has_a_reason(pool, content, kind, reason, monkeypatch):
    monkeypatch.setattr(limits, "MAX_PIXELS", 20_000_000)
    for decoder in (pool, LocalDecoder()):
        with pytest.raises(RefusedImageError, match=reason) as caught:
            decoder.decode(content, CROP)
        assert caught.value.kind == kind


def test_windows_decodes_in_its_own_process(monkeypatch):
    monkeypatch.delattr(os, "fork")
    decoder = make_decoder(1, pixels=20_000_000, seconds=5, memory=2**30)
    content = saved(photo(), "PNG")
    assert (decoder.decode(content, CROP) == CROP(content).numpy()).all()


def test_a_process_ends_at_its_deadline_and_is_started_again():
    pool = DecodingPool(1, pixels=50_000_000, seconds=0.1, memory=2**30)
    slow, good = crafted.jpeg_of_scans(90, side=6000), saved(photo(), "PNG")

    def decode_good():
        """Decode it in one of many calls: on a busy machine the deadline may end a small image too."""
        for _ in range(50):
            with suppress(RefusedImageError):
                return pool.decode(good, CROP)
        return pytest.fail("no process decodes it")

    decode_good()
    for _ in range(2):
        before = worker(pool).pid
        with pytest.raises(RefusedImageError, match=r"it takes over 0\.1 s to decode") as caught:
            pool.decode(slow, CROP)
        assert caught.value.kind == "slow"
        decode_good()
        assert worker(pool).pid != before
    pool.close()


def test_a_process_that_crashed_is_started_again(pool):
    good = saved(photo(), "PNG")
    pool.decode(good, CROP)
    for stop in (signal.SIGKILL, signal.SIGSEGV):
        worker(pool).send_signal(stop)
        worker(pool).wait()
        pool.decode(good, CROP)
    process = worker(pool)
    answers = process.stdout
    process.stdout = Mock(wraps=answers)
    process.stdout.readline = lambda: (process.send_signal(signal.SIGSEGV), answers.readline())[1]
    fcntl.lockf(pool._lock, fcntl.LOCK_EX)  # so that it has not answered before the signal
    with pytest.raises(RefusedImageError, match="the decoder failed"):
        pool.decode(good, CROP)
    fcntl.lockf(pool._lock, fcntl.LOCK_UN)
    pool.decode(good, CROP)


def test_a_pool_that_nobody_closes_leaves_nothing_behind():
    pool = DecodingPool(2, pixels=10**6, seconds=5, memory=2**30)
    pool.start()
    processes = [each._process for each in pool._processes]
    del pool
    gc.collect()
    assert [process.returncode for process in processes] == [-signal.SIGKILL] * 2
    assert all(process.stdin.closed and process.stdout.closed for process in processes)


def test_large_images_are_decoded_alone():
    pool = DecodingPool(2, pixels=10**6, seconds=60, memory=10**6)
    small, large = saved(photo((100, 100)), "PNG"), saved(photo((280, 250)), "PNG")
    for content in (small, large):
        pool.decode(content, CROP)
    with ThreadPoolExecutor(2) as threads:
        fcntl.lockf(pool._lock, fcntl.LOCK_EX)  # as a worker with a large image does
        waiting = [threads.submit(pool.decode, content, CROP) for content in (small, large)]
        time.sleep(0.2)
        assert not any(each.done() for each in waiting)
        fcntl.lockf(pool._lock, fcntl.LOCK_SH)  # as one with a small image does
        waiting[0].result(60)
        assert not waiting[1].done()
        fcntl.lockf(pool._lock, fcntl.LOCK_UN)
        waiting[1].result(60)
    with pytest.raises(RefusedImageError, match="it takes 1 MiB of memory to decode, over 1"):
        pool.decode(saved(photo((400, 400)), "PNG"), CROP)
    pool.close()


def test_memory_is_limited_even_where_a_decoder_takes_more(pool):
    pool.decode(saved(photo(), "PNG"), CROP)
    with open(f"/proc/{worker(pool).pid}/limits") as file:
        limit = next(int(line.split()[3]) for line in file if line.startswith("Max data size"))
    assert limit == 2**30 + 256 * 2**20


PARENT = """
import sys, time
from tuplet.images.crop import CentreCrop
from tuplet.images.decoding_pool import DecodingPool
pool = DecodingPool(2, 50_000_000, 2.0, 2**30)
pool.start()
print(*(each._process.pid for each in pool._processes), flush=True)
pool.decode(open(sys.argv[1], "rb").read(), CentreCrop(8, 8))
"""


def test_processes_end_with_their_parent(tmp_path):
    path = tmp_path / "slow.jpg"
    path.write_bytes(crafted.jpeg_of_scans(90, side=7000))
    with subprocess.Popen([sys.executable, "-c", PARENT, path], stdout=subprocess.PIPE, text=True) as parent:
        pids = [int(pid) for pid in parent.stdout.readline().split()]
        time.sleep(0.5)
        parent.kill()
    until = time.monotonic() + 60
    while any(os.path.exists(f"/proc/{pid}") for pid in pids) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(os.path.exists(f"/proc/{pid}") for pid in pids)


def test_closing_ends_what_is_being_decoded(pool):
    with ThreadPoolExecutor(1) as threads:
        fcntl.lockf(pool._lock, fcntl.LOCK_EX)  # so that decoding would never end
        running = threads.submit(pool.decode, saved(photo(), "PNG"), CROP)
        while worker(pool) is None:
            time.sleep(0.01)
        pool.close()
        with pytest.raises(RefusedImageError, match="the decoder failed"):
            running.result(60)
    assert worker(pool).poll() is not None
