"""Pooling of a level into a vector, and heads: the new layers that turn it into an embedding."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from tuplet.models.config import Config, Pooling


def pool(x: Tensor, how: Pooling) -> Tensor:
    """Pool a map (N, C, h, w), or tokens (N, 1 + P, C), to a vector (N, C); a vector stays as it is.

    "mean", "max" and their sum "mean+max" are those over the positions, "class" is the class token, and "class+mean"
    the class token and the mean, one after the other: (N, 2 · C).

    >>> pool(torch.tensor([[[[1.0, 3.0]]]]), "mean+max")
    tensor([[5.]])
    >>> pool(torch.tensor([[[9.0], [1.0], [3.0]]]), "class+mean")
    tensor([[9., 2.]])
    """
    if x.ndim == 2:
        return x
    if x.ndim not in (3, 4):
        raise ValueError(f"the backbone returns shape {tuple(x.shape)}; a head needs (N, C) or (N, C, h, w)")
    if how == "class":
        return x[:, 0]
    positions, axes = (x, (2, 3)) if x.ndim == 4 else (x[:, 1:], (1,))
    if how == "class+mean":
        return torch.cat([x[:, 0], positions.mean(axes)], 1)
    if how == "mean":
        return positions.mean(axes)
    return positions.amax(axes) if how == "max" else positions.mean(axes) + positions.amax(axes)


def make_heads(channels: Mapping[str, int], config: Config, dtype: torch.dtype) -> nn.ModuleDict:
    """Return the head of each level, given the widths of the pooled features.

    Heads of several widths on one level are the rows of one linear layer. They start orthogonal to each other, so that
    the parts differ from the beginning.
    """
    heads: dict[str, nn.Module] = {}
    for level, width in channels.items():
        if config.dim is None:
            heads[level] = nn.Identity()
        elif config.head_hidden is not None and level != config.levels[-1]:
            hidden = nn.Linear(width, config.head_hidden, dtype=dtype)
            heads[level] = nn.Sequential(hidden, nn.ReLU(), nn.Linear(config.head_hidden, config.dim, dtype=dtype))
        else:
            heads[level] = head = nn.Linear(width, config.dim, dtype=dtype)
            if config.heads is not None:
                nn.init.orthogonal_(head.weight)
    return nn.ModuleDict(heads)
