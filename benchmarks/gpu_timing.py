"""Time steps on a GPU, and read what torch has compiled and allocated."""

import gc
import statistics
from collections.abc import Callable

import torch
import torch._dynamo.utils
import torch._inductor.config

from common import seconds
from tuplet.errors import first_line

FULL, HALF = torch.float32, torch.bfloat16
#: Repeats of a step: at least LEAST, at most MOST, as long as they take under SHORT seconds in total; none beyond LONG.
LEAST, MOST, SHORT, LONG = 5, 300, 0.3, 2.0
#: Steps that are queued before the GPU is waited for, if one takes less than QUEUED_MS; and how many such queues are
#: timed, as far as SHORT allows.
QUEUED, QUEUED_MS, QUEUES = 20, 10.0, 15


def compile_in_one_thread() -> None:
    """Let torch compile in one thread: many processes compile at once."""
    torch._inductor.config.compile_threads = 1


def warm_up(device: str) -> None:
    """Create the context of the device and load its matrix library."""
    for dtype in (torch.float32, torch.bfloat16, torch.float64):
        ones = torch.ones(64, 64, dtype=dtype, device=device)
        (ones @ ones).sum().item()


def median_ms(run: Callable[[], None], device: str, most: int = MOST) -> float:
    """Return the median time of a step, waiting for the GPU after each."""
    taken = [seconds(run, device)]
    while len(taken) < most and (len(taken) < LEAST or sum(taken) < SHORT) and sum(taken) + taken[-1] < LONG:
        taken.append(seconds(run, device))
    return 1000 * statistics.median(taken)


def both_ms(run: Callable[[], None], device: str) -> dict[str, float]:
    """Return "ms", the time of a step that is waited for, and for short steps "row_ms", that of queued steps."""
    ms = median_ms(run, device)
    if ms > QUEUED_MS:
        return {"ms": ms}

    def queue() -> None:
        for _ in range(QUEUED):
            run()

    return {"ms": ms, "row_ms": median_ms(queue, device, QUEUES) / QUEUED}


def compiled_graphs() -> int:
    """Return how many graphs torch has compiled in this process."""
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


def release_memory() -> None:
    """Return unused memory of torch to the GPU."""
    gc.collect()
    torch.cuda.empty_cache()


def reserved_bytes() -> int:
    """Return the bytes that torch holds on the GPU and cannot release."""
    release_memory()
    return torch.cuda.memory_reserved()


def usable_bytes() -> int:
    """Return the bytes of the GPU that no other process has taken."""
    return torch.cuda.mem_get_info()[0] + torch.cuda.memory_reserved()


def synchronization(run: Callable[[], None]) -> str | None:
    """Return where a step waits for the GPU, or None."""
    torch.cuda.set_sync_debug_mode("error")
    try:
        run()
    except RuntimeError as error:
        return first_line(error)[:200]
    finally:
        torch.cuda.set_sync_debug_mode("default")
    return None


def dtype_name(dtype: torch.dtype) -> str:
    """Return "float32" for torch.float32."""
    return str(dtype).removeprefix("torch.")
