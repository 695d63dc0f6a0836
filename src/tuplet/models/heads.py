"""Heads: the new layers that turn the pooled features of a level into its embedding."""

from collections.abc import Mapping

import torch
from torch import nn

from tuplet.models.config import Config


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
