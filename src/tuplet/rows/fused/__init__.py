"""Row functions as GPU programs, for the table of a large batch with itself.

A row function is traced once into expressions of a pair and its row (`trace`, `expressions`), these into an order of
work (`plan`), that into Triton (`emit`, `kernels`), and the result is run tile by tile (`run`): the table is never in
memory, each of its tiles is formed once for the reductions and once for the weights, and serves rows and columns alike.
No loss knows of it. What cannot be traced is walked block by block as ever.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._triton import has_triton, has_triton_package

from tuplet.rows.fused.settings import HiddenStateError, settings

if TYPE_CHECKING:
    from tuplet.rows.fused.emit import Program

# From how many rows on a batch is worth a program: launching one takes Python a millisecond or two whatever its size,
# and only a graph (`tuplet.rows.replay`) takes that away.
LEAST_ROWS = 8192
PROGRAMS_KEPT = 64
# So many row functions in a row may be new before a new one must come twice to be traced: settings that change at every
# call are better off without.
NEW_IN_A_ROW = 8

_programs: "OrderedDict[Hashable, Program | None]" = OrderedDict()
_new: list[Hashable] = []
_ran: "ContextVar[list[Program] | None]" = ContextVar("programs that ran alone", default=None)


class NoProgramError(Exception):
    """A walk has no program where nothing but programs may run."""


def suits(x: Tensor) -> bool:
    """Whether there is a machine for it: bf16 vectors on a GPU like those it is tuned for, or Triton's interpreter."""
    if torch.compiler.is_compiling() or x.dtype != torch.bfloat16 or x.shape[0] < LEAST_ROWS:
        return False
    if x.is_cuda:
        return has_triton() and torch.version.hip is None and torch.cuda.get_device_capability(x.device) >= (9, 0)
    if not has_triton_package():
        return False
    from triton import knobs

    return bool(knobs.runtime.interpret)


def walk(
    rows: Callable[..., Any], x: Tensor, labels: Tensor, wanted: bool
) -> tuple[Tensor, Tensor, Tensor | None] | None:
    """Σ totals, Σ counts and, where wanted, the gradient of Σ totals by x; None where the function has no program."""
    from tuplet.rows.fused.run import run

    program = _program(rows)
    if program is None:
        return None
    ran = _ran.get()
    if ran is not None:
        ran.append(program)
    return run(program, x, labels, wanted)


@contextmanager
def alone() -> "Iterator[list[Program]]":
    """Nothing but programs may run here: gives those that do, and a walk that has none is a `NoProgramError`."""
    ran: list[Program] = []
    token = _ran.set(ran)
    try:
        yield ran
    finally:
        _ran.reset(token)


def without_program() -> None:
    """Said by the engine before it walks block by block."""
    if not torch.compiler.is_compiling() and _ran.get() is not None:
        raise NoProgramError("a walk has no program")


def _program(rows: Callable[..., Any]) -> "Program | None":
    try:
        key = settings(rows)
    except HiddenStateError:
        return None
    if key not in _programs:
        if len(_new) >= NEW_IN_A_ROW and _new[-1] != key:
            _new[-1] = key
            return None
        _new.append(key)
        _programs[key] = _compile(rows)
        if len(_programs) > PROGRAMS_KEPT:
            _programs.popitem(last=False)
    else:
        _new.clear()
        _programs.move_to_end(key)
    return _programs[key]


def _compile(rows: Callable[..., Any]) -> "Program | None":
    # Tracing takes half a second to import, and Triton need not be there: only who needs them pays for them.
    from tuplet.rows.fused.emit import emit
    from tuplet.rows.fused.expressions import Expressions
    from tuplet.rows.fused.plan import plan
    from tuplet.rows.fused.trace import UntraceableError, trace

    make = Expressions()
    try:
        return emit(plan(trace(rows, make), make))
    except UntraceableError:
        return None
