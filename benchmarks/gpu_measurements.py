"""Measure losses, matrix products, training steps and first calls on a GPU: jobs for gpu_scheduler."""

import logging
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

import common
import cpu_affinity
from common import seconds
from gpu_scheduler import Steps
from gpu_timing import (
    LEAST,
    LONG,
    both_ms,
    compile_in_one_thread,
    compiled_graphs,
    dtype_name,
    median_ms,
    release_memory,
    reserved_bytes,
    synchronization,
    usable_bytes,
    warm_up,
)
from loss_peers import CASES, DIM, Case, batch
from tuplet import losses, models
from tuplet.errors import first_line

#: The rows that the baseline multiplies at once, and how many such blocks stand for a large batch.
PRODUCT_ROWS, PRODUCT_BLOCKS = 4096, 16

#: A size, a type, and whether the peer is measured there too.
Setting = tuple[int, torch.dtype, bool]


def one_loss(index: int, settings: Sequence[Setting], device: str, rounds: int = 1) -> Steps:
    """Measure a loss at some sizes: memory, time, first call, synchronisation with the GPU; then the peer's.

    Times are medians over rounds. The other jobs are measured between two rounds, since disturbances come and go.
    """
    compile_in_one_thread()
    warm_up(device)
    case = CASES[index]
    ready: list[tuple[Callable[[], None] | None, dict[str, Any]]] = []
    for size, dtype, _ in settings:
        torch.compiler.reset()  # each size as in a process of its own
        try:
            ready.append(prepare(case, size, dtype, device))
        except Exception as error:
            ready.append((None, {"failed": f"{type(error).__name__}: {first_line(error)[:200]}"}))
    times: list[list[dict[str, float]]] = [[] for _ in ready]
    for _ in range(rounds):
        yield None
        stale = False
        for (k, (run, ours)), taken in zip(enumerate(ready), times, strict=True):
            if run is None:
                yield k, ours
                continue
            if stale:
                torch.compiler.reset()
            if ours["again_s"] < LONG:
                compiled = compiled_graphs()
                run()
                # Another size was compiled last. If this one was compiled again, reset before the next, whose sizes
                # torch would otherwise take as variable.
                stale = stale or compiled_graphs() != compiled
            taken.append(both_ms(run, device))
            ours |= {key: statistics.median(each[key] for each in taken) for key in taken[0]}
            if device != "cpu" and ours["ms"] < 1000 * LONG:
                ours["wait"] = synchronization(run)
            yield k, {"beside": case.peer_name(), "ours": {key: v for key, v in ours.items() if key != "again_s"}}
    if not case.peer(classes=2):
        return
    del run
    ready.clear()
    yield None
    for k, (size, dtype, with_peer) in enumerate(settings):
        if with_peer:
            for found in measure_peer(case, size, dtype, device):
                yield k, found


def prepare(case: Case, size: int, dtype: torch.dtype, device: str) -> tuple[Callable[[], None], dict[str, Any]]:
    """Return a step of ours that has run before, with the time of its first run and the memory of later ones."""
    run = case.our_step(size, device, dtype, max_per_class=case.per_class)
    if device == "cpu":
        first = seconds(run)
        again, peak = common.peak_extra(partial(seconds, run))
        return run, {"first_s": first, "again_s": again, "mib": peak / 2**20}
    before, reserved_before = torch.cuda.memory_allocated(), reserved_bytes()
    first = seconds(run, device)
    torch.cuda.reset_peak_memory_stats()
    again = seconds(run, device)
    peak = torch.cuda.max_memory_allocated() - before
    # A captured graph keeps its memory between calls; the peak of a call does not include it.
    return run, {"first_s": first, "again_s": again, "mib": max(peak, reserved_bytes() - reserved_before) / 2**20}


def measure_peer(case: Case, size: int, dtype: torch.dtype, device: str) -> Iterator[dict[str, Any]]:
    """Measure the peer on the same batch, in float32 if it does not take the type."""
    # The result if this process is stopped during the measurement.
    yield {"left_out": "not done in time"}
    found: dict[str, Any] = {}
    for kind in dict.fromkeys((dtype, torch.float32)):
        found = time_peer(case, size, kind, device)
        # Memory that stays allocated would be missing for the next peer.
        release_memory()
        if "peer_error" not in found:
            break
    yield found


def time_peer(case: Case, size: int, dtype: torch.dtype, device: str) -> dict[str, Any]:
    """Return the peer's time and memory, or the reason why there are none; keep none of its tensors."""
    try:
        case.peer_step(16, device, dtype)()
        run = case.peer_step(size, device, dtype)
        first, peak = common.peak_extra(partial(seconds, run, device), device)
    except torch.OutOfMemoryError:
        return {"left_out": f"over {usable_bytes() / 2**30:.0f} GiB"}
    except Exception as error:
        return {"left_out": "fails", "peer_error": first_line(error)[:200]}
    ms = 1000 * first if first > LONG else median_ms(run, device)
    return {"peer": {"ms": ms, "mib": peak / 2**20, "dtype": dtype_name(dtype)}, "left_out": None}


def products(sizes: Sequence[tuple[int, torch.dtype]], device: str) -> Steps:
    """Measure the three matrix products of a batch, X·Xᵀ and two for its gradient, in blocks of rows.

    This is the baseline ("floor") that losses are compared with. Of a large batch only a part of the rows is measured.
    """
    warm_up(device)
    yield None
    rows = []
    for n, dtype in sizes:
        x, _ = batch(n, 4, device)
        x = x.to(dtype)
        count = min(n, PRODUCT_ROWS)
        blocks = [x[a : a + count] for a in range(0, n, count)][:PRODUCT_BLOCKS]
        wide = {"out_dtype": torch.float32} if device != "cpu" and dtype == torch.bfloat16 else {}
        weights = (blocks[0] @ x.T).to(dtype)

        def multiply(x: Tensor = x, blocks: list[Tensor] = blocks, wide: Any = wide, weights: Tensor = weights) -> None:
            for q in blocks:
                torch.mm(q, x.T, **wide)
                torch.mm(weights[: len(q)], x)
                torch.mm(weights[: len(q)].T, q)

        for _ in range(2):
            multiply()
        done = sum(map(len, blocks))
        taken = {key: ms * n / done for key, ms in both_ms(multiply, device).items()}
        rate = 6 * n * n * DIM / min(taken.values()) / 1e9
        rows.append({"size": n, "dtype": dtype_name(dtype), **taken, "tflops": rate, "part": done / n})
        del x, blocks, weights, multiply
    yield 0, {"floor": rows}


def minimal_steps(device: str, rounds: int = 1) -> Steps:
    """Measure a minimal step on any core, on each core, and on the fastest, to which all jobs are then pinned.

    Another core may be the fastest in the next round; the row is that of the last round.
    """
    warm_up(device)
    run = minimal_step(device)
    run()  # starts autograd's thread
    every_core = os.sched_getaffinity(0)
    for _ in range(rounds):
        yield None
        cpu_affinity.pin(os.getpid(), every_core)
        free = median_ms(run, device)
        found = cpu_affinity.measure_cores(partial(median_ms, run, device))
        cores = {"free_ms": free, "core_ms": list(found.values()), "quickest": cpu_affinity.fastest(found)}
        yield 0, {"host": both_ms(run, device) | cores}


def minimal_step(device: str) -> Callable[[], None]:
    """Return the smallest step of autograd: one kernel forward and one backward."""

    class Total(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            ctx.save_for_backward(x)
            return x.sum()

        @staticmethod
        def backward(ctx: Any, gradient: Tensor) -> Any:
            return ctx.saved_tensors[0] * gradient

    x = torch.ones(180, DIM, device=device, requires_grad=True)

    def run() -> None:
        x.grad = None
        Total.apply(x).backward()

    return run


def training_step(architecture: str, images: int, pixels: int, device: str) -> Steps:
    """Measure a training step with RAW and valid triplets, and the same step with a sum in place of the loss."""
    compile_in_one_thread()
    warm_up(device)
    torch.backends.cudnn.benchmark = True
    embedder = models.create(architecture, dim=DIM).to(device).train()
    loss, labels = losses.MultiSimilarityLoss(), torch.arange(images, device=device) // 4
    optimizer = torch.optim.SGD(embedder.parameters(), lr=1e-6, momentum=0.9)
    inputs = 255 * torch.rand(images, 3, pixels, pixels, device=device)
    inputs = inputs.to(memory_format=torch.channels_last)
    constant = torch.randn(images, DIM, device=device)

    def step(value: Callable[[Tensor], Tensor]) -> Callable[[], None]:
        def run() -> None:
            optimizer.zero_grad()
            with torch.autocast(device, torch.bfloat16):
                vectors = embedder(inputs)
                total = value(vectors)
            total.backward()
            optimizer.step()

        return run

    runs = {"with_loss": step(lambda x: loss(x, labels)), "without": step(lambda x: (x * constant).sum())}
    for run in runs.values():
        run()
    yield None
    taken: dict[str, list[float]] = {side: [] for side in runs}
    for k in range(3 + LEAST * 4):
        for side, run in runs.items():
            step_ms = 1000 * seconds(run, device)
            if k >= 3:
                taken[side].append(step_ms)
    ms = {side: statistics.median(times) for side, times in taken.items()}
    yield 0, {"training_step": {"network": architecture, "images": images, "pixels": pixels, "ms": ms}}


def first_calls(sizes: Sequence[int], dtype: torch.dtype, device: str) -> Steps:
    """Measure the first call of one loss at many sizes one after another, with empty caches of compiled code."""
    warm_up(device)
    limits = RecompileLimits()
    logging.getLogger("torch._dynamo").addHandler(limits)
    with tempfile.TemporaryDirectory() as folder:
        for cache in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
            os.environ[cache] = os.path.join(folder, cache)
        for _ in range(3):  # after all measurements of ours and of the peer
            yield None
        loss = losses.MultiSimilarityLoss().to(device)
        calls = []
        for n in sizes:
            x, labels = batch(n, 4, device)
            x = x.to(dtype).requires_grad_()

            def run(x: Tensor = x, labels: Tensor = labels) -> None:
                loss(x, labels).backward()

            first = seconds(run, device)
            calls.append({"size": n, "first_s": first, "graphs": compiled_graphs(), "refused": limits.count})
            yield 0, {"first_calls": {"dtype": dtype_name(dtype), "calls": calls}}


class RecompileLimits(logging.Handler):
    """Count how often torch reaches its limit of recompilations and falls back to eager execution."""

    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Count the record if it reports the limit."""
        self.count += "recompile_limit" in record.getMessage()
