"""The order of work: which reductions are made together, and in how many looks at the table.

The batch is sorted by label, so the positives of a row lie in a narrow band of columns around it. Far from the band
every pair is a negative: there an expression is a simpler one, and often a constant.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tuplet.rows.fused.expressions import CONSTANT, PAIR, ROW, Expressions, Node, Value, level, reductions, within
from tuplet.rows.fused.trace import Traced, UntraceableError


@dataclass(frozen=True)
class Reduced:
    """A reduction: what it gives of a row, and what of a pair it is made of, near the band and far from it."""

    op: str
    gives: tuple[Node, ...]
    """The reduction itself; an expsum is preceded by its max."""
    near: Value
    far: Value


@dataclass(frozen=True)
class Look:
    """Reductions that are made in one walk over the table: over the tiles of the band, or over all of them."""

    full: bool
    reduced: tuple[Reduced, ...]
    rows: tuple[Node, ...]
    """The numbers of a row that its pairs look at."""


@dataclass(frozen=True)
class Plan:
    """All looks, and at the end the total and the count of each row and the weight of each pair."""

    looks: tuple[Look, ...]
    total: Value
    count: Value
    near: Value
    far: Value
    rows: tuple[Node, ...]


def plan(traced: Traced, make: Expressions) -> Plan:
    """Repeat until all is known: the reductions of the band that are ready, then the others that are."""
    negatives: dict[Node, Value] = {make.node("positive"): False, make.node("negative"): True}
    needed = reductions((traced.total, traced.count, traced.weight))
    far = {node: make.substitute(node.args[0], negatives) for node in needed}
    known: set[Node] = set()
    looks = []
    while not known.issuperset(far):
        for full in (False, True):
            ready = [
                node
                for node in far
                if node not in known
                and (level(far[node]) != CONSTANT) is full
                and known.issuperset(reductions(node.args))
            ]
            peaks = {node: make.node("max", *node.args) for node in ready if node.op == "expsum"}
            reduced = tuple(
                Reduced(node.op, (peaks[node], node) if node in peaks else (node,), node.args[0], far[node])
                for node in ready
                if node not in peaks.values()
            )
            if reduced:
                looks.append(Look(full, reduced, _rows(x for one in reduced for x in (one.near, one.far))))
                known.update(ready)
    if not looks:
        raise UntraceableError("it makes nothing of a row")
    weight = make.substitute(traced.weight, negatives)
    return Plan(tuple(looks), traced.total, traced.count, traced.weight, weight, _rows((traced.weight, weight)))


def _rows(values: Iterable[Value]) -> tuple[Node, ...]:
    """The numbers of a row that these values of pairs are made of."""
    return tuple(node for node in within(values, lambda node: level(node) == PAIR) if level(node) == ROW)
