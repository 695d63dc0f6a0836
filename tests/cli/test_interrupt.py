"""Ctrl-C and SIGTERM, sent to real processes at several moments: what is kept, what is said, and how to continue."""

import os
import re
import signal
import subprocess
import sys

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


#: Run `tuplet` in a process that sends itself a signal at a moment. Another process might see the moment too late.
WATCHED = """
import json, multiprocessing.process, os, runpy, sys, threading, time
from pathlib import Path
number, moment = int(sys.argv.pop(1)), sys.argv.pop(1)
def rows(index):
    manifest = Path(index, "index.json")
    return json.loads(manifest.read_text())["rows"] if manifest.exists() else 0
def watch():
    while not eval(moment):
        time.sleep(0.005)
    os.kill(os.getpid(), number)
threading.Thread(target=watch, daemon=True).start()
runpy.run_module("tuplet", run_name="__main__", alter_sys=True)
"""


def stop(folder, number, words, moment):
    """Run a command, send it a signal once `moment` is true, and return the lines that it wrote to standard error.

    Lines of others are left out: torch may import triton, whose binding reports leaks at the end of some processes.
    """
    command = [sys.executable, "-c", WATCHED, str(int(number)), moment, *words]
    with open(folder / "printed", "w") as printed:
        done = subprocess.run(
            command, cwd=folder, stdout=printed, stderr=subprocess.PIPE, text=True, env=environment(), timeout=300
        )
    assert done.returncode == CODES[number], done.stderr
    assert "Traceback" not in done.stderr
    return "".join(line for line in done.stderr.splitlines(keepends=True) if line.startswith("tuplet: "))


def exists(path):
    return f"Path({str(path)!r}).exists()"


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
        output = stop(folder, number, words, f"rows({name!r}) > {counts[-1]}")
        found = re.search(
            rf"stopped; {name} has ([\d,]+) images and can be searched, and the same command adds", output
        )
        counts.append(int(found[1].replace(",", "")))
        assert len(search.Index.open(folder / name)) == counts[-1]
    assert 0 < counts[1] < counts[2] < SOME
    assert f"{SOME:,} in all" in succeeded(typed(*words, cwd=folder))
    assert search.Index.open(folder / name).verify()


def test_an_index_without_an_image(folder):
    words = ("index", "model", "photos", "-o", "new.index")
    output = stop(folder, signal.SIGINT, words, exists("new.index"))
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
    assert stop(folder, number, words, exists(shards)) == f"{NOTHING}\n"
    output = stop(folder, number, words, exists(shards / "000000000.safetensors"))
    kept = r"stopped; [\d,]+ of 12,000 images are done in \S+\.shards, and the same command continues from there\n"
    assert re.search(kept, output)
    assert not (folder / out).exists()
    succeeded(typed(*words, cwd=folder))
    assert not shards.exists()
    assert np.load(folder / out)["embeddings"].shape == (MANY, 8)


@both_signals
def test_evaluate_writes_nothing(folder, number, soak):
    """It has begun to read images in processes of their own."""
    leave_to_soak(number, signal.SIGTERM, soak)
    (folder / "list.csv").write_text("path,label\n" + "".join(f"many/{i:05}.png,{i % 50}\n" for i in range(MANY)))
    words = ("evaluate", "model", "list.csv", "--on", "all", "--device", "cpu")
    assert stop(folder, number, words, "multiprocessing.process._children") == f"{NOTHING}\n"


@both_signals
def test_compare_and_train_continue(folder, number, soak):
    leave_to_soak(number, signal.SIGINT, soak)
    options = (*SMALL, "--validation", "0", "--checkpoint-every", "5", "--log-every", "1")
    out, options = f"{number.name} compared", ["150" if word == "4" else word for word in options]
    words = ("compare", "photos", "triplet", "npair", "--seeds", "1", "--out", out, *options)
    for loss, done in (("triplet", 0), ("npair", 1)):
        output = stop(folder, number, words, exists(f"{out}/{loss}/seed_0/checkpoint.pt"))
        assert output.endswith(
            f"stopped; {out} has {done} of 2 runs, and the same command continues from the last checkpoint\n"
        )
    assert f"page: {out}/comparison.html" in succeeded(typed(*words, cwd=folder))
    out = f"{number.name} run"
    output = stop(folder, number, ("train", "photos", "--out", out, *options), exists(out))
    assert output.endswith((f"{NOTHING}\n", "tuplet: stopped; the same command continues from the last checkpoint\n"))


def test_a_stopped_server_says_no_more(folder):
    pytest.importorskip("uvicorn", reason="serving needs uvicorn")
    pytest.importorskip("fastapi", reason="serving needs fastapi")
    search.create(folder / "served.index", dim=2)
    listens = "'vectors at' in Path('printed').read_text()"
    output = stop(folder, signal.SIGINT, ["serve", "served.index", "--port", "0"], listens)
    assert output == "tuplet: stopped\n"
