"""The commands on the pages run as printed, with fewer steps."""

import re
import shlex
import socket
import subprocess
import tomllib
from contextlib import chdir
from pathlib import Path

import numpy as np
import pytest
import uvicorn
from PIL import Image

from commands import typed
from report_runs import draw_folder
from tuplet.data.readers import glyphs
from tuplet.search.server import run
from tuplet.training import RECIPES

ROOT = Path(__file__).parents[2]
EXTRAS = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
#: The commands of these pages repeat measurements, which takes hours.
MEASURED = ("performance.md", "results.md", "results_details.md")
#: What is added to commands that would take long.
_STEPS = ("--steps", "2")
SHORT = {"train": _STEPS, "compare": _STEPS, "tune": (*_STEPS, "--trials", "1", "--seeds", "1")}
PAGES = [page for page in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))) if page.name not in MEASURED]
NAMES = ("ant", "bee", "cat", "dog", "elk", "fox")


@pytest.fixture
def folder(tmp_path):
    """Return a folder with the files that the pages mention: images, new images, a table, features."""
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
    """Record the addresses of `tuplet serve`, which returns at once."""
    addresses = []

    def listening(host, port):
        addresses.append(f"http://{host}:{port}")
        return socket.create_server((host, 0))

    monkeypatch.setattr(run, "_listen", listening)
    monkeypatch.setattr(uvicorn.Server, "run", lambda server, sockets: None)
    monkeypatch.setattr(run.signal, "signal", lambda *_: None)
    return addresses


@pytest.fixture(scope="module")
def characters():
    """Return the drawings of as few characters as the batches of the demo need."""
    drawings, names = glyphs.draw_characters()
    return drawings[:, :64], names[:64]


@pytest.fixture
def small_demo(monkeypatch, characters):
    """Reduce the demo to two steps on few characters."""
    monkeypatch.setattr(glyphs, "draw_characters", lambda: characters)
    monkeypatch.setitem(RECIPES, "demo", {**RECIPES["demo"], "steps": 2})


def shell_lines(page):
    """Return every line of the shell blocks of a page."""
    blocks = re.findall(r"^```sh\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return [line for block in blocks for line in block.splitlines()]


def commands_of(line):
    """Return the arguments of each `tuplet` command that a line runs, directly or through `make`."""
    name, *words = shlex.split(line, comments=True)
    if name == "make":
        done = subprocess.run(["make", "--dry-run", *words], cwd=ROOT, capture_output=True, text=True, check=False)
        # A folder such as tests is a target of make too, with nothing to do.
        assert done.returncode == 0, f"{line}\n{done.stderr}"
        assert "Nothing to be done" not in done.stdout, line
        return [words for step in done.stdout.splitlines() if "bin/tuplet" in step for words in commands_of(step)]
    if name == "pip":
        installs = re.fullmatch(r"tuplet(?:\[([\w,]+)\])?", words[-1])
        assert words[0] == "install", line
        assert installs, line
        assert {*(installs[1] or "").split(",")} <= {*EXTRAS, ""}, line
        return []
    assert Path(name).name == "tuplet", line
    return [words]


@pytest.mark.parametrize("page", [str(page.relative_to(ROOT)) for page in PAGES if "\n```sh\n" in page.read_text()])
@pytest.mark.usefixtures("small_demo")
def test_every_command_of_a_page_runs(page, folder, served):
    text = (ROOT / page).read_text()
    lines = shell_lines(text)
    assert lines
    for line in lines:
        command, _, target = line.partition(" > ")
        for words in commands_of(command):
            done = typed(*words, *SHORT.get(words[0], ()), cwd=folder)
            assert done.exit_code == 0, f"{line}\n{done.output}"
            if target:
                (folder / target).write_text(done.stdout)
    assert len(served) == sum(" serve " in line for line in lines)
    assert all(address in text for address in served)
    # Python that needs the files of the commands; blocks that stand alone are ```python and run in tests/test_docs.py.
    for block in re.findall(r"^```py\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        with chdir(folder):
            exec(compile(block, page, "exec"), {})
