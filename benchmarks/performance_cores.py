"""The core that a process is held to while it is measured.

A small batch is the time of Python, and that of the very same step may double from one virtual core to another, which
says something about the machine's other tenants and nothing about a loss. A step also has two threads, Python's and
autograd's, one of which always waits for the other: on one core they take turns, on two each must be woken, which may
take a virtual machine longer than all the rest. So the quickest core is found first, and every process is held to it in
its turn. Where a system has no such thing (macOS), none is.
"""

import os
from collections.abc import Callable, Collection
from contextlib import suppress
from pathlib import Path


def available() -> list[int]:
    """The cores that this process may run on; none where it cannot be held to some of them."""
    held = hasattr(os, "sched_setaffinity") and Path("/proc/self/task").is_dir()
    return sorted(os.sched_getaffinity(0)) if held else []


def hold(pid: int, cores: Collection[int]) -> None:
    """Hold every thread of a process to some cores; where none are named, or it has ended, leave it where it is."""
    for task in Path(f"/proc/{pid}/task").glob("*") if cores else ():
        with suppress(ProcessLookupError):
            os.sched_setaffinity(int(task.name), cores)


def measured(figure: Callable[[], float]) -> dict[int, float]:
    """A figure of this process on one core after another; it stays on the quickest."""
    found = {}
    for core in available():
        hold(os.getpid(), [core])
        found[core] = figure()
    hold(os.getpid(), quickest(found))
    return found


def quickest(found: dict[int, float]) -> list[int]:
    """The core with the smallest figure; none where there are none."""
    return sorted(found, key=found.__getitem__)[:1]
