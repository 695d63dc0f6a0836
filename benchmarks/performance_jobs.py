"""What is measured on a GPU, as jobs for performance_turns: ready at the first `yield None`, measured after it."""

import gc
import logging
import os
import statistics
import tempfile
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import torch
import torch._dynamo.utils
import torch._inductor.config
from torch import Tensor

import common
import performance_cores
from common import seconds
from loss_cases import CASES, DIM, Case, batch
from performance_turns import Steps
from tuplet import losses, models

FULL, HALF = torch.float32, torch.bfloat16
#: Runs that are timed: at least so many, more while they take less than SHORT seconds together, none beyond LONG.
LEAST, MOST, SHORT, LONG = 5, 300, 0.3, 2.0
#: Steps that are launched in a row before they are waited for, where one takes less than so many milliseconds; and how
#: many such rows are timed, as far as SHORT allows.
IN_A_ROW, IN_A_ROW_MS, ROWS = 20, 10.0, 15
#: Where the peer is estimated to need more than this it is left out.
PEER_GIB = 100.0
#: Rows that the floor multiplies at once, and how many such blocks stand for all of a large batch.
FLOOR_ROWS, FLOOR_BLOCKS = 4096, 16

#: A size, a type, and whether the peer is measured there too.
Look = tuple[int, torch.dtype, bool]


def one_thread_compiles() -> None:
    """Many processes compile at once: a pool of compilers in each would be too many."""
    torch._inductor.config.compile_threads = 1


def warm(device: str) -> None:
    """What a device sets up for whoever comes first: its context, and the library of products."""
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        ones = torch.ones(64, 64, dtype=dtype, device=device)
        (ones @ ones).sum().item()


def median_ms(run: Callable[[], None], device: str, most: int = MOST) -> float:
    """Of steps that are waited for one by one."""
    taken = [seconds(run, device)]
    while len(taken) < most and (len(taken) < LEAST or sum(taken) < SHORT) and sum(taken) + taken[-1] < LONG:
        taken.append(seconds(run, device))
    return 1000 * statistics.median(taken)


def both_ms(run: Callable[[], None], device: str) -> dict[str, float]:
    """Of steps waited for one by one; and of short ones also launched in a row, as a training loop does."""
    ms = median_ms(run, device)
    if ms > IN_A_ROW_MS:
        return {"ms": ms}

    def row() -> None:
        for _ in range(IN_A_ROW):
            run()

    return {"ms": ms, "row_ms": median_ms(row, device, ROWS) / IN_A_ROW}


def graphs() -> int:
    """How many graphs torch has compiled in this process."""
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def hand_back() -> None:
    """Return to the GPU what torch has taken of it and nobody uses."""
    gc.collect()
    torch.cuda.empty_cache()


def reserved() -> int:
    """What torch has taken of the GPU and cannot give back."""
    hand_back()
    return torch.cuda.memory_reserved()


def within_reach() -> int:
    """The bytes of the GPU that nobody else has taken."""
    return torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved()


def wait_in(run: Callable[[], None]) -> str | None:
    """Where a step waits for the GPU, or None."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        run()
    except RuntimeError as error:
        return first_line(error)
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return None


def one_loss(index: int, looks: Sequence[Look], device: str, rounds: int = 1) -> Steps:
    """A loss at some sizes: memory, time, the first call, and whether a later one waits; then the peer's.

    Times are medians over rounds, between which all others are measured: what disturbs a machine comes and goes.
    """
    one_thread_compiles()
    warm(device)
    case = CASES[index]
    ready: list[tuple[Callable[[], None] | None, dict[str, Any]]] = []
    for size, dtype, _ in looks:
        torch.compiler.reset()  # each size as in a run of its own
        try:
            ready.append(prepared(case, size, dtype, device))
        except Exception as error:
            ready.append((None, {"failed": f"{type(error).__name__}: {first_line(error)}"}))
    times: list[list[dict[str, float]]] = [[] for _ in ready]
    for _ in range(rounds):
        yield None
        stale = False
        for (place, (run, ours)), taken in zip(enumerate(ready), times, strict=True):
            if run is None:
                yield place, ours
                continue
            if stale:
                torch.compiler.reset()
            if ours["again_s"] < LONG:
                compiled = graphs()
                run()
                # Another size was compiled last: what is compiled again must not make the next one's sizes variable.
                stale = stale or graphs() != compiled
            taken.append(both_ms(run, device))
            ours |= {key: statistics.median(each[key] for each in taken) for key in taken[0]}
            if device != "cpu" and ours["ms"] < 1000 * LONG:
                ours["wait"] = wait_in(run)
            yield place, {"beside": case.beside(), "ours": {k: v for k, v in ours.items() if k != "again_s"}}
    if not case.peer(classes=2):
        return
    del run
    ready.clear()
    yield None
    for place, (size, dtype, with_peer) in enumerate(looks):
        if with_peer:
            for found in beside(case, size, dtype, device):
                yield place, found


def prepared(case: Case, size: int, dtype: torch.dtype, device: str) -> tuple[Callable[[], None], dict[str, Any]]:
    """A step of ours that has run before, with what its first run took and what memory the later ones take."""
    run = case.our_step(size, device, dtype, max_per_class=case.per_class)
    if device == "cpu":
        first = seconds(run)
        again, peak = common.peak_extra(partial(seconds, run))
        return run, {"first_s": first, "again_s": again, "mib": peak / 2**20}
    before, kept_before = torch.cuda.memory_allocated(), reserved()
    first = seconds(run, device)
    torch.cuda.reset_peak_memory_stats()
    again = seconds(run, device)
    peak = torch.cuda.max_memory_allocated() - before
    # A captured graph keeps its memory between calls, where the peak of a call does not see it.
    return run, {"first_s": first, "again_s": again, "mib": max(peak, reserved() - kept_before) / 2**20}


def beside(case: Case, size: int, dtype: torch.dtype, device: str) -> Iterator[dict[str, Any]]:
    """The peer's on the same batch, in float32 where it does not take the type."""
    if case.peer_bytes(size) > PEER_GIB * 2**30:
        yield {"left_out": f"over {PEER_GIB:g} GiB"}
        return
    # Stands where this process is stopped before it comes farther.
    yield {"left_out": "not done in time"}
    found: dict[str, Any] = {}
    for kind in dict.fromkeys((dtype, torch.float32)):
        found = peer_alone(case, size, kind, device)
        # Whatever it took would be missing for the next one, which would then seem to need too much.
        hand_back()
        if "peer_error" not in found:
            break
    yield found


def peer_alone(case: Case, size: int, dtype: torch.dtype, device: str) -> dict[str, Any]:
    """The peer's time and memory, or why there are none; nothing of it is held afterwards."""
    try:
        case.peer_step(16, device, dtype)()
        run = case.peer_step(size, device, dtype)
        first, peak = common.peak_extra(partial(seconds, run, device), device)
    except torch.OutOfMemoryError:
        return {"left_out": f"over {within_reach() / 2**30:.0f} GiB"}
    except Exception as error:
        return {"left_out": "fails", "peer_error": first_line(error)}
    ms = 1000 * first if first > LONG else median_ms(run, device)
    return {"peer": {"ms": ms, "mib": peak / 2**20, "dtype": name(dtype)}, "left_out": None}


def floor(sizes: Sequence[tuple[int, torch.dtype]], device: str) -> Steps:
    """The three products of a batch, X·Xᵀ and the two of its gradient, in blocks of rows; of a large one a part."""
    warm(device)
    yield None
    rows = []
    for n, dtype in sizes:
        x, _ = batch(n, 4, device)
        x = x.to(dtype)
        count = min(n, FLOOR_ROWS)
        blocks = [x[a : a + count] for a in range(0, n, count)][:FLOOR_BLOCKS]
        wide = {"out_dtype": torch.float32} if device != "cpu" and dtype == torch.bfloat16 else {}
        weights = (blocks[0] @ x.T).to(dtype)

        def products(x: Tensor = x, blocks: list[Tensor] = blocks, wide: Any = wide, weights: Tensor = weights) -> None:
            for q in blocks:
                torch.mm(q, x.T, **wide)
                torch.mm(weights[: len(q)], x)
                torch.mm(weights[: len(q)].T, q)

        for _ in range(2):
            products()
        done = sum(map(len, blocks))
        taken = {key: ms * n / done for key, ms in both_ms(products, device).items()}
        rate = 6 * n * n * DIM / min(taken.values()) / 1e9
        rows.append({"size": n, "dtype": name(dtype), **taken, "tflops": rate, "part": done / n})
        del x, blocks, weights, products
    yield 0, {"floor": rows}


def host(device: str, rounds: int = 1) -> Steps:
    """The least step on any core, on one after another, and on the quickest, to which all others are then held.

    Another core may be the quickest in the next round; the row is that of the last.
    """
    warm(device)
    run = least_step(device)
    run()  # autograd's thread begins
    everywhere = performance_cores.available()
    for _ in range(rounds):
        yield None
        performance_cores.hold(os.getpid(), everywhere)
        cores: dict[str, Any] = {"free_ms": median_ms(run, device)}
        if found := performance_cores.measured(partial(median_ms, run, device)):
            cores |= {"core_ms": list(found.values()), "quickest": performance_cores.quickest(found)}
        yield 0, {"host": both_ms(run, device) | cores}


def least_step(device: str) -> Callable[[], None]:
    """The least that autograd asks of Python: a function of one launch forward and one backward."""

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
    """A step of a network with RAW and valid triplets, beside the same step with a sum in place of the loss."""
    one_thread_compiles()
    warm(device)
    torch.backends.cudnn.benchmark = True
    embedder = models.create(architecture, dim=DIM).to(device).train()
    loss, labels = losses.MultiSimilarityLoss(), torch.arange(images, device=device) // 4
    optimizer = torch.optim.SGD(embedder.parameters(), lr=1e-6, momentum=0.9)
    pictures = 255 * torch.rand(images, 3, pixels, pixels, device=device)
    pictures = pictures.to(memory_format=torch.channels_last)
    constant = torch.randn(images, DIM, device=device)

    def step(value: Callable[[Tensor], Tensor]) -> Callable[[], None]:
        def run() -> None:
            optimizer.zero_grad()
            with torch.autocast(device, torch.bfloat16):
                vectors = embedder(pictures)
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
            once = 1000 * seconds(run, device)
            if k >= 3:
                taken[side].append(once)
    ms = {side: statistics.median(times) for side, times in taken.items()}
    yield 0, {"training_step": {"network": architecture, "images": images, "pixels": pixels, "ms": ms}}


def first_calls(sizes: Sequence[int], dtype: torch.dtype, device: str) -> Steps:
    """One loss at many sizes one after another, nothing compiled before: the seconds of each first call."""
    warm(device)
    refused = Refusals()
    logging.getLogger("torch._dynamo").addHandler(refused)
    with tempfile.TemporaryDirectory() as folder:
        for cache in ("TORCHINDUCTOR_CACHE_DIR", "TRITON_CACHE_DIR"):
            os.environ[cache] = os.path.join(folder, cache)
        for _ in range(3):  # after all of ours, and after the peer's
            yield None
        loss = losses.MultiSimilarityLoss().to(device)
        calls = []
        for n in sizes:
            x, labels = batch(n, 4, device)
            x = x.to(dtype).requires_grad_()

            def run(x: Tensor = x, labels: Tensor = labels) -> None:
                loss(x, labels).backward()

            first = seconds(run, device)
            calls.append({"size": n, "first_s": first, "graphs": graphs(), "refused": refused.count})
            yield 0, {"first_calls": {"dtype": name(dtype), "calls": calls}}


class Refusals(logging.Handler):
    """Counts how often torch gives up compiling something anew, and from then on runs it as it stands."""

    count = 0

    def emit(self, record: logging.LogRecord) -> None:
        """One more, if that is what it says."""
        self.count += "recompile_limit" in record.getMessage()


def first_line(error: Exception) -> str:
    return str(error).partition("\n")[0][:200]


def name(dtype: torch.dtype) -> str:
    return str(dtype).removeprefix("torch.")
