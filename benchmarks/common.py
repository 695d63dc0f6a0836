"""Helpers of all benchmarks: time, peak memory, the machine, results as JSON, tables in the docs."""

import ctypes
import gc
import json
import os
import platform
import time
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any, TypeVar

import torch

ROOT = Path(__file__).parents[1]
T = TypeVar("T")


def seconds(function: Callable[[], Any], device: str = "cpu") -> float:
    """Return the seconds that a function takes; on a GPU until its last kernel is done."""
    wait = torch.cuda.synchronize if device != "cpu" else lambda: None
    wait()
    start = time.perf_counter()
    function()
    wait()
    return time.perf_counter() - start


def number(x: float) -> str:
    """Format a number with three digits, or with all digits before the point.

    >>> number(0.12345), number(12345.6)
    ('0.123', '12,346')
    """
    return f"{x:,.0f}" if x >= 100 else f"{x:.3g}"


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table in Markdown.

    >>> print(table(["loss", "ms"], [["NCA", "1.2"]]))
    | loss | ms |
    | --- | --- |
    | NCA | 1.2 |
    """
    return "\n".join(f"| {' | '.join(cells)} |" for cells in [head, ["---"] * len(head), *rows])


def peak_extra(function: Callable[[], T], device: str = "cpu") -> tuple[T, int]:
    """Return the result of a function and its peak memory in bytes beyond what was in use before.

    On a CPU this is the resident memory of the process (Linux), on a GPU what torch allocated.
    """
    gc.collect()
    if device != "cpu":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        result = function()
        torch.cuda.synchronize()
        return result, torch.cuda.max_memory_allocated() - before
    # The allocator keeps freed memory, which would be used again and not be counted.
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = process_bytes("VmRSS")
    result = function()
    return result, process_bytes("VmHWM") - before


def process_bytes(field: str) -> int:
    """Return a memory figure of this process: VmRSS (resident), VmHWM (its peak), VmSize (virtual)."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field + ":"):
            return int(line.split()[1]) << 10
    raise ValueError(f"/proc/self/status has no line {field!r}; the peak memory of a process is read on Linux only")


def machine(device: str = "cpu") -> str:
    """Describe the hardware in a few words."""
    if device != "cpu":
        return torch.cuda.get_device_name()
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), "CPU")
    threads = torch.get_num_threads()
    return f"{threads} thread{'s' * (threads > 1)} on {os.cpu_count()} cores of {model}"


def versions(*packages: str) -> dict[str, str]:
    """Return the versions of Python, torch, tuplet and the named packages that are installed."""
    found = {"python": platform.python_version()}
    for name in ("torch", "tuplet", *packages):
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def results_file(name: str) -> Path:
    """Return the path benchmarks/results/NAME.json."""
    return ROOT / "benchmarks" / "results" / f"{name}.json"


def load(name: str) -> dict[str, Any]:
    """Return what `save` wrote last, or {}."""
    path = results_file(name)
    return json.loads(path.read_text()) if path.exists() else {}


def save(name: str, data: dict[str, Any]) -> Path:
    """Write benchmarks/results/NAME.json."""
    path = results_file(name)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(data, indent=1) + "\n")
    return path


def write_between(page: str, key: str, text: str) -> None:
    """Replace the text of docs/PAGE between the lines <!-- KEY --> and <!-- end of KEY -->."""
    path = ROOT / "docs" / page
    start, end = f"<!-- {key} -->\n", f"<!-- end of {key} -->"
    before, found, rest = path.read_text().partition(start)
    _, closed, after = rest.partition(end)
    if not (found and closed):
        raise ValueError(f"docs/{page} has no lines {start.strip()} and {end}; put them where the table should be")
    path.write_text(f"{before}{start}{text.rstrip()}\n{end}{after}")
