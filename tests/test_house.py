"""The rooms stand in one order, imports keep to it, and what CONTRIBUTING.md says of training is true."""

import ast
import re
from importlib import import_module
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "tuplet"
TOOLS = ["extras", "progress", "cancel", "signals", "threads", "errors", "atomic", "rng", "labels"]
ROOMS = [
    *TOOLS,
    *["images", "data", "sampling", "models", "embedding", "rows", "mining", "losses"],
    *["evaluation", "training", "audit", "search", "reports", "cli"],
]
MODULES = [path for path in sorted(SOURCE.rglob("*.py")) if path.name != "__main__.py" and path.parent != SOURCE]
MODULES += [path for path in sorted(SOURCE.glob("*.py")) if path.stem not in ("__init__", "__main__")]


def room_of(path: Path) -> str:
    return path.relative_to(SOURCE).with_suffix("").parts[0]


def imported_rooms(path: Path) -> set[str]:
    """The rooms of tuplet that a module names in any import, at its top or inside a function."""
    package = ("tuplet", *path.relative_to(SOURCE).parent.parts)
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else ()
            stem = ".".join([*base, *([node.module] if node.module else [])])
            names += [f"{stem}.{alias.name}" for alias in node.names]
    return {name.split(".")[1] for name in names if name.startswith("tuplet.")}


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(SOURCE)))
def test_imports_only_from_rooms_before(path):
    room = room_of(path)
    assert room in ROOMS, f"{room} is not a room of the house: add it to ROOMS where it belongs"
    for other in imported_rooms(path) & set(ROOMS):
        assert ROOMS.index(other) <= ROOMS.index(room), f"{path} imports {other}, which comes after {room}"


def test_no_two_classes_share_a_name():
    found: dict[str, list[str]] = {}
    for path in MODULES:
        for node in ast.parse(path.read_text()).body:
            if isinstance(node, ast.ClassDef):
                found.setdefault(node.name, []).append(str(path.relative_to(SOURCE)))
    assert not {name: paths for name, paths in found.items() if len(paths) > 1}


def test_the_path_of_a_training_run_names_what_exists():
    text = (SOURCE.parents[1] / "CONTRIBUTING.md").read_text()
    lines = re.findall(r"^ {4,}([\w.]+) +(\w+)\.py ", text, re.MULTILINE)
    assert len(lines) == 10
    for name, module in lines:
        found = import_module(f"tuplet.training.{module}")
        for part in name.split("."):
            found = getattr(found, part)
        assert found.__module__ == f"tuplet.training.{module}", f"{name} is not defined in {module}.py"


def test_the_modules_of_training_import_only_those_listed_before():
    text = (SOURCE.parents[1] / "CONTRIBUTING.md").read_text()
    section = text.split("### The modules of training\n")[1].split("\n## ")[0]
    lines = [line.strip() for line in section.splitlines() if line.startswith("    ")]
    listed = [re.split(r" {2,}", line)[::2] for line in lines]
    order = [name for names in listed for name in names]
    paths = {path.stem: path for path in (SOURCE / "training").glob("*.py") if path.stem != "__init__"}
    assert sorted(order) == sorted(paths)
    for name, path in paths.items():
        imported = re.findall(r"tuplet\.training\.(\w+) import", path.read_text())
        late = set(imported) - set(order[: order.index(name)])
        assert not late, f"{name} imports {late}, which come after it"
