"""Ctrl-C and SIGTERM, sent to real processes at several moments: what is kept, what is said, and how to continue."""

import os
import re
import signal
import socket
import subprocess
import sys
import time

import numpy as np
import pytest

from commands import SMALL, environment, succeeded, tuplet, typed
from report_runs import draw_folder
from tuplet import models, search

NAMES = ("ant", "bee", "cat", "dog", "elk", "fox", "gnu", "hen")
CODES = {signal.SIGINT: 130, signal.SIGTERM: 143}
MANY, SOME = 12_000, 4_000
NOTHING = "tuplet: stopped; nothing is kept yet, and the same command starts again"
both_signals = pytest.mark.parametrize("number", CODES, ids=lambda number: number.name)


def leave_to_soak(number, tried, soak):
    """Skip all signals but the one that is `tried`: they take one way, and `test_the_first_second` tries each."""
    if number != tried and not soak:
        pytest.skip("the soak tries both signals at every moment")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with few images in classes, many images, and a model."""
    folder = tmp_path_factory.mktemp("stopped")
    draw_folder(folder / "photos", NAMES)
    for name, images in (("many", MANY), ("some", SOME)):
        (folder / name).mkdir()
        for number in range(images):
            os.link(folder / "photos/ant/0.png", folder / f"{name}/{number:05}.png")
    models.create("convnet", dim=8, size=32, channels=3).save(folder / "model")
    return folder


def stop(folder, number, words, moment):
    """Run a command, send it a signal once `moment()` is true, and return the lines that it wrote to standard error.

    Lines of others are left out: torch may import triton, whose binding reports leaks at the end of some processes.
    """
    command = [sys.executable, "-m", "tuplet", *words]
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True, env=environment())
    until = time.monotonic() + 60
    while not moment() and process.poll() is None and time.monotonic() < until:
        time.sleep(0.01)
    assert process.poll() is None, process.communicate()
    begun = time.monotonic()
    process.send_signal(number)
    _, output = process.communicate(timeout=60)
    assert time.monotonic() - begun < 20
    assert process.returncode == CODES[number], output
    assert "Traceback" not in output
    return "".join(line for line in output.splitlines(keepends=True) if line.startswith("tuplet: "))


def is_open(port):
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", port)) == 0


def count(index):
    try:
        return len(search.Index.open(index))
    except FileNotFoundError:
        return 0


@both_signals
@pytest.mark.parametrize(
    ("module", "sentence"), [("typer", "tuplet: stopped"), ("torch", NOTHING)], ids=["parsing", "loading"]
)
def test_the_first_second(folder, number, module, sentence):
    """While the command line is imported, and while the command imports the library."""
    early = folder / f"early {module} {number.name}"
    early.mkdir()
    (early / f"{module}.py").write_text(f"import signal; signal.raise_signal({int(number)})")
    paths = os.pathsep.join([str(early), os.environ.get("PYTHONPATH", "")])
    words = ("index", "model", "photos", "-o", "early.index")
    done = tuplet(*words, cwd=folder, env={**environment(), "PYTHONPATH": paths})
    assert (done.returncode, done.stderr) == (CODES[number], f"{sentence}\n")
    assert not (folder / "early.index").exists()


@both_signals
def test_an_index_keeps_what_was_added(folder, number, soak):
    leave_to_soak(number, signal.SIGTERM, soak)
    name = f"{number.name}.index"
    words, counts = ("index", "model", "some", "-o", name), [0]
    for _ in range(2):
        output = stop(folder, number, words, lambda: count(folder / name) > counts[-1])
        found = re.search(
            rf"stopped; {name} has ([\d,]+) images and can be searched, and the same command adds", output
        )
        counts.append(int(found[1].replace(",", "")))
        assert count(folder / name) == counts[-1]
    assert 0 < counts[1] < counts[2] < SOME
    assert f"{SOME:,} in all" in succeeded(typed(*words, cwd=folder))
    assert search.Index.open(folder / name).verify()


def test_an_index_without_an_image(folder):
    words = ("index", "model", "photos", "-o", "new.index")
    output = stop(folder, signal.SIGINT, words, (folder / "new.index").exists)
    # The moment decides: before the index is opened, before its first batch is saved, or after.
    assert output.removesuffix("\n") in (
        NOTHING,
        "tuplet: stopped; no image is in new.index yet, and the same command adds them",
        "tuplet: stopped; new.index has 48 images and can be searched, and the same command adds the rest",
    )
    assert "48 in all" in succeeded(typed(*words, cwd=folder))


@both_signals
def test_embed_keeps_whole_shards(folder, number, soak):
    leave_to_soak(number, signal.SIGINT, soak)
    out = f"{number.name}.npz"
    words, shards = ("embed", "model", "many", "--out", out), folder / f"{out}.shards"
    assert stop(folder, number, words, shards.exists) == f"{NOTHING}\n"
    output = stop(folder, number, words, (shards / "000000000.safetensors").exists)
    kept = r"stopped; [\d,]+ of 12,000 images are done in \S+\.shards, and the same command continues from there\n"
    assert re.search(kept, output)
    assert not (folder / out).exists()
    succeeded(typed(*words, cwd=folder))
    assert not shards.exists()
    assert np.load(folder / out)["embeddings"].shape == (MANY, 8)


@both_signals
def test_evaluate_writes_nothing(folder, number, soak):
    """It begins to read images after all that it imports, and 12,000 take it seconds."""
    leave_to_soak(number, signal.SIGTERM, soak)
    (folder / "list.csv").write_text("path,label\n" + "".join(f"many/{i:05}.png,{i % 50}\n" for i in range(MANY)))
    begun = time.monotonic()
    words = ("evaluate", "model", "list.csv", "--on", "all", "--device", "cpu")
    assert stop(folder, number, words, lambda: time.monotonic() - begun > 4) == f"{NOTHING}\n"


@both_signals
def test_compare_and_train_continue(folder, number, soak):
    leave_to_soak(number, signal.SIGINT, soak)
    options = (*SMALL, "--validation", "0", "--checkpoint-every", "5", "--log-every", "1")
    out, options = f"{number.name} compared", ["150" if word == "4" else word for word in options]
    words = ("compare", "photos", "triplet", "npair", "--seeds", "1", "--out", out, *options)
    for loss, done in (("triplet", 0), ("npair", 1)):
        output = stop(folder, number, words, (folder / out / loss / "seed_0/checkpoint.pt").exists)
        assert output.endswith(
            f"stopped; {out} has {done} of 2 runs, and the same command continues from the last checkpoint\n"
        )
    assert f"page: {out}/comparison.html" in succeeded(typed(*words, cwd=folder))
    out = f"{number.name} run"
    output = stop(folder, number, ("train", "photos", "--out", out, *options), (folder / out).exists)
    assert output.endswith((f"{NOTHING}\n", "tuplet: stopped; the same command continues from the last checkpoint\n"))


def test_a_stopped_server_says_no_more(folder):
    pytest.importorskip("uvicorn", reason="serving needs uvicorn")
    pytest.importorskip("fastapi", reason="serving needs fastapi")
    search.create(folder / "served.index", dim=2)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    output = stop(folder, signal.SIGINT, ["serve", "served.index", "--port", str(port)], lambda: is_open(port))
    assert output == "tuplet: stopped\n"
