"""The row engine: reduces the rows of a view on the path that `tuplet.rows.paths` chooses."""

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from tuplet.rows import paths
from tuplet.rows.blocks import Outcome, Reduction, Tensors, differentiable, reduce_blocks, totals
from tuplet.rows.checks import check_hidden_parameters
from tuplet.rows.masks import block_negatives, block_positives
from tuplet.rows.rules import marking, naming
from tuplet.rows.tables import table_columns, whole_table

if TYPE_CHECKING:
    from tuplet.rows.view import View


class Inputs(NamedTuple):
    """Extra inputs of a row function: with a row for each query, for each gallery member, and for all alike."""

    own: Sequence[Tensor] = ()
    other: Sequence[Tensor] = ()
    shared: Sequence[Tensor] = ()


def reduce_rows(view: "View", reduce: paths.Reduce, rows: Callable[..., Any], inputs: Inputs) -> Any:
    """Reduce the rows of a view, over all processes, behind its mining rule; differentiable by all that moves.

    Returns:
        Σ totals and Σ counts for `"total"`, a tensor with a row for each query for `"each"`, a tensor for `"sum"`.
    """
    rule = view.rule
    seen = () if rule is None else rule.inputs(view)
    function = rows if rule is None else marking(rule, rows, len(seen), view)
    extras = [*seen, *inputs.own, *inputs.other, *inputs.shared]
    named = seen[0].shape[1] if rule is not None and rule.names else None
    work = paths.Work(view, "rows", function, reduce, len(extras), named)
    path = paths.choose(work)
    if path == "named":
        result = _reduce_named(view, reduce, rows, inputs, seen)
    elif path == "table":
        result = _reduce_table(view, reduce, function, extras)
    else:
        extras = [_prepared(view, x) for x in extras]
        grad = torch.is_grad_enabled()
        moves = (view.queries, view.gallery if view.moves_gallery else None, *extras)
        wanted = tuple([grad and x is not None and x.requires_grad for x in moves])
        task = _task(view, reduce, function, len(seen) + len(inputs.own), path, view.parameters if grad else {})
        tensors = Tensors(view.queries, view.gallery, view.labels, view.gallery_labels, view.valid, extras)
        # Rows keep their precision whatever autocast surrounds them.
        with torch.autocast(view.queries.device.type, enabled=False):
            with torch.no_grad():
                fused = path == "fused"
                # The cotangent of `each` and `sum` is not known yet, and so neither are their gradients.
                now = wanted if reduce == "total" else (False,) * len(wanted)
                outcome = _reduce_fused(work, wanted[0]) if fused else reduce_blocks(task, now, tensors)
            result = differentiable(task, wanted, tensors, outcome)
    return _over_processes(view, reduce, result)


def _task(
    view: "View",
    reduce: paths.Reduce,
    rows: Callable[..., Any],
    own: int,
    path: paths.Path,
    parameters: Mapping[str, Tensor],
) -> Reduction:
    start, stop = share_of(view)
    return Reduction(
        rows=rows,
        reduce=reduce,
        geometry=view.geometry,
        same=view.same,
        block_rows=paths.block_rows_of(view),
        start=start,
        stop=stop,
        member=view.member,
        moves_gallery=view.moves_gallery,
        own=own,
        compiled=path == "compiled",
        parameters=parameters,
    )


def _reduce_fused(work: paths.Work, wanted: bool) -> Outcome:
    from tuplet.rows.fused.run import run

    total, count, gradient = run(work.program, work.view.queries, work.view.labels, wanted)
    return Outcome(total, count, [gradient, None])


def _reduce_table(view: "View", reduce: paths.Reduce, rows: Callable[..., Any], extras: Sequence[Tensor]) -> Any:
    """Reduce the whole table of a view at once, by plain autograd."""
    table = whole_table(view.queries, view.geometry, view.moves_gallery) if view.table is None else view.table
    positive = block_positives(view.same, view.labels, view.there_labels, view.valid, view.member, 0)
    negative = block_negatives(positive, view.valid, view.member, 0)
    inputs = [_prepared(view, x) for x in extras]
    check_hidden_parameters(view.parameters, rows, table, positive, negative, inputs)
    out = rows(table, positive, negative, *inputs)
    return totals(out, table.shape[0]) if reduce == "total" else out


def _reduce_named(
    view: "View", reduce: paths.Reduce, rows: Callable[..., Any], inputs: Inputs, seen: Sequence[Tensor]
) -> Any:
    """Reduce tables of the positives and the named negatives alone, which have one column at least."""
    assert view.rule is not None
    share = slice(*share_of(view))
    index, exists = (x[share] if x.shape[1] else x.new_zeros(len(x[share]), 1) for x in seen[:2])
    function = naming(view.rule, view)
    path = paths.choose(paths.Work(view, "naming", function, "each", len(seen)))
    own = [_prepared(view, x) for x in seen]
    tensors = Tensors(view.queries, view.gallery, view.labels, view.gallery_labels, view.valid, own)
    with torch.autocast(view.queries.device.type, enabled=False), torch.no_grad():
        task = _task(view, "each", function, len(seen), path, {})
        named = reduce_blocks(task, (False,) * (2 + len(seen)), tensors).result
    # Sorted, so that a column that is named twice is counted once; −1 stands for none.
    named = named.sort(1).values
    is_first = named.diff(dim=1, prepend=named.new_full((len(named), 1), -1)) > 0
    columns = torch.cat([index, named.clamp_min(0)], 1)
    positive = torch.cat([exists, torch.zeros_like(is_first)], 1)
    negative = torch.cat([torch.zeros_like(exists), is_first], 1)
    extras = [
        *(_prepared(view, x)[share] for x in inputs.own),
        *(_prepared(view, x)[columns] for x in inputs.other),
        *(_prepared(view, x) for x in inputs.shared),
    ]
    size = columns.shape[1] * view.queries.shape[1]
    block_rows = paths.default_block_rows(view.size, size, view.dtype, columns.device)
    gallery = view.there if view.moves_gallery else view.there.detach()
    table = table_columns(view.queries[share], gallery, columns, view.geometry, block_rows)
    check_hidden_parameters(view.parameters, rows, table, positive, negative, extras)
    out = rows(table, positive, negative, *extras)
    return totals(out, len(columns)) if reduce == "total" else out


def _prepared(view: "View", x: Tensor) -> Tensor:
    """Return an input in the type of the rows; the gradient of a parameter is averaged over processes."""
    if isinstance(x, nn.Parameter):
        x = view.learned(x)
    return x.to(view.dtype) if x.is_floating_point() else x


def share_of(view: "View") -> tuple[int, int]:
    """Return the range of queries that this process works on."""
    return view.group.shares(view.size)[view.group.rank] if view.group and view.split else (0, view.size)


def _over_processes(view: "View", reduce: paths.Reduce, result: Any) -> Any:
    group = view.group
    if reduce == "total":
        total, count = map(group.sum, result) if group else result
        return total.to(view.dtype), count
    if reduce == "sum":
        return group.sum(result) if group else result
    if group and view.split:
        return group.gather(result, [stop - start for start, stop in group.shares(view.size)])
    return result
