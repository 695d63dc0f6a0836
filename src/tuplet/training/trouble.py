"""What to say when a loss or a gradient is no number any more, or all vectors become one."""

from collections.abc import Sequence
from math import inf, isfinite

from torch import Tensor
from torch.nn.functional import normalize
from torch.nn.utils import get_total_norm

from tuplet.training.settings import Settings
from tuplet.training.state import State


def likely_cause(settings: Settings, state: State, embeddings: Tensor, loss: float) -> str:
    """The likely cause of a loss or a gradient that is not finite, and what to try."""
    slower = _slower(settings)
    if not weights_are_finite(state):
        return too_far(settings)
    if not bool(embeddings.isfinite().all()):
        if settings.precision == "float16":
            return "the network's output is not finite, as float16 overflows above 65,504: use precision='bfloat16'"
        return f"the network's output is not finite: {slower}"
    if isfinite(loss):
        return f"only its gradient is not finite: {slower}"
    if state.embedder.config.normalize is True:
        return "the embeddings are finite and of unit length, so it comes from the loss itself: look at its options"
    longest = float(embeddings.norm(dim=1).max())
    return f"the embeddings are up to {longest:.3g} long, too long for this loss: use normalize=True, or {slower}"


def weights_are_finite(state: State) -> bool:
    """Whether all that learns, in the network and in the loss, is still a number, with one look at the device."""
    learned = [p for group in state.optimizer.param_groups for p in group["params"]]
    return bool(get_total_norm(learned, inf).isfinite())


def too_far(settings: Settings) -> str:
    """The likely cause of weights that are not finite."""
    return f"the weights are not finite, so a step went too far: {_slower(settings)}"


def _slower(settings: Settings) -> str:
    return f"lower the rate from {settings.rate:g}, or set warmup= or clip="


#: Mean cosine of two vectors above which they are all but one, and the steps after which networks that learn are below.
COLLAPSED, SETTLED = 0.98, 50


def mean_cosine(vectors: Tensor) -> float:
    """The mean cosine of two different vectors: (‖Σ x/‖x‖‖² − N) / (N² − N).

    >>> import torch
    >>> mean_cosine(torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 0.0]]))
    0.333...
    """
    count = len(vectors)
    total = normalize(vectors.double(), dim=1).sum(0).square().sum()
    return float((total - count) / max(1, count * (count - 1)))


def collapsed(alike: float, step: int, settings: Settings) -> str | None:
    """What to say when all vectors are all but one, as hard pairs make those of a network that knows nothing yet."""
    if alike <= COLLAPSED or step < settings.warmup + SETTLED:
        return None
    return (
        f"step {step}: all vectors are all but one, with a mean cosine of {alike:.3f}; if it stays so, begin again "
        f"with warmup=, a lower rate than {settings.rate:g}, or weights= that know something"
    )


def complaint(step: int, what: str, cause: str, files: Sequence[str]) -> str:
    """One sentence with the step, the cause and, where one is to blame, the batch.

    >>> complaint(7, "the loss is nan", "the rate is too high", ["a.png", "b.png"])
    'step 7: the loss is nan; the rate is too high; the batch was a.png, b.png'
    """
    listed = ", ".join(files[:5]) + (f" and {len(files) - 5} more, listed in events.jsonl" if len(files) > 5 else "")
    return f"step {step}: {what}; {cause}" + (f"; the batch was {listed}" if files else "")
