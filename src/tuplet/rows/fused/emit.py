"""From a plan to Triton: write the functions of a pair and of a row as source, and load it.

In the kernels, R holds the numbers that the passes reduce from a row, and V those that are computed from them; the
numbers of one row are `stride` apart.
"""

import functools
import itertools
import linecache
import math
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import triton
import triton.language as tl

from tuplet.rows.fused import kernels
from tuplet.rows.fused.expressions import (
    CONSTANT,
    LEAVES,
    NEUTRAL,
    OPERATIONS,
    PAIR,
    Node,
    Value,
    is_bool,
    level,
    within,
)
from tuplet.rows.fused.plan import PassPlan, ProgramPlan, Reduced


@dataclass(frozen=True)
class Pass:
    """One pass over the table as kernels, and what is computed from a row after it."""

    reduced: int
    """The number of values that it reduces from a row."""
    band: Any
    """Goes through the band of a tile of rows."""
    far: Any = None
    """Reduces a far tile, within `far_statistics`; None for a pass over the band alone."""
    fold: Any = None
    """Adds the values of the far tiles."""
    rows: Any = None
    """Computes the values of a row that the next pass needs; after a pass over the band alone `band` does that."""


@dataclass(frozen=True)
class Program:
    """A row function as kernels. After the last pass, values 0 and 1 of V are total and count."""

    passes: tuple[Pass, ...]
    near: Any
    """The weight of a pair near the band, and far from it."""
    far: Any
    reduced: int
    """The number of values of a row in R."""
    computed: int
    """The number of values of a row in V."""


def emit(plan: ProgramPlan) -> Program:
    """Return the program of a plan: write its functions, and load them."""
    reduced: dict[Node, int] = {}
    computed: dict[Node, int] = {}
    outputs = {0: plan.total, 1: plan.count}
    texts: list[str] = []
    passes: list[dict[str, Any]] = []

    def write(name: str, text: str) -> str:
        texts.append(f"@triton.jit(do_not_specialize=['N', 'slots'])\ndef {name}{text}\n")
        return name

    for k, step in enumerate(plan.passes):
        seen, earlier = dict(computed), dict(reduced)
        reduced.update(zip((node for one in step.reduced for node in one.gives), itertools.count(len(reduced))))
        last = k + 1 == len(plan.passes)
        fresh = [node for node in (plan.rows if last else plan.passes[k + 1].rows) if node not in computed]
        computed.update(zip(fresh, itertools.count(len(outputs) + len(computed))))
        after = {computed[node]: node for node in fresh} | (outputs if last else {})
        names = {"band": write(f"band_{k}", _band(step, seen, earlier, {} if step.full else after))}
        if step.full:
            names["far"] = write(f"far_{k}", _far(step, seen))
            names["fold"] = write(f"fold_{k}", _fold(step, len(earlier)))
        if step.full and after:
            names["rows"] = write(f"rows_{k}", _rows(after, reduced))
        passes.append({"reduced": len(reduced) - len(earlier), **names})
    near = write("weight_near", _weight(plan.near, computed, near=True))
    far = write("weight_far", _weight(plan.far, computed, near=False))
    loaded = _load("\n\n".join(texts))
    return Program(
        tuple(Pass(**{key: loaded.get(value, value) for key, value in one.items()}) for one in passes),
        loaded[near],
        loaded[far],
        len(reduced),
        len(outputs) + len(computed),
    )


@functools.lru_cache(maxsize=64)
def _load(source: str) -> dict[Any, Any]:
    """Run the source, and store it where `inspect`, and so Triton, finds it."""
    name = f"<row program {zlib.crc32(source.encode()):08x}>"
    linecache.cache[name] = (len(source), None, source.splitlines(keepends=True), name)
    space: dict[Any, Any] = {"triton": triton, "tl": tl, "__name__": __name__}
    space.update({helper: getattr(kernels, helper) for helper in ("log1p", "similarities", "pair_masks", "band")})
    exec(compile(source, name, "exec"), space)
    return space


class _Body:
    """The statements of a function, each value computed once."""

    def __init__(self) -> None:
        self.depth, self.lines = 1, list[str]()
        self.names: dict[Value, str] = {}

    def add(self, *lines: str) -> None:
        self.lines += ["    " * self.depth + line for line in lines]

    def name(self, text: str) -> str:
        """Assign the value of an expression to a new name, and return that name."""
        name = f"x{len(self.lines)}"
        self.add(f"{name} = {text}")
        return name

    def value(self, x: Value) -> str:
        """Return the name of a value, after writing the statements that compute it; a constant is returned as text."""
        if not isinstance(x, Node):
            return str(x) if math.isfinite(x) else f'float("{x}")'
        if x not in self.names:
            self.names[x] = x.op if x.op in LEAVES else self.name(self._operation(x))
        return self.names[x]

    def _operation(self, x: Node) -> str:
        args = [self.value(y) for y in x.args]
        if x.op == "fma" and (x.args[1] == 1 or x.args[2] == 0):
            return f"({args[0]} + {args[2]})" if x.args[1] == 1 else f"({args[0]} * {args[1]})"
        return OPERATIONS[x.op][0].format(*args)

    def load(self, values: Iterable[Value], places: Mapping[Node, int], where: str, at: str) -> None:
        """Load the values of a row that `values` are computed from."""
        for node in within(values, lambda node: node not in places and node not in self.names):
            if node in places:
                read = f"tl.load({where} + {places[node]} * stride + {at})"
                self.names[node] = self.name(f"{read} != 0" if is_bool(node) else read)

    def text(self, *arguments: str) -> str:
        return f"({', '.join(arguments)}):\n" + "\n".join(self.lines)


def _constants(*names: str) -> list[str]:
    return [f"{name}: tl.constexpr" for name in names]


def _store_rows(body: _Body, computed: Mapping[int, Value], reduced: Mapping[Node, int]) -> None:
    """Compute values of the rows `row` from those that are reduced, and store them."""
    body.load(computed.values(), reduced, "R", "row")
    for place, x in computed.items():
        body.add(f"tl.store(V + {place} * stride + row, {body.value(x)})")


def _rows(computed: Mapping[int, Value], reduced: Mapping[Node, int]) -> str:
    body = _Body()
    body.add("row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)")
    _store_rows(body, computed, reduced)
    return body.text("R", "V", "stride", *_constants("BLOCK"))


def _weight(x: Value, computed: Mapping[Node, int], near: bool) -> str:
    """Write the function that returns the weight of each pair of a tile, whose rows are i."""
    body = _Body()
    body.load([x], computed, "V", "i")
    body.add(f"return {body.value(x)}" if level(x) == PAIR else f"return tl.zeros_like(s) + {body.value(x)}")
    return body.text("s", *(["positive", "negative"] if near else []), "V", "stride", "i")


def _numbers(step: PassPlan) -> list[tuple[str, float]]:
    """Return a name and an initial value for each value that a pass reduces from a row."""
    begins = (b for one in step.reduced for b in ((-math.inf, 0.0) if one.op == "expsum" else (NEUTRAL[one.op],)))
    return [(f"part{n}", neutral) for n, neutral in enumerate(begins)]


def _each(step: PassPlan) -> list[tuple[Reduced, list[str]]]:
    """Return each reduction with the names of its values."""
    names = iter(_numbers(step))
    return [(one, [next(names)[0] for _ in one.gives]) for one in step.reduced]


def _reduce(body: _Body, one: Reduced, operand: Value) -> list[str]:
    """Reduce a tile along AXIS; `inside`, if any, masks the pairs that exist. Return the names of the values."""
    x, neutral = body.value(operand), body.value(NEUTRAL[one.op])
    if level(operand) != PAIR:
        x = body.name(f"tl.zeros_like(s) + {x}")
    x = body.name(f"{x} if inside is None else tl.where(inside, {x}, {neutral})")
    if one.op != "expsum":
        return [body.name(f"tl.{one.op}({x}, AXIS)")]
    peak = body.name(f"tl.max({x}, AXIS)")
    return [peak, body.name(f"tl.sum(tl.exp2({x} - tl.expand_dims({_base(peak)}, AXIS)), AXIS)")]


def _base(peak: str) -> str:
    """Return the exponent that powers are divided by: their peak, or 0 where there are none."""
    return f"tl.where({peak} > float('-inf'), {peak}, 0.0)"


def _combine(body: _Body, one: Reduced, mine: list[str], more: list[str]) -> None:
    """Add further values to those of a reduction."""
    if one.op == "sum":
        body.add(f"{mine[0]} += {more[0]}")
    elif one.op == "max":
        body.add(f"{mine[0]} = tl.maximum({mine[0]}, {more[0]})")
    else:
        peak = body.name(f"tl.maximum({mine[0]}, {more[0]})")
        base = body.name(_base(peak))
        both = (f"{total} * tl.exp2({top} - {base})" for top, total in (mine, more))
        body.add(f"{mine[1]} = {' + '.join(both)}", f"{mine[0]} = {peak}")


def _far(step: PassPlan, seen: Mapping[Node, int]) -> str:
    """Write the function that reduces a far tile for the rows i, along AXIS, and stores at `at`, `part` apart."""
    body = _Body()
    body.load([one.far for one in step.reduced], seen, "V", "i")
    for n, name in enumerate(name for one in step.reduced for name in _reduce(body, one, one.far)):
        body.add(f"tl.store(at + {n} * part, {name})")
    return body.text("s", "inside", "V", "stride", "i", "at", "part", *_constants("AXIS"))


def _fold(step: PassPlan, first: int) -> str:
    """Write the kernel that adds the values of the far tiles of a panel (P: value, tile, row) to those of its rows."""
    body = _Body()
    body.add("at = tl.program_id(0) * ROWS + tl.arange(0, ROWS)")
    body.add("begin, end = band(begins, ends, top + tl.program_id(0) * ROWS, B)")
    for n, (name, _) in enumerate(_numbers(step), first):
        body.add(f"{name} = tl.load(R + {n} * stride + top + at)")
    body.add("for start in range(0, slots, SLOTS):")
    body.depth += 1
    body.add("slot = start + tl.arange(0, SLOTS)")
    body.add("far = (left + slot * B < begin) | (left + slot * B >= end)")
    body.add("given = P + slot[:, None] * side + at[None, :]")
    for n, (name, neutral) in enumerate(_numbers(step)):
        body.add(f"{name}_more = tl.load(given + {n} * part, (far & (slot < slots))[:, None], {body.value(neutral)})")
    for one, mine in _each(step):
        more = [f"{name}_more" for name in mine]
        if one.op == "expsum":
            peak = body.name(f"tl.max({more[0]}, 0)")
            more = [peak, body.name(f"tl.sum({more[1]} * tl.exp2({more[0]} - {_base(peak)}[None, :]), 0)")]
        else:
            more = [body.name(f"tl.{one.op}({more[0]}, 0)")]
        _combine(body, one, mine, more)
    body.depth -= 1
    for n, (name, _) in enumerate(_numbers(step), first):
        body.add(f"tl.store(R + {n} * stride + top + at, {name})")
    sizes = ("part", "side", "slots", "stride", "top", "left")
    return body.text("P", "R", "begins", "ends", *sizes, *_constants("B", "SLOTS", "ROWS"))


def _band(step: PassPlan, seen: Mapping[Node, int], earlier: Mapping[Node, int], after: Mapping[int, Value]) -> str:
    """Write the kernel that reduces the band of a tile of rows, adds constants for the pairs outside, and goes on."""
    body = _Body()
    body.add("AXIS: tl.constexpr = 1", "top = tl.program_id(0) * B", "row = top + tl.arange(0, B)", "i = row[:, None]")
    body.add("begin, end = band(begins, ends, top, B)")
    for name, neutral in _numbers(step):
        body.add(f"{name} = tl.full((B,), {body.value(neutral)}, tl.float32)")
    body.load([one.near for one in step.reduced], seen, "V", "i")
    body.add("for left in range(begin, end, B):")
    body.depth += 1
    body.add("s = similarities(X, top, left, B, DEPTH, WIDTH)")
    body.add("positive, negative, inside = pair_masks(labels, row, left + tl.arange(0, B), N)")
    for one, mine in _each(step):
        _combine(body, one, mine, _reduce(body, one, one.near))
    body.depth -= 1
    body.add("outside = (N - (tl.minimum(end, N) - begin)).to(tl.float32)")
    for one, mine in _each(step):
        if level(one.far) == CONSTANT and one.far != NEUTRAL[one.op]:
            peak = f"tl.where(outside > 0, {body.value(one.far)}, float('-inf'))"
            more = {"sum": [f"outside * {body.value(one.far)}"], "max": [peak], "expsum": [peak, "outside"]}
            _combine(body, one, mine, more[one.op])
    for n, (name, _) in enumerate(_numbers(step), len(earlier)):
        body.add(f"tl.store(R + {n} * stride + row, {name})")
    body.names = {node: name for one, names in _each(step) for node, name in zip(one.gives, names, strict=True)}
    _store_rows(body, after, earlier)
    inputs = ("X", "labels", "V", "R", "begins", "ends", "N", "stride")
    return body.text(*inputs, *_constants("B", "DEPTH", "WIDTH"))
