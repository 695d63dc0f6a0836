"""The k nearest members of a gallery: exact, in blocks, over tensors, arrays or files larger than RAM."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from tuplet.evaluation.inputs import as_labels, positive_integer
from tuplet.evaluation.scores import TILE_ENTRIES, ScoreTables, hide_columns, similarity, tile_shape
from tuplet.evaluation.vectors import Device, Vectors, as_vectors, for_device
from tuplet.progress import track

# Candidates beyond k, so that rounding at the last place seldom needs a second pass.
SPARE = 8
#: Sets to −∞ those entries of a tile that must not be found; called with the tile, its queries and its first column.
Hide: TypeAlias = Callable[[Tensor, Tensor, int], None]
#: Returns for pairs of a query and a member, by index, how well they match: of equal scores the worst come first.
Match: TypeAlias = Callable[[Tensor, Tensor], Tensor]


class Nearest(NamedTuple):
    """The members that `nearest` found, nearest first.

    Attributes:
        scores: (N, k) float64: minus the distance, the cosine or the dot product.
        indices: (N, k) int64: rows of the gallery.
    """

    scores: Tensor
    indices: Tensor


def nearest(
    queries: Any,
    gallery: Any = None,
    k: int = 10,
    *,
    metric: str = "euclidean",
    among: Any = None,
    wrong_first: tuple[Any, Any] | Match | None = None,
    hide: Hide | None = None,
    device: Device = None,
) -> Nearest:
    """Find the k members of the gallery with the highest exact scores, in order; of equal ones the lower index first.

    A float32 table finds k + 8 candidates, and their exact scores order them. The result is certain if no other member
    can, by the table's error bound, reach the last one found. The few queries where that fails get a second pass with a
    float64 table, in which every member that may reach it gets its exact score.

    Args:
        queries: (N, d) vectors.
        gallery: (M, d) vectors; None if the queries search among themselves, each without itself.
        k: how many to find; a smaller gallery gives fewer.
        metric: "euclidean", "cosine" or "dot".
        among: M booleans, which members may be found; all by default.
        wrong_first: labels of the queries and of the gallery; of equal members, those with another label than the
            query's then come first. Or a function that returns a number for each pair of a query and a member, given
            their indices; of equal members, those with the smallest then come first.
        hide: function that sets the entries of a tile of scores that must not be found to −∞. If it leaves a query
            fewer than k members, the rest of its results have the score −∞.
        device: where to compute, by default where the vectors are.

    Returns:
        Scores and indices, nearest first.

    >>> x = torch.tensor([[0.0], [1.0], [3.0]])
    >>> nearest(x, k=1)
    Nearest(scores=tensor([[-1.],
            [-1.],
            [-2.]], dtype=torch.float64), indices=tensor([[1],
            [0],
            [1]]))
    """
    q = as_vectors(queries, "queries", device)
    own = gallery is None
    g = q if own else as_vectors(gallery, "gallery", device)
    allowed = None if among is None else _allowed(among, g, own)
    members = g.count - own if allowed is None else int(allowed.sum())
    match = wrong_first if wrong_first is None or callable(wrong_first) else _same_label(*wrong_first, q, g)
    k = min(positive_integer(k, "k"), members)
    found = Nearest(
        torch.empty(q.count, k, dtype=torch.float64, device=q.device),
        torch.empty(q.count, k, dtype=torch.int64, device=q.device),
    )
    if k == 0:
        return found

    def hide_all(tile: Tensor, rows: Tensor, start: int) -> None:
        if hide is not None:
            hide(tile, rows, start)
        if own:
            hide_columns(tile, (rows - start)[:, None])
        if allowed is not None:
            tile[:, ~allowed[start : start + tile.shape[1]]] = -torch.inf

    tables = ScoreTables(q, g, metric, q.dtype)
    width, uncertain = min(k + SPARE, members), torch.zeros(q.count, dtype=torch.bool, device=q.device)
    for rows in _query_blocks(torch.arange(q.count, device=q.device), tables, width):
        scores, columns, certain = _first_pass(tables, rows, k, width, hide_all, match)
        found.scores[rows], found.indices[rows] = similarity(scores, metric), columns
        uncertain[rows] = ~certain & (width < members)
    if uncertain.any():
        tables = ScoreTables(q, g, metric, torch.float64)
        for rows in _query_blocks(uncertain.nonzero()[:, 0], tables, 2 * k):
            scores, columns = _second_pass(tables, rows, k, found.indices[rows, -1], hide_all, match)
            found.scores[rows], found.indices[rows] = similarity(scores, metric), columns
    return found


def _same_label(labels: Any, gallery_labels: Any, queries: Vectors, gallery: Vectors) -> Match:
    """Return the function that tells which members have the label of their query."""
    mine = as_labels(labels, queries.count, "labels of the queries").to(queries.device)
    theirs = as_labels(gallery_labels, gallery.count, "labels of the gallery").to(queries.device)
    return lambda rows, columns: mine[rows] == theirs[columns]


def _query_blocks(rows: Tensor, tables: ScoreTables, width: int) -> Iterable[Tensor]:
    """Return blocks of queries whose tiles, and whose tables of `width` candidates, fit into memory."""
    height, _ = tile_shape(len(rows), tables.gallery.count, tables.queries.dim, rows.device)
    return track(rows.split(max(1, min(height, for_device(TILE_ENTRIES, rows.device) // width))), "searching")


def _allowed(among: Any, gallery: Vectors, own: bool) -> Tensor:
    if own:
        raise ValueError("among selects members of a gallery, but there is none; give gallery=")
    allowed = torch.as_tensor(among, device=gallery.device)
    if allowed.dtype != torch.bool or allowed.shape != (gallery.count,):
        got = f"{allowed.dtype} {tuple(allowed.shape)}"
        raise ValueError(f"among must be {gallery.count} booleans, one for each member of the gallery, got {got}")
    return allowed


def _first_pass(
    tables: ScoreTables, rows: Tensor, k: int, width: int, hide: Hide, match: Match | None
) -> tuple[Tensor, Tensor, Tensor]:
    """Return exact scores and columns of the best k of `width` candidates, and whether they are certain.

    They are if no member but the candidates can be among the best k.
    """
    approximate, columns = _candidates(tables, rows, width, hide)
    row, column = torch.arange(len(rows), device=rows.device).repeat_interleave(width), columns.flatten()
    exact = tables.exact(rows[row], column).where(approximate.flatten() > -torch.inf, -torch.inf)
    order = _best(rows, row, column, exact, k, match)
    worst_kept = approximate.flatten()[order].view(-1, k).amin(1)
    certain = worst_kept - approximate[:, -1] > tables.error_bound(rows)[:, 0]
    # Candidates that must not be found come last, so all others are among the candidates.
    certain |= approximate[:, -1] == -torch.inf
    return exact[order].view(-1, k), column[order].view(-1, k), certain


def _second_pass(
    tables: ScoreTables, rows: Tensor, k: int, last: Tensor, hide: Hide, match: Match | None
) -> tuple[Tensor, Tensor]:
    """Return exact scores and columns of the best k, where `last` is the k-th best of the candidates.

    Members that the table puts below `last` by more than the error bound are behind it. All others get exact scores.
    """
    block = tables.query_block(rows)
    error_bound = tables.error_bound(rows)
    lowest = tables.table(block, last).diagonal()[:, None] - error_bound
    row, column = rows.new_empty(0), rows.new_empty(0)
    exact = torch.empty(0, dtype=torch.float64, device=rows.device)
    for start, tile in tables.tiles(block):
        hide(tile, rows, start)
        reaching = tile >= lowest
        # Many reach it if there are real ties, or if `last` is far from the true one: then the tile gives a better one.
        if k <= tile.shape[1] and int(reaching.sum()) > SPARE * k * len(rows):
            lowest = torch.maximum(lowest, tile.topk(k, 1).values[:, -1:] - error_bound)
            reaching = tile >= lowest
        more_rows, more = reaching.nonzero(as_tuple=True)
        if len(more):
            row, column = torch.cat([row, more_rows]), torch.cat([column, more + start])
            exact = torch.cat([exact, tables.exact(rows[more_rows], more + start)])
        if start + tile.shape[1] == tables.gallery.count or len(row) > for_device(TILE_ENTRIES, rows.device):
            order = _best(rows, row, column, exact, k, match)
            row, column, exact = row[order], column[order], exact[order]
    return exact.view(-1, k), column.view(-1, k)


def _best(rows: Tensor, row: Tensor, column: Tensor, score: Tensor, k: int, match: Match | None) -> Tensor:
    """Return the positions of the best k entries of each row, row by row, best first.

    Of equal scores those that match worst come first, then those of lower columns. `rows` are the queries.
    """
    order = column.argsort()
    # Stable sorts, the least important key first.
    if match is not None:
        order = order[match(rows[row], column)[order].double().argsort(stable=True)]
    order = order[score[order].argsort(descending=True, stable=True)]
    order = order[row[order].argsort(stable=True)]
    counts = row.bincount()
    place = torch.arange(len(row), device=row.device) - (counts.cumsum(0) - counts)[row[order]]
    return order[place < k]


def _candidates(tables: ScoreTables, rows: Tensor, width: int, hide: Hide) -> tuple[Tensor, Tensor]:
    """Return scores and columns of the `width` members with the highest scores of the table, merged tile by tile."""
    best = torch.empty(len(rows), 0, dtype=tables.dtype, device=rows.device)
    columns = torch.empty(len(rows), 0, dtype=torch.int64, device=rows.device)
    for start, tile in tables.tiles(tables.query_block(rows)):
        hide(tile, rows, start)
        values, more = tile.topk(min(width, tile.shape[1]), 1)
        merged = torch.cat([best, values], 1)
        best, place = merged.topk(min(width, merged.shape[1]), 1)
        columns = torch.cat([columns, more + start], 1).gather(1, place)
    return best, columns
