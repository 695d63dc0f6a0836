"""Exponential moving average of the weights."""

import copy

import torch

from tuplet.models import Embedder


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
