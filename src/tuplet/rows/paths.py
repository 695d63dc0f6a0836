"""Execution paths: the one place that decides how a piece of work runs.

The table below lists them; docs/engine.md explains them. All give the same value and gradient up to rounding.
"""

import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, get_args

import torch
from torch.utils._triton import has_triton

from tuplet.errors import did_you_mean, warn
from tuplet.rows import geometry as geo
from tuplet.rows.masks import equal_labels
from tuplet.rows.rules import marking

if TYPE_CHECKING:
    from tuplet.rows.view import View

# The compiler of programs may be missing: everything else works without it.
try:
    from tuplet.rows import fused
except ImportError:
    fused = None  # type: ignore[assignment]

# The size of one table; ten to twenty live at once while a block is differentiated. On a CPU a table should stay near
# the caches, a GPU needs long products. It is a function of shapes, types and the kind of device alone, never of the
# memory that happens to be free, since it decides the rounding.
TABLE_BYTES = {"cpu": 8 << 20, "cuda": 128 << 20}
# Blocks of this many entries or more are compiled on a GPU: the first call takes seconds, later ones a fraction of the
# time. A smaller table takes a GPU less time than the launches of its kernels.
COMPILED_ENTRIES = 1 << 20
# Named pairs are computed alone where a row is this many times as long as its list of positives.
NAMED_FACTOR = 128
# Tables up to this size are captured as CUDA graphs: the launches of a larger one take less time than its work.
CAPTURED_TABLE_BYTES = 64 << 20
# Up to this many rows a fused program is captured, too: its graph then keeps about 0.6 GiB.
CAPTURED_PROGRAM_ROWS = 16_384

Path = Literal["cuda_graph", "table", "named", "fused", "compiled", "eager"]
#: How the results of a row function are joined. "total": sum the totals and the counts of all queries; "each": keep a
#: row for each query; "sum": sum a tensor over blocks.
Reduce = Literal["total", "each", "sum"]

_pinned: ContextVar[str | None] = ContextVar("execution", default=os.environ.get("TUPLET_EXECUTION") or None)


class ExecutionError(RuntimeError):
    """A pinned execution path is impossible here."""


@contextmanager
def execution(path: Path) -> Iterator[None]:
    """Pin one execution path, to debug or to compare; the environment variable TUPLET_EXECUTION does the same.

    Inside `torch.compile` it has no effect.

    Args:
        path: `"eager"`, `"compiled"`, `"fused"`, `"cuda_graph"`, `"table"` or `"named"`.

    Raises:
        ValueError: there is no such path.
        ExecutionError: raised by a loss that cannot run on this path.

    >>> from tuplet.losses import RAWLoss
    >>> with execution("eager"):
    ...     round(RAWLoss()(torch.eye(4), torch.tensor([0, 0, 1, 1])).item(), 4)
    0.6566
    """
    token = _pinned.set(_checked(path))
    try:
        yield
    finally:
        _pinned.reset(token)


def _checked(path: str) -> str:
    if path not in get_args(Path):
        raise ValueError(f"there is no execution path {path!r}; {did_you_mean(path, get_args(Path))}")
    return path


@dataclass
class Work:
    """A piece of work, with the facts that decide on its path."""

    view: "View"
    stage: Literal["call", "cache", "rows", "naming"]
    """A whole call of a loss, a table to be read several times, a reduction of rows, or the naming of its pairs."""
    rows: Callable[..., Any] | None = None
    reduce: Reduce = "total"
    inputs: int = 0
    """The number of extra inputs of the row function."""
    named: int | None = None
    """The number of columns that a mining rule names for each query; None without such a rule."""

    @property
    def columns(self) -> int:
        """The number of gallery members."""
        return self.view.column_vectors.shape[0]

    @cached_property
    def program(self) -> Any:
        """The fused program of the row function behind its mining rule, or None."""
        assert self.rows is not None
        rule = self.view.rule
        rows = self.rows if rule is None else marking(rule, self.rows, self.view)
        return fused.program_for(rows, self.view.queries.device) if fused else None


# When a path pays, and what prevents it.


def _graph_pays(work: Work) -> bool:
    x = work.view.queries
    program = x.shape[0] <= CAPTURED_PROGRAM_ROWS and fused is not None and fused.suits(x)
    return x.is_cuda and (is_small(work.view) or program)


def _graph_prevented(work: Work) -> str | None:
    view = work.view
    if not view.queries.is_cuda:
        return f"the embeddings are on {view.queries.device}, and CUDA graphs need a CUDA device"
    if torch.cuda.is_current_stream_capturing():
        return "another CUDA graph is being captured"
    if view.group is not None:
        return "the batch is distributed over processes"
    if view.same is not equal_labels:
        return "same= is a function of your own, which may do what a graph cannot repeat"
    return "label values are checked" if view.checks_values else None


def _table_pays(work: Work) -> bool:
    view = work.view
    return block_rows_of(view) >= view.size and (view.queries.device.type == "cpu" or is_launch_bound(view))


def _table_prevented(work: Work) -> str | None:
    view = work.view
    if view.group is not None:
        return "the batch is distributed over processes"
    return None if view.gallery is None and view.member else "the gallery is not the batch itself"


def _named_pays(work: Work) -> bool:
    long = work.named is not None and work.columns > NAMED_FACTOR * work.named
    return long and not is_launch_bound(work.view)


def _named_prevented(work: Work) -> str | None:
    return None if work.named is not None else "no mining rule names its pairs"


def _fused_pays(work: Work) -> bool:
    return work.reduce == "total" and fused is not None and fused.suits(work.view.queries)


def _fused_prevented(work: Work) -> str | None:
    view, x = work.view, work.view.queries
    if fused is None:
        return "the package tuplet.rows.fused is not installed"
    if not fused.suits(x):
        given = f"{view.size:,} of {x.dtype} on {x.device}"
        return f"it needs bf16 vectors on a recent GPU, {fused.LEAST_ROWS:,} or more: these are {given}"
    blocks = view.block_rows in (None, default_block_rows(view.size, view.size, x.dtype, x.device))
    alone = view.gallery is None and view.gallery_labels is None and view.valid is None and view.member
    one_process = view.group is None or view.group.world == 1
    plain = view.geometry == "dot" and view.moves_gallery and view.same is equal_labels
    if not (alone and one_process and blocks and plain):
        return "it needs dot products of a batch with itself, with equal labels, in blocks of the default size"
    if work.reduce != "total" or work.inputs:
        return "it needs a row function of the table and the masks alone, that returns a total and a count"
    return None if work.program is not None else "its row function cannot be traced into a program"


def _compiled_pays(work: Work) -> bool:
    return _is_large_on_gpu(work) and _has_compiler()


def _is_large_on_gpu(work: Work) -> bool:
    view = work.view
    return view.queries.is_cuda and min(block_rows_of(view), view.size) * work.columns >= COMPILED_ENTRIES


def _compiled_prevented(work: Work) -> str | None:
    return "Triton cannot be used on this GPU" if work.view.queries.is_cuda and not has_triton() else None


_warned = False


def _has_compiler() -> bool:
    """Return True if blocks can be compiled on this GPU, and warn once if they cannot."""
    global _warned
    if not has_triton() and not _warned:
        _warned = True
        warn(
            "Tuplet runs large batches on this GPU without compiling them, since Triton cannot be used here; "
            "install triton for several times the speed"
        )
    return has_triton()


def _only_if_pinned(work: Work) -> bool:
    return False


class _Row(NamedTuple):
    path: Path
    stage: str
    pays: Callable[[Work], bool]
    prevented: Callable[[Work], str | None]
    """Return the reason why a path cannot run, or None if it can."""


_TABLE = (
    _Row("cuda_graph", "call", _graph_pays, _graph_prevented),
    _Row("table", "cache", _table_pays, _table_prevented),
    _Row("table", "rows", _only_if_pinned, _table_prevented),
    _Row("named", "rows", _named_pays, _named_prevented),
    _Row("fused", "rows", _fused_pays, _fused_prevented),
    _Row("compiled", "rows", _compiled_pays, _compiled_prevented),
    _Row("compiled", "naming", _compiled_pays, _compiled_prevented),
)


def choose(work: Work) -> Path:
    """Return the path of a piece of work: the first row of the table that pays and that nothing prevents, or eager."""
    if work.stage == "rows" and work.view.table is not None:
        return "table"
    if torch.compiler.is_compiling():
        return "named" if _named_pays(work) else "eager"
    pinned = _pinned.get()
    if pinned is not None:
        _checked(pinned)
        # Captured graphs and named pairs are made of other paths.
        if (pinned, work.stage) == ("named", "naming") or (pinned == "cuda_graph" and work.stage != "call"):
            pinned = None
    for row in _TABLE:
        if row.stage != work.stage:
            continue
        if row.path == pinned:
            reason = row.prevented(work)
            if reason is not None:
                refuse_if_pinned(row.path, reason)
            return row.path
        if pinned is None and row.pays(work) and row.prevented(work) is None:
            return row.path
    return "eager"


def refuse_if_pinned(path: Path, reason: str) -> None:
    """Raise where a path is pinned that turned out to be impossible."""
    if _pinned.get() == path:
        raise ExecutionError(f"execution is pinned to {path!r}, but {reason}; pin another path, or none")


# Sizes


def default_block_rows(rows: int, columns: int, dtype: torch.dtype, device: torch.device) -> int:
    """Return the number of rows of a block: as many as fit the budget of a table, at least one, at most all.

    >>> default_block_rows(65_536, 65_536, torch.float32, torch.device("cpu"))
    32
    """
    budget = TABLE_BYTES.get(device.type, TABLE_BYTES["cuda"])
    return max(1, min(rows, budget // (columns * geo.table_dtype(dtype).itemsize)))


def block_rows_of(view: "View", rows: int | None = None) -> int:
    """Return the number of rows of a block, for the queries of a view or for `rows` queries of its gallery."""
    x = view.queries
    return view.block_rows or default_block_rows(
        x.shape[0] if rows is None else rows, view.column_vectors.shape[0], x.dtype, x.device
    )


def is_launch_bound(view: "View") -> bool:
    """Return True if a table is so small for a GPU that only the number of launches counts."""
    return view.queries.is_cuda and view.size * view.column_vectors.shape[0] < COMPILED_ENTRIES


def is_small(view: "View") -> bool:
    """Return True if the table is small enough for a CUDA graph of any kernels."""
    return view.size * view.column_vectors.shape[0] * 4 <= CAPTURED_TABLE_BYTES
