"""Positive pairs as queries of their own."""

from dataclasses import replace
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tuplet.rows import geometry as geo
from tuplet.rows import paths
from tuplet.rows.masks import equal_labels
from tuplet.rows.tables import whole_table

if TYPE_CHECKING:
    from tuplet.rows.view import View


def positive_pairs(view: "View") -> "tuple[View, Tensor, Tensor]":
    """Return the view of every positive pair: see `View.pairs`."""
    columns, exists = view.members()
    n, most = columns.shape
    once = view.gallery is None and view.same is equal_labels
    if once:
        # At most half of the places hold a pair with a < p; the k-th of them is where the running count reaches k.
        ordered = torch.arange(n, device=columns.device)[:, None] < columns
        counted = (exists & ordered).flatten().cumsum(0)
        kth = torch.arange(1, n * most // 2 + 1, device=columns.device)
        place, exists = torch.searchsorted(counted, kth).clamp_max(n * most - 1), kth <= counted[-1:]
    else:
        place, exists = torch.arange(n * most, device=columns.device), exists.flatten()
    a, p = place // max(most, 1), columns.flatten()[place]
    # Large classes have many times more pairs than queries, and tables too large to be formed at once.
    if view.table is not None and not (view.table_is_cached and paths.block_rows_of(view, len(a)) < len(a)):
        together, table, near = view.queries[:0], *_pair_tables(view, a, p, once)
    else:
        # Sums are not exact in a half type.
        here = view.queries.to(view.dtype).index_select(0, a)
        there = view.column_vectors.to(view.dtype).index_select(0, p)
        near, table = geo.between(here, there, view.geometry), None
        together = here + there if view.geometry == "dot" else (here + there) / 2
    labels, same = view.labels[a], view.same
    if view.member and same is not equal_labels:

        def same_or_itself(places: Tensor, column_labels: Tensor) -> Tensor:
            """Mark the positives of the queries at these places, and the queries themselves; the rest is negative."""
            itself = places[:, None] == torch.arange(column_labels.shape[0], device=places.device)
            return view.same(view.labels[places], column_labels) | itself

        labels, same = a, same_or_itself
    pairs = replace(
        view,
        queries=together,
        labels=labels,
        gallery=view.column_vectors,
        gallery_labels=view.column_labels,
        same=same,
        member=False,
        table=table,
        table_is_cached=False,
    )
    return pairs, exists, near


def _pair_tables(view: "View", a: Tensor, p: Tensor, once: bool) -> tuple[Tensor, Tensor]:
    """Return the rows of the pairs (a, p), from those of a and p, and the entries of a and p."""
    assert view.table is not None
    # Similarities among gallery members are in no query's row, and are constants.
    among = view.table if view.gallery is None else whole_table(view.gallery.detach(), view.geometry, False)
    of_a, of_p = view.table.index_select(0, a), among.index_select(0, p)
    flat, n = view.table.flatten(), view.table.shape[1]
    near = flat.index_select(0, a * n + p)
    if once:
        near = (near + flat.index_select(0, p * n + a)) / 2
    return (of_a + of_p if view.geometry == "dot" else _from_middle(of_a, of_p, near)), near


def _from_middle(a: Tensor, p: Tensor, near: Tensor) -> Tensor:
    """Return distances from the middle of a and p: ‖n − c‖² = ½‖n − a‖² + ½‖n − p‖² − ¼‖a − p‖²."""
    square = (a.square() + p.square()) / 2 - near.square()[:, None] / 4
    apart = square > 0
    return torch.where(apart, torch.where(apart, square, 1).sqrt(), 0)
