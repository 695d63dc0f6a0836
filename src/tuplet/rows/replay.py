"""On a GPU a small batch is all launches: a hundred kernels of two microseconds, each launched in ten.

So a loss is captured once for its shapes as a CUDA graph, value and gradients together, and replayed with one launch.
What a graph depends on is its key: shapes, types, options, every setting of the loss and where its parameters lie. A
loss that reads the device's values while it runs, or is given something that a graph cannot follow, runs as it is.

A large batch keeps the GPU busy for longer than its launches take, unless it is a program (`tuplet.rows.fused`), whose
kernels are quicker than Python. Such a graph holds some hundred megabytes between calls, so it has to be asked for
twice in a row, and a loss keeps one of them.
"""

import functools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from numbers import Number
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn

from tuplet.rows import fused
from tuplet.rows.once import first_derivative

# Up to this a table is small.
SMALL_TABLE_BYTES = 64 << 20
# Up to this many rows a program is captured: its graph then keeps about 0.6 GiB.
LARGEST_PROGRAM_ROWS = 16_384
# Graphs that one loss keeps, the most recently used: batches of many different sizes would otherwise pile up.
SMALL_KEPT, LARGE_KEPT = 8, 1

Run = Callable[[Sequence[Tensor]], Tensor]


def is_small(queries: Tensor, columns: int) -> bool:
    """Whether the table of these queries is a small one."""
    return queries.shape[0] * columns * 4 <= SMALL_TABLE_BYTES


def replayable(queries: Tensor, columns: int) -> bool:
    """Whether graphs are for this: on a GPU, small or perhaps a program, and nobody else compiling or capturing."""
    return (
        queries.is_cuda
        and not torch.compiler.is_compiling()
        and not torch.cuda.is_current_stream_capturing()
        and (is_small(queries, columns) or (queries.shape[0] <= LARGEST_PROGRAM_ROWS and fused.suits(queries)))
    )


def replay(loss: nn.Module, run: Run, inputs: Sequence[Tensor], small: bool, options: Any) -> Tensor:
    """run(inputs), by a graph where that can be had; differentiable by the float inputs and the loss's parameters."""
    grad = torch.is_grad_enabled()
    settings, learned = _settings(loss)
    shapes = [(x.shape, x.dtype, x.device, grad and x.requires_grad) for x in inputs]
    key = (grad, options, *shapes, *settings)
    kept = _kept.get(loss)
    if kept is None:
        kept = _kept[loss] = _Kept()
    graph = kept.find(key, small, lambda: _capture(loss, run, inputs, learned if grad else [], small))
    return run(inputs) if graph is None else _Replayed.apply(graph, *inputs, *learned)


class _Kept:
    """The graphs of one loss, the most recently used last; None where there can be none."""

    def __init__(self) -> None:
        self.small: OrderedDict[Any, _Graph | None] = OrderedDict()
        self.large: OrderedDict[Any, _Graph | None] = OrderedDict()
        self.asked: Any = None
        """A large graph that was asked for once, just now."""

    def find(self, key: Any, small: bool, capture: Callable[[], "_Graph | None"]) -> "_Graph | None":
        """The graph of a key, captured where it is new; a large one where its key comes the second time in a row."""
        graphs, most = (self.small, SMALL_KEPT) if small else (self.large, LARGE_KEPT)
        asked, self.asked = self.asked, None
        if key in graphs:
            graphs.move_to_end(key)
            return graphs[key]
        if not small and asked != key:
            # Sizes that take turns would push each other out, each captured anew at every call.
            self.asked = key
            return None
        if len(graphs) == most:
            graphs.popitem(last=False)
        graphs[key] = capture()
        return graphs[key]


_kept: WeakKeyDictionary[nn.Module, _Kept] = WeakKeyDictionary()
_PLAIN = frozenset((bool, int, float, str, type(None)))


def _settings(loss: nn.Module) -> tuple[list[Any], list[Tensor]]:
    """Everything about a loss that a captured graph takes for granted; and the parameters that learn.

    By hand, since the walks of `nn.Module` take longer than a small loss does.
    """
    settings: list[Any] = []
    learned: list[Tensor] = []
    modules = [loss]
    for module in modules:
        inside = vars(module)
        modules += [child for child in inside["_modules"].values() if child is not None]
        for tensors in (inside["_parameters"].values(), inside["_buffers"].values()):
            settings += [(x.data_ptr(), x.dtype, x.requires_grad) for x in tensors if x is not None]
        learned += [x for x in inside["_parameters"].values() if x is not None and x.requires_grad]
        # Names that begin with "_" are torch's own.
        settings += [(name, _seen(value)) for name, value in inside.items() if name[0] != "_"]
    return settings, learned


def _seen(value: Any) -> Any:
    """A setting as what it says; where that cannot be told, as the object that it is."""
    if type(value) in _PLAIN or isinstance(value, Number):
        return value
    if isinstance(value, dict):
        return tuple([(_seen(key), _seen(part)) for key, part in value.items()])
    if isinstance(value, tuple | list | set | frozenset):
        return tuple([_seen(part) for part in value])
    return id(value)


class _Lent:
    """The gradients where a graph left them, for as long as somebody may want them."""

    def __init__(self, gradients: Sequence[Tensor]) -> None:
        self.gradients = gradients


class _Graph:
    """A captured loss: fixed places for what goes in, and for the value and the gradients that come out."""

    def __init__(self, inputs: Sequence[Tensor], learned: Sequence[Tensor]) -> None:
        grad = torch.is_grad_enabled()
        self.inputs = [x.detach().clone().requires_grad_(grad and x.requires_grad) for x in inputs]
        given = [*self.inputs, *learned]
        self.places = [k for k, x in enumerate(given) if x.requires_grad]
        """Which of what is given moves."""
        self.moving = [given[k] for k in self.places]
        self.launch: Callable[[], None]
        self.programs: Sequence[Any] = ()
        """What must not be unloaded while the graph is there."""
        self.value: Tensor
        self.gradients: Sequence[Tensor]
        self.lent: Callable[[], _Lent | None] = lambda: None

    def step(self, run: Run) -> None:
        """What is captured: the value, and its derivative by everything that moves."""
        value = run(self.inputs)
        gradients = torch.autograd.grad(value, self.moving, materialize_grads=True) if self.moving else ()
        self.value, self.gradients = value.detach(), gradients

    def replay(self, given: Sequence[Tensor]) -> tuple[Tensor, "_Lent"]:
        """The value of the inputs that are given, before what learns, and the gradients."""
        lent = self.lent()
        if lent is not None:
            # A value of an earlier call may still be differentiated.
            lent.gradients = [gradient.clone() for gradient in lent.gradients]
        for place, x in zip(self.inputs, given, strict=False):
            place.copy_(x)
        self.launch()
        lent = _Lent(self.gradients)
        self.lent = ref(lent)
        return self.value.clone(), lent


def _capture(
    loss: nn.Module, run: Run, inputs: Sequence[Tensor], learned: Sequence[Tensor], small: bool
) -> _Graph | None:
    if not _together(loss, inputs):
        return None
    graph, stream = _Graph(inputs, learned), _stream(inputs[0].device)
    with torch.cuda.device(stream.device):
        stream.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(stream):
                with nullcontext(()) if small else fused.alone() as graph.programs:
                    graph.step(run)  # whatever is compiled or set up at a first call
                with _without_waiting():
                    graph.step(run)
        except fused.NoProgramError:
            return None
        except RuntimeError as error:
            if "synchroniz" not in str(error):
                raise
            return None
        finally:
            torch.cuda.current_stream().wait_stream(stream)
        captured = torch.cuda.CUDAGraph()
        with torch.cuda.graph(captured, stream=stream):
            graph.step(run)
    graph.launch = captured.replay
    return graph


def _together(loss: nn.Module, inputs: Sequence[Tensor]) -> bool:
    """Whether a loss holds nothing on another device than its inputs: a graph takes a number on the CPU as constant."""
    held = [x for module in loss.modules() for x in vars(module).values() if isinstance(x, Tensor)]
    return len({x.device for x in (*inputs, *loss.parameters(), *loss.buffers(), *held)}) == 1


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """Where graphs are captured: a stream beside the others."""
    return torch.cuda.Stream(device)


@contextmanager
def _without_waiting() -> Iterator[None]:
    """Turn every wait for the device into an error."""
    before = torch.cuda.get_sync_debug_mode()
    torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode(before)


class _Replayed(torch.autograd.Function):
    """The value comes with its gradients; what comes back scales them."""

    @staticmethod
    def forward(ctx: Any, graph: _Graph, *given: Tensor) -> Tensor:
        value, ctx.lent = graph.replay(given)
        ctx.places, ctx.count = graph.places, len(given)
        ctx.save_for_backward(*[given[k] for k in graph.places])
        return value

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        gradients: list[Tensor | None] = [None] * ctx.count
        for k, gradient, x in zip(ctx.places, ctx.lent.gradients, ctx.saved_tensors, strict=True):
            gradients[k] = first_derivative(gradient * cotangent, x)
        return None, *gradients
