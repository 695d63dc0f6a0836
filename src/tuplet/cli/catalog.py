"""The names and texts that help and tab completion show, read from catalog.json: the library would import torch.

`python -m tuplet.cli.catalog` writes the file again after an option, a loss, a model or a recipe has changed.
"""

import inspect
import json
from collections.abc import Callable, Sequence
from functools import cache
from glob import escape, glob
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("catalog.json")


@cache
def catalog() -> dict[str, Any]:
    """Return the content of catalog.json: `options`, `losses`, `models` and `recipes`, each by name.

    >>> catalog()["losses"]["multi_similarity"], catalog()["options"]["size"]["metavar"]
    ('Multi-similarity loss', 'INT')
    """
    return dict(json.loads(FILE.read_text(encoding="utf-8")))


def complete(*kinds: str) -> Callable[[str], list[tuple[str, str]]]:
    """Return a function for tab completion over the names of some parts of the catalog, with their descriptions.

    >>> complete("recipes")("dem")
    [('demo', 'multi_similarity, convnet, 400 steps')]
    """

    def matching(typed: str) -> list[tuple[str, str]]:
        named = [pair for kind in kinds for pair in catalog()[kind].items()]
        return [(name, about) for name, about in named if name.startswith(typed)]

    return matching


def complete_words(words: Sequence[str]) -> Callable[[str], list[str]]:
    """Return a function for tab completion over some words."""

    def matching(typed: str) -> list[str]:
        return [word for word in words if word.startswith(typed)]

    return matching


def complete_model(typed: str) -> list[tuple[str, str]]:
    """Complete an argument that is a path or the name of a model: names, unless a file begins with what was typed."""
    return [] if glob(f"{escape(typed)}*") else complete("models")(typed)


def make_catalog() -> dict[str, Any]:
    """Collect the content of catalog.json from the library."""
    from tuplet.cli.losses import summarize
    from tuplet.cli.options import describe_flag
    from tuplet.losses import LOSSES
    from tuplet.models import ALIASES, ARCHITECTURES
    from tuplet.training import RECIPES, describe_options

    return {
        "options": {option.name: describe_flag(option) for option in describe_options()},
        "losses": {name: summarize(loss)[0].partition(":")[0] for name, loss in LOSSES.items()},
        "models": {name: _about(model) for name, model in ARCHITECTURES.items()}
        | {alias: f"short for {name}" for alias, name in ALIASES.items()},
        "recipes": {
            name: f"{recipe['loss']}, {recipe['model']}, {recipe['steps']:,} steps" for name, recipe in RECIPES.items()
        },
    }


def _about(model: Any) -> str:
    """Return the first line of the docstring of a network, or of the class that a partial call of it makes."""
    return (inspect.getdoc(getattr(model, "func", model)) or "").split("\n")[0]


def catalog_text() -> str:
    """Return the text of catalog.json as it should be, a line for each name."""
    parts = []
    for part, entries in make_catalog().items():
        lines = [f"  {json.dumps(name)}: {json.dumps(about, ensure_ascii=False)}" for name, about in entries.items()]
        parts.append(f"{json.dumps(part)}: {{\n" + ",\n".join(lines) + "\n}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


if __name__ == "__main__":
    FILE.write_text(catalog_text(), encoding="utf-8")
