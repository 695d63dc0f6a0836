"""The start of a run: the model before training, what training gained over it, and averages with its weights."""

import copy
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tuplet import models
from tuplet.data import Dataset
from tuplet.errors import opt, warn
from tuplet.models import Embedder
from tuplet.training.settings import Settings

_logger = logging.getLogger("tuplet")
#: Shares of the trained weights in an average with the start.
AVERAGES = (0.2, 0.4, 0.6, 0.8)
#: Resamples of the queries, and the confidence of the interval that they give.
RESAMPLES, CONFIDENCE = 2_000, 0.95


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
    pooled = Embedder(replace(config, dim=None), copy.deepcopy(embedder.backbone)).to(embedder.device)
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


def gain(before: Tensor, after: Tensor, seed: int) -> dict[str, Any]:
    """Return the difference of Recall@1 of the same queries, with a paired bootstrap interval over the queries.

    Args:
        before: 1 for each query that the start answers, 0 for the others.
        after: the same of the trained embedder.
        seed: seed of the resamples.

    >>> gain(torch.tensor([0.0, 0.0, 1.0, 1.0]), torch.ones(4), seed=0)
    {'recall_at_1': 0.5, 'interval': [0.0, 1.0], 'confidence': 0.95}
    """
    difference = (after - before).double().cpu()
    # A resample draws each query as one that was lost, stayed or was won: only their numbers matter.
    kinds = [float((difference == value).double().mean()) for value in (-1.0, 0.0, 1.0)]
    lost, _, won = np.random.default_rng(seed).multinomial(len(difference), kinds, RESAMPLES).T
    tail = (1 - CONFIDENCE) / 2
    low, high = np.quantile((won - lost) / len(difference), [tail, 1 - tail]).tolist()
    return {"recall_at_1": float(difference.mean()), "interval": [low, high], "confidence": CONFIDENCE}


def report_gain(metrics: dict[str, Any], settings: Settings) -> None:
    """Warn if training made the model worse on the test split, and log if that cannot be told."""
    before, after, found = metrics["start"]["recall_at_1"], metrics["recall_at_1"], metrics["gain"]
    low, high = found["interval"]
    change = f"Recall@1 {100 * before:.2f} → {100 * after:.2f} %"
    interval = f"{100 * found['recall_at_1']:+.2f} points, 95 % interval {100 * low:+.2f} to {100 * high:+.2f}"
    if metrics["step"] == 0 and settings.steps:
        _logger.info("no checkpoint was better on the validation split, so the model before training was kept")
    elif high < 0:
        warn(f"training made the model worse: {change} ({interval}); {what_to_try(settings)}")
    elif low <= 0 and settings.steps:
        _logger.info("the interval contains 0: these test queries do not tell whether training helped")


def what_to_try(settings: Settings) -> str:
    """Return the options to try when training made a model worse.

    >>> from tuplet.errors import spell
    >>> spell(what_to_try(Settings(lr=1e-3, steps=100)))
    'try lr=0.0003, steps=50, freeze_to, another loss, or keep_start=True'
    """
    options = [opt("lr", float(f"{0.3 * settings.lr:.1g}")), opt("steps", max(1, settings.steps // 2))]
    if settings.freeze_to is None and settings.weights is not None:
        options.append(opt("freeze_to"))
    keep = "" if settings.keep_start else f", or {opt('keep_start', True)}"
    return f"try {', '.join(options)}, another {opt('loss')}{keep}"
