"""Fused programs: row functions as Triton kernels, for the table of a large batch with itself.

A row function is traced once into expressions of a pair and its row (`trace`, `expressions`), these into an order of
work (`plan`), that into Triton (`emit`, `kernels`), and the program runs tile by tile (`run`). The table is never in
memory: each of its tiles is formed once for the reductions and once for the weights, and serves rows and columns alike.

Nothing else needs this package: `tuplet.rows.paths` asks it for a program and takes another path where there is none.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils._triton import has_triton, has_triton_package

from tuplet.rows.key import HiddenStateError, cache_key

if TYPE_CHECKING:
    from tuplet.rows.fused.emit import Program

# A batch of fewer rows does not pay: launching a program takes Python a millisecond or two whatever its size, and only
# a graph (`tuplet.rows.cuda_graphs`) saves that.
LEAST_ROWS = 8192
PROGRAMS_KEPT = 64
# After this many new row functions in a row, the next must come twice before it is traced: settings that change at
# every call would cost a compilation each.
NEW_IN_A_ROW = 8

_programs: "OrderedDict[Hashable, Program | None]" = OrderedDict()
_new: list[Hashable] = []


def suits(x: Tensor) -> bool:
    """Return whether vectors are right for a program: bf16, on a GPU that it is tuned for or in the interpreter."""
    if torch.compiler.is_compiling() or x.dtype != torch.bfloat16 or x.shape[0] < LEAST_ROWS:
        return False
    if x.is_cuda:
        return has_triton() and torch.version.hip is None and torch.cuda.get_device_capability(x.device) >= (9, 0)
    if not has_triton_package():
        return False
    from triton import knobs

    return bool(knobs.runtime.interpret)


def program_for(rows: Callable[..., Any], device: torch.device) -> "Program | None":
    """Return the program of a row function, traced on first use; None if the function must run unfused."""
    try:
        key = cache_key(rows, device)
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


def kept_programs() -> "list[Program | None]":
    """Return the programs that are kept, so that a captured graph can keep those that it launches."""
    return list(_programs.values())


def _compile(rows: Callable[..., Any]) -> "Program | None":
    # Tracing takes half a second to import, and Triton may be missing.
    from tuplet.rows.fused.emit import emit
    from tuplet.rows.fused.expressions import Expressions
    from tuplet.rows.fused.plan import plan
    from tuplet.rows.fused.trace import UntraceableError, trace

    make = Expressions()
    try:
        return emit(plan(trace(rows, make), make))
    except UntraceableError:
        return None
