"""CUDA graphs: a loss captured once for its shapes, value and gradients together, and replayed with one launch.

On a GPU the launches take most of the time of a small batch: it runs a hundred kernels of two microseconds each, and a
launch takes ten. A large batch takes longer than its launches, unless it runs as a fused program (`tuplet.rows.fused`),
whose kernels finish before Python has launched the next. The graph of such a program holds some hundred megabytes
between calls. So it is captured when two calls in a row need it, and a loss keeps only one of them.

A graph is found by the shapes and types of its inputs, the options of the call and the cache key of the loss. A loss
that reads values from the device while it runs, or that holds state which cannot be seen, runs without a graph.
"""

import functools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

import torch
from torch import Tensor, nn

from tuplet.rows import paths
from tuplet.rows.gradients import first_derivative
from tuplet.rows.key import HiddenStateError, cache_key

if TYPE_CHECKING:
    from tuplet.rows.view import View

# The most recently used graphs that one loss keeps; batches of many different sizes would otherwise pile up.
SMALL_KEPT, LARGE_KEPT = 8, 1
_TENSORS = ("queries", "labels", "gallery", "gallery_labels", "valid")

Computation = Callable[[Sequence[Tensor]], Tensor]


def replay(loss: nn.Module, view: "View", evaluate: "Callable[[View], Tensor]") -> Tensor:
    """Return evaluate(view) by a graph where there can be one; differentiable by the view and the loss's parameters."""
    names = [name for name in _TENSORS if getattr(view, name) is not None]
    inputs = [getattr(view, name) for name in names]

    def run(inputs: Sequence[Tensor]) -> Tensor:
        given: dict[str, Any] = dict(zip(names, inputs, strict=True))
        return evaluate(replace(view, **given))

    try:
        held = cache_key(loss, view.queries.device)
    except HiddenStateError as error:
        paths.refuse_if_pinned("cuda_graph", f"the loss cannot be captured: {error}")
        return run(inputs)
    grad, small = torch.is_grad_enabled(), paths.is_small(view)
    shapes = [(x.shape, x.dtype, x.device, grad and x.requires_grad) for x in inputs]
    surroundings = torch.get_default_dtype(), torch.get_float32_matmul_precision()
    key = (grad, *names, view.block_rows, view.max_per_class, *surroundings, *shapes, held)
    kept = _kept.get(loss)
    if kept is None:
        kept = _kept[loss] = _Kept()
    learned = list(view.parameters.values())
    graph = kept.find(key, small, lambda: _capture(run, inputs, learned if grad else [], small))
    if graph is None and small:
        paths.refuse_if_pinned("cuda_graph", "the loss reads values from the device while it runs")
    return run(inputs) if graph is None else _Replayed.apply(graph, *inputs, *learned)


class _Kept:
    """The graphs of one loss, the most recently used last; None where a loss cannot be captured."""

    def __init__(self) -> None:
        self.small: OrderedDict[Any, _Graph | None] = OrderedDict()
        self.large: OrderedDict[Any, _Graph | None] = OrderedDict()
        self.asked: Any = None
        """The key of the last call, if it needed a large graph that did not exist yet."""

    def find(self, key: Any, small: bool, capture: Callable[[], "_Graph | None"]) -> "_Graph | None":
        """Return the graph of a key, captured where it is new; a large one when its key comes twice in a row."""
        graphs, most = (self.small, SMALL_KEPT) if small else (self.large, LARGE_KEPT)
        asked, self.asked = self.asked, None
        if key in graphs:
            graphs.move_to_end(key)
            return graphs[key]
        if not small and asked != key:
            # Two sizes in turn would replace each other, and each call would capture a graph.
            self.asked = key
            return None
        if len(graphs) == most:
            graphs.popitem(last=False)
        graphs[key] = capture()
        return graphs[key]


_kept: WeakKeyDictionary[nn.Module, _Kept] = WeakKeyDictionary()


class _Lent:
    """The gradients in the memory of a graph, or a copy of them once the next replay has overwritten that memory."""

    def __init__(self, gradients: Sequence[Tensor]) -> None:
        self.gradients = gradients


class _Graph:
    """A captured loss: fixed memory for its inputs, and for the value and the gradients."""

    def __init__(self, inputs: Sequence[Tensor], learned: Sequence[Tensor]) -> None:
        grad = torch.is_grad_enabled()
        self.inputs = [x.detach().clone().requires_grad_(grad and x.requires_grad) for x in inputs]
        given = [*self.inputs, *learned]
        self.places = [k for k, x in enumerate(given) if x.requires_grad]
        """The positions of the tensors that have a gradient."""
        self.moving = [given[k] for k in self.places]
        self.launch: Callable[[], None]
        self.programs: Sequence[Any] = ()
        """Fused programs, which must not be unloaded while the graph exists."""
        self.value: Tensor
        self.gradients: Sequence[Tensor]
        self.lent: Callable[[], _Lent | None] = lambda: None

    def step(self, run: Computation) -> None:
        """Compute the value, and its derivative by everything that moves: this is captured."""
        value = run(self.inputs)
        gradients = torch.autograd.grad(value, self.moving, materialize_grads=True) if self.moving else ()
        self.value, self.gradients = value.detach(), gradients

    def replay(self, given: Sequence[Tensor]) -> tuple[Tensor, "_Lent"]:
        """Return the value and the gradients for new inputs; parameters, which follow them, are read in place."""
        lent = self.lent()
        if lent is not None:
            # The value of the call before may still be differentiated.
            lent.gradients = [gradient.clone() for gradient in lent.gradients]
        for place, x in zip(self.inputs, given, strict=False):
            place.copy_(x)
        self.launch()
        lent = _Lent(self.gradients)
        self.lent = ref(lent)
        return self.value.clone(), lent


def _capture(run: Computation, inputs: Sequence[Tensor], learned: Sequence[Tensor], small: bool) -> _Graph | None:
    """Return a graph of run(inputs), or None where it reads values from the device or is large without a program."""
    graph, stream = _Graph(inputs, learned), _stream(inputs[0].device)
    with torch.cuda.device(stream.device):
        stream.wait_stream(torch.cuda.current_stream())
        try:
            with torch.cuda.stream(stream):
                # A large batch is captured only as a program.
                with nullcontext() if small else paths.execution("fused"):
                    graph.step(run)  # compiles and sets up what a first call does
                with _without_waiting():
                    graph.step(run)
        except paths.ExecutionError:
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
    graph.programs = paths.fused.kept_programs() if paths.fused else ()
    return graph


@functools.cache
def _stream(device: torch.device) -> torch.cuda.Stream:
    """Return the stream of a device on which graphs are captured."""
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
    """The value of a replay; its gradients are known, and scaled in the backward pass."""

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
