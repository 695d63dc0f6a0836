"""The command as users have it: a process of its own, in a folder of its own."""

import os
import subprocess
import sys
from contextlib import chdir

from typer.testing import CliRunner

from tuplet.cli import _app

#: A network and a run so small that a test need not wait for them.
SMALL = (
    *("--model", "convnet", "--model-options", "size=32,channels=3", "--dim", "8"),
    *("--steps", "4", "--device", "cpu"),
)


def environment():
    return {**os.environ, "COLUMNS": "100"}


def tuplet(*words, cwd, **options):
    """Run `tuplet WORDS`, and give back the finished process."""
    command = [sys.executable, "-m", "tuplet", *map(str, words)]
    settings = {"capture_output": True, "text": True, "timeout": 120, "env": environment(), **options}
    return subprocess.run(command, cwd=cwd, check=False, **settings)


def typed(*words, cwd):
    """The same within this process, which spares the start of another: for what is the same in both."""
    with chdir(cwd):
        return CliRunner().invoke(_app(words[0]), [str(word) for word in words])


def succeeded(done):
    """What a command printed, if all went well."""
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def refused(done, code=1):
    """The one sentence of a command that could not do what it was told."""
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if not line.startswith("tuplet: warning:")]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("tuplet: ")
    return lines[0]
