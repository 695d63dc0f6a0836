"""Train embedders: settings, the papers' recipes, exact resume, several processes, comparisons of losses, tuning."""

from tuplet.training.comparison import compare
from tuplet.training.events import Callback
from tuplet.training.papers import Published, published
from tuplet.training.recipes import RECIPES
from tuplet.training.run import Run, train
from tuplet.training.settings import Option, Settings, describe_options
from tuplet.training.tuning import tune

__all__ = [
    "RECIPES",
    "Callback",
    "Option",
    "Published",
    "Run",
    "Settings",
    "compare",
    "describe_options",
    "published",
    "train",
    "tune",
]
