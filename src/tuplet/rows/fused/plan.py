"""Plan: the order of work, in passes over the table that each compute several reductions.

The batch is sorted by label, so the positives of a row lie in a narrow band of columns around it. Far from the band
every pair is a negative, so expressions are simpler there, and often constant.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from tuplet.rows.fused.expressions import CONSTANT, PAIR, ROW, Expressions, Node, Value, level, reductions, within
from tuplet.rows.fused.trace import Traced, UntraceableError


@dataclass(frozen=True)
class Reduced:
    """A reduction: the values of a row that it gives, and its operand in the band and far from it."""

    op: str
    gives: tuple[Node, ...]
    """The reduction itself; an expsum is preceded by its max."""
    near: Value
    far: Value


@dataclass(frozen=True)
class PassPlan:
    """Reductions in one pass over the table: over the tiles of the band, or over all (`full`)."""

    full: bool
    reduced: tuple[Reduced, ...]
    rows: tuple[Node, ...]
    """The values of a row that its pairs need."""


@dataclass(frozen=True)
class ProgramPlan:
    """All passes, and after them the total and the count of each row and the weight of each pair."""

    passes: tuple[PassPlan, ...]
    total: Value
    count: Value
    near: Value
    far: Value
    rows: tuple[Node, ...]


def plan(traced: Traced, make: Expressions) -> ProgramPlan:
    """Order the reductions: repeatedly those of the band that are ready, then the other ones."""
    negatives: dict[Node, Value] = {make.node("positive"): False, make.node("negative"): True}
    needed = reductions((traced.total, traced.count, traced.weight))
    far = {node: make.substitute(node.args[0], negatives) for node in needed}
    known: set[Node] = set()
    passes = []
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
                passes.append(PassPlan(full, reduced, _rows(x for one in reduced for x in (one.near, one.far))))
                known.update(ready)
    if not passes:
        raise UntraceableError("it reduces nothing")
    weight = make.substitute(traced.weight, negatives)
    return ProgramPlan(tuple(passes), traced.total, traced.count, traced.weight, weight, _rows((traced.weight, weight)))


def _rows(values: Iterable[Value]) -> tuple[Node, ...]:
    """Return the values of a row that these values of pairs are computed from."""
    return tuple(node for node in within(values, lambda node: level(node) == PAIR) if level(node) == ROW)
