"""Expressions: a row function as a graph of operations on pairs and rows, kept in its simplest form.

The leaves belong to a pair: s, positive, negative. A reduction (sum, max, expsum) computes a value of a row from its
pairs. Every other operation works entry by entry. Constants are Python numbers. Equal expressions are one object.
"""

import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

LOG2E = math.log2(math.e)
LEAVES = ("s", "positive", "negative")
# expsum(x) is Σ 2^(x − max x): with max(x) beside it, a sum of powers that neither over- nor underflows.
NEUTRAL = {"sum": 0.0, "max": -math.inf, "expsum": -math.inf}

CONSTANT, ROW, PAIR = range(3)


@dataclass(frozen=True, eq=False)
class Node:
    """An operation on nodes and constants."""

    op: str
    args: "tuple[Value, ...]"
    level: int
    """PAIR if the value differs from pair to pair, ROW if all pairs of a row share it."""


Value: TypeAlias = Node | float | bool


def level(x: Value) -> int:
    """Return CONSTANT, ROW or PAIR."""
    return x.level if isinstance(x, Node) else CONSTANT


def is_bool(x: Value) -> bool:
    """Return whether it is a truth value, and not a number."""
    if not isinstance(x, Node):
        return isinstance(x, bool)
    return x.op in _TRUTHS or (x.op == "where" and is_bool(x.args[1]))


def _guarded(function: Callable[[float], float], otherwise: float) -> Callable[[float], float]:
    """Return a function of `math` that returns what a device does where `math` raises."""

    def of(x: float) -> float:
        try:
            return function(x)
        except (ValueError, OverflowError):
            return otherwise

    return of


def _divided(a: float, b: float) -> float:
    return a / b if b else a * math.inf


# The operations entry by entry: the Triton source of each, and its function of constants.
OPERATIONS: dict[str, tuple[str, Callable[..., Any]]] = {
    "add": ("({} + {})", operator.add),
    "mul": ("({} * {})", operator.mul),
    "fma": ("({} * {} + {})", lambda x, a, b: x * a + b),
    "div": ("({} / {})", _divided),
    # As in torch, NaN stays NaN: a diverged model must show in the loss.
    "maximum": ("tl.maximum({}, {}, tl.PropagateNan.ALL)", max),
    "minimum": ("tl.minimum({}, {}, tl.PropagateNan.ALL)", min),
    "abs": ("tl.abs({})", abs),
    "exp2": ("tl.exp2({})", _guarded(lambda x: 2.0**x, math.inf)),
    "log": ("tl.log({})", lambda x: _guarded(math.log, math.nan)(x) if x else -math.inf),
    "log1p": ("log1p({})", lambda x: _guarded(math.log1p, math.nan)(x) if x != -1 else -math.inf),
    "sqrt": ("tl.sqrt({})", _guarded(math.sqrt, math.nan)),
    "lt": ("({} < {})", operator.lt),
    "le": ("({} <= {})", operator.le),
    "eq": ("({} == {})", operator.eq),
    "and": ("({} & {})", operator.and_),
    "or": ("({} | {})", operator.or_),
    "not": ("({} == 0)", operator.not_),
    "where": ("tl.where({}, {}, {})", lambda c, a, b: a if c else b),
    "float": ("{}.to(tl.float32)", float),
}
_TRUTHS = {"positive", "negative", "lt", "le", "eq", "and", "or", "not"}
_OF_ANYTHING = {"and", "or", "not", "where", "float"}


@dataclass
class Expressions:
    """Makes nodes: each only once, in its simplest form."""

    known: dict[object, Node] = field(default_factory=dict)

    def node(self, op: str, *args: Value) -> Node:
        """Return a node, without simplifying it."""
        key = (op, *((type(x), x) for x in args))
        if key not in self.known:
            widest = PAIR if op in LEAVES else ROW if op in NEUTRAL else max(map(level, args))
            self.known[key] = Node(op, args, widest)
        return self.known[key]

    def make(self, op: str, *args: Value) -> Value:
        """Return the value of an operation: a constant if it can be computed now, else a simplified node."""
        if op not in _OF_ANYTHING:
            args = tuple(self.make("float", x) if is_bool(x) else x for x in args)
        if op in OPERATIONS and not any(isinstance(x, Node) for x in args):
            return OPERATIONS[op][1](*args)
        simpler = getattr(self, f"_{op}", None)
        return self.node(op, *args) if simpler is None else simpler(*args)

    def substitute(self, x: Value, known: Mapping[Node, Value]) -> Value:
        """Replace some nodes in an expression of a pair by known values. Nodes of the whole row stay."""
        done = dict(known)

        def walk(x: Value) -> Value:
            if isinstance(x, Node) and x not in done:
                kept = x.level < PAIR or x.op in LEAVES
                done[x] = x if kept else self.make(x.op, *map(walk, x.args))
            return done[x] if isinstance(x, Node) else x

        return walk(x)

    # Simpler forms. Factors and summands of a pair that are constant in its row are gathered into one x·a + b; a mask
    # is moved outwards, until an equal one encloses it.

    def _float(self, x: Value) -> Value:
        return self.node("float", x) if is_bool(x) else x

    def _add(self, a: Value, b: Value) -> Value:
        a, b = (a, b) if level(a) >= level(b) else (b, a)
        return a if b == 0 else self.make("fma", a, 1.0, b) if level(b) < level(a) == PAIR else self.node("add", a, b)

    def _mul(self, a: Value, b: Value) -> Value:
        a, b = (a, b) if level(a) >= level(b) else (b, a)
        if b == 0 or b == 1:
            return a if b else 0.0
        return self.make("fma", a, b, 0.0) if level(b) < level(a) == PAIR else self.node("mul", a, b)

    def _div(self, a: Value, b: Value) -> Value:
        return 0.0 if a == 0 else self.node("div", a, b) if isinstance(b, Node) else self.make("mul", a, _divided(1, b))

    def _fma(self, x: Value, a: Value, b: Value) -> Value:
        if not isinstance(x, Node) or x.level < PAIR:
            return self.make("add", self.make("mul", x, a), b)
        if a == 1 and b == 0:
            return x
        if x.op == "fma":
            y, c, d = x.args
            return self.make("fma", y, self.make("mul", c, a), self.make("add", self.make("mul", d, a), b))
        return self._into_where("fma", x, a, b) or self.node("fma", x, a, b)

    def _exp2(self, x: Node) -> Value:
        return self._into_where("exp2", x) or self.node("exp2", x)

    def _into_where(self, op: str, x: Node, *others: Value) -> Value | None:
        """Return f(where(c, a, k)) as where(c, f(a), f(k)), if f(k) is a constant like k; else None."""
        if x.op != "where" or isinstance(x.args[2], Node):
            return None
        condition, a, k = x.args
        if not any(isinstance(other, Node) for other in others):
            k = OPERATIONS[op][1](k, *others)
        elif k == 0:
            # Here and below f is k·scale + shift, and k must stay what it is.
            if others[1] != 0:
                return None
        elif k not in (math.inf, -math.inf) or isinstance(others[0], Node) or others[0] <= 0:
            return None
        return self.make("where", condition, self.make(op, a, *others), k)

    def _and(self, a: Value, b: Value) -> Value:
        a, b = (a, b) if isinstance(a, Node) else (b, a)
        return self.node("and", a, b) if isinstance(b, Node) else a if b else False

    def _or(self, a: Value, b: Value) -> Value:
        a, b = (a, b) if isinstance(a, Node) else (b, a)
        return self.node("or", a, b) if isinstance(b, Node) else True if b else a

    def _where(self, condition: Value, a: Value, b: Value) -> Value:
        if not isinstance(condition, Node):
            return a if condition else b
        a = self.substitute(a, dict.fromkeys(_parts(condition), True))
        b = self.substitute(b, {condition: False})
        return a if type(a) is type(b) and a == b else self.node("where", condition, a, b)


def _parts(condition: Value) -> Iterator[Node]:
    """Yield the conditions that hold wherever this one does."""
    if isinstance(condition, Node):
        yield condition
        for part in condition.args if condition.op == "and" else ():
            yield from _parts(part)


def within(values: Iterable[Value], into: Callable[[Node], bool] = lambda node: True) -> list[Node]:
    """Return the nodes of some values, each after its arguments; `into(node)` says whether to visit those."""
    seen: dict[Node, None] = {}

    def walk(x: Value) -> None:
        if isinstance(x, Node) and x not in seen:
            for arg in x.args if into(x) else ():
                walk(arg)
            seen[x] = None

    for value in values:
        walk(value)
    return list(seen)


def reductions(values: Iterable[Value]) -> list[Node]:
    """Return the reductions that values need, inner ones first."""
    return [node for node in within(values) if node.op in NEUTRAL]
