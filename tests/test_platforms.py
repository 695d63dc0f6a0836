"""Every command runs where POSIX-only modules are missing and no folder can be opened, as on Windows."""

import subprocess
import sys

import torch

from commands import SMALL
from report_runs import draw_folder
from tuplet.cli import COMMANDS
from tuplet.evaluation.vectors import Vectors
from tuplet.rows.geometry import with_float64

#: What Windows lacks. Other packages are imported before, since they have their own ways around it.
WINDOWS = """
import multiprocessing, os, shutil, socket, sys
import fastapi, filelock, matplotlib.font_manager, onnxruntime, onnxscript, optuna, PIL.Image, safetensors.torch, torch
import typer.testing, uvicorn, uvicorn.protocols.http.h11_impl
opened = os.open

def open_no_folder(path, flags, *rest, **more):
    if os.path.isdir(path):
        raise PermissionError(13, "Permission denied", os.fspath(path))
    return opened(path, flags, *rest, **more)

os.open = open_no_folder
for name in ("fcntl", "resource", "pwd", "grp", "termios"):
    sys.modules[name] = None
for name in ("sched_getaffinity", "fork", "geteuid", "pread", "pwrite", "sysconf", "sysconf_names"):
    delattr(os, name)
os.environ["USERNAME"] = "user"
shutil._use_fd_functions = False
multiprocessing.set_start_method("spawn")
uvicorn.Server.run = lambda server, sockets: None
from tuplet.cli import make_app
from tuplet.training.recipes import RECIPES

RECIPES["demo"] |= {"steps": 2, "warmup": 1, "batch_size": 24}
sys.modules["tuplet.data.readers.glyphs"]._characters_of_all = lambda paths: "ABCDEFGHKMNPRSTX"
for words in eval(sys.stdin.read()):
    done = typer.testing.CliRunner().invoke(make_app(words[0]), words)
    print(words[0], done.exit_code, done.output if done.exit_code else "", done.exception or "", flush=True)
"""


def test_commands_run_as_on_windows(tmp_path):
    draw_folder(tmp_path / "photos", ("ant", "bee", "cat", "dog"), each=4)
    small = [*SMALL, "--batch-size", "8"]
    commands = [
        ["demo"],
        ["data", "photos"],
        ["losses"],
        ["train", "photos", "--out", "run", "--cache-folder", "cache", *small],
        ["train", "photos", "--out", "streamed", "--cache-folder", "cache", "--stream", "true", *small],
        ["evaluate", "run"],
        ["report", "run"],
        ["export", "run", "--images", "4"],
        ["tune", "photos", "--trials", "2", "--seeds", "1", "--out", "tuned", *small],
        ["compare", "photos", "raw", "--seeds", "1", "--out", "compared", *small],
        ["embed", "run", "photos", "--out", "vectors.npz"],
        ["index", "run", "photos", "-o", "photos.index"],
        ["search", "photos.index", "photos/ant/0.png"],
        ["serve", "photos.index", "--port", "0"],
    ]
    assert {words[0] for words in commands} == {*COMMANDS}
    command = [sys.executable, "-c", WINDOWS]
    done = subprocess.run(command, input=repr(commands), cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == [f"{words[0]} 0  " for words in commands], done.stdout


def test_float64_is_computed_on_the_cpu_where_a_device_has_none():
    assert with_float64(torch.device("mps")).type == "cpu"

    class OnMps(torch.Tensor):
        device = torch.device("mps")

    vectors = torch.eye(3).as_subclass(OnMps)
    assert Vectors(vectors).squared_norms.tolist() == [1, 1, 1]
    assert Vectors(vectors).device.type == "cpu"
