"""The code of README, docs and notebooks runs as it stands; the site has no broken link and names everything public."""

import html
import inspect
import os
import re
import subprocess
import sys
from contextlib import chdir
from pathlib import Path
from tempfile import TemporaryDirectory

import nbformat
import pytest
import torch
from jupyter_client import AsyncKernelManager
from nbclient import NotebookClient

import tuplet
from commands import typed
from forked import run_script
from tuplet.cli import COMMANDS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
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


#: Short pages run inside the test, without the seconds that an import of torch takes.
SHORT = [page for page in PAGES if page.parent.parent == ROOT / "docs" and blocks(page)]
LONG = [page for page in PAGES if page not in SHORT and blocks(page)]


def name_of(page):
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", LONG, ids=name_of)
def test_code_blocks_run(page, tmp_path):
    """A page is one story: its blocks run in order, in one fresh process and an empty folder."""
    script = tmp_path / "page.py"
    script.write_text("\n\n".join(blocks(page)))
    status, output = run_script(script, tmp_path)
    assert status == 0, output


@pytest.mark.parametrize("page", SHORT, ids=name_of)
def test_code_blocks_of_short_pages_run(page, tmp_path):
    with chdir(tmp_path), torch.random.fork_rng():
        exec(compile("\n\n".join(blocks(page)), page.name, "exec"), {"__name__": "__main__"})


@pytest.mark.parametrize("path", sorted((ROOT / "docs").rglob("*.ipynb")), ids=name_of)
def test_notebooks_run(path, tmp_path):
    """A notebook is stored without outputs, and all of its cells run."""
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    assert not any(cell.get("outputs") for cell in notebook.cells), "clear the outputs before you save it"
    with TemporaryDirectory() as folder:  # of a short name, as those of sockets must be
        # The ports that it would otherwise choose could be another process's before the kernel listens there.
        kernel = AsyncKernelManager(kernel_name="python3", transport="ipc", connection_file=f"{folder}/kernel.json")
        resources = {"metadata": {"path": tmp_path}}
        NotebookClient(notebook, km=kernel, timeout=600, startup_timeout=300, resources=resources).execute()


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build the site as `make docs` does; a broken link or anchor is an error there."""
    assert "\t$(BIN)/mkdocs build --strict\n" in (ROOT / "Makefile").read_text()
    folder = tmp_path_factory.mktemp("site")
    # Not --quiet: it drops the warnings before --strict counts them.
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", folder]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    built = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=300)
    assert built.returncode == 0, built.stdout + built.stderr
    return folder


def test_reference_names_everything_public(site):
    rooms = [getattr(tuplet, name) for name in tuplet.__all__]
    for module in filter(inspect.ismodule, rooms):
        page = site.joinpath("reference", module.__name__.split(".")[1]).with_suffix(".html").read_text()
        assert "ScriptModule" not in page, "torch's own docstring is repeated"
        assert "<blockquote>" not in page, "an example of a docstring is shown as a quotation"
        missing = [name for name in public(module) if f'id="{module.__name__}.{name}"' not in page]
        assert not missing, f"{module.__name__} lacks {missing} in the reference"
    listed = set(re.findall(r'id="tuplet\.losses\.(\w+\.\w+)"', (site / "reference/losses.html").read_text()))
    assert {"RowLoss.rows", "PDDMLoss.score"} <= listed
    assert "RankedListLoss.rows" not in listed, "what a loss inherits is repeated"
    front = (site / "reference/index.html").read_text()
    assert all(f'id="tuplet.{name}"' in front for name in ("evaluate", "load", "train"))


def test_flags_are_those_that_the_terminal_shows(site):
    text = html.unescape(re.sub("<[^>]*>", "", (site / "reference/flags.html").read_text()))
    for name in COMMANDS:
        shown = typed(name, "--help", cwd=ROOT).stdout.replace("Usage: root", "Usage: tuplet")
        assert " ".join(shown.split()) in " ".join(text.split()), name


def test_navigation_names_every_page(site):
    """The theme makes an index.md the heading of its section, where nobody looks for a page with a name of its own."""
    titles = re.findall(r"^ +- ([^:\n]+): \S+\.md$", (ROOT / "mkdocs.yml").read_text(), re.MULTILINE)
    assert len(titles) > 20
    first = (site / "index.html").read_text()
    named = {title.strip() for title in re.findall(r'<span class="md-ellipsis">([^<]*)', first)}
    assert {*titles} <= named


def test_site_loads_nothing_from_elsewhere(site):
    for page in site.rglob("*.html"):
        loaded = re.findall(
            r'<(?:script|img|link rel="(?:stylesheet|preload)")[^>]*(?:src|href)="(https?:[^"]*)"', page.read_text()
        )
        assert not loaded, f"{page.name} loads {loaded}"


@pytest.mark.parametrize(("page", "count"), [("docs/index.md", 5), ("README.md", 3)])
def test_first_page_has_the_measured_numbers(page, count):
    """The rows beside pytorch-metric-learning are those of the performance page."""
    measured = {row[0]: row for row in table_rows(ROOT / "docs/performance.md", columns=8)}
    rows = [row for row in table_rows(ROOT / page, columns=6) if row[0] in measured]
    assert len(rows) == count
    for size, ours, theirs, faster, memory, their_memory in rows:
        plain = [cell.removesuffix(" ms").removesuffix(" MiB") for cell in (ours, theirs, faster, memory, their_memory)]
        n, ms, _, _, pml, ratio, mib, pml_mib = measured[size]
        assert plain == [ms, pml, ratio, mib, pml_mib], n


def table_rows(page, columns):
    """Return the rows of all tables of a page that have this many columns."""
    lines = [line for line in page.read_text().splitlines() if line.startswith("|")]
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [row for row in rows if len(row) == columns]


def public(module):
    """What a module offers, without the modules in it; what it defines, where it does not say."""
    defined = [name for name, value in vars(module).items() if getattr(value, "__module__", "") == module.__name__]
    offered = getattr(module, "__all__", [name for name in defined if name[0] != "_"])
    return [name for name in offered if not inspect.ismodule(getattr(module, name))]
