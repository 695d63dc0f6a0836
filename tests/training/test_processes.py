"""Two real processes under torchrun train what one process trains on the same batches."""

import socket
from typing import ClassVar

import pytest
import torch
from safetensors.torch import load_file

from training_tools import events, pictures, same, start, vectors, weights
from tuplet import models, training
from tuplet.training.trouble import mean_cosine

CHILD = """
import os, sys, torch
from training.test_processes import CASES, RESUMED, UNLIKE_ONE
from training_tools import dropping, vectors
from tuplet import training
torch.set_num_threads(1)
for case, make in {**CASES, **UNLIKE_ONE}.items():
    data, options = make()
    run = training.train(data, f"{sys.argv[1]}/{case}", **options)
    torch.save((run.metrics["recall_at_1"], run.embedder.state_dict()), f"{sys.argv[1]}/{case} {os.environ['RANK']}.pt")
for folder, stops in (("at once", [12]), ("in two", [5, 12])):
    for steps in stops:
        training.train(vectors(), f"{sys.argv[1]}/{folder}", model=dropping(), steps=steps, **RESUMED)
"""


class Two(torch.nn.Module):
    """Two levels, from low to high."""

    def __init__(self):
        super().__init__()
        self.low, self.high = torch.nn.Conv2d(3, 4, 3), torch.nn.Conv2d(4, 5, 3)

    def forward(self, x):
        low = self.low(x)
        return [low, self.high(low.relu())]


class Staged(models.Backbone):
    """The same, known from inside."""

    channels: ClassVar = {"M": 4, "H": 5}

    def __init__(self):
        super().__init__()
        self.layers = Two()

    def stages(self):
        return [("M", self.layers.low), ("H", self.layers.high)]


def two_levels(own=False):
    torch.manual_seed(0)
    prepared = models.Preprocessing(12, 12, "square", (127.5,) * 3, (127.5,) * 3)
    levels = "M" if own else "MH"
    return models.create(Two() if own else Staged(), dim=6, levels=levels, preprocessing=prepared)


def frozen():
    torch.manual_seed(0)
    return models.create("mlp", features=10, dim=None).requires_grad_(False)


EVERY = {"steps": 12, "evaluate_every": 5, "checkpoint_every": 5, "device": "cpu", "rate": 1e-3}

CASES = {
    "pictures": lambda: (
        pictures(),
        {
            **EVERY,
            "loss": "multi_similarity",
            "model": "convnet",
            "model_options": {"size": 12, "channels": 3},
            "resize": 14,
            "dim": 8,
            "batch_size": 12,
            "per_class": 3,
            "average": 0.9,
        },
    ),
    "memory and pieces": lambda: (
        vectors(),
        {**EVERY, "loss": "raw", "dim": 6, "memory": 40, "batch_size": 12, "per_class": 2, "piece_size": 4},
    ),
    # One process gets three examples, which are one piece, and the other six.
    "uneven pieces": lambda: (
        vectors(),
        {**EVERY, "loss": "raw", "dim": 6, "batch_size": 9, "per_class": 3, "piece_size": 4},
    ),
    "layers above the level": lambda: (
        pictures(),
        {**EVERY, "loss": "raw", "model": two_levels().select("M"), "batch_size": 12, "per_class": 3},
    ),
    "layers above the level of an own module": lambda: (
        pictures(),
        {**EVERY, "loss": "raw", "model": two_levels(own=True), "batch_size": 12, "per_class": 3},
    ),
    "proxies and hard classes": lambda: (
        vectors(),
        {**EVERY, "loss": "proxy_anchor", "dim": 6, "sampler": "hard_class", "batch_size": 10, "clip": 0.5},
    ),
    "proxies alone": lambda: (
        vectors(),
        {
            **EVERY,
            "loss": "softmax",
            "model": frozen(),
            "batch_size": 12,
            "per_class": 2,
            "piece_size": 4,
        },
    ),
    "margin": lambda: (
        vectors(),
        {
            **EVERY,
            "loss": "margin",
            "loss_options": {"learn_beta": True},
            "dim": 6,
            "batch_size": 12,
            "optimizer": "sgd",
        },
    ),
}


def with_batchnorm():
    torch.manual_seed(0)
    layers = torch.nn.Sequential(torch.nn.Linear(10, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU())
    return models.create(layers, dim=6, example=torch.zeros(2, 10))


#: What two processes train in another way than one: each takes BatchNorm's statistics over its own share of a batch.
UNLIKE_ONE = {
    "batchnorm": lambda: (
        vectors(),
        {**EVERY, "steps": 1, "loss": "raw", "model": with_batchnorm(), "batch_size": 12, "per_class": 2},
    ),
}

RESUMED = {k: v for k, v in EVERY.items() if k != "steps"}
RESUMED |= {"loss": "raw", "memory": 40, "average": 0.9, "batch_size": 12, "per_class": 2, "schedule": "constant"}


def by_two(folder, code):
    """What two processes on this machine say of their errors, started as a user starts them, and their exit code."""
    script = folder / "script.py"
    script.write_text(code)
    with socket.socket() as free:
        free.bind(("localhost", 0))
        port = free.getsockname()[1]
    child = start(
        script, folder, command=("-m", "torch.distributed.run", "--nproc-per-node=2", f"--master-port={port}")
    )
    _, errors = child.communicate(timeout=240)
    return errors, child.returncode


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """All cases, one after the other."""
    folder = tmp_path_factory.mktemp("two")
    errors, code = by_two(folder, CHILD)
    assert code == 0, errors
    return folder


@pytest.mark.parametrize("case", CASES)
def test_two_processes_equal_one(case, tmp_path, two):
    data, options = CASES[case]()
    one = training.train(data, tmp_path, **options)
    for name in ("best", "last"):
        close(weights(two / case, name), weights(tmp_path, name))
    # Every process returns the run, one of them wrote it.
    returned = [torch.load(two / f"{case} {rank}.pt", weights_only=True) for rank in range(2)]
    for metrics, state in returned:
        assert metrics == pytest.approx(one.metrics["recall_at_1"])
        close(state, one.embedder.state_dict())
    losses = [[event["loss"] for event in events(folder, "train")] for folder in (tmp_path, two / case)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    # What the loss learns, and what it remembers.
    learned = [
        torch.load(folder / "checkpoint.pt", weights_only=True)["objective"] for folder in (tmp_path, two / case)
    ]
    close(*learned)


def test_all_processes_measure_the_network_that_is_kept(two):
    """Each measures its share of the examples, and BatchNorm's statistics are those of the first."""
    (measured,) = events(two / "batchnorm", "evaluation")
    kept = load_file(two / "batchnorm" / "vectors.safetensors")["embeddings"]
    assert measured["mean_cosine"] == pytest.approx(mean_cosine(kept))


def test_two_processes_go_on_bit_for_bit(two):
    """Each with its own random numbers, from which it draws its dropout."""
    for name in ("best", "last"):
        assert same(weights(two / "at once", name), weights(two / "in two", name))


FAILING = """
import os, sys
from training_tools import vectors
from tuplet import training
rank, training.processes.WAIT = int(os.environ["RANK"]), {wait}
training.{call}, device="cpu", rate={rate})
"""
TRAIN, COMPARE = "train(vectors(), sys.argv[1]", "compare(vectors(), ['raw'], [0], out=sys.argv[1]"


@pytest.mark.parametrize(("call", "rate", "wait"), [(TRAIN, "0", 60), (TRAIN, "1 - rank", 0.1), (COMPARE, "0", 60)])
def test_an_error_is_said_by_one_process(call, rate, wait, tmp_path):
    """By the first where all have it, and by another where that one alone does."""
    errors, code = by_two(tmp_path, FAILING.format(call=call, rate=rate, wait=wait))
    assert code == 1
    assert errors.count("rate is 0; it must be above 0") == 1


def close(ours, theirs):
    assert ours.keys() == theirs.keys()
    for key in theirs:
        torch.testing.assert_close(ours[key], theirs[key], rtol=1e-4, atol=2e-5)
