"""What a mining rule sees of a view, and the row functions that stand behind one."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import torch
from torch import Tensor

from tuplet.rows import geometry as geo
from tuplet.rows.checks import check_kept, check_named

if TYPE_CHECKING:
    from tuplet.rows.view import View


class Block(NamedTuple):
    """A block of rows as a mining rule sees it: it chooses among the positives and negatives, without gradient.

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
        """x·y; from distances as of unit vectors: s = 1 − d²/2."""
        return self.table if self.geometry == "dot" else 1 - self.table.square() / 2

    def distance(self) -> Tensor:
        """‖x − y‖; from products as of unit vectors: d = √(2 − 2s)."""
        return self.table if self.geometry == "euclidean" else self.squared_distance().clamp_min(0).sqrt()

    def squared_distance(self) -> Tensor:
        """‖x − y‖²; from products as of unit vectors: d² = 2 − 2s."""
        return self.table.square() if self.geometry == "euclidean" else torch.rsub(self.table, 2, alpha=2)

    def farness(self) -> Tensor:
        """Anything that grows with distance, without a detour that rounds: d itself, or −s."""
        return self.table if self.geometry == "euclidean" else -self.table


class Rule(Protocol):
    """Chooses the informative pairs of a block: the `rule` of a view, as every rule of `tuplet.mining` is one."""

    names: bool
    """Whether it names the negatives, by column, or marks them."""

    def inputs(self, view: "View") -> tuple[Tensor, ...]:
        """Tensors with a row per query that the rule wants to see beside the block; first the positives, if it names.

        Those are as `View.members` gives them: columns (n, K), and which of these exist.
        """

    def __call__(self, block: Block, *inputs: Tensor) -> Any:
        """The positives and the negatives that are kept, as masks; or a negative for each positive, columns (R, K)."""


def marking(rule: Rule, rows: Callable[..., Any], seen: int, view: "View") -> Callable[..., Any]:
    """The row function behind a rule that marks its positives and negatives, or has those marked that it names."""
    # It closes over what it goes by, and not over a view, whose tensors are others at each call.
    geometry, dim = view.geometry, view.queries.shape[1]

    def marked(table: Tensor, positive: Tensor, negative: Tensor, *extras: Tensor) -> Any:
        block = Block(table.detach(), positive, negative, geometry, dim)
        kept = rule(block, *extras[:seen])
        if rule.names:
            check_named(kept, extras[0], rule)
            votes = torch.zeros_like(negative, dtype=torch.uint8)
            votes = votes.scatter_reduce(1, kept, extras[1].to(torch.uint8), "amax")
            kept = positive, negative.logical_and(votes)
        else:
            check_kept(kept, table, rule)
        return rows(table, *kept, *extras[seen:])

    return marked


def naming(rule: Rule, view: "View") -> Callable[..., Tensor]:
    """The row function that gives the columns which a rule names, −1 for those that are no negatives."""
    geometry, dim = view.geometry, view.queries.shape[1]

    def named(table: Tensor, positive: Tensor, negative: Tensor, *seen: Tensor) -> Tensor:
        columns = rule(Block(table.detach(), positive, negative, geometry, dim), *seen)
        check_named(columns, seen[0], rule)
        return torch.where(seen[1] & negative.gather(1, columns), columns, -1)

    return named
