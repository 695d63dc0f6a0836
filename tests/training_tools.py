"""Small data, small networks and real processes for the tests of training."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import torch

from tuplet import data, losses, models

TESTS = Path(__file__).parent

#: A run of vectors that takes a moment, and what it needs beside to run on `pictures`.
QUICK = {"loss": "raw", "steps": 6, "batch_size": 12, "per_class": 3, "dim": 5, "evaluate_every": 2, "log_every": 2}
QUICK["schedule"] = "constant"
SMALL = {"model": "convnet", "model_options": {"size": 12, "channels": 3}}


def vectors(classes=12, each=6, dim=10, seed=0, nuisance=1.0):
    """Feature vectors of which the first half says what class they are; half of the classes train."""
    generator = torch.Generator().manual_seed(seed)
    values = nuisance * torch.randn(classes * each, dim, generator=generator)
    values[:, : dim // 2] = torch.randn(classes, dim // 2, generator=generator).repeat_interleave(each, 0)
    values += 0.3 * torch.randn(classes * each, dim, generator=generator)
    return data.from_features(values, torch.arange(classes).repeat_interleave(each))


def pictures(classes=8, each=6, size=12, seed=0):
    """Pictures of random blocks, one pattern a class, with noise."""
    generator = torch.Generator().manual_seed(seed)
    patterns = torch.randint(0, 200, (classes, 3, 3, 3), generator=generator).float()
    large = torch.nn.functional.interpolate(patterns, (size, size)).repeat_interleave(each, 0)
    noise = torch.randint(0, 55, large.shape, generator=generator)
    return data.from_images((large + noise).to(torch.uint8), torch.arange(classes).repeat_interleave(each))


def dropping(dim=10, hidden=16):
    """An embedder of vectors with dropout, so that the random state matters."""
    torch.manual_seed(5)
    layers = torch.nn.Sequential(torch.nn.Linear(dim, hidden), torch.nn.ReLU(), torch.nn.Dropout(0.3))
    return models.create(layers, dim=6, example=torch.zeros(1, dim))


class Slow(losses.MarginLoss):
    """A loss that takes its time, so that a process can be killed in the middle of something."""

    def value(self, view):
        time.sleep(0.01)
        return super().value(view)


#: Runs that need everything a checkpoint holds: dropout, counters, memory, averages, β, schedules, choices of classes.
CASES = {
    "everything": lambda: (
        vectors(),
        {
            "loss": Slow(learn_beta=True),
            "model": dropping(),
            "memory": 40,
            "average": 0.9,
            "schedule": "cosine",
            "warmup": 5,
            "clip": 1.0,
            "batch_size": 12,
            "per_class": 3,
            "piece_size": 5,
            "precision": "float16",
        },
    ),
    "pictures": lambda: (
        pictures(),
        {
            "loss": "npair",
            "model": "convnet",
            "model_options": {"size": 12, "channels": 3},
            "dim": 8,
            "sampler": "hard_class",
            "candidates": 4,
            "batch_size": 6,
            "optimizer": "sgd",
            "resize": 14,
            "augment": {"brightness": 0.2},
        },
    ),
    "proxies": lambda: (
        vectors(),
        {
            "loss": "proxy_anchor",
            "dim": 6,
            "levels": "H",
            "batch_size": 12,
            "per_class": 3,
            "precision": "bfloat16",
            "schedule": "constant",
        },
    ),
}
EVERY = {"steps": 36, "evaluate_every": 7, "checkpoint_every": 3, "log_every": 4, "device": "cpu"}


def events(folder, kind=None):
    lines = (Path(folder) / "events.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    return [event for event in found if kind in (None, event["event"])]


def weights(folder, name="last"):
    return models.folder.read(Path(folder) / name)[1]


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def start(code, *arguments, command=(), **environment):
    """A Python process with the tests' modules at hand, which runs `code`, or a `command` with a script."""
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    settings = {**os.environ, "PYTHONPATH": path, **environment}
    line = [sys.executable, *(command or ["-c"]), code, *arguments]
    return subprocess.Popen(
        [str(part) for part in line], env=settings, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
