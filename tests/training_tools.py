"""Small datasets, networks and helper processes for the tests of training."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import torch

from tuplet import data, losses, models

TESTS = Path(__file__).parent

#: Options of a fast run on `vectors`, and further options to run on `image_set`.
QUICK = {"loss": "raw", "steps": 6, "batch_size": 12, "per_class": 3, "dim": 5, "evaluate_every": 2, "log_every": 2}
QUICK |= {"schedule": "constant", "validation": 0.0}
SMALL = {"model": "convnet", "model_options": {"size": 12, "channels": 3}}


def vectors(classes=12, each=6, dim=10, seed=0, nuisance=1.0):
    """Return feature vectors whose first half of dimensions depends on the class, and whose second half is noise."""
    generator = torch.Generator().manual_seed(seed)
    values = nuisance * torch.randn(classes * each, dim, generator=generator)
    values[:, : dim // 2] = torch.randn(classes, dim // 2, generator=generator).repeat_interleave(each, 0)
    values += 0.3 * torch.randn(classes * each, dim, generator=generator)
    return data.from_features(values, torch.arange(classes).repeat_interleave(each))


def image_set(classes=8, each=6, size=12, seed=0):
    """Return images of random blocks, one pattern per class, with noise."""
    generator = torch.Generator().manual_seed(seed)
    patterns = torch.randint(0, 200, (classes, 3, 3, 3), generator=generator).float()
    large = torch.nn.functional.interpolate(patterns, (size, size)).repeat_interleave(each, 0)
    noise = torch.randint(0, 55, large.shape, generator=generator)
    return data.from_images((large + noise).to(torch.uint8), torch.arange(classes).repeat_interleave(each))


def embedder_with_dropout(dim=10, hidden=16):
    """Return an embedder of feature vectors with dropout, so that the random state matters."""
    torch.manual_seed(5)
    layers = torch.nn.Sequential(torch.nn.Linear(dim, hidden), torch.nn.ReLU(), torch.nn.Dropout(0.3))
    return models.create(layers, dim=6, example=torch.zeros(1, dim))


class Slow(losses.MarginLoss):
    """A slow loss, so that a process can be killed during a step."""

    def value(self, view):
        time.sleep(0.01)
        return super().value(view)


#: Runs that together need everything in a checkpoint: dropout, counters, memory, EMA, β, schedules, hard classes, the
#: start and averages with it.
CASES = {
    "everything": lambda: (
        vectors(),
        {
            "loss": Slow(learn_beta=True),
            "model": embedder_with_dropout(),
            "memory": 40,
            "ema": 0.9,
            "schedule": "cosine",
            "warmup": 5,
            "clip": 1.0,
            "batch_size": 12,
            "per_class": 3,
            "micro_batch_size": 5,
            "precision": "float16",
            "wise_ft": True,
            "keep_start": True,
            "select_by": "map_at_r",
        },
    ),
    "images": lambda: (
        image_set(),
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
            "validation": 0.0,
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
            "validation": 0.0,
        },
    ),
}
EVERY = {"steps": 36, "evaluate_every": 7, "checkpoint_every": 3, "log_every": 4, "device": "cpu"}


def events(folder, kind=None):
    """Read the events of a run, all or of one kind."""
    lines = (Path(folder) / "events.jsonl").read_text().splitlines()
    found = [json.loads(line) for line in lines]
    return [event for event in found if kind in (None, event["event"])]


def weights(folder, name="last"):
    """Read the weights of a saved embedder of a run."""
    return models.storage.read(Path(folder) / name)[1]


def same(one, other):
    """Return whether two state dicts are equal bit for bit."""
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def start_process(code, *arguments, command=(), stdin=None, **environment):
    """Start Python on `code`, or a `command` with a script; it can import the modules of the tests."""
    path = os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")])
    settings = {**os.environ, "PYTHONPATH": path, **environment}
    line = [sys.executable, *(command or ["-c"]), code, *arguments]
    return subprocess.Popen(
        [str(part) for part in line],
        env=settings,
        stdin=stdin,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
