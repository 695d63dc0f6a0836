"""The files around the code are valid and agree with it: workflows, templates, images, constraints, citation."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

import tuplet

ROOT = Path(__file__).parents[1]
GITHUB = ROOT / ".github"
DOCKERFILES = sorted((ROOT / "docker").glob("*Dockerfile"))
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# An sdist has no hidden files.
pytestmark = pytest.mark.skipif(not GITHUB.exists(), reason="this is not the repository")
FILES = {
    "github-workflows": WORKFLOWS,
    "dependabot": [GITHUB / "dependabot.yml"],
    "github-issue-forms": [GITHUB / "ISSUE_TEMPLATE/bug.yml", GITHUB / "ISSUE_TEMPLATE/feature.yml"],
    "github-issue-config": [GITHUB / "ISSUE_TEMPLATE/config.yml"],
    "citation-file-format": [ROOT / "CITATION.cff"],
}


def tool(name, *words):
    """Run a checker that is installed beside Python; its output is empty or the reason of the failure."""
    command = shutil.which(name, path=Path(sys.executable).parent)
    assert command, f"{name} is missing; pip install -e '.[dev]'"
    done = subprocess.run([command, *map(str, words)], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.mark.parametrize("schema", FILES)
def test_files_fit_their_schema(schema):
    assert FILES[schema]
    tool("check-jsonschema", "--builtin-schema", f"vendor.{schema}", *FILES[schema])


def test_workflows_are_secure():
    tool("zizmor", "--offline", "--quiet", "--min-severity", "medium", "--config", GITHUB / "zizmor.yml", GITHUB)


def test_images_are_built_well():
    tool("hadolint", *DOCKERFILES)


def test_images_install_what_there_is():
    """Images copy files that exist and that their context has, and install extras that exist."""
    context = re.findall("^!(.+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE)
    assert [path for path in context if not (ROOT / path).exists()] == []
    for text in (path.read_text() for path in DOCKERFILES):
        copied = re.findall(r"^COPY (?!--from)(.*) \S+$", text, re.MULTILINE)
        files = [*" ".join(copied).split(), *re.findall(r"--constraint (\S+)", text)]
        assert [file for file in files if file != "." and file not in context] == []
        installed = re.findall(r"'\.\[(.*?)\]'", text)
        assert installed
        assert {*",".join(installed).split(",")} <= {*PROJECT["optional-dependencies"]}


def test_workflows_call_targets_that_exist():
    targets = set(re.findall(r"^([\w-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    steps = [
        step
        for path in WORKFLOWS
        for job in yaml.safe_load(path.read_text())["jobs"].values()
        for step in job.get("steps", [])
    ]
    called = {word for step in steps for word in re.findall(r"^make ([\w-]+)", step.get("run", ""))}
    matrix = yaml.safe_load((GITHUB / "workflows/ci.yml").read_text())["jobs"]["test"]["strategy"]["matrix"]
    called |= {*matrix["make"], *(each["make"] for each in matrix["include"])}
    assert called
    assert called <= targets


def test_versions_of_python_agree():
    matrix = yaml.safe_load((GITHUB / "workflows/ci.yml").read_text())["jobs"]["test"]["strategy"]["matrix"]
    declared = re.findall(r"Python :: (3\.\d+)", " ".join(PROJECT["classifiers"]))
    assert matrix["python"] == declared
    assert PROJECT["requires-python"] == f">={declared[0]}"


def test_version_is_cited_and_described():
    assert yaml.safe_load((ROOT / "CITATION.cff").read_text())["version"] == tuplet.__version__
    assert f"\n## {tuplet.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_oldest_constraints_are_the_declared_bounds():
    extras = PROJECT["optional-dependencies"]
    needed = [
        *PROJECT["dependencies"],
        *(each for name in extras if name not in ("dev", "docs", "bench") for each in extras[name]),
    ]
    bounds = dict(re.findall(r"^([\w-]+)>=([\d.]+)", "\n".join(needed), re.MULTILINE))
    pinned = dict(re.findall(r"^([\w-]+)==([\d.]+)", (ROOT / "constraints-oldest.txt").read_text(), re.MULTILINE))
    assert {name: pinned.get(name) for name in bounds} == bounds


def test_the_environment_of_the_tests_has_every_extra():
    extras = PROJECT["optional-dependencies"]
    installed = re.search(r"tuplet\[(.*)\]", extras["dev"][0])[1].split(",")
    # OpenVINO brings ONNX; lite1, lite2 and faces are weights alone.
    assert {*installed} == {*extras} - {"dev", "bench", "onnx", "lite1", "lite2", "faces"}
