"""The row engine: runs losses that are functions of rows of a similarity table.

`View` is what a loss sees; `masked_sum`, `masked_logsumexp` and the like reduce rows; `execution` pins the path that
the engine takes. docs/engine.md explains how it works.
"""

from tuplet.rows.distributed import ProcessGroup
from tuplet.rows.masked import masked_logsumexp, masked_max, masked_mean, masked_min, masked_sum, softplus, weighted
from tuplet.rows.memory import MemoryBank
from tuplet.rows.paths import ExecutionError, default_block_rows, execution
from tuplet.rows.rules import Block, Rule
from tuplet.rows.view import View

__all__ = [
    "Block",
    "ExecutionError",
    "MemoryBank",
    "ProcessGroup",
    "Rule",
    "View",
    "default_block_rows",
    "execution",
    "masked_logsumexp",
    "masked_max",
    "masked_mean",
    "masked_min",
    "masked_sum",
    "softplus",
    "weighted",
]
