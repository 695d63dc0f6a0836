"""The optimizer: parameter groups, learning rates over time, gradient clipping."""

import math
from typing import Any

import torch
from torch import Tensor, nn

from tuplet.errors import OptionError, opt
from tuplet.losses import RowLoss
from tuplet.models import Embedder, param_groups
from tuplet.training.distributed import World
from tuplet.training.settings import Settings

#: The name of the group of the parameters of which each process holds a share.
SHARDED = "loss shards"


def make_param_groups(settings: Settings, embedder: Embedder, objective: nn.Module) -> list[dict[str, Any]]:
    """Return the parameters of the backbone, of the new layers and of the loss in groups with their learning rates."""
    groups = param_groups(embedder, settings.lr, settings.head_lr_scale, settings.weight_decay, settings.layer_lr_decay)
    sharded = sharded_parameters(objective)
    whole = [p for name, p in objective.named_parameters() if name not in sharded]
    for name, params in (("loss", whole), (SHARDED, list(sharded.values()))):
        if params:
            lr = settings.lr * settings.loss_lr_scale
            groups.append({"name": name, "params": params, "lr": lr, "weight_decay": 0.0})
    if not groups:
        raise OptionError(
            "neither the model nor the loss has a parameter to train", f"unfreeze some, or give a {opt('dim')}"
        )
    if settings.head_steps and all(_is_backbone(group) for group in groups):
        raise OptionError(
            f"{opt('head_steps')} is {settings.head_steps}, but there is no new layer and the loss has no parameters",
            f"leave it out, or give a {opt('dim')}",
        )
    return groups


def sharded_parameters(objective: nn.Module) -> dict[str, nn.Parameter]:
    """Return by name the parameters of which each process holds a share of the rows."""
    return {
        f"{prefix}.{name}" if prefix else name: p
        for prefix, module in objective.named_modules()
        if isinstance(module, RowLoss) and module.sharded
        for name, p in module.named_parameters(recurse=False)
    }


def make_optimizer(settings: Settings, embedder: Embedder, objective: nn.Module) -> torch.optim.Optimizer:
    """Return the optimizer of all trained parameters."""
    groups = make_param_groups(settings, embedder, objective)
    for group in groups:
        group["start"] = group["lr"]
    # A fused optimizer passes over the weights once, and can skip a step on the device (`skip_if_not_finite`).
    if settings.optimizer == "sgd":
        sgd = torch.optim.SGD(groups, momentum=settings.momentum, fused=True)
        # Torch would allocate these in the first step, and leave them uninitialised if that step is skipped.
        for p in (p for group in groups if settings.momentum for p in group["params"]):
            sgd.state[p]["momentum_buffer"] = torch.zeros_like(p)
        return sgd
    return {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[settings.optimizer](groups, fused=True)


def make_scaler(settings: Settings, world: World) -> torch.amp.GradScaler:
    """Return the scaler of the gradient in float16; in several processes they all skip a step that overflows in one."""
    if settings.precision != "float16" or not world.is_distributed:
        return torch.amp.GradScaler(world.device.type, enabled=settings.precision == "float16")
    # Imported here, since it takes long.
    from torch.distributed.fsdp.sharded_grad_scaler import ShardedGradScaler

    return ShardedGradScaler(world.device.type)


def skip_if_not_finite(optimizer: torch.optim.Optimizer, numbers: Tensor) -> None:
    """Make the next step leave the weights unchanged if a number is not finite, without waiting for the device.

    torch's gradient scaler reports an overflow to its fused optimizers in the same way.
    """
    optimizer.found_inf = (~numbers.isfinite()).any().float()  # type: ignore[attr-defined]


def set_lr(optimizer: torch.optim.Optimizer, settings: Settings, step: int) -> float:
    """Set the learning rate of every group for a step.

    The backbone has learning rate 0 in the first `head_steps`. Its gradient is computed all the same: without it, a
    compiled network would have to be compiled twice.

    Returns:
        The learning rate of the backbone.
    """
    factor, backbone = lr_factor(settings, step), float(step >= settings.head_steps)
    for group in optimizer.param_groups:
        group["lr"] = group["start"] * factor * (backbone if _is_backbone(group) else 1.0)
    return settings.lr * factor * backbone


def _is_backbone(group: dict[str, Any]) -> bool:
    return str(group["name"]).startswith("backbone")


def lr_factor(settings: Settings, step: int) -> float:
    """Return the factor of all learning rates at a step, counted from 0: warmup times schedule.

    >>> settings = Settings(schedule="cosine", warmup=2, steps=6)
    >>> [round(lr_factor(settings, step), 3) for step in range(6)]
    [0.5, 1.0, 1.0, 0.854, 0.5, 0.146]
    """
    warmup = min(1.0, (step + 1) / settings.warmup) if settings.warmup else 1.0
    if settings.schedule == "cosine":
        done = (step - settings.warmup) / max(1, settings.steps - settings.warmup)
        return warmup * (1 + math.cos(math.pi * min(max(done, 0.0), 1.0))) / 2
    if settings.schedule == "step":
        every = settings.decay_every or 1
        decays = 1 + (step - (settings.decay_start or every)) // every
        return warmup * settings.decay_factor ** max(0, decays)
    return warmup


def clip_gradient(optimizer: torch.optim.Optimizer, max_norm: float | None, world: World) -> Tensor:
    """Scale the gradient of all parameters together to at most `max_norm`, and return its norm before that."""
    groups = optimizer.param_groups
    parameters = [p for group in groups for p in group["params"] if p.grad is not None]
    shards = {p for group in groups if group["name"] == SHARDED for p in group["params"]}
    norm = nn.utils.get_total_norm([p.grad for p in parameters if p not in shards])
    if shards:
        # All processes must scale alike, so the norm is that of all shares.
        square = nn.utils.get_total_norm([p.grad for p in parameters if p in shards]).square()
        norm = (world.sum(square) + norm.square()).sqrt()
    if max_norm is not None:
        nn.utils.clip_grads_with_norm_(parameters, max_norm, norm)
    return norm
