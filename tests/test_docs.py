"""The code blocks of README and docs run as they stand, and the API reference names everything public."""

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import tuplet

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


SESSION = """
import doctest as _doctest
_test = _doctest.DocTestParser().get_doctest({block!r}, globals(), {page!r}, None, 0)
_runner = _doctest.DocTestRunner(optionflags=_doctest.ELLIPSIS | _doctest.NORMALIZE_WHITESPACE)
assert not _runner.run(_test, clear_globs=False).failed
globals().update(_test.globs)
"""


def blocks(page):
    """The code of a page; a block with prompts also checks the answers that it shows."""
    found = BLOCK.findall(page.read_text())
    return [SESSION.format(block=block, page=page.name) if ">>>" in block else block for block in found]


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name)
def test_code_blocks_run(page, tmp_path):
    """A page is one story: its blocks run in order, in one fresh process and an empty folder."""
    script = tmp_path / "page.py"
    script.write_text("\n\n".join(blocks(page)))
    run = subprocess.run([sys.executable, script], cwd=tmp_path, capture_output=True, text=True, timeout=300)
    assert run.returncode == 0, run.stdout + run.stderr


def test_reference_names_everything_public(tmp_path):
    called = "from pdoc.__main__ import cli; from tuplet import load, train; cli()"
    options = "--docformat google --template-directory docs/reference --output-directory"
    assert f"'{called}' \\\n\t\t{options} site tuplet" in (ROOT / "Makefile").read_text()
    command = [sys.executable, "-c", called, *options.split(), tmp_path, "tuplet"]
    built = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True, timeout=300)
    assert "Warn" not in built.stderr
    rooms = [getattr(tuplet, name) for name in tuplet.__all__]
    for module in (tuplet, *filter(inspect.ismodule, rooms)):
        page = tmp_path.joinpath(*module.__name__.split(".")).with_suffix(".html").read_text()
        assert "ScriptModule" not in page, "torch's own docstring is repeated"
        missing = [name for name in public(module) if f'id="{name}"' not in page]
        assert not missing, f"{module.__name__} lacks {missing} in the reference"


def public(module):
    """What a module offers, without the modules in it; what it defines, where it does not say."""
    defined = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    offered = getattr(module, "__all__", [name for name in defined if name[0] != "_"])
    return [name for name in offered if not inspect.ismodule(getattr(module, name))]
