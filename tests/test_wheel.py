"""The sdist and the wheel are complete: the wheel made from the sdist runs with nothing but its core dependencies."""

import email
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

import tuplet

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
#: What pyproject lists as optional must not be needed for an import.
OPTIONAL = ["matplotlib", "sklearn", "scipy", "faiss", "onnx", "onnxruntime", "pyarrow", "pytorch_metric_learning"]
OPTIONAL += ["timm", "torchvision", "efficientnet_lite_pytorch", "hypothesis", "pytest"]


def run(*command, **options):
    done = subprocess.run([sys.executable, *map(str, command)], capture_output=True, text=True, **options)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """Return the folder with both: as for a release, the wheel is built from the sdist."""
    folder = tmp_path_factory.mktemp("dist")
    run("-m", "build", "--no-isolation", "--outdir", folder, ROOT)
    return folder


@pytest.fixture(scope="module")
def wheel(built):
    return next(built.glob("*.whl"))


@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="git says what belongs to the project")
def test_sdist_holds_all_that_tests_and_pages_need(built):
    (path,) = built.glob("*.tar.gz")
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    tracked = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    hidden = {name for name in tracked if name.startswith(".")}
    assert {name for name in tracked if (ROOT / name).exists()} - hidden <= names


def test_wheel_holds_all_package_data_and_nothing_else(wheel):
    packed = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    source = ROOT / "src"
    files = [path for path in (source / "tuplet").rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert packed == {str(path.relative_to(source)) for path in files}


@pytest.mark.skipif(not (ROOT / ".dockerignore").exists(), reason="this is not the repository")
def test_images_install_the_same_wheel(wheel, tmp_path):
    """What .dockerignore leaves of the repository is enough for `pip install .`."""
    for name in re.findall("^!(.+)$", (ROOT / ".dockerignore").read_text(), re.MULTILINE):
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        copy(ROOT / name, tmp_path / name)
    run("-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path / "dist", tmp_path)
    (other,) = (tmp_path / "dist").glob("*.whl")
    assert sorted(zipfile.ZipFile(other).namelist()) == sorted(zipfile.ZipFile(wheel).namelist())


def test_metadata(wheel):
    archive = zipfile.ZipFile(wheel)
    (name,) = (name for name in archive.namelist() if name.endswith("METADATA"))
    about = email.message_from_bytes(archive.read(name))
    assert about["Version"] == tuplet.__version__
    assert about["License-Expression"] == "Apache-2.0"
    assert {url.partition(",")[0] for url in about.get_all("Project-URL")} >= {"Homepage", "Documentation", "Changelog"}
    # Outside of the repository only complete addresses lead anywhere.
    readme = about.get_payload()
    targets = re.findall(r"\]\((.*?)\)", readme)
    assert len(targets) > 10
    assert [target for target in targets if not target.startswith("https://")] == []
    local = re.findall(rf"\]\(https://[\w.]+/tuplet/tuplet/(?:blob/)?v{tuplet.__version__}/(.*?)\)", readme)
    assert [path for path in local if not (ROOT / path.partition("#")[0]).is_file()] == []
    assert any(path.endswith(".png") for path in local)


def test_wheel_installs_and_imports_alone(wheel, tmp_path):
    site = tmp_path / "site"
    run("-m", "pip", "install", "--no-deps", "--no-index", "--target", site, wheel)
    script = f"""
import sys
for name in {OPTIONAL!r}:
    sys.modules[name] = None
sys.path.insert(0, {str(site)!r})
import importlib, pkgutil, tuplet
assert tuplet.__file__.startswith({str(site)!r}), tuplet.__file__
for module in pkgutil.walk_packages(tuplet.__path__, "tuplet."):
    if not module.name.endswith("__main__"):
        importlib.import_module(module.name)
import torch
print(tuplet.losses.RAWLoss()(torch.eye(4), torch.tensor([0, 0, 1, 1])).item())
"""
    assert abs(float(run("-c", script, cwd=tmp_path)) - 0.6566) < 1e-3


def test_extras_of_error_messages_exist():
    """`need(…, extra=)` names an extra that pip knows."""
    sources = "".join(path.read_text() for path in (ROOT / "src").rglob("*.py"))
    named = {*re.findall(r'need\([^)]*?extra="(\w+)"', sources), *re.findall(r"tuplet\[(\w+)\]'", sources)}
    assert "search" in named
    assert named - {"none"} <= {*PROJECT["optional-dependencies"]}
