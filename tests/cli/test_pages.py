"""The commands that the pages show run as they stand, but for the number of steps."""

import re
import shlex
import socket
import subprocess
from contextlib import chdir
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import uvicorn
from PIL import Image

from commands import typed
from report_runs import draw_folder
from tuplet.search.server import running
from tuplet.training import RECIPES

ROOT = Path(__file__).parents[2]
NAMES = ("ant", "bee", "cat", "dog", "elk", "fox")


@pytest.fixture
def place(tmp_path):
    """What the pages speak of: photographs, new ones, a table, vectors."""
    draw_folder(tmp_path / "photos", NAMES, each=4, size=(64, 48))
    draw_folder(tmp_path / "other", NAMES[:3], each=3)
    for name in ("new/a.jpg", "new/b.jpg", "photo.jpg"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        Image.effect_noise((80, 60), 40).save(tmp_path / name)
    rows = [f"photos/{name}/{i}.png,{name}" for name in NAMES for i in range(4)]
    (tmp_path / "birds.csv").write_text("\n".join(["path,label", *rows]) + "\n")
    labels = np.arange(40) // 5
    np.savez(tmp_path / "features.npz", features=np.random.default_rng(0).normal(size=(40, 6)), labels=labels)
    return tmp_path


@pytest.fixture
def served(monkeypatch):
    """The addresses at which `tuplet serve` was about to serve until ctrl-C."""
    addresses = []

    def listening(host, port):
        addresses.append(f"http://{host}:{port}")
        return socket.create_server((host, 0))

    monkeypatch.setattr(running, "_listening", listening)
    monkeypatch.setattr(uvicorn.Server, "run", lambda server, sockets: None)
    monkeypatch.setattr(running.signal, "signal", lambda *_: None)
    return addresses


@pytest.fixture
def small_demo(monkeypatch):
    """A demo of as few characters as its batches need, and of two steps."""
    drawn = import_module("tuplet.data.glyphs")  # by its name, since the package has a function of that name
    drawings, names = drawn.draw_characters()
    monkeypatch.setattr(drawn, "draw_characters", lambda: (drawings[:, :48], names[:48]))
    monkeypatch.setitem(RECIPES, "demo", {**RECIPES["demo"], "steps": 2})


def typed_in(page):
    """Every line of the shell blocks of a page."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def commands_of(line):
    """The words of each `tuplet` that a line calls, itself or by way of `make`."""
    name, *words = shlex.split(line, comments=True)
    if name == "make":
        done = subprocess.run(["make", "--dry-run", *words], cwd=ROOT, capture_output=True, text=True, check=False)
        # A folder of that name, such as tests, is a target too, of which nothing is to be done.
        assert done.returncode == 0, f"{line}\n{done.stderr}"
        assert "Nothing to be done" not in done.stdout, line
        return [words for step in done.stdout.splitlines() if "bin/tuplet" in step for words in commands_of(step)]
    assert name in ("tuplet", ".venv/bin/tuplet"), line
    return [words]


@pytest.mark.parametrize("page", ["README.md", "docs/first_steps.md", "docs/commands.md"])
@pytest.mark.usefixtures("small_demo")
def test_every_command_of_a_page_runs(page, place, served):
    text = (ROOT / page).read_text()
    lines = typed_in(text)
    assert len(lines) >= 5
    for line in lines:
        command, _, target = line.partition(" > ")
        for words in commands_of(command):
            short = ["--steps", "2"] if words[0] in ("train", "compare") else []
            done = typed(*words, *short, cwd=place)
            assert done.exit_code == 0, f"{line}\n{done.output}"
            if target:
                (place / target).write_text(done.stdout)
    assert len(served) == sum(" serve " in line for line in lines)
    assert all(address in text for address in served)
    # Python that follows on from the commands; what stands alone is ```python, and is run with all other pages.
    for block in re.findall(r"^```py\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        with chdir(place):
            exec(compile(block, page, "exec"), {})
