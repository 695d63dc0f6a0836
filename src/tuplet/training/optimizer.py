"""Which parameters move how fast, and how the rate changes over the run."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from tuplet.models import Embedder, param_groups
from tuplet.training.settings import Settings


def learning(settings: Settings, embedder: Embedder, objective: nn.Module) -> list[dict[str, Any]]:
    """The parameters of the backbone, of the new layers and of the loss in groups, each with its rate."""
    groups = param_groups(embedder, settings.rate, settings.head_rate, settings.weight_decay)
    if learned := list(objective.parameters()):
        rate = settings.rate * settings.loss_rate
        groups.append({"name": "loss", "params": learned, "lr": rate, "weight_decay": 0.0})
    if not groups:
        raise ValueError("nothing in the model or the loss can learn; leave some parameters unfrozen, or give a dim")
    if settings.head_steps and all(_is_backbone(group) for group in groups):
        raise ValueError(
            f"head_steps is {settings.head_steps} and there is no new layer, nor anything that the loss learns; "
            "leave it out, or give a dim"
        )
    return groups


def make_optimizer(settings: Settings, embedder: Embedder, objective: nn.Module) -> torch.optim.Optimizer:
    """The optimiser over everything that learns."""
    groups = learning(settings, embedder, objective)
    for group in groups:
        group["start"] = group["lr"]
    # Fused: one pass over the weights, which can be called off on the device (`leave_out_if_not_finite`).
    if settings.optimizer == "sgd":
        sgd = torch.optim.SGD(groups, momentum=settings.momentum, fused=True)
        # Torch makes these in the first step, and leaves them unfilled where that step is called off.
        for p in (p for group in groups if settings.momentum for p in group["params"]):
            sgd.state[p]["momentum_buffer"] = torch.zeros_like(p)
        return sgd
    return {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[settings.optimizer](groups, fused=True)


def leave_out_if_not_finite(optimizer: torch.optim.Optimizer, numbers: Tensor) -> None:
    """Have the next step leave the weights as they are if one of the numbers is not finite, without reading them.

    It is the way in which torch's gradient scaler tells its fused optimisers of an overflow.
    """
    optimizer.found_inf = (~numbers.isfinite()).any().float()  # type: ignore[attr-defined]


def set_rate(optimizer: torch.optim.Optimizer, settings: Settings, step: int) -> float:
    """Give every group its rate at a step; the backbone's, which is 0 in the first `head_steps`, is returned.

    Its gradient is formed all the same: to leave that out, a compiled network would have to be compiled twice.
    """
    factor, backbone = rate_factor(settings, step), float(step >= settings.head_steps)
    for group in optimizer.param_groups:
        group["lr"] = group["start"] * factor * (backbone if _is_backbone(group) else 1.0)
    return settings.rate * factor * backbone


def _is_backbone(group: dict[str, Any]) -> bool:
    return str(group["name"]).startswith("backbone")


def rate_factor(settings: Settings, step: int) -> float:
    """What the rates are multiplied by at a step, counted from 0: rising over `warmup`, then as the schedule says.

    >>> plan = Settings(schedule="cosine", warmup=2, steps=6)
    >>> [round(rate_factor(plan, step), 3) for step in range(6)]
    [0.5, 1.0, 1.0, 0.854, 0.5, 0.146]
    """
    rise = min(1.0, (step + 1) / settings.warmup) if settings.warmup else 1.0
    if settings.schedule == "cosine":
        done = (step - settings.warmup) / max(1, settings.steps - settings.warmup)
        return rise * (1 + math.cos(math.pi * min(max(done, 0.0), 1.0))) / 2
    if settings.schedule == "step":
        return rise * settings.decay_factor ** (step // (settings.decay_every or 1))
    return rise


def shorten(optimizer: torch.optim.Optimizer, longest: float | None) -> Tensor:
    """The length of the gradient of all parameters together, before it is shortened to `longest`."""
    parameters = [p for group in optimizer.param_groups for p in group["params"] if p.grad is not None]
    length = nn.utils.get_total_norm([p.grad for p in parameters])
    if longest is not None:
        nn.utils.clip_grads_with_norm_(parameters, longest, length)
    return length
