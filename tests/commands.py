"""Run the command line in a test, as a process or inside the test."""

import os
import subprocess
import sys
from contextlib import chdir

from typer.testing import CliRunner

from tuplet.cli import make_app

#: Options of a run that takes about a second.
SMALL = (
    *("--model", "convnet", "--model-options", "size=32,channels=3", "--dim", "8"),
    *("--steps", "4", "--device", "cpu"),
)


def environment():
    return {**os.environ, "COLUMNS": "100"}


def tuplet(*words, cwd, **options):
    """Run `tuplet WORDS` as a process and return the finished process."""
    command = [sys.executable, "-m", "tuplet", *map(str, words)]
    settings = {"capture_output": True, "text": True, "timeout": 300, "env": environment(), **options}
    return subprocess.run(command, cwd=cwd, check=False, **settings)


def typed(*words, cwd):
    """Run `tuplet WORDS` inside this process, which saves the seconds that an import of torch takes."""
    with chdir(cwd):
        done = CliRunner().invoke(make_app(words[0]), [str(word) for word in words])
    done.returncode = done.exit_code  # as a finished process has it
    return done


def succeeded(done):
    """Check that a command succeeded and return its standard output."""
    assert done.returncode == 0, done.stderr
    assert "Traceback" not in done.stderr
    return done.stdout


def refused(done, code=1):
    """Check that a command failed with one line on standard error and return the line."""
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    lines = [line for line in done.stderr.splitlines() if not line.startswith("tuplet: warning:")]
    assert len(lines) == 1, done.stderr
    assert lines[0].startswith("tuplet: ")
    return lines[0]
