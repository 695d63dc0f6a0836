"""Deep metric learning: embeddings in which like is near like.

The rooms of the house, in the order in which data flows through them:

- `tuplet.data`: datasets, decoding, caches, augmentation
- `tuplet.sampling`: which examples meet in a batch
- `tuplet.models`: backbones, embedding heads, weights
- `tuplet.rows`, `tuplet.mining`, `tuplet.losses`: the row engine, and every loss as a function of rows
- `tuplet.evaluation`: retrieval, clustering, verification, identification
- `tuplet.training`: the loop, and the papers' recipes
- `tuplet.search`: an index of embeddings, and a server for it
- `tuplet.reports`: a run as a page to look at

`tuplet.train` and `tuplet.load` are the two calls that most users start with. Rooms are imported when first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tuplet import data, evaluation, losses, mining, models, reports, rows, sampling, search, training
    from tuplet.models import load
    from tuplet.training import train

__version__ = "0.1.0"

__all__ = [
    "data",
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
_CALLS = {"load": "models", "train": "training"}


def __getattr__(name: str) -> Any:
    if name in _CALLS:
        # Kept, as a module is: tools that look into the package then find it too.
        globals()[name] = getattr(import_module(f"tuplet.{_CALLS[name]}"), name)
        return globals()[name]
    if name in __all__:
        return import_module(f"tuplet.{name}")
    raise AttributeError(f"module 'tuplet' has no attribute {name!r}")


def __dir__() -> list[str]:
    """What there is, for those who look for it by the tabulator."""
    return sorted({*globals(), *__all__})
