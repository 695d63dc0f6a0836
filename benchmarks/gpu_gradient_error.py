"""Measure the errors of the losses' gradients on a GPU: a job for gpu_scheduler."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from gpu_scheduler import Steps
from gpu_timing import FULL, HALF, compile_in_one_thread, dtype_name, warm_up
from loss_peers import CASES, Case

#: A query whose gradient differs by more than this share was given another pair; rounding cannot explain it.
OTHER_PICK = 0.1


def gradient_errors(indices: Sequence[int], size: int, device: str) -> Steps:
    """Compare gradients of float32 and bfloat16 vectors with those of float64 on the same vectors.

    A loss that picks single pairs is differentiated by the queries alone, so that row i holds what query i has picked.
    If a query picks other pairs than in float64, or its row differs by more than rounding, it is counted as another
    pick; the remaining queries are compared.
    """
    compile_in_one_thread()
    warm_up(device)
    found = [{dtype_name(dtype): errors(CASES[k], size, dtype, device) for dtype in (FULL, HALF)} for k in indices]
    yield None
    for index, by_dtype in enumerate(found):
        yield index, {"accuracy": by_dtype}


def errors(case: Case, size: int, dtype: torch.dtype, device: str) -> dict[str, Any]:
    torch.compiler.reset()
    x, labels, classes = case.batch(size, device, dtype)
    loss, exact = case.ours(classes), case.ours(classes)
    loss.moves_gallery = exact.moves_gallery = not case.picks
    ours = gradient(loss.to(device), x, labels)
    with torch.compiler.set_stance("force_eager"):
        truth = gradient(exact.to(device), x.double(), labels)
    found = compare(case, ours, truth, x, labels, classes)
    if not case.picks and case.peer(classes):
        found["peer"] = peer_error(case, x, labels, classes)
    return found


def compare(case: Case, ours: Tensor, truth: Tensor, x: Tensor, labels: Tensor, classes: int) -> dict[str, Any]:
    same = torch.ones(len(x), dtype=torch.bool, device=x.device)
    if case.picks:
        chosen, right = (case.ours(classes).to(x.device).weights(v, labels) != 0 for v in (x, x.double()))
        same = (chosen == right).all(1) & ((ours - truth).norm(dim=1) <= OTHER_PICK * truth.norm(dim=1))
    error = ((ours - truth)[same].norm() / truth[same].norm()).item()
    return {"error": error, **({"other_picks": 1 - same.double().mean().item()} if case.picks else {})}


def peer_error(case: Case, x: Tensor, labels: Tensor, classes: int) -> float | str:
    """Return the error of the peer's gradient, compared with its own float64."""
    made = [[part.to(x.device) for part in case.peer(classes)] for _ in range(2)]
    try:
        theirs, truth = (gradient(made[k][0], v, labels, *made[k][1:]) for k, v in enumerate((x, x.double())))
    except (RuntimeError, NotImplementedError):
        return "fails"
    return ((theirs - truth).norm() / truth.norm()).item()


def gradient(loss: torch.nn.Module, x: Tensor, labels: Tensor, *miners: Any) -> Tensor:
    x = x.detach().requires_grad_()
    loss(x, labels, *(miner(x, labels) for miner in miners)).backward()
    assert x.grad is not None
    return x.grad.double()
