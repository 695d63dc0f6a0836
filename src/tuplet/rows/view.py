"""What a loss looks at: queries, a gallery, and who is the same as whom."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from tuplet.rows import geometry as geo
from tuplet.rows.checks import check_class_size
from tuplet.rows.engine import COMPILED_ENTRIES, Reduce, Walk, default_block_rows, totals, walk_rows
from tuplet.rows.masks import block_negatives, block_positives, equal_labels
from tuplet.rows.members import Members, members_by_label, members_by_mask, most_of
from tuplet.rows.picked import picked
from tuplet.rows.ranks import Ranks
from tuplet.rows.rules import Rule, marking, naming
from tuplet.rows.whole import whole_table

# Named pairs are looked at alone where a row has so many members for each that is named; else the whole row is quicker.
LISTED_PART = 128


class Extras(NamedTuple):
    """What a row function gets beside the table and the masks: of the queries, of the gallery members, of all."""

    own: Sequence[Tensor] = ()
    other: Sequence[Tensor] = ()
    shared: Sequence[Tensor] = ()


@dataclass(frozen=True)
class View:
    """Queries that look at a gallery. A loss asks it for sums over rows.

    A row function gets the table of a block of queries (similarities or distances, R×M), the masks of their positives
    and of their negatives, then its extra inputs: `own` tensors cut to the block's queries, `other` tensors of the
    gallery members, `shared` ones as they are. (Behind a rule that names pairs the table may hold those alone: its
    columns are others in each row, and so is `other`, R×M too.) Whatever learns must come in as such an input: a
    parameter that the function reads from elsewhere gets no gradient. What is computed from a parameter first, as e^k,
    is computed from `learned(parameter)`: its gradient is then that of all processes.

    >>> x, y = torch.eye(4), torch.tensor([0, 0, 1, 1])
    >>> view = View("dot", x, y)
    >>> view.mean(lambda s, positive, negative: (positive.sum(1) - s.sum(1), negative.sum(1))).item()
    0.0
    """

    geometry: geo.Geometry
    queries: Tensor
    labels: Tensor
    gallery: Tensor | None = None
    """None: the queries are their own gallery."""
    gallery_labels: Tensor | None = None
    """None: those of the queries."""
    valid: Tensor | None = None
    """Which gallery members count at all; None: all."""
    same: Callable[[Tensor, Tensor], Tensor] = equal_labels
    member: bool = True
    """Query i is gallery member i, and is kept out of its own row."""
    moves_gallery: bool = True
    rule: Rule | None = None
    block_rows: int | None = None
    max_per_class: int | None = None
    checks_values: bool = False
    """Whether a loss may look at label values to refuse bad ones: that waits for the device."""
    ranks: Ranks | None = None
    split: bool = False
    """Every process holds all the queries and walks its share of them."""
    first: int = 0
    """The position of query 0 among the queries of all processes."""
    table: Tensor | None = None
    """The whole table as a variable of its own, for `weights`; otherwise tables are formed block by block."""
    formed: bool = False
    """Whether the table was formed of the vectors (`whole`), and may be again."""

    @property
    def size(self) -> int:
        """How many queries there are."""
        return self.queries.shape[0]

    @property
    def there(self) -> Tensor:
        """The gallery's vectors."""
        return self.queries if self.gallery is None else self.gallery

    @property
    def there_labels(self) -> Tensor:
        """The gallery's labels."""
        return self.labels if self.gallery_labels is None else self.gallery_labels

    @property
    def dtype(self) -> torch.dtype:
        """The type that rows are computed in."""
        return geo.table_dtype(self.queries.dtype)

    @property
    def positions(self) -> Tensor:
        """The place of each query among the queries of all processes."""
        return torch.arange(self.first, self.first + self.size, device=self.queries.device)

    def share(self) -> tuple[int, int]:
        """The queries that this process walks."""
        return self.ranks.shares(self.size)[self.ranks.rank] if self.ranks and self.split else (0, self.size)

    # Sums over rows

    def mean(self, rows: Callable[..., Any], **inputs: Sequence[Tensor]) -> Tensor:
        """Σ totals / Σ counts, exactly 0 when nothing counts. rows(…) gives a total and a count for each query."""
        return ratio(*self.total(rows, **inputs))

    def total(self, rows: Callable[..., Any], **inputs: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
        """Σ totals and Σ counts. rows(…) gives a total and a count for each query; no count, no total.

        Counts are constants: a gradient comes from the totals alone.
        """
        total, count = self._walk("total", rows, **inputs)
        if self.ranks:
            total, count = self.ranks.sum(total), self.ranks.sum(count)
        return total.to(self.dtype), count

    def each(self, rows: Callable[..., Any], **inputs: Sequence[Tensor]) -> Tensor:
        """A number per query. rows(…) gives those of a block, and is asked again when the gradient comes back."""
        values = self._walk("each", rows, **inputs)
        if self.ranks and self.split:
            return self.ranks.gather(values, [stop - start for start, stop in self.ranks.shares(self.size)])
        return values

    def sum(self, rows: Callable[..., Any], **inputs: Sequence[Tensor]) -> Tensor:
        """A tensor of any shape, summed over blocks. rows(…) gives a block's part, and is asked again as by `each`."""
        value = self._walk("sum", rows, **inputs)
        return self.ranks.sum(value) if self.ranks else value

    def _walk(self, reduce: Reduce, rows: Callable[..., Any], **inputs: Sequence[Tensor]) -> Any:
        extras = Extras(**inputs)
        if self.rule is None:
            return self._walk_rows(reduce, rows, extras)
        seen = self.rule.inputs(self)
        if self.rule.names and not self._only_launches and self.there.shape[0] > LISTED_PART * seen[0].shape[1]:
            return self._walk_named(self.rule, seen, reduce, rows, extras)
        seeing = Extras((*seen, *extras.own), extras.other, extras.shared)
        return self._walk_rows(reduce, marking(self.rule, rows, len(seen), self), seeing)

    def _walk_rows(self, reduce: Reduce, rows: Callable[..., Any], extras: Extras) -> Any:
        inputs = [self._input(x) for kind in extras for x in kind]
        if self.table is not None:
            positive = block_positives(self.same, self.labels, self.there_labels, self.valid, self.member, 0)
            negative = block_negatives(positive, self.valid, self.member, 0)
            out = rows(self.table, positive, negative, *inputs)
            return totals(out, self.table.shape[0]) if reduce == "total" else out
        walk = Walk(
            rows=rows,
            reduce=reduce,
            geometry=self.geometry,
            same=self.same,
            block_rows=self._block_rows,
            start=self.share()[0],
            stop=self.share()[1],
            member=self.member,
            moves_gallery=self.moves_gallery,
            own=len(extras.own),
        )
        return walk_rows(walk, self.queries, self.gallery, self.labels, self.gallery_labels, self.valid, inputs)

    def _walk_named(
        self, rule: Rule, seen: Sequence[Tensor], reduce: Reduce, rows: Callable[..., Any], extras: Extras
    ) -> Any:
        """Tables of the positives and the named negatives alone, one column at least: the rest is looked at once."""
        share = slice(*self.share())
        index, exists = (x[share] if x.shape[1] else x.new_zeros(len(x[share]), 1) for x in seen[:2])
        with torch.no_grad():
            named = self._walk_rows("each", naming(rule, self), Extras(own=seen))
        # In order, so that one named twice is found; −1 stands for none.
        named = named.sort(1).values
        once = named.diff(dim=1, prepend=named.new_full((len(named), 1), -1)) > 0
        columns = torch.cat([index, named.clamp_min(0)], 1)
        out = rows(
            self._picked(columns),
            torch.cat([exists, torch.zeros_like(once)], 1),
            torch.cat([torch.zeros_like(exists), once], 1),
            *(self._input(x)[share] for x in extras.own),
            *(self._input(x)[columns] for x in extras.other),
            *(self._input(x) for x in extras.shared),
        )
        return totals(out, len(columns)) if reduce == "total" else out

    def _picked(self, columns: Tensor) -> Tensor:
        """The similarity or distance of each query of this process's share and each of its columns."""
        if self.table is not None:
            return self.table.gather(1, columns)
        start, stop = self.share()
        rows = default_block_rows(self.size, columns.shape[1] * self.queries.shape[1], self.dtype, columns.device)
        there = self.there if self.moves_gallery else self.there.detach()
        return picked(self.queries[start:stop], there, columns, self.geometry, rows)

    @property
    def _only_launches(self) -> bool:
        """Whether this is so little for a GPU that time is the number of launches, and work is for nothing."""
        return self.queries.is_cuda and self.size * self.there.shape[0] < COMPILED_ENTRIES

    @property
    def _block_rows(self) -> int:
        return self._block_of(self.size)

    def _block_of(self, rows: int) -> int:
        """How many of so many rows that look at this gallery make a block."""
        here = self.queries
        return self.block_rows or default_block_rows(rows, self.there.shape[0], here.dtype, here.device)

    def _input(self, x: Tensor) -> Tensor:
        if isinstance(x, nn.Parameter):
            x = self.learned(x)
        return x.to(self.dtype) if x.is_floating_point() else x

    def learned(self, parameter: Tensor) -> Tensor:
        """A parameter of the loss, with its gradient averaged over processes."""
        return self.ranks.parameter(parameter) if self.ranks else parameter

    def whole(self) -> "View":
        """The same with its table formed once, for a loss that looks more than once; as it is where that is large."""
        small = self._block_rows >= self.size and (self.queries.device.type == "cpu" or self._only_launches)
        alone = self.gallery is None and self.member and self.ranks is None
        if self.table is not None or not (small and alone) or torch.compiler.is_compiling():
            return self
        return replace(self, table=whole_table(self.queries, self.geometry, self.moves_gallery), formed=True)

    # Single pairs, other queries

    def at(self, i: Tensor, j: Tensor) -> Tensor:
        """The similarity or distance of query i and gallery member j, for index tensors i and j of one length."""
        if self.table is not None:
            return self.table[i, j]
        return geo.between(self.queries[i].to(self.dtype), self.there[j].to(self.dtype), self.geometry)

    def members(self) -> Members:
        """The positives of each query as indices: (n, K), with K the most that any has."""
        if self.max_per_class is not None and self.checks_values:
            check_class_size(self._largest_class(), self.max_per_class)
        # A sort is a dozen launches, and long ones.
        if self.same is equal_labels and not self._only_launches:
            return members_by_label(self.labels, self.there_labels, self.valid, self.member, self.max_per_class)
        return members_by_mask(self._positives, self.member, self.max_per_class)

    def _positives(self) -> Iterator[Tensor]:
        """The masks of the positives, block by block; one of no rows where there are no queries."""
        for start in range(0, self.size, self._block_rows) or [0]:
            labels = self.labels[start : start + self._block_rows]
            yield block_positives(self.same, labels, self.there_labels, self.valid, self.member, start)

    def _largest_class(self) -> int:
        """How many are alike at most, a query among its own gallery included."""
        if self.same is not equal_labels:
            return self.member + most_of(torch.cat([mask.sum(1) for mask in self._positives()]))
        labels = self.there_labels if self.valid is None else self.there_labels[self.valid]
        return max(labels.unique(return_counts=True)[1].tolist(), default=0)

    def select(self, queries: Tensor, gallery: Tensor) -> "View":
        """Some of the queries looking at some of the gallery, both given by index; nobody is kept out of a row."""
        return replace(
            self,
            queries=self.queries[queries],
            labels=self.labels[queries],
            gallery=self.there[gallery],
            gallery_labels=self.there_labels[gallery],
            member=False,
            table=None if self.table is None else self.table[queries][:, gallery],
        )

    def pairs(self) -> "tuple[View, Tensor, Tensor]":
        """Every positive pair (a, p) as a query of its own, with the negatives of a.

        The query is x_a + x_p in a dot view and the middle of both in a Euclidean one. Gives the view of them, which of
        them exist, and the similarity or distance of a and p. Where a batch looks at itself by its labels, (a, p) and
        (p, a) are one query with the same negatives, and come once.
        """
        columns, exists = self.members()
        n, most = columns.shape
        once = self.gallery is None and self.same is equal_labels
        if once:
            # At most half of the places hold a pair with a < p: the k-th of them is where the k-th is counted.
            earlier = torch.arange(n, device=columns.device)[:, None] < columns
            counted = (exists & earlier).flatten().cumsum(0)
            kth = torch.arange(1, n * most // 2 + 1, device=columns.device)
            place, exists = torch.searchsorted(counted, kth).clamp_max(n * most - 1), kth <= counted[-1:]
        else:
            place, exists = torch.arange(n * most, device=columns.device), exists.flatten()
        a, p = place // max(most, 1), columns.flatten()[place]
        # Of large classes the pairs are many times the queries, and their tables too large to be formed at once.
        if self.table is not None and (not self.formed or self._block_of(len(a)) >= len(a)):
            together, table, near = self.queries[:0], *self._pair_tables(a, p, once)
        else:
            # Sums are not exact in a half type.
            here = self.queries.to(self.dtype).index_select(0, a)
            there = self.there.to(self.dtype).index_select(0, p)
            near, table = geo.between(here, there, self.geometry), None
            together = here + there if self.geometry == "dot" else (here + there) / 2
        labels, same = self.labels[a], self.same
        if self.member and same is not equal_labels:
            labels, same = a, self._same_or_itself
        pairs = replace(
            self,
            queries=together,
            labels=labels,
            gallery=self.there,
            gallery_labels=self.there_labels,
            same=same,
            member=False,
            table=table,
            formed=False,
        )
        return pairs, exists, near

    def _pair_tables(self, a: Tensor, p: Tensor, once: bool) -> tuple[Tensor, Tensor]:
        """The rows of the pairs (a, p) from those of a and p, and the entries of a and p."""
        assert self.table is not None
        # What gallery members are to each other stands in no row of a query, and is constant.
        among = self.table if self.gallery is None else whole_table(self.gallery.detach(), self.geometry, False)
        of_a, of_p = self.table.index_select(0, a), among.index_select(0, p)
        flat, n = self.table.flatten(), self.table.shape[1]
        near = flat.index_select(0, a * n + p)
        if once:
            near = (near + flat.index_select(0, p * n + a)) / 2
        return (of_a + of_p if self.geometry == "dot" else _middle(of_a, of_p, near)), near

    def _same_or_itself(self, places: Tensor, there_labels: Tensor) -> Tensor:
        """Who is the same as the queries at these places, or the query itself: the others are its negatives."""
        itself = places[:, None] == torch.arange(there_labels.shape[0], device=places.device)
        return self.same(self.labels[places], there_labels) | itself


def _middle(a: Tensor, p: Tensor, near: Tensor) -> Tensor:
    """Distances from the middle of a and p: ‖n − c‖² = ½‖n − a‖² + ½‖n − p‖² − ¼‖a − p‖²."""
    square = (a.square() + p.square()) / 2 - near.square()[:, None] / 4
    apart = square > 0
    return torch.where(apart, torch.where(apart, square, 1).sqrt(), 0)


def ratio(total: Tensor, count: Tensor) -> Tensor:
    """total / count, exactly 0 with a zero gradient when nothing counts."""
    return total / (count + (count == 0)).to(total.dtype)
