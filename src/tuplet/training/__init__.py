"""The loop: settings, the papers' recipes, exact resuming, several processes."""

from tuplet.training.loop import Run, train
from tuplet.training.objective import LOSSES
from tuplet.training.recipes import RECIPES
from tuplet.training.settings import Settings

__all__ = ["LOSSES", "RECIPES", "Run", "Settings", "train"]
