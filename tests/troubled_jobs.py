"""Jobs of the performance benchmark, some of which come to grief, each in its own way."""

import os
import sys
import threading
import time


def fine(name):
    yield None
    yield 0, {"first": name}
    yield None
    yield 1, {"second": name}


def clock():
    """When its process began with it and when it was measured, and which that was."""
    began = time.time()
    yield None
    yield 0, {"began": began, "measured": time.time(), "process": os.getpid()}


def where():
    """On which cores each of its threads may run."""
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    yield None
    yield 0, {"cores": [sorted(os.sched_getaffinity(int(thread))) for thread in os.listdir("/proc/self/task")]}


def slow_start():
    time.sleep(60)
    yield None


def stuck():
    yield None
    yield 0, {"found": 1}
    time.sleep(60)


def broken():
    yield None
    raise ValueError("no such thing")


def dying():
    yield None
    sys.exit(3)
