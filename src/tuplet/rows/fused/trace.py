"""Trace a row function: run it on a tiny table, and record its operations as expressions.

It is traced at two sizes, and only operations that are the same for both and known here make a program. For any other
function the engine takes another path.
"""

import operator
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx
from torch._decomp import get_decompositions
from torch.fx.experimental.proxy_tensor import make_fx
from torch.utils._python_dispatch import TorchDispatchMode

from tuplet.rows.fused.expressions import LEAVES, LOG2E, Expressions, Value, is_bool, reductions


class UntraceableError(Exception):
    """The row function does something that a program cannot."""


@dataclass(frozen=True)
class Traced:
    """A row function as expressions: the total and the count of a row, and ∂ total / ∂ s of a pair."""

    total: Value
    count: Value
    weight: Value


def trace(rows: Callable[..., Any], make: Expressions) -> Traced:
    """Return the expressions of rows(table, positive, negative)."""
    traced, again = (Traced(*_Reader(make, *size).read(rows)) for size in ((5, 7), (11, 13)))
    # Equal expressions are one object, so this also finds numbers that were read from a shape.
    if traced != again:
        raise UntraceableError("what it does depends on the size of the table")
    return traced


def _graph(rows: Callable[..., Any], R: int, M: int) -> fx.Graph:
    """Return the graph of a row function and its derivative, for a table of R rows and M columns."""

    def whole(table: Tensor, positive: Tensor, negative: Tensor) -> Any:
        def function(table: Tensor) -> Any:
            total, count = rows(table, positive, negative)
            return torch.where(count > 0, total, 0), count

        vjp: Any = torch.func.vjp
        total, back, count = vjp(function, table, has_aux=True)
        return total, count, back(torch.ones_like(total))[0]

    try:
        with torch.autocast("cpu", enabled=False), torch.device("cpu"), _WithoutValues():
            functional = torch.func.functionalize(whole, remove="mutations")
            decomposed: Any = get_decompositions([torch.ops.aten.logsumexp])
            traced = make_fx(functional, decomposition_table=decomposed)
            return traced(torch.zeros(R, M), *torch.zeros(2, R, M, dtype=torch.bool)).graph
    except Exception as error:
        # A mistake in the function raises its own error where it is called on the whole batch.
        raise UntraceableError(f"it cannot be run on a tiny table: {error}") from error


class _WithoutValues(TorchDispatchMode):
    """Refuse to turn a tensor into a Python number, which would become a constant of the program."""

    def __torch_dispatch__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function is torch.ops.aten._local_scalar_dense.default:
            raise UntraceableError("it reads the value of a tensor")
        return function(*args, **(kwargs or {}))


# Operations of aten, by name. These keep the values; shapes are checked in any case:
_SAME = {
    "detach", "alias", "clone", "contiguous", "unsqueeze", "expand", "squeeze", "view", "reshape", "_unsafe_view",
    "lift_fresh_copy", "_to_copy",
}  # fmt: skip
# these return a constant:
_FILLED = {"ones_like": 1.0, "ones": 1.0, "new_ones": 1.0, "zeros_like": 0.0, "zeros": 0.0, "new_zeros": 0.0}
_FULL = {"scalar_tensor": 0, "full": 1, "full_like": 1, "new_full": 2}
# these are operations of `expressions`:
_PLAIN = {
    **{name: name for name in ("mul", "div", "maximum", "minimum", "abs", "log", "log1p", "sqrt", "lt", "le", "eq")},
    **{f"{kind}_{name}": name for kind in ("bitwise", "logical") for name in ("and", "or", "not")},
    "where": "where",
}
# and these are composed of them; m("name", …) makes one.
_MADE: dict[str, Callable[..., Value]] = {
    "add": lambda m, a, b, alpha=1.0: m("add", a, m("mul", b, alpha)),
    "sub": lambda m, a, b, alpha=1.0: m("add", a, m("mul", b, -alpha)),
    "rsub": lambda m, a, b, alpha=1.0: m("add", b, m("mul", a, -alpha)),
    "neg": lambda m, x: m("mul", x, -1.0),
    "reciprocal": lambda m, x: m("div", 1.0, x),
    "gt": lambda m, a, b: m("lt", b, a),
    "ge": lambda m, a, b: m("le", b, a),
    "ne": lambda m, a, b: m("not", m("eq", a, b)),
    "exp": lambda m, x: m("exp2", m("mul", x, LOG2E)),
    "relu": lambda m, x: m("maximum", x, 0.0),
    "masked_fill": lambda m, x, mask, value: m("where", mask, value, x),
    "threshold_backward": lambda m, gradient, x, threshold: m("where", m("le", x, threshold), 0.0, gradient),
    "clamp_min": lambda m, x, low: m("maximum", x, low),
    "clamp_max": lambda m, x, high: m("minimum", x, high),
    "clamp": lambda m, x, min=None, max=None: m(
        "minimum", m("maximum", x, -torch.inf if min is None else min), torch.inf if max is None else max
    ),
    "sigmoid": lambda m, x: m("div", 1.0, m("add", _MADE["exp"](m, m("mul", x, -1.0)), 1.0)),
    "sigmoid_backward": lambda m, gradient, y: m("mul", gradient, m("mul", y, _MADE["rsub"](m, y, 1.0))),
    "softplus": lambda m, x, beta=1.0, threshold=20.0: m(
        "where",
        m("lt", threshold, m("mul", x, beta)),
        x,
        m("div", m("log1p", _MADE["exp"](m, m("mul", x, beta))), beta),
    ),
    "softplus_backward": lambda m, gradient, x, beta, threshold: m(
        "mul", gradient, _MADE["sigmoid"](m, m("mul", x, beta))
    ),
}
# Reductions of a row; a minimum is a maximum of negatives, and `any` the maximum of truth values.
_REDUCED: dict[str, Callable[..., Value]] = {
    "sum": lambda m, x: m("sum", x),
    "amax": lambda m, x: m("max", x),
    "max": lambda m, x: m("max", x),
    "amin": lambda m, x: m("mul", m("max", m("mul", x, -1.0)), -1.0),
    "min": lambda m, x: m("mul", m("max", m("mul", x, -1.0)), -1.0),
    "any": lambda m, x: m("lt", 0.0, m("max", m("float", x))),
    "all": lambda m, x: m("not", _REDUCED["any"](m, m("not", x))),
}


class _Reader:
    """Reads the graph of a function of a table of R rows and M columns."""

    def __init__(self, make: Expressions, R: int, M: int) -> None:
        self.make, self.R, self.M = make.make, R, M
        self.values: dict[fx.Node, Any] = {}

    def read(self, rows: Callable[..., Any]) -> list[Value]:
        """Return total, count and weight."""
        graph = _graph(rows, self.R, self.M)
        for node in graph.nodes:
            if node.op == "call_function" and getattr(getattr(node.target, "_schema", None), "is_mutable", False):
                raise UntraceableError(f"{node.target} changes a tensor in place")
        graph.eliminate_dead_code()
        leaves = iter(LEAVES)
        self.peaks = {_source(node.args[0].args[0].args[0]) for node in graph.nodes if _sums_powers(node)}
        for node in graph.nodes:
            if node.op == "output":
                return [self.values[x] for x in node.args[0]]
            self._check(node)
            self.values[node] = self.make(next(leaves)) if node.op == "placeholder" else self._value(node)
        raise AssertionError("a graph without output")

    def _check(self, node: fx.Node) -> None:
        if node.op not in ("placeholder", "call_function"):
            raise UntraceableError("it reads a tensor from elsewhere")
        for x in torch.utils._pytree.tree_leaves(node.meta.get("val")):
            if tuple(x.shape) not in ((self.R, self.M), (self.R, 1), (self.R,), ()):
                raise UntraceableError(f"{node.target} gives a tensor of shape {tuple(x.shape)}")
            if x.dtype not in (torch.float32, torch.bool, torch.int64):
                raise UntraceableError(f"{node.target} computes in {x.dtype}")

    def _value(self, node: fx.Node) -> Any:
        args = [self.values[x] if isinstance(x, fx.Node) else _plain(x) for x in node.args]
        if node.target is operator.getitem:
            if args[1] != 0:
                raise UntraceableError("it uses the place of a largest entry")
            return args[0]
        name = getattr(getattr(node.target, "overloadpacket", None), "__name__", "")
        if name in _SAME:
            return self._converted(node, args[0])
        if name in _FILLED or name in _FULL:
            return self._converted(node, _FILLED[name] if name in _FILLED else args[_FULL[name]])
        if name in _PLAIN and not node.kwargs:
            return self.make(_PLAIN[name], *args)
        if name in _MADE:
            return _MADE[name](self.make, *args, **{key: _plain(x) for key, x in node.kwargs.items()})
        if name == "pow" and args[1] in (1, 2):
            return args[0] if args[1] == 1 else self.make("mul", args[0], args[0])
        if name in _REDUCED:
            return self._reduced(node, name, args)
        raise UntraceableError(f"{node.target} is not supported")

    def _converted(self, node: fx.Node, x: Any) -> Value:
        """Convert to the type of the node: a truth value, or a number."""
        dtype, source = node.meta["val"].dtype, node.args[0]
        if dtype == torch.bool:
            return x if is_bool(x) else self.make("not", self.make("eq", x, 0.0))
        if dtype == torch.int64 and isinstance(source, fx.Node) and source.meta["val"].is_floating_point():
            raise UntraceableError("it rounds to whole numbers")
        return self.make("float", x)

    def _reduced(self, node: fx.Node, name: str, args: list[Any]) -> Value:
        source: Any = node.args[0]
        if tuple(source.meta["val"].shape) != (self.R, self.M) or args[1:2] not in ([1], [-1], [[1]], [[-1]]):
            raise UntraceableError(f"{node.target} does not reduce rows")
        if name == "amax" and _source(source) in self.peaks:
            # In the unit of the powers of 2 that will be summed, so that one pass computes both.
            return self.make("mul", self.make("max", self.make("mul", args[0], LOG2E)), 1 / LOG2E)
        if _sums_powers(node):
            x, c = (self.values[y] for y in source.args[0].args)
            power = self.make("mul", x, LOG2E)
            peak = self.make("max", power)
            if peak in reductions([c]):
                # c is the peak itself, and this 1; but for an empty row, where c is any number and the peak −∞.
                rest = _MADE["exp"](self.make, _MADE["sub"](self.make, self.make("mul", peak, 1 / LOG2E), c))
                return self.make("mul", self.make("expsum", power), rest)
        return _REDUCED[name](self.make, args[0])


def _plain(x: Any) -> Any:
    """Convert whole numbers to floats; return truth values and everything else unchanged."""
    return float(x) if type(x) is int else x


def _source(node: Any) -> Any:
    """Return the node that the values come from, behind detach and alias."""
    while node.target in (torch.ops.aten.detach.default, torch.ops.aten.alias.default):
        node = node.args[0]
    return node


def _sums_powers(node: Any) -> bool:
    """Return whether a node is Σ exp(x − c), where c may be the largest x."""
    for step in (torch.ops.aten.sum.dim_IntList, torch.ops.aten.exp.default):
        if node.target is not step:
            return False
        node = node.args[0]
    plain = not node.kwargs and all(isinstance(x, fx.Node) for x in node.args)
    return node.target is torch.ops.aten.sub.Tensor and plain
