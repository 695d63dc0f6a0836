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


@pytest.mark.parametrize(("script", "printed"), [(INTERRUPTED, None), (UNFINISHED, 0)], ids=["ctrl-C", "unfinished"])
def test_no_thread_waits_forever(script, printed, soak):
    """An executor waits forever within some hundred times: its locks are taken by code in Python.

    A thread that is in torch when Python ends aborts the process.
    """
    times = 20_000 if soak else 300
    script = script.format(times=times)
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=300 + times / 20)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) == (times if printed is None else printed)
