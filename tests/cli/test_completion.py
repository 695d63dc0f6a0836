"""Tab completion: what the shells are given, and that it does not wait for torch."""

import fcntl
import os
import pty
import shutil
import subprocess
import sys
import termios
import time
from contextlib import suppress
from pathlib import Path
from threading import Thread

import pytest

from commands import environment
from tuplet.cli.catalog import FILE, catalog_text
from tuplet.losses import LOSSES
from tuplet.training import RECIPES


def completed(line, shell="bash"):
    """Return what a shell is offered at the end of a line."""
    words = line.split(" ")
    env = environment() | {
        "_TUPLET_COMPLETE": f"complete_{shell}",
        "_TYPER_COMPLETE_FISH_ACTION": "get-args",
        "_TYPER_COMPLETE_ARGS": line,
        "COMP_WORDS": "\n".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }
    if shell != "bash":
        del env["COMP_WORDS"]
    script = "import sys, tuplet.cli as c\ntry: c.main()\nfinally: assert 'torch' not in sys.modules"
    done = subprocess.run([sys.executable, "-c", script], env=env, capture_output=True, text=True, check=False)
    assert not done.stderr
    return done.stdout.removesuffix("\n").split("\n")


def test_the_catalog_is_current():
    assert FILE.read_text(encoding="utf-8") == catalog_text(), "run: python -m tuplet.cli.catalog"


@pytest.mark.parametrize(
    ("line", "offered"),
    [
        ("tuplet re", ["report"]),
        ("tuplet train photos --micro", ["--micro-batch-size"]),
        ("tuplet train photos --loss ra", [name for name in LOSSES if name.startswith("ra")]),
        ("tuplet train photos --recipe ", list(RECIPES)),
        ("tuplet train photos --normalize ", ["true", "false", "eval", "none"]),
        ("tuplet train photos --model res", ["resnet50"]),
        ("tuplet train photos --model dinov2_small", ["dinov2_small", "dinov2_small_reg"]),
        ("tuplet embed dinov2_small", ["dinov2_small", "dinov2_small_reg"]),
        ("tuplet train photos --log ", ["wandb", "mlflow"]),
        ("tuplet compare photos trip", ["triplet", "triplet_ratio"]),
        ("tuplet losses nc", ["nca"]),
        ("tuplet evaluate run --on ", ["test", "train", "all"]),
        ("tuplet train ph", [""]),  # the shell then completes files
    ],
)
def test_names_and_values_are_completed(line, offered):
    assert completed(line) == offered


def test_other_shells_show_descriptions():
    assert completed("tuplet losses nc", "fish") == ["nca\tNeighbourhood components analysis"]
    assert completed("tuplet losses nc", "zsh") == [
        """_arguments '*: :(("nca":"Neighbourhood components analysis"))'"""
    ]


def test_descriptions_have_no_brackets_and_no_straight_apostrophes():
    """The script for zsh would lose both."""
    described = completed("tuplet train photos --", "zsh")
    assert "’" in "".join(described)
    assert not [line for line in described if "''" in line or " [" in line]


#: A `tuplet` that completes, and otherwise writes its arguments into a file.
PROGRAM = f"""#!/bin/sh
test -n "$_TUPLET_COMPLETE" && exec {sys.executable} -m tuplet
echo "$*" >> "$HOME/called"
"""
#: How each shell starts with the completion of `tuplet`, and where it keeps the commands for that.
SHELLS = {
    "bash": (["bash", "--rcfile", ".bashrc", "-i"], ".bashrc", 'eval "$(_TUPLET_COMPLETE=source_bash tuplet)"'),
    "zsh": (
        ["zsh", "-i"],
        ".zshrc",
        'autoload -Uz compinit; compinit -u; eval "$(_TUPLET_COMPLETE=source_zsh tuplet)"',
    ),
    "fish": (["fish", "-i"], ".config/fish/config.fish", "_TUPLET_COMPLETE=source_fish tuplet | source"),
}
TYPED = {
    "tuplet eval": "evaluate",
    "tuplet train photos --micro": "train photos --micro-batch-size",
    "tuplet train photos --loss ranked_l": "train photos --loss ranked_list",
    "tuplet train photos --model dinov2_small_": "train photos --model dinov2_small_reg",
    "tuplet evaluate dinov2_small_": "evaluate dinov2_small_reg",
    "tuplet evaluate ru": "evaluate runs",
    "tuplet train my": "train my photos",
    "tuplet train 'my photos' --optimizer s": "train my photos --optimizer sgd",
}


@pytest.mark.parametrize("shell", SHELLS)
def test_shells_complete_what_is_typed(tmp_path, shell):
    """Type lines with a tab and a return into an interactive shell, and read what the program was called with."""
    if not shutil.which(shell):
        pytest.skip(f"{shell} is not installed")
    command, rc_file, load = SHELLS[shell]
    for name in ("bin", "runs", "my photos", Path(rc_file).parent):
        (tmp_path / name).mkdir(parents=True, exist_ok=True)
    (tmp_path / "bin/tuplet").write_text(PROGRAM)
    (tmp_path / "bin/tuplet").chmod(0o755)
    (tmp_path / rc_file).write_text(f"{load}\n")
    path = f"{tmp_path}/bin:{os.environ['PATH']}"
    env = environment() | {"PATH": path, "HOME": str(tmp_path), "ZDOTDIR": str(tmp_path), "TERM": "xterm"}
    env.pop("XDG_CONFIG_HOME", None)
    terminal, inside = pty.openpty()
    streams = dict.fromkeys(("stdin", "stdout", "stderr"), inside)
    running = subprocess.Popen(command, cwd=tmp_path, env=env, start_new_session=True, preexec_fn=_control, **streams)
    os.close(inside)
    reader = Thread(target=_drain, args=(terminal,))
    reader.start()
    called = tmp_path / "called"
    called.touch()
    try:
        for number, (line, expected) in enumerate(TYPED.items(), 1):
            os.write(terminal, f"{line}\t\r".encode())
            deadline = time.monotonic() + 120
            while len(lines := called.read_text().splitlines()) < number and time.monotonic() < deadline:
                time.sleep(0.05)
            assert [line.removesuffix("/") for line in lines[number - 1 :]] == [expected]
    finally:
        running.kill()
        running.wait()
        reader.join()
        os.close(terminal)


def _control():
    """Make standard input the terminal that controls this process, as a shell expects it."""
    fcntl.ioctl(0, termios.TIOCSCTTY, 0)


def _drain(terminal):
    """Read what a shell prints, so that it never waits for its terminal."""
    with suppress(OSError):
        while os.read(terminal, 65_536):
            pass
