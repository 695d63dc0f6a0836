"""Detect divergence and collapse, and name their likely causes."""

from collections.abc import Sequence
from math import inf, isfinite

from torch import Tensor
from torch.nn.functional import normalize
from torch.nn.utils import get_total_norm

from tuplet.errors import OptionError, opt
from tuplet.training.checkpoint import TrainState
from tuplet.training.settings import Settings

#: Mean cosine of two embeddings above which they count as collapsed, and the first steps, which give no warning.
COLLAPSED, SETTLED = 0.98, 50


class DivergedError(OptionError, FloatingPointError):
    """Training has diverged: a loss, a gradient or a weight is not finite.

    >>> print(DivergedError(7, "the loss is nan", "lr is too high", ["a.png", "b.png"]))
    step 7: the loss is nan; lr is too high; the batch was a.png, b.png
    """

    def __init__(self, step: int, event: str, cause: str, files: Sequence[str] = ()) -> None:
        listed = ", ".join(files[:5])
        if len(files) > 5:
            listed += f" and {len(files) - 5} more, listed in events.jsonl"
        super().__init__(f"step {step}: {event}; {cause}" + (f"; the batch was {listed}" if files else ""))


def likely_cause(settings: Settings, state: TrainState, embeddings: Tensor, loss: float) -> str:
    """Return the likely cause of a loss or a gradient that is not finite, and what to try."""
    if not weights_are_finite(state):
        return step_too_large(settings)
    if not bool(embeddings.isfinite().all()):
        if settings.precision == "float16":
            use = opt("precision", "bfloat16")
            return f"the network's output is not finite, as float16 overflows above 65,504: use {use}"
        return f"the network's output is not finite: {_smaller_steps(settings)}"
    if isfinite(loss):
        return f"only its gradient is not finite: {_smaller_steps(settings)}"
    if state.embedder.config.normalize is True:
        return "the embeddings are finite and of unit length, so the cause is the loss itself: check its options"
    norm = float(embeddings.norm(dim=1).max())
    return (
        f"the embeddings have norms up to {norm:.3g}, too large for this loss: "
        f"use {opt('normalize', True)}, or {_smaller_steps(settings)}"
    )


def weights_are_finite(state: TrainState) -> bool:
    """Return whether all trained parameters, those of the loss included, are finite; synchronises the device once."""
    parameters = [p for group in state.optimizer.param_groups for p in group["params"]]
    return bool(get_total_norm(parameters, inf).isfinite())


def step_too_large(settings: Settings) -> str:
    """Return the likely cause of weights that are not finite, and what to try."""
    return f"the weights are not finite, so a step was too large: {_smaller_steps(settings)}"


def _smaller_steps(settings: Settings) -> str:
    return f"lower {opt('lr')} from {settings.lr:g}, or set {opt('warmup')} or {opt('clip')}"


def mean_cosine(embeddings: Tensor) -> float:
    """Return the mean cosine of two different embeddings: (‖Σ x/‖x‖‖² − N) / (N² − N).

    >>> import torch
    >>> mean_cosine(torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]]))
    0.333...
    """
    count = len(embeddings)
    total = normalize(embeddings.double(), dim=1).sum(0).square().sum()
    return float((total - count) / max(1, count * (count - 1)))


def collapse_warning(cosine: float, step: int, settings: Settings) -> str | None:
    """Return a warning if the embeddings have collapsed, as hard pairs cause in an untrained network; else None."""
    if cosine <= COLLAPSED or step < settings.warmup + SETTLED:
        return None
    return (
        f"step {step}: the embeddings have collapsed, with a mean cosine of {cosine:.3f}; if it stays so, start again "
        f"with {opt('warmup')}, a lower {opt('lr')} than {settings.lr:g}, or pretrained {opt('weights')}"
    )
