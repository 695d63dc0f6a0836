"""On a GPU a small batch is all launches: a hundred kernels of two microseconds, each launched in ten.

So a loss is captured once for its shapes as a CUDA graph, value and gradients together, and replayed with one launch.
What a graph depends on is its key: shapes, types, options, every setting of the loss and where its parameters lie. A
loss that reads the device's values while it runs, or is given something that a graph cannot follow, runs as it is.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any
from weakref import WeakKeyDictionary

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
    learned = [parameter for parameter in loss.parameters() if parameter.requires_grad]
    grad = torch.is_grad_enabled()
    moving = tuple(grad and x.requires_grad for x in inputs)
    shapes = tuple((x.shape, x.dtype, x.device) for x in inputs)
    key = (shapes, moving, grad, options, _settings(loss))
    graphs = _graphs.setdefault(loss, OrderedDict())
    if key not in graphs:
        graphs[key] = _capture(run, inputs, moving, learned if grad else [])
        if len(graphs) > GRAPHS_KEPT:
            graphs.popitem(last=False)
    graphs.move_to_end(key)
    graph = graphs[key]
    return run(inputs) if graph is None else _Replayed.apply(graph, len(inputs), *inputs, *learned)


def _settings(loss: nn.Module) -> tuple[Any, ...]:
    """Everything about a loss that a captured graph takes for granted."""
    tensors = [(x.data_ptr(), x.dtype, x.requires_grad) for x in (*loss.parameters(), *loss.buffers())]
    plain = [
        (name, value if isinstance(value, int | float | str | type(None)) else id(value))
        for module in loss.modules()
        for name, value in vars(module).items()
        if not name.startswith("_")
    ]
    return (*tensors, *plain)


class _Graph:
    """A captured loss: fixed places for what goes in, and for the value and the gradients that come out."""

    def __init__(self, inputs: Sequence[Tensor], moving: Sequence[bool], learned: Sequence[Tensor]) -> None:
        self.inputs = [x.detach().clone().requires_grad_(moves) for x, moves in zip(inputs, moving, strict=True)]
        self.moving = [x for x in self.inputs if x.requires_grad] + list(learned)
        self.graph = torch.cuda.CUDAGraph()
        self.value: Tensor
        self.gradients: Sequence[Tensor]

    def step(self, run: Run) -> None:
        """What is captured: the value, and its derivative by everything that moves."""
        value = run(self.inputs)
        gradients = torch.autograd.grad(value, self.moving, materialize_grads=True) if self.moving else ()
        self.value, self.gradients = value.detach(), gradients

    def replay(self, inputs: Sequence[Tensor]) -> tuple[Tensor, list[Tensor]]:
        """The value of these inputs, and the gradients."""
        with torch.no_grad():
            for place, x in zip(self.inputs, inputs, strict=True):
                place.copy_(x)
            self.graph.replay()
            return self.value.clone(), [gradient.clone() for gradient in self.gradients]


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
        value, gradients = graph.replay(tensors[:count])
        ctx.formed = [x.requires_grad for x in graph.inputs] + [True] * (len(tensors) - count)
        ctx.save_for_backward(*tensors, *gradients)
        return value

    @staticmethod
    def backward(ctx: Any, cotangent: Tensor) -> Any:
        tensors, gradients = ctx.saved_tensors[: len(ctx.formed)], iter(ctx.saved_tensors[len(ctx.formed) :])
        formed = zip(tensors, ctx.formed, strict=True)
        return None, None, *(first_derivative(next(gradients) * cotangent, x) if moves else None for x, moves in formed)
