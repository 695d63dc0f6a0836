"""A wheel of the package installs by itself and imports with nothing but its core dependencies in sight."""

import subprocess
import sys
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
# What pyproject lists as optional must not be needed for an import.
OPTIONAL = ["matplotlib", "sklearn", "scipy", "faiss", "onnx", "onnxruntime", "pyarrow", "pytorch_metric_learning"]
OPTIONAL += ["timm", "torchvision", "efficientnet_lite_pytorch", "hypothesis", "pytest"]


def test_wheel_installs_and_imports_alone(tmp_path):
    build = [sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", tmp_path, ROOT]
    subprocess.run(build, check=True, capture_output=True)
    (wheel,) = tmp_path.glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    assert "tuplet/py.typed" in names
    assert any(name.endswith("licenses/LICENSE") for name in names)
    assert not [name for name in names if name.startswith("tests")]
    site = tmp_path / "site"
    install = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--target", site, wheel]
    subprocess.run(install, check=True, capture_output=True)
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
    run = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True)
    assert run.returncode == 0, run.stderr
    assert abs(float(run.stdout) - 0.6566) < 1e-3
