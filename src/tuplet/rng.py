"""Random numbers as a function of integer keys, independent of the order in which they are drawn.

The number of a sample or a pair depends on the seed and on its own position alone, not on the number of worker
processes, the block size or the number of ranks.
"""

from typing import Any

import torch
from torch import Tensor

_MASK = 0xFFFFFFFF
_ODD, _ODDER = 0x9E3779B97F4A7C15 - 2**64, 0xBF58476D1CE4E5B9 - 2**64  # the constants of SplitMix64, as signed integers


def _mix(x: Any) -> Any:
    """Scramble the low 32 bits: two rounds of xor-shift and multiply, each a bijection."""
    x = (x ^ (x >> 16)) * 0x7FEB352D & _MASK
    x = (x ^ (x >> 15)) * 0x846CA68B & _MASK
    return x ^ (x >> 16)


def uniform(*keys: int | Tensor) -> Tensor:
    """Return float32 numbers in (0, 1), one for each combination of the broadcast integer keys.

    The numbers are (k + ½)·2⁻²³ for k in 0 … 2²³−1: never 0, never 1, so a logarithm is always finite. Plain integers
    are hashed on the host: copying them to a device would make the host wait for it.

    >>> a, b = uniform(7, torch.arange(3)), uniform(7, torch.arange(1, 3))
    >>> bool((a[1:] == b).all())
    True
    """
    state: Any = None
    for key in keys:
        k = key.long() if isinstance(key, Tensor) else int(key)
        # Fold in both halves, so that keys beyond 32 bits stay apart.
        for half in (k & _MASK, (k >> 32) & _MASK):
            if state is None:
                state = _mix(half + 0x9E3779B9 & _MASK)
            else:
                state = _mix((state * 0x9E3779B1 + half + 0x85EBCA6B) & _MASK)
    # A tensor stays where it is, whatever the default device.
    state = state if isinstance(state, Tensor) else torch.tensor(state)
    return ((state >> 9).to(torch.float32) + 0.5) * 2.0**-23


def uniform_of(key: Tensor) -> Tensor:
    """Return float32 numbers in (0, 1), one for each 64-bit key.

    They differ from those of `uniform` and take a fourth of its operations; on a GPU each operation is a launch.

    >>> uniform_of(torch.arange(2**40, 2**40 + 3))
    tensor([0.2255, 0.3416, 0.8384])
    """
    # Products wrap around. The upper bits of each depend on all bits below, and are moved down for the next.
    key = key * _ODD
    for _ in range(2):
        key = (key ^ (key >> 32)) * _ODDER
    return torch.rsub((key >> 41).to(torch.float32), 0.5 + 2.0**-24, alpha=-(2.0**-23))
