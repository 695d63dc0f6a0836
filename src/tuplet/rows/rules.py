"""Mining rules as the engine sees them: their inputs, and the row functions that apply them."""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor

from tuplet.rows import geometry as geo
from tuplet.rows.checks import check_kept, check_named

if TYPE_CHECKING:
    from tuplet.rows.view import View


class Block(NamedTuple):
    """A block of rows as a mining rule sees it, without gradient.

    `table` (R, M) holds products or distances, as `geometry` says, of R queries and M gallery members; `positive` and
    `negative` (R, M) are masks; `dim` is the length of the vectors.

    >>> nothing = torch.tensor([[False]])
    >>> Block(torch.tensor([[0.5]]), ~nothing, nothing, "dot", dim=2).distance()
    tensor([[1.]])
    """

    table: Tensor
    positive: Tensor
    negative: Tensor
    geometry: geo.Geometry
    dim: int

    def similarity(self) -> Tensor:
        """Return x·y; from distances as of unit vectors: s = 1 − d²/2."""
        return self.table if self.geometry == "dot" else 1 - self.table.square() / 2

    def distance(self) -> Tensor:
        """Return ‖x − y‖; from products as of unit vectors: d = √(2 − 2s)."""
        return self.table if self.geometry == "euclidean" else self.squared_distance().clamp_min(0).sqrt()

    def squared_distance(self) -> Tensor:
        """Return ‖x − y‖²; from products as of unit vectors: d² = 2 − 2s."""
        return self.table.square() if self.geometry == "euclidean" else torch.rsub(self.table, 2, alpha=2)

    def farness(self) -> Tensor:
        """Return a number that grows with distance and is not rounded again: d itself, or −s."""
        return self.table if self.geometry == "euclidean" else -self.table


class Rule(Protocol):
    """The interface of mining rules, as the engine calls them; `tuplet.mining.Mining` is the class to inherit from."""

    names: bool
    """True: the rule returns one negative for each positive, by column. False: it returns masks."""

    def inputs(self, view: "View") -> tuple[Tensor, ...]:
        """Return tensors with a row per query that the rule gets beside the block.

        A rule that names pairs puts the positives first, as `View.members` returns them.
        """

    def __call__(self, block: Block, *inputs: Tensor) -> Any:
        """Return the masks of the positives and negatives to keep, or the columns (R, K) of a negative per positive."""


def keep_pairs(rule: Rule, block: Block, inputs: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Return the masks of the positives and of the negatives that a rule keeps, given its inputs."""
    kept = rule(block, *inputs)
    if not rule.names:
        check_kept(kept, block.table, rule)
        return kept
    check_named(kept, inputs[0], rule)
    votes = torch.zeros_like(block.negative, dtype=torch.uint8)
    votes = votes.scatter_reduce(1, kept, inputs[1].to(torch.uint8), "amax")
    return block.positive, block.negative.logical_and(votes)


def marking(rule: Rule, rows: Callable[..., Any], view: "View") -> Callable[..., Any]:
    """Return a row function that applies a rule without inputs before `rows`, to be traced as a whole."""
    # Close over settings only: a view holds other tensors at each call, which would change the cache key.
    geometry, dim = view.geometry, view.queries.shape[1]

    def marked(table: Tensor, positive: Tensor, negative: Tensor) -> Any:
        return rows(table, *keep_pairs(rule, Block(table.detach(), positive, negative, geometry, dim), ()))

    return marked


def naming(rule: Rule, view: "View") -> Callable[..., Tensor]:
    """Return a row function that returns the columns which a rule names, −1 for those that are no negatives."""
    geometry, dim = view.geometry, view.queries.shape[1]

    def named(table: Tensor, positive: Tensor, negative: Tensor, *inputs: Tensor) -> Tensor:
        columns = rule(Block(table.detach(), positive, negative, geometry, dim), *inputs)
        check_named(columns, inputs[0], rule)
        return torch.where(inputs[1] & negative.gather(1, columns), columns, -1)

    return named
