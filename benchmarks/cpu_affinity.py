"""Pin a process to the fastest CPU core while it is measured.

The time of a small batch is the time of Python. On a virtual machine the same step may take twice as long on one core
as on another, because of other tenants. A step also has two threads, Python's and autograd's, which wait for each
other: on one core they alternate, on two each must be woken, which may take longer than the step itself. So the
fastest core is found first, and each process is pinned to it while it is measured.
"""

import os
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path


def pin(pid: int, cores: Collection[int]) -> None:
    """Pin all threads of a process to some cores; do nothing if no cores are given or the process has ended."""
    for task in Path(f"/proc/{pid}/task").glob("*") if cores else ():
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(task.name), cores)


def measure_cores(figure: Callable[[], float]) -> dict[int, float]:
    """Measure a figure of this process on each core, then pin the process to the fastest."""
    found = {}
    for core in sorted(os.sched_getaffinity(0)):
        pin(os.getpid(), [core])
        found[core] = figure()
    pin(os.getpid(), fastest(found))
    return found


def fastest(found: dict[int, float]) -> list[int]:
    """Return the core with the smallest figure as a list."""
    return sorted(found, key=found.__getitem__)[:1]
