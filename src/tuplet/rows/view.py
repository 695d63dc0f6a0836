"""The view of a loss: queries, a gallery, and which of its members are positives."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from tuplet.rows import geometry as geo
from tuplet.rows import paths
from tuplet.rows.distributed import ProcessGroup
from tuplet.rows.engine import RowInputs, reduce_rows
from tuplet.rows.masks import equal_labels
from tuplet.rows.members import Members, members_of
from tuplet.rows.pairs import positive_pairs
from tuplet.rows.rules import Rule
from tuplet.rows.tables import whole_table


@dataclass(frozen=True)
class View:
    """The queries and the gallery of a call, as a loss sees them: `mean`, `total`, `each` and `sum` reduce rows.

    A row function gets the table of a block of queries (similarities or distances, R×M), the masks of their positives
    and of their negatives, then its extra inputs: `own` tensors cut to the block's queries, `other` tensors of the
    gallery members, `shared` ones unchanged. All are positional. (With a rule that names pairs the table may hold those
    alone: its columns then differ from row to row, and `other` is R×M too.)

    A parameter that learns must come in as such an input; reading it from `self` is an error. Compute what depends on
    a parameter, such as e^k, from `learned(parameter)`: its gradient is then that of all processes.

    >>> x, y = torch.eye(4), torch.tensor([0, 0, 1, 1])
    >>> view = View("dot", x, y)
    >>> view.mean(lambda s, positive, negative: (positive.sum(1) - s.sum(1), negative.sum(1))).item()
    0.0
    """

    # What is compared.
    geometry: geo.Geometry
    queries: Tensor
    labels: Tensor
    gallery: Tensor | None = None
    """None: the batch is its own gallery."""
    gallery_labels: Tensor | None = None
    """None: those of the queries."""
    valid: Tensor | None = None
    """Mask of the gallery members that count; None: all."""
    same: Callable[[Tensor, Tensor], Tensor] = equal_labels
    member: bool = True
    """Query i is gallery member i, and is kept out of its own row."""
    moves_gallery: bool = True
    rule: Rule | None = None
    max_per_class: int | None = None
    checks_values: bool = False
    """A loss may read label values to refuse bad ones: on a GPU that waits for the device."""

    # With other processes.
    group: ProcessGroup | None = None
    split: bool = False
    """Every process holds all the queries and works on its share of them."""
    first: int = 0
    """The position of query 0 among the queries of all processes."""

    # For the engine alone.
    block_rows: int | None = None
    parameters: Mapping[str, Tensor] = field(default_factory=dict)
    """The parameters of the loss that learn, by name: a row function must not read them by itself."""
    table: Tensor | None = None
    """The whole table, where it is given (`RowLoss.weights`) or cached (`with_table`)."""
    table_is_cached: bool = False

    @property
    def size(self) -> int:
        """The number of queries."""
        return self.queries.shape[0]

    @property
    def column_vectors(self) -> Tensor:
        """The vectors of the gallery, which are the columns of the table."""
        return self.queries if self.gallery is None else self.gallery

    @property
    def column_labels(self) -> Tensor:
        """The labels of the gallery."""
        return self.labels if self.gallery_labels is None else self.gallery_labels

    @property
    def dtype(self) -> torch.dtype:
        """The type that rows are computed in."""
        return geo.table_dtype(self.queries.dtype)

    @property
    def positions(self) -> Tensor:
        """The position of each query among the queries of all processes."""
        return torch.arange(self.first, self.first + self.size, device=self.queries.device)

    # Sums over rows

    def mean(self, rows: Callable[..., Any], **inputs: Sequence[Tensor]) -> Tensor:
        """Return Σ totals / Σ counts, exactly 0 when nothing counts.

        Args:
            rows: row function that returns a total and a count for each query of a block.
            **inputs: its extra inputs by kind, `own`, `other` and `shared`: see above.
        """
        total, count = reduce_rows(self, "total", rows, RowInputs(**inputs))
        return total / (count + (count == 0)).to(total.dtype)

    def total(self, rows: Callable[..., Any], **inputs: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Return Σ totals and Σ counts of a row function as in `mean`; a query without a count adds no total.

        Counts are constants: a gradient comes from the totals alone.
        """
        return reduce_rows(self, "total", rows, RowInputs(**inputs))

    def each(self, rows: Callable[..., Any], **inputs: Sequence[Tensor]) -> Tensor:
        """Return what `rows` returns for the queries of each block, joined; the backward pass calls `rows` again."""
        return reduce_rows(self, "each", rows, RowInputs(**inputs))

    def sum(self, rows: Callable[..., Any], **inputs: Sequence[Tensor]) -> Tensor:
        """Return what `rows` returns for each block, a tensor of any shape, summed; otherwise as `each`."""
        return reduce_rows(self, "sum", rows, RowInputs(**inputs))

    def learned(self, parameter: Tensor) -> Tensor:
        """Return a parameter of the loss, with its gradient averaged over processes."""
        return self.group.parameter(parameter) if self.group else parameter

    def with_table(self) -> "View":
        """Return a view whose table is computed once and cached, for several sums over rows; a large one unchanged."""
        if self.table is not None or paths.choose(paths.Work(self, "cache")) != "table":
            return self
        table = whole_table(self.queries, self.geometry, self.moves_gallery)
        return replace(self, table=table, table_is_cached=True)

    # Single pairs, other queries

    def at(self, i: Tensor, j: Tensor) -> Tensor:
        """Return the similarity or distance of query i and gallery member j, for index tensors of one length."""
        if self.table is not None:
            return self.table[i, j]
        return geo.between(self.queries.to(self.dtype)[i], self.column_vectors.to(self.dtype)[j], self.geometry)

    def members(self) -> Members:
        """Return the positives of each query as indices: (n, K), with K the largest number of positives."""
        return members_of(self)

    def select(self, queries: Tensor, gallery: Tensor) -> "View":
        """Return a view of some queries and some gallery members, both by index; a query stays in its own row."""
        return replace(
            self,
            queries=self.queries[queries],
            labels=self.labels[queries],
            gallery=self.column_vectors[gallery],
            gallery_labels=self.column_labels[gallery],
            member=False,
            table=None if self.table is None else self.table[queries][:, gallery],
        )

    def pairs(self) -> "tuple[View, Tensor, Tensor]":
        """Return every positive pair (a, p) as a query of its own, with the negatives of a.

        Where a batch is its own gallery and labels are compared for equality, (a, p) and (p, a) have the same
        negatives and come once.

        Returns:
            A view whose queries are x_a + x_p (dot) or the middle of both (euclidean), a mask of those that exist, and
            the similarity or distance of a and p.
        """
        return positive_pairs(self)
