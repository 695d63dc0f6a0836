"""Tab completion: what the shells are given, and that it does not wait for torch."""

import shutil
import subprocess
import sys

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


@pytest.mark.skipif(not shutil.which("bash"), reason="needs bash")
def test_bash_completes_with_the_script_that_is_shown(tmp_path):
    (tmp_path / "tuplet").write_text(f'#!/bin/sh\nexec {sys.executable} -m tuplet "$@"\n')
    (tmp_path / "tuplet").chmod(0o755)
    script = """
        PATH=$1:$PATH
        eval "$(env _TUPLET_COMPLETE=source_bash tuplet)"
        COMP_WORDS=(tuplet train photos --optimizer ada) COMP_CWORD=4
        _tuplet_completion tuplet
        echo "${COMPREPLY[@]}"
    """
    command = ["bash", "-c", script, "bash", tmp_path]
    done = subprocess.run(command, env=environment(), capture_output=True, text=True, check=True)
    assert done.stdout == "adam adamw\n"
