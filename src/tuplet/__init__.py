"""Deep metric learning: train and evaluate embeddings, and search with them.

The modules, in the order in which data pass through them:

- `tuplet.images`: decoding and cropping of image files, within limits
- `tuplet.data`: datasets, caches, augmentation
- `tuplet.sampling`: samplers, which choose the examples of a batch
- `tuplet.models`: backbones, embedding heads, weights
- `tuplet.embedding`: vectors of images, in batches and for sets larger than memory
- `tuplet.rows`, `tuplet.mining`, `tuplet.losses`: the row engine, and every loss as a function of rows
- `tuplet.evaluation`: retrieval, clustering, verification, identification
- `tuplet.training`: the training loop and the papers' recipes
- `tuplet.search`: an index of embeddings, and a server for it
- `tuplet.reports`: the HTML report of a run

Most users start with `tuplet.train` and `tuplet.load`. Modules are imported when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tuplet import data, embedding, evaluation, losses, mining, models, reports, rows, sampling, search, training
    from tuplet.models import load
    from tuplet.training import train
    from tuplet.training.evaluate import evaluate

__version__ = "0.1.0"

__all__ = [
    "data",
    "embedding",
    "evaluate",
    "evaluation",
    "load",
    "losses",
    "mining",
    "models",
    "reports",
    "rows",
    "sampling",
    "search",
    "train",
    "training",
]
_CALLS = {"load": "models", "train": "training", "evaluate": "training.evaluate"}


def __getattr__(name: str) -> Any:
    if name in _CALLS:
        # Stored like a module, so that documentation tools find it in the package.
        globals()[name] = getattr(import_module(f"tuplet.{_CALLS[name]}"), name)
        return globals()[name]
    if name in __all__:
        return import_module(f"tuplet.{name}")
    raise AttributeError(f"module 'tuplet' has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names, for tab completion."""
    return sorted({*globals(), *__all__})
