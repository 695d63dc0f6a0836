"""On a GPU a small batch is all launches: a hundred kernels of two microseconds, each launched in ten.

So a loss is captured once for its shapes as a CUDA graph, value and gradients together, and replayed with one launch.
What a graph depends on is its key: shapes, types, options, every setting of the loss and where its parameters lie. A
loss that reads the device's values while it runs, or is given something that a graph cannot follow, runs as it is.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn

from tuplet.rows.once import first_derivative

# Beyond this a table keeps a GPU busy for longer than its launches take, and its memory is better given back.
LARGEST_TABLE_BYTES = 64 << 20
# Graphs that one loss keeps, the most recently used: batches of many different sizes would otherwise pile up.
GRAPHS_KEPT = 8

Run = Callable[[Sequence[Tensor]], Tensor]

_graphs: WeakKeyDictionary[nn.Module, "OrderedDict[Any, _Graph | None]"] = WeakKeyDictionary()


def replayable(queries: Tensor, columns: int) -> bool:
    """Whether graphs are for this: on a GPU, small, and nobody else compiling or capturing."""
    return (
        queries.is_cuda
        and not torch.compiler.is_compiling()
        and not torch.cuda.is_current_stream_capturing()
        and queries.shape[0] * columns * 4 <= LARGEST_TABLE_BYTES
    )


def replay(loss: nn.Module, run: Run, inputs: Sequence[Tensor], options: Any) -> Tensor:
    """run(inputs), by a graph where that can be had; differentiable by the float inputs and the loss's parameters."""
    grad = torch.is_grad_enabled()
    settings, learned = _settings(loss)
    moving = tuple(grad and x.requires_grad for x in inputs)
    key = (tuple((x.shape, x.dtype, x.device) for x in inputs), moving, grad, options, settings)
    graphs = _graphs.setdefault(loss, OrderedDict())
    if key in graphs:
        # Taken out and put back: at the end, as the most recently used.
        graph = graphs.pop(key)
    else:
        graph = _capture(run, inputs, moving, learned if grad else [])
        if len(graphs) == GRAPHS_KEPT:
            graphs.popitem(last=False)
    graphs[key] = graph
    return run(inputs) if graph is None else _Replayed.apply(graph, len(inputs), *inputs, *learned)


_PLAIN = frozenset((bool, int, float, str, type(None)))


def _settings(loss: nn.Module) -> tuple[tuple[Any, ...], list[Tensor]]:
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
        settings += [
            (name, value if type(value) in _PLAIN else id(value)) for name, value in inside.items() if name[0] != "_"
        ]
    return tuple(settings), learned


class _Lent:
    """The gradients where a graph left them, for as long as somebody may want them."""

    def __init__(self, gradients: Sequence[Tensor]) -> None:
        self.gradients = gradients


class _Graph:
    """A captured loss: fixed places for what goes in, and for the value and the gradients that come out."""

    def __init__(self, inputs: Sequence[Tensor], moving: Sequence[bool], learned: Sequence[Tensor]) -> None:
        self.inputs = [x.detach().clone().requires_grad_(moves) for x, moves in zip(inputs, moving, strict=True)]
        self.moving = [x for x in self.inputs if x.requires_grad] + list(learned)
        self.graph = torch.cuda.CUDAGraph()
        self.value: Tensor
        self.gradients: Sequence[Tensor]
        self.lent: Callable[[], _Lent | None] = lambda: None

    def step(self, run: Run) -> None:
        """What is captured: the value, and its derivative by everything that moves."""
        value = run(self.inputs)
        gradients = torch.autograd.grad(value, self.moving, materialize_grads=True) if self.moving else ()
        self.value, self.gradients = value.detach(), gradients

    def replay(self, inputs: Sequence[Tensor]) -> tuple[Tensor, "_Lent"]:
        """The value of these inputs, and the gradients."""
        lent = self.lent()
        if lent is not None:
            # A value of an earlier call may still be differentiated.
            lent.gradients = [gradient.clone() for gradient in lent.gradients]
        for place, x in zip(self.inputs, inputs, strict=True):
            place.copy_(x)
        self.graph.replay()
        lent = _Lent(self.gradients)
        self.lent = ref(lent)
        return self.value.clone(), lent


def _capture(run: Run, inputs: Sequence[Tensor], moving: Sequence[bool], learned: Sequence[Tensor]) -> _Graph | None:
    graph = _Graph(inputs, moving, learned)
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        graph.step(run)  # whatever is compiled or set up at a first call
        try:
            with _without_waiting():
                graph.step(run)
        except RuntimeError as error:
            if "synchroniz" not in str(error):
                raise
            return None
        finally:
            torch.cuda.current_stream().wait_stream(stream)
    with torch.cuda.graph(graph.graph):
        graph.step(run)
    return graph


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
    def forward(ctx: Any, graph: _Graph, count: int, *tensors: Tensor) -> Tensor:
        value, ctx.lent = graph.replay(tensors[:count])
        ctx.moving = [x.requires_grad for x in graph.inputs] + [True] * (len(tensors) - count)
        ctx.save_for_backward(*(x for x, moves in zip(tensors, ctx.moving, strict=True) if moves))
        return value

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        formed = zip(ctx.lent.gradients, ctx.saved_tensors, strict=True)
        gradients = iter([first_derivative(gradient * cotangent, x) for gradient, x in formed])
        return None, None, *(next(gradients) if moves else None for moves in ctx.moving)
