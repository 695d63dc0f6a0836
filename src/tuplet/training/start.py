"""The start of a run: the model before training, and averages with its weights."""

import copy
from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from tuplet import models
from tuplet.data import Dataset
from tuplet.models import Embedder
from tuplet.training.settings import Settings

#: Shares of the trained weights in an average with the start.
AVERAGES = (0.2, 0.4, 0.6, 0.8)


@dataclass(frozen=True, eq=False)
class Start:
    """The model that training starts from, in evaluation mode, and its description in words."""

    embedder: Embedder
    about: str


def make_start(embedder: Embedder, settings: Settings, data: Dataset) -> Start:
    """Return the start of a run: what the user has without training, so without layers of random weights.

    - Pretrained weights with a new layer: the pooled features of the backbone.
    - Feature vectors and a network of random weights: the vectors themselves.
    - Otherwise the network as it is: one that was given, one without a new layer, or one that starts from random.

    All of them have unit length if the trained embeddings have.
    """
    config = embedder.config
    if isinstance(settings.model, Embedder):
        return Start(copy.deepcopy(embedder).eval(), "the given model")
    if data.features is not None:
        width = data.features.shape[1]
        raw = models.create("mlp", features=width, hidden=[], dim=None, normalize=config.normalize)
        return Start(raw.to(embedder.device).eval(), "the feature vectors")
    if settings.weights is None:
        return Start(copy.deepcopy(embedder).eval(), f"{config.architecture} with random weights")
    without = replace(config, dim=None, heads=None, part_weights=None)
    pooled = Embedder(without, copy.deepcopy(embedder.backbone)).to(embedder.device)
    layer = "" if config.dim is None else ", without a new layer"
    return Start(pooled.eval(), f"{config.architecture} with the weights {settings.weights}{layer}")


def averages(start: Embedder, result: Embedder) -> Iterator[tuple[float, Embedder]]:
    """Yield averages of the weights of start and result (Wortsman et al. 2022, WiSE-FT), each with the result's share.

    Layers that the start does not have stay as they were trained. The embedder that is yielded is always the same one.

    >>> from tuplet import models
    >>> start, result = (models.create("mlp", features=2, hidden=[], dim=2) for _ in range(2))
    >>> [share for share, _ in averages(start, result)]
    [0.2, 0.4, 0.6, 0.8]
    """
    first, last, mixed = start.weights(), result.weights(), copy.deepcopy(result).eval()
    shared = [name for name, value in first.items() if name in last and value.is_floating_point()]
    for share in AVERAGES:
        mixed.restore({**last, **{name: torch.lerp(first[name], last[name], share) for name in shared}})
        yield share, mixed
