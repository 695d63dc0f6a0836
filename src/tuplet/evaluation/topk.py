"""The k nearest members of a gallery: exact, blocked, over anything from a tensor to a file larger than RAM."""

from collections.abc import Callable, Iterable, Iterator
from typing import Any, NamedTuple, TypeAlias

import torch
from torch import Tensor

from tuplet.evaluation.inputs import Vectors, as_labels, as_vectors, budget, positive_integer
from tuplet.evaluation.ranks import TILE_ENTRIES, tile_shape
from tuplet.evaluation.scores import Scores, similarity
from tuplet.progress import track

# More candidates than asked for, so that rounding at the last place seldom needs a second look.
SPARE = 8
# Entries of a tile that are looked at together; where more than one group in CROWDED is better, all entries are.
GROUP, CROWDED = 64, 8
#: Sets to −∞ the entries of a tile of these rows, from this column on, that must not be found.
Hide: TypeAlias = Callable[[Tensor, Tensor, int], None]


class Nearest(NamedTuple):
    """The members found, nearest first.

    `scores` (N, k) float64 are minus the distance, the cosine or the dot product; `indices` (N, k) int64 are rows of
    the gallery.
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
    wrong_first: tuple[Any, Any] | None = None,
    device: torch.device | str | None = None,
) -> Nearest:
    """The k members of the gallery with the highest exact scores, in order; of equals the lower index first.

    Without a gallery the queries are their own, and none finds itself. `among`, a bool for each member, says which
    members of a gallery may be found; the others count as absent. `wrong_first` takes the labels of queries and
    gallery: of equals, those with another label than the query then come first. Fewer than k members give fewer.

    A float32 table finds k candidates and a few spare ones, and their exact scores order them. That is certain when no
    member left out can, by the table's bound on rounding, reach the last one kept. The few queries where it is not are
    looked at again with a float64 table: all that may reach it, real ties above all, get exact scores.

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
    labels = None
    if wrong_first is not None:
        mine = as_labels(wrong_first[0], q.count, "labels of the queries").to(q.device)
        labels = mine, as_labels(wrong_first[1], g.count, "labels of the gallery").to(q.device)
    k = min(positive_integer(k, "k"), members)
    found = Nearest(
        torch.empty(q.count, k, dtype=torch.float64, device=q.device),
        torch.empty(q.count, k, dtype=torch.int64, device=q.device),
    )
    if k == 0:
        return found

    def hide(tile: Tensor, rows: Tensor, start: int) -> None:
        if own:
            here = (rows >= start) & (rows < start + tile.shape[1])
            tile[here, rows[here] - start] = -torch.inf
        if allowed is not None:
            tile[:, ~allowed[start : start + tile.shape[1]]] = -torch.inf

    todo = torch.arange(q.count, device=q.device)
    fits = (q.max_norm + g.max_norm) ** 2 < torch.finfo(q.dtype).max
    scores, width = Scores(q, g, metric, q.dtype if fits else torch.float64), min(k + SPARE, members)
    unsure = []
    for rows in _blocks(todo, scores, width):
        block, columns, certain = _search(scores, rows, k, width, width == members, hide, labels)
        found.scores[rows], found.indices[rows] = similarity(block, metric), columns
        unsure.append(rows[~certain])
    todo = torch.cat(unsure)
    if not len(todo):
        return found
    scores = Scores(q, g, metric, torch.float64)
    for rows in _blocks(todo, scores, 2 * k):
        block, columns = _settled(scores, rows, k, found.indices[rows, -1], hide, labels)
        found.scores[rows], found.indices[rows] = similarity(block, metric), columns
    return found


def _blocks(todo: Tensor, scores: Scores, width: int) -> Iterable[Tensor]:
    """Queries that are looked at together, where each has `width` members at hand."""
    height, _ = tile_shape(len(todo), scores.gallery.count, scores.queries.dim, todo.device)
    return track(todo.split(max(1, min(height, budget(TILE_ENTRIES, todo.device) // width))), "searching")


def _allowed(among: Any, gallery: Vectors, own: bool) -> Tensor:
    if own:
        raise ValueError("among chooses members of a gallery, and the queries are their own here; give gallery=")
    allowed = torch.as_tensor(among, device=gallery.device)
    if allowed.dtype != torch.bool or allowed.shape != (gallery.count,):
        raise ValueError(
            f"among must be {gallery.count} booleans, one for each member, got {allowed.dtype} {tuple(allowed.shape)}; "
            "give a mask"
        )
    return allowed


def _search(
    scores: Scores,
    rows: Tensor,
    k: int,
    width: int,
    everything: bool,
    hide: Hide,
    labels: tuple[Tensor, Tensor] | None,
) -> tuple[Tensor, Tensor, Tensor]:
    """Exact scores and indices of the best k of `width` candidates, and whether no other member can be among them."""
    approximate, columns = _candidates(scores, rows, width, hide)
    exact = scores.exact(rows.repeat_interleave(width), columns.flatten()).view_as(columns)
    # Three stable sorts, the least important key first: index, then wrong before right, then score.
    order = columns.argsort(1)
    if labels is not None:
        right = labels[1][columns] == labels[0][rows, None]
        order = order.gather(1, right.gather(1, order).long().argsort(dim=1, stable=True))
    order = order.gather(1, exact.gather(1, order).argsort(dim=1, descending=True, stable=True))[:, :k]
    worst_kept = approximate.gather(1, order).amin(1, keepdim=True)
    certain = (worst_kept - approximate[:, -1:] > scores.doubt(rows))[:, 0] | everything
    return exact.gather(1, order), columns.gather(1, order), certain


def _settled(
    scores: Scores, rows: Tensor, k: int, last: Tensor, hide: Hide, labels: tuple[Tensor, Tensor] | None
) -> tuple[Tensor, Tensor]:
    """Exact scores and indices of the best k, where `last` is the k-th best of some of the members.

    What the table puts below `last` by more than the doubt is behind it for certain. All others get exact scores.
    """

    def best() -> tuple[Tensor, Tensor, Tensor]:
        """The first k of each row; of equals, those with a lower index stand first already."""
        line, columns, exact = (torch.cat(parts) for parts in zip(*found, strict=True))
        # Stable sorts, the least important key first: wrong before right, then score, then row.
        order = torch.arange(len(line), device=rows.device)
        if labels is not None:
            order = (labels[1][columns] == labels[0][rows[line]]).long().argsort(stable=True)
        order = order[exact[order].argsort(descending=True, stable=True)]
        order = order[line[order].argsort(stable=True)]
        counts = line.bincount(minlength=len(rows))
        place = torch.arange(len(line), device=rows.device) - (counts.cumsum(0) - counts)[line[order]]
        order = order[place < k]
        return line[order], columns[order], exact[order]

    block = scores.query_block(rows)
    doubt = scores.doubt(rows)
    least = scores.table(block, last).diagonal()[:, None] - doubt
    found: list[tuple[Tensor, Tensor, Tensor]] = []
    for start, tile in _tiles(scores, block, rows, hide):
        reaching = tile >= least
        if k <= tile.shape[1] and int(reaching.sum()) > SPARE * k * len(rows):  # real ties, or a `last` that is far off
            least = torch.maximum(least, tile.topk(k, 1).values[:, -1:] - doubt)
            reaching = tile >= least
        line, place = reaching.nonzero(as_tuple=True)
        if len(line):
            found.append((line, place + start, scores.exact(rows[line], place + start)))
        if sum(len(part[0]) for part in found) > budget(TILE_ENTRIES, rows.device):
            found = [best()]
    _, columns, exact = best()
    return exact.view(-1, k), columns.view(-1, k)


def _tiles(scores: Scores, block: Tensor, rows: Tensor, hide: Hide) -> Iterator[tuple[int, Tensor]]:
    """The table of a block of queries, tile by tile, each with the member that it starts from."""
    count = scores.gallery.count
    step = tile_shape(len(rows), count, scores.queries.dim, rows.device)[1]
    step = max(step // GROUP * GROUP, min(step, GROUP))
    for start in range(0, count, step):
        tile = scores.table(block, slice(start, start + step))
        hide(tile, rows, start)
        yield start, tile


def _candidates(scores: Scores, rows: Tensor, width: int, hide: Hide) -> tuple[Tensor, Tensor]:
    """The `width` members with the highest scores of the table, merged tile by tile."""
    best = torch.empty(len(rows), 0, dtype=scores.dtype, device=rows.device)
    columns = torch.empty(len(rows), 0, dtype=torch.int64, device=rows.device)
    for start, tile in _tiles(scores, scores.query_block(rows), rows, hide):
        better = _better(tile, best[:, -1]) if best.shape[1] == width else None
        if better is None:
            top = tile.topk(min(width, tile.shape[1]), 1)
            best, columns = _merged(best, columns, top.values, top.indices + start, width)
        else:
            some, values, places = better
            best[some], columns[some] = _merged(best[some], columns[some], values, places + start, width)
    return best, columns


def _merged(best: Tensor, columns: Tensor, values: Tensor, more: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """The `width` highest of both scores, with their columns."""
    merged = torch.cat([best, values], 1)
    best, place = merged.topk(min(width, merged.shape[1]), 1)
    return best, torch.cat([columns, more], 1).gather(1, place)


def _better(tile: Tensor, worst: Tensor) -> tuple[Tensor, Tensor, Tensor] | None:
    """The rows of a tile with entries above `worst`; the values and places of groups of entries that hold those.

    Most tiles hold few, and the highest of each group, which is quickly found, tells where. None where that would not
    pay: at many of them, and on a GPU, which would have to wait for their number.

    >>> some, values, places = _better(torch.arange(2048.0).view(2, -1), torch.tensor([1024.0, 2000.0]))
    >>> some.tolist(), values.shape, places[0, -1].item()
    ([1], torch.Size([1, 64]), 1023)
    """
    if tile.is_cuda or tile.shape[1] % GROUP:
        return None
    groups = tile.view(len(tile), -1, GROUP)
    row, group = (groups.amax(2) > worst[:, None]).nonzero(as_tuple=True)
    if len(row) * CROWDED > groups.shape[0] * groups.shape[1]:
        return None
    some, counts = row.unique_consecutive(return_counts=True)
    line = torch.arange(len(some), device=row.device).repeat_interleave(counts)
    place = torch.arange(len(row), device=row.device) - (counts.cumsum(0) - counts)[line]
    shape = (len(some), int(counts.max()) if len(counts) else 0, GROUP)
    values, places = tile.new_full(shape, -torch.inf), row.new_zeros(shape)
    values[line, place] = groups[row, group]
    places[line, place] = group[:, None] * GROUP + torch.arange(GROUP, device=row.device)
    return some, values.flatten(1), places.flatten(1)
