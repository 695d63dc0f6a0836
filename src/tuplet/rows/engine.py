"""The row engine: reduces the rows of a view on the path that `tuplet.rows.paths` chooses."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor, nn

from tuplet.rows import paths
from tuplet.rows.blocks import Outcome, Reduction, Tensors, differentiable, reduce_blocks, totals
from tuplet.rows.checks import check_hidden_parameters
from tuplet.rows.masks import block_negatives, block_positives
from tuplet.rows.rules import Block, keep_pairs, naming
from tuplet.rows.tables import table_columns, whole_table

if TYPE_CHECKING:
    from tuplet.rows.view import View


class RowInputs(NamedTuple):
    """Extra inputs of a row function: with a row for each query, for each gallery member, and for all alike."""

    own: Sequence[Tensor] = ()
    other: Sequence[Tensor] = ()
    shared: Sequence[Tensor] = ()


def reduce_rows(view: "View", reduce: paths.Reduce, rows: Callable[..., Any], inputs: RowInputs) -> Any:
    """Reduce the rows of a view, over all processes, with the pairs that its mining rule keeps; differentiable.

    Returns:
        Σ totals and Σ counts for `"total"`, a tensor with a row for each query for `"each"`, a tensor for `"sum"`.
    """
    rule = view.rule
    # Masks carry no gradient, so neither do the inputs of a rule.
    rule_inputs = [] if rule is None else [_prepared(view, x.detach()) for x in rule.inputs(view)]
    named = rule_inputs[0].shape[1] if rule is not None and rule.names else None
    given = [*inputs.own, *inputs.other, *inputs.shared]
    work = paths.Work(view, "rows", rows, reduce, len(rule_inputs) + len(given), named)
    path = paths.choose(work)
    if path == "table":
        return _over_processes(view, reduce, _reduce_table(view, reduce, rows, rule_inputs, given))
    grad = torch.is_grad_enabled()
    start, stop = _share(view)
    task = Reduction(
        rows=rows,
        reduce=reduce,
        rule=rule,
        num_rule_inputs=len(rule_inputs),
        geometry=view.geometry,
        dim=view.queries.shape[1],
        same=view.same,
        block_rows=paths.block_rows_of(view),
        start=start,
        stop=stop,
        member=view.member,
        moves_gallery=view.moves_gallery,
        num_own=len(rule_inputs) + len(inputs.own),
        compiled=path == "compiled",
        parameters=view.parameters if grad else {},
    )
    if path == "named":
        return _over_processes(view, reduce, _reduce_named(view, task, inputs, rule_inputs))
    extras = [*rule_inputs, *(_prepared(view, x) for x in given)]
    moves = (view.queries, view.gallery if view.moves_gallery else None, *extras)
    wanted = tuple([grad and x is not None and x.requires_grad for x in moves])
    tensors = Tensors(view.queries, view.gallery, view.labels, view.gallery_labels, view.valid, extras)
    with torch.no_grad():
        # The cotangent of `each` and `sum` is not known yet, and so neither are their gradients.
        now = wanted if reduce == "total" else (False,) * len(wanted)
        outcome = _reduce_fused(work, wanted[0]) if path == "fused" else reduce_blocks(task, now, tensors)
    return _over_processes(view, reduce, differentiable(task, wanted, tensors, outcome))


def _reduce_fused(work: paths.Work, wanted: bool) -> Outcome:
    from tuplet.rows.fused.run import run

    total, count, gradient = run(work.program, work.view.queries, work.view.labels, wanted)
    return Outcome(total, count, [gradient, None])


def _reduce_table(
    view: "View", reduce: paths.Reduce, rows: Callable[..., Any], rule_inputs: Sequence[Tensor], given: Sequence[Tensor]
) -> Any:
    """Reduce the whole table of a view at once, by plain autograd."""
    table = whole_table(view.queries, view.geometry, view.moves_gallery) if view.table is None else view.table
    positive = block_positives(view.same, view.labels, view.column_labels, view.valid, view.member, 0)
    negative = block_negatives(positive, view.valid, view.member, 0)
    if view.rule is not None:
        block = Block(table.detach(), positive, negative, view.geometry, view.queries.shape[1])
        positive, negative = keep_pairs(view.rule, block, rule_inputs)
    inputs = [_prepared(view, x) for x in given]
    check_hidden_parameters(view.parameters, rows, table, positive, negative, inputs)
    out = rows(table, positive, negative, *inputs)
    return totals(out, table.shape[0]) if reduce == "total" else out


def _reduce_named(view: "View", task: Reduction, inputs: RowInputs, rule_inputs: Sequence[Tensor]) -> Any:
    """Reduce tables of the positives and the named negatives alone, which have one column at least."""
    assert view.rule is not None
    share = slice(task.start, task.stop)
    index, exists = (x[share] if x.shape[1] else x.new_zeros(len(x[share]), 1) for x in rule_inputs[:2])
    function = naming(view.rule, view)
    count = len(rule_inputs)
    names = replace(task, rows=function, reduce="each", rule=None, num_rule_inputs=0, num_own=count, parameters={})
    names.compiled = paths.choose(paths.Work(view, "naming", function, "each", count)) == "compiled"
    tensors = Tensors(view.queries, view.gallery, view.labels, view.gallery_labels, view.valid, rule_inputs)
    with torch.no_grad():
        named = reduce_blocks(names, (False,) * (2 + count), tensors).result
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
    gallery = view.column_vectors if view.moves_gallery else view.column_vectors.detach()
    table = table_columns(view.queries[share], gallery, columns, view.geometry, block_rows)
    check_hidden_parameters(view.parameters, task.rows, table, positive, negative, extras)
    out = task.rows(table, positive, negative, *extras)
    return totals(out, len(columns)) if task.reduce == "total" else out


def _prepared(view: "View", x: Tensor) -> Tensor:
    """Return an input in the type of the rows; the gradient of a parameter is averaged over processes."""
    if isinstance(x, nn.Parameter):
        x = view.learned(x)
    return x.to(view.dtype) if x.is_floating_point() else x


def _share(view: "View") -> tuple[int, int]:
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
