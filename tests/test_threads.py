"""The parallel map ends, whenever ctrl-C comes and whatever is left of it."""

import subprocess
import sys

import pytest

INTERRUPTED = """
import random, signal
from tuplet.threads import map_in_threads

def stop(*_):
    raise KeyboardInterrupt

signal.signal(signal.SIGALRM, stop)
draw, stopped = random.Random(0), 0
for _ in range({times}):
    try:
        signal.setitimer(signal.ITIMER_REAL, draw.uniform(0.001, 0.02))
        for _ in map_in_threads(abs, range(10**7), lead=512, workers=2):
            pass
    except KeyboardInterrupt:
        stopped += 1
print(stopped)
"""
UNFINISHED = """
import torch
from tuplet.threads import map_in_threads
torch.set_num_threads(1)
ones = torch.ones(400, 400)
found = map_in_threads(lambda n: n * (ones @ ones), range(10**7), lead=512, workers=2)
print(int(next(found).sum()))
"""
INTERRUPTED_AT_START = """
import threading, time, torch
from tuplet import threads

class Interrupted(threading.Thread):
    def start(self):
        super().start()
        time.sleep(0.2)
        raise KeyboardInterrupt

def work(n, until=2.0):
    ones, begun = torch.ones(400, 400), time.monotonic()
    while time.monotonic() < begun + until:
        ones @ ones

threads.Thread = Interrupted
torch.set_num_threads(1)
try:
    list(threads.map_in_threads(work, range(10**7), lead=512, workers=2))
except KeyboardInterrupt:
    print(0)
"""
SCRIPTS = {"ctrl-C": INTERRUPTED, "ctrl-C at a start": INTERRUPTED_AT_START, "unfinished": UNFINISHED}


@pytest.mark.parametrize("script", SCRIPTS.values(), ids=SCRIPTS)
def test_no_thread_waits_forever(script, soak):
    """An executor waits forever within some hundred times: its locks are taken by code in Python.

    A thread that is in torch when Python ends aborts the process.
    """
    times = 20_000 if soak else 300
    program = script.format(times=times)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300 + times / 20)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) == (times if script is INTERRUPTED else 0)
