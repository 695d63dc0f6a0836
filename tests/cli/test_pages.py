"""The commands that the pages show run as they stand, but for the number of steps."""

import re
import shlex
from contextlib import chdir
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from commands import typed
from report_runs import draw_folder

DOCS = Path(__file__).parents[2] / "docs"
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


@pytest.mark.parametrize("page", ["first_steps.md", "commands.md"])
def test_every_command_of_a_page_runs(page, place):
    text = (DOCS / page).read_text()
    blocks = re.findall(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    assert len(lines) >= 5
    for line in lines:
        command, _, target = line.partition(" > ")
        name, *words = shlex.split(command, comments=True)
        assert name == "tuplet"
        short = ["--steps", "2"] if words[0] in ("train", "compare") else []
        done = typed(*words, *short, cwd=place)
        assert done.exit_code == 0, f"{line}\n{done.output}"
        if target:
            (place / target).write_text(done.stdout)
    # Python that follows on from the commands; what stands alone is ```python, and is run with all other pages.
    for block in re.findall(r"^```py\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        with chdir(place):
            exec(compile(block, page, "exec"), {})
