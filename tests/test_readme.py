"""The README works from top to bottom in an empty environment that has the built wheel and nothing of this tree."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from urllib.request import urlopen

import pytest

from report_runs import draw_folder

ROOT = Path(__file__).parents[1]
BLOCK = re.compile(r"^```(sh|python)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_readme_runs_from_the_wheel_alone(soak, tmp_path):
    if not soak:
        pytest.skip("installs torch: make soak")
    run = {"cwd": tmp_path, "check": True, "timeout": 1800}
    subprocess.run([sys.executable, "-m", "build", "--outdir", tmp_path / "dist", ROOT], **run)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "env"], **run)
    programs = f"{tmp_path / 'env/bin'}{os.pathsep}{os.environ['PATH']}"
    run["env"] = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    # The torch of the other tests; otherwise pip takes the newest one, with gigabytes of CUDA.
    run["env"] |= {"PATH": programs, "PIP_CONSTRAINT": str(ROOT / "constraints.txt")}
    draw_folder(tmp_path / "photos", ("ant", "bee", "cat", "dog", "elk", "fox"), each=6, size=(64, 48))
    draw_folder(tmp_path / "new", ("owl",), each=2)
    (tmp_path / "photo.jpg").write_bytes((tmp_path / "photos/ant/0.png").read_bytes())
    python = []
    for kind, block in BLOCK.findall((ROOT / "README.md").read_text()):
        if kind == "python":
            python.append(block)
            continue
        for line in block.splitlines():
            words = shlex.split(line, comments=True)
            if words[0] == "make":  # for a copy of the repository
                continue
            if words[0] == "pip":
                words[-1] = words[-1].replace("tuplet", str(wheel), 1)
            if words[1] == "serve":
                answers(words, run)
            elif words[1] == "train":
                subprocess.run([*words, "--steps", "2"], **run)
            else:
                subprocess.run(words, **run)
    subprocess.run(["python", "-c", "\n".join(python)], **run)


def answers(words, run):
    """Start the server, wait for its line, and stop it."""
    options = {name: run[name] for name in ("cwd", "env")}
    with subprocess.Popen([*words, "--port", "0"], stdout=subprocess.PIPE, text=True, **options) as server:
        address = re.search(r"vectors at (http://\S+)", server.stdout.readline())[1]
        with urlopen(f"{address}/health", timeout=60) as answer:  # a signal before the first answer would be lost
            assert answer.status == 200
        server.terminate()
        assert server.wait(60) == 0
