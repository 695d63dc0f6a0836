"""Resident memory of long work, read from outside of its process."""

import time
from pathlib import Path
from statistics import median

from training_tools import start_process

#: Programs that print "ready", then work until they end; each takes a folder and a count.
TRAIN = """
import sys, torch
from training_tools import QUICK, vectors
from tuplet import training
torch.set_num_threads(1)
steps = int(sys.argv[2])
every = {"evaluate_every": steps // 10, "checkpoint_every": steps // 10, "log_every": 100}
print("ready", flush=True)
training.train(vectors(), sys.argv[1], **{**QUICK, **every, "steps": steps})
"""
EMBED = """
import sys, torch
from pathlib import Path
from search.server_process import COLOURS, draw_image
from tuplet import models
torch.set_num_threads(1)
folder, count = Path(sys.argv[1]), int(sys.argv[2])
for number in range(50):
    draw_image(list(COLOURS)[number % 3], number % 10).save(folder / f"{number}.jpg")
paths, embedder = sorted(folder.glob("*.jpg")), models.create("convnet", dim=16)
print("ready", flush=True)
for _ in range(count // 500):
    embedder.embed(10 * paths)
"""


def resident(pid):
    """Return the resident bytes of a process, or None once it has ended."""
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmRSS:")), None)


def watch(pid, until=lambda: False, pause=0.1):
    """Return the resident bytes of a process, sampled until it ends or `until` returns True."""
    samples = []
    while (size := resident(pid)) is not None and not until():
        samples.append(size)
        time.sleep(pause)
    return samples


def growth(samples):
    """Return by how many bytes the median of the last quarter is above that of the second quarter."""
    quarter = len(samples) // 4
    return median(samples[-quarter:]) - median(samples[quarter : 2 * quarter])


def run(code, folder, count):
    """Run one of the programs; return its samples."""
    process = start_process(code, folder, str(count))
    assert process.stdout.readline() == "ready\n", process.stderr.read()
    samples = watch(process.pid)
    _, errors = process.communicate()
    assert process.returncode == 0, errors
    return samples
