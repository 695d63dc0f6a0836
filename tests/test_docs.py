"""The code blocks of README and docs run as they stand, and the API reference names everything public."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

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


def test_reference_is_built_from_the_docstrings(tmp_path):
    command = [sys.executable, "-m", "pdoc", "--docformat", "google", "--output-directory", tmp_path, "tuplet"]
    subprocess.run(command, check=True, capture_output=True, timeout=300)
    from tuplet import losses, mining

    page = (tmp_path / "tuplet" / "losses.html").read_text()
    for name in losses.__all__:
        assert f'id="{name}"' in page, f"{name} is missing from the reference"
    page = (tmp_path / "tuplet" / "mining.html").read_text()
    for name in ("ValidTriplet", "SemiHard", "DistanceWeighted", "NonTrivial"):
        assert issubclass(getattr(mining, name), mining.Mining)
        assert f'id="{name}"' in page, f"{name} is missing from the reference"
