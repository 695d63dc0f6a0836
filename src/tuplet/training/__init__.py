"""The loop: settings, the papers' recipes, exact resuming, several processes."""

from tuplet.training.compare import compare
from tuplet.training.objective import LOSSES, MINING
from tuplet.training.published import Published, published
from tuplet.training.recipes import RECIPES
from tuplet.training.run import Run, train
from tuplet.training.settings import Option, Settings, describe_options

__all__ = [
    "LOSSES",
    "MINING",
    "RECIPES",
    "Option",
    "Published",
    "Run",
    "Settings",
    "compare",
    "describe_options",
    "published",
    "train",
]
