"""Jobs for the tests of benchmarks/gpu_scheduler.py; some of them fail."""

import os
import sys
import threading
import time


def works(name):
    yield None
    yield 0, {"first": name}
    yield None
    yield 1, {"second": name}


def clock():
    """Report when the job started, when it was measured, and in which process."""
    began = time.time()
    yield None
    yield 0, {"began": began, "measured": time.time(), "process": os.getpid()}


def thread_cores():
    """Report the cores that each thread may use."""
    threading.Thread(target=time.sleep, args=(60,), daemon=True).start()
    yield None
    yield 0, {"cores": [sorted(os.sched_getaffinity(int(thread))) for thread in os.listdir("/proc/self/task")]}


def slow_start():
    time.sleep(60)
    yield None


def hangs():
    yield None
    yield 0, {"found": 1}
    time.sleep(60)


def raises():
    yield None
    raise ValueError("no such thing")


def exits():
    yield None
    sys.exit(3)
