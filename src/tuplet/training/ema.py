"""Averages of weights: over the steps of a run (EMA), and of the model before and after training (WiSE-FT)."""

import copy
from collections.abc import Iterator

import torch

from tuplet.models import Embedder

#: Shares of the trained weights in an average with the start.
AVERAGES = (0.2, 0.4, 0.6, 0.8)


class ExponentialMovingAverage:
    """A copy of an embedder with averaged weights: a ← a + (1 − decay)·(w − a) after each step.

    In the first steps the decay is (1 + t)/(10 + t), so that the random start is soon forgotten. Buffers, such as
    BatchNorm's statistics, are copied.

    >>> from tuplet import models
    >>> embedder = models.create("mlp", features=2, hidden=[], dim=1)
    >>> ema = ExponentialMovingAverage(embedder, 0.99)
    >>> _ = embedder.heads["H"].weight.data.fill_(1.0)
    >>> ema.update(step=0)
    """

    def __init__(self, embedder: Embedder, decay: float) -> None:
        self.source, self.decay = embedder, decay
        self.embedder = copy.deepcopy(embedder).requires_grad_(False).eval()

    @torch.no_grad()
    def update(self, step: int) -> None:
        """Update the average after a step, counted from 0."""
        decay = min(self.decay, (1 + step) / (10 + step))
        torch._foreach_lerp_(list(self.embedder.parameters()), list(self.source.parameters()), 1 - decay)
        for copied, buffer in zip(self.embedder.buffers(), self.source.buffers(), strict=True):
            copied.copy_(buffer)


def averages(start: Embedder, result: Embedder) -> Iterator[tuple[float, Embedder]]:
    """Yield averages of the weights of start and result (Wortsman et al. 2022, WiSE-FT), each with the result's share.

    Layers that the start does not have stay as they were trained. All yielded embedders are one object, which the next
    average changes.

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
