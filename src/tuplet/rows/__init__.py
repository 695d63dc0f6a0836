"""The row engine: every pair loss is a function of rows, and this is all that such functions share.

`View` is what a loss looks at; `masked_sum`, `masked_logsumexp` and their kin are what rows are reduced with.
"""

from tuplet.rows.engine import default_block_rows
from tuplet.rows.masked import masked_logsumexp, masked_max, masked_mean, masked_min, masked_sum, softplus, weighted
from tuplet.rows.memory import MemoryBank
from tuplet.rows.ranks import Ranks
from tuplet.rows.rules import Block, Rule
from tuplet.rows.view import View

__all__ = [
    "Block",
    "MemoryBank",
    "Ranks",
    "Rule",
    "View",
    "default_block_rows",
    "masked_logsumexp",
    "masked_max",
    "masked_mean",
    "masked_min",
    "masked_sum",
    "softplus",
    "weighted",
]
