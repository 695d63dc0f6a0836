"""Tests of several processes under torchrun: they train what one process trains on the same batches."""

import os
import shutil
import socket
from contextlib import suppress
from typing import ClassVar

import pytest
import torch
from safetensors.torch import load_file

from training_tools import events, image_set, same, start_process, vectors, weights
from tuplet import losses, models, training
from tuplet.training.diagnostics import mean_cosine

CHILD = """
import os, sys, torch
from training.test_distributed import CASES, RESUMED, UNLIKE_ONE_PROCESS, differences
from training_tools import embedder_with_dropout, vectors
from tuplet import training
torch.set_num_threads(1)
for case, make in {**CASES, **UNLIKE_ONE_PROCESS}.items():
    data, options = make()
    run = training.train(data, f"{sys.argv[1]}/{case}", **options)
    torch.save((run.metrics["recall_at_1"], run.embedder.state_dict()), f"{sys.argv[1]}/{case} {os.environ['RANK']}.pt")
for loss in RESUMED:
    for folder, stops in (("one call", [12]), ("two calls", [5, 12])):
        for steps in stops:
            out = f"{sys.argv[1]}/{loss}, {folder}"
            training.train(vectors(), out, model=embedder_with_dropout(), steps=steps, **RESUMED[loss])
data, options = CASES["divided proxies"]()
training.train(data, f"{sys.argv[1]}/fewer steps", **{**options, "steps": 5})
rank, training.distributed.ERROR_DELAY = int(os.environ["RANK"]), 0
for data, options in differences(rank):
    try:
        training.train(data, f"{sys.argv[1]}/none", loss="raw", batch_size=12, steps=2, device="cpu", **options)
    except ValueError as error:
        print(error, file=open(f"{sys.argv[1]}/differences {rank}.txt", "a"))
assert not os.path.exists(f"{sys.argv[1]}/none")
"""


def differences(rank):
    """Return data and options in which two processes differ."""
    layers = [torch.nn.Identity()] * rank + [torch.nn.Linear(10, 8)]
    model = models.create(torch.nn.Sequential(*layers), dim=6, example=torch.zeros(2, 10))
    return [
        (vectors(), {"dim": 6 + rank}),
        (vectors(), {"log_every": 7 + rank}),
        (vectors(classes=12 + 2 * rank), {"dim": 6}),
        (vectors(), {"model": model}),
    ]


class Two(torch.nn.Module):
    """Two levels, from low to high."""

    def __init__(self):
        super().__init__()
        self.low, self.high = torch.nn.Conv2d(3, 4, 3), torch.nn.Conv2d(4, 5, 3)

    def forward(self, x):
        low = self.low(x)
        return [low, self.high(low.relu())]


class Staged(models.Backbone):
    """The same layers as a backbone with stages."""

    channels: ClassVar = {"M": 4, "H": 5}

    def __init__(self):
        super().__init__()
        self.layers = Two()

    def stages(self):
        return [("M", self.layers.low), ("H", self.layers.high)]


def two_levels(plain_module=False):
    torch.manual_seed(0)
    prepared = models.Preprocessing(12, 12, "square", (127.5,) * 3, (127.5,) * 3)
    levels = "M" if plain_module else "MH"
    return models.create(Two() if plain_module else Staged(), dim=6, levels=levels, preprocessing=prepared)


def frozen():
    torch.manual_seed(0)
    return models.create("mlp", features=10, dim=None).requires_grad_(False)


EVERY = {"steps": 12, "evaluate_every": 5, "checkpoint_every": 5, "device": "cpu", "lr": 1e-3, "validation": 0.0}

DIVIDED = {"sharded": True, "scale": 8.0}
CASES = {
    # The gradient norm is that of all shares.
    "divided proxies": lambda: (
        vectors(),
        {
            **EVERY,
            "loss": "arcface",
            "loss_options": {**DIVIDED, "centers": 2},
            "dim": 6,
            "batch_size": 12,
            "per_class": 2,
            "clip": 0.5,
            "schedule": "constant",
        },
    ),
    "divided biases": lambda: (
        vectors(),
        {
            **EVERY,
            "loss": "sum",
            "loss_options": {"parts": [{"loss": "softmax", "sharded": True}, {"loss": "contrastive", "weight": 0.1}]},
            "dim": 6,
            "batch_size": 12,
            "per_class": 2,
            "optimizer": "sgd",
            "precision": "float16",
        },
    ),
    "images": lambda: (
        image_set(),
        {
            **EVERY,
            "loss": "multi_similarity",
            "model": "convnet",
            "model_options": {"size": 12, "channels": 3},
            "resize": 14,
            "dim": 8,
            "batch_size": 12,
            "per_class": 3,
            "ema": 0.9,
        },
    ),
    "memory and micro-batches": lambda: (
        vectors(),
        {**EVERY, "loss": "raw", "dim": 6, "memory": 40, "batch_size": 12, "per_class": 2, "micro_batch_size": 4},
    ),
    # One process gets three examples, which fit into one micro-batch, and the other gets six.
    "uneven micro-batches": lambda: (
        vectors(),
        {**EVERY, "loss": "raw", "dim": 6, "batch_size": 9, "per_class": 3, "micro_batch_size": 4},
    ),
    "layers above the level": lambda: (
        image_set(),
        {**EVERY, "loss": "raw", "model": two_levels().select("M"), "batch_size": 12, "per_class": 3},
    ),
    "layers above the level of a plain module": lambda: (
        image_set(),
        {**EVERY, "loss": "raw", "model": two_levels(plain_module=True), "batch_size": 12, "per_class": 3},
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
            "micro_batch_size": 4,
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


#: Two processes train this unlike one process, since each has BatchNorm statistics of its own share of a batch.
UNLIKE_ONE_PROCESS = {
    "batchnorm": lambda: (
        vectors(),
        {**EVERY, "steps": 1, "loss": "raw", "model": with_batchnorm(), "batch_size": 12, "per_class": 2},
    ),
}

AGAIN = {k: v for k, v in EVERY.items() if k != "steps"}
AGAIN |= {"ema": 0.9, "batch_size": 12, "per_class": 2, "schedule": "constant"}
RESUMED = {
    "memory": {**AGAIN, "loss": "raw", "memory": 40},
    "divided": {**AGAIN, "loss": "cosface", "loss_options": DIVIDED},
}


def free_port():
    """Return a port below those that the system gives to whoever asks for any."""
    for port in range(10_000 + os.getpid() % 20_000, 32_768):
        with socket.socket() as free, suppress(OSError):
            free.bind(("localhost", port))
            return port
    return pytest.fail("no port is free")


def torchrun(folder, code, processes=2):
    """Run code in several processes, as a user would; return standard error and the exit code."""
    script = folder / "script.py"
    script.write_text(code)
    command = ("-m", "torch.distributed.run", f"--nproc-per-node={processes}", "--standalone")
    child = start_process(script, folder, command=command)
    _, errors = child.communicate(timeout=600)
    return errors, child.returncode


def run_to_the_end(make_folder, code, processes, last_files):
    """Run code in several processes that must end well, and return their folder.

    Gloo aborts a process now and then while it ends: "terminate called without an active exception". They run once
    more only if that is after the last files were written.
    """
    for _ in range(2):
        folder = make_folder()
        errors, status = torchrun(folder, code, processes)
        is_complete = all((folder / name).is_file() for name in last_files)
        if status == 0 or "SIGABRT" not in errors or not is_complete:
            break
    assert status == 0, errors
    return folder


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    """Run all cases in two processes, one after the other."""
    last = [f"differences {rank}.txt" for rank in range(2)]
    return run_to_the_end(lambda: tmp_path_factory.mktemp("two"), CHILD, 2, last)


@pytest.mark.parametrize("case", CASES)
def test_two_processes_equal_one(case, tmp_path, two):
    data, options = CASES[case]()
    one = training.train(data, tmp_path, **options)
    for name in ("best", "last"):
        assert_close(weights(two / case, name), weights(tmp_path, name))
    # Every process returns the run; only the main process wrote it.
    returned = [torch.load(two / f"{case} {rank}.pt", weights_only=True) for rank in range(2)]
    for metrics, state in returned:
        assert metrics == pytest.approx(one.metrics["recall_at_1"])
        assert_close(state, one.embedder.state_dict())
    losses = [[event["loss"] for event in events(folder, "train")] for folder in (tmp_path, two / case)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    # Parameters and memory of the loss.
    assert_close(*(checkpoint(folder)["objective"] for folder in (tmp_path, two / case)))


def test_all_processes_evaluate_the_network_that_is_saved(two):
    """Each embeds its share of the examples, with the BatchNorm statistics of the main process."""
    _, evaluation = events(two / "batchnorm", "evaluation")
    kept = load_file(two / "batchnorm" / "vectors.safetensors")["embeddings"]
    assert evaluation["mean_cosine"] == pytest.approx(mean_cosine(kept))


@pytest.mark.parametrize("loss", RESUMED)
def test_two_processes_resume_bit_for_bit(loss, two):
    """Each process has its own random numbers, which dropout uses, and its own share of divided proxies."""
    folders = [two / f"{loss}, {calls}" for calls in ("one call", "two calls")]
    for name in ("best", "last"):
        assert same(*(weights(folder, name) for folder in folders))
    assert same(*(checkpoint(folder)["objective"] for folder in folders))


THREE = """
import sys, torch
from training.test_distributed import CASES
from tuplet import training
torch.set_num_threads(1)
data, options = CASES["divided proxies"]()
for folder in ("fewer steps", "three"):
    training.train(data, f"{sys.argv[1]}/{folder}", **options)
"""


def test_another_number_of_processes_divides_the_proxies_again(two, tmp_path_factory):
    """Three processes train what one trains, from the start and from a checkpoint of two."""

    def make_folder():
        folder = tmp_path_factory.mktemp("three")
        shutil.copytree(two / "fewer steps", folder / "fewer steps")
        return folder

    tmp_path = run_to_the_end(make_folder, THREE, 3, ["three/evaluation.json"])
    data, options = CASES["divided proxies"]()
    training.train(data, tmp_path / "one", **options)
    # One process goes on where two stopped.
    shutil.copytree(two / "fewer steps", tmp_path / "one goes on")
    training.train(data, tmp_path / "one goes on", **options)
    expected = checkpoint(tmp_path / "one")
    for folder in ("three", "fewer steps", "one goes on"):
        assert_close(weights(tmp_path / folder), weights(tmp_path / "one"))
        found = checkpoint(tmp_path / folder)
        assert_close(found["objective"], expected["objective"])
        assert found["optimizer"]["state"].keys() == expected["optimizer"]["state"].keys()
        for number, state in expected["optimizer"]["state"].items():
            assert_close(found["optimizer"]["state"][number], state)


def test_a_sharded_object_is_refused(tmp_path):
    loss = losses.CosFaceLoss(num_classes=12, dim=6, sharded=True)
    with pytest.raises(ValueError, match=r"CosFaceLoss is a sharded object.*give its name and loss_options="):
        training.train(vectors(), tmp_path / "run", loss=loss, dim=6, batch_size=12, steps=2, device="cpu")


FAILING = """
import os, sys
from training_tools import vectors
from tuplet import training
rank, training.distributed.ERROR_DELAY = int(os.environ["RANK"]), {wait}
training.{call}, device="cpu", lr={lr})
"""
TRAIN, COMPARE = "train(vectors(), sys.argv[1]", "compare(vectors(), ['raw'], [0], out=sys.argv[1]"


@pytest.mark.parametrize(("call", "lr", "wait"), [(TRAIN, "0", 60), (TRAIN, "1 - rank", 0.1), (COMPARE, "0", 60)])
def test_an_error_is_printed_by_one_process(call, lr, wait, tmp_path):
    """The main process prints an error that all processes have; another process prints its own error."""
    errors, code = torchrun(tmp_path, FAILING.format(call=call, lr=lr, wait=wait))
    assert code == 1
    assert errors.count("lr is 0; it must be above 0") == 1


LOST = """
import os, signal, sys, torch
from training_tools import vectors
from tuplet import training
torch.set_num_threads(1)
training.distributed.ERROR_DELAY = 0.1
step, rank = training.step.Stepper.step, int(os.environ["RANK"])
def lost(self, number, *batch):
    if number == 3 and rank == {rank}:
        os.kill(os.getpid(), signal.{signal})
    return step(self, number, *batch)
training.step.Stepper.step = lost
training.train(vectors(), sys.argv[1], loss="raw", dim=6, batch_size=12, steps=12, device="cpu")
"""


@pytest.mark.parametrize(
    ("lost", "how", "sentence"),
    [
        (1, "SIGSTOP", "TimeoutError: another process of this run did not answer within 3 s; look whether it was"),
        (0, "SIGSTOP", "TimeoutError: another process of this run did not answer within 3 s; look whether it was"),
        (1, "SIGKILL", "ConnectionError: another process of this run ended; see its own message, and call again"),
    ],
)
def test_a_process_does_not_wait_forever_for_another(lost, how, sentence, tmp_path, soak):
    """Without torchrun, which would end the other process as soon as one is killed."""
    if not soak and (lost, how) != (1, "SIGSTOP"):
        pytest.skip("runs with --soak")
    options = {"MASTER_ADDR": "localhost", "MASTER_PORT": str(free_port()), "WORLD_SIZE": "2", "TUPLET_TIMEOUT": "3"}
    code = LOST.format(rank=lost, signal=how)
    processes = [start_process(code, tmp_path / "run", RANK=str(rank), **options) for rank in range(2)]
    try:
        _, errors = processes[1 - lost].communicate(timeout=300)
    finally:
        processes[lost].kill()
        processes[lost].communicate()
    assert processes[1 - lost].returncode == 1
    assert errors.splitlines()[-1].removeprefix(f"[rank{1 - lost}]: ").startswith(sentence)


def test_processes_that_differ_get_a_sentence(two):
    """Gloo would end both if their tensors had different sizes."""
    end = "; start all processes with the same command on the same data"
    expected = [
        "dim=7 in process 1 and dim=6 in process 0",
        "log_every=8 in process 1 and log_every=7 in process 0",
        "the data of process 1 differ from those of process 0 in their examples",
        "the weights of process 1 have other names, shapes or types than in process 0",
    ]
    for rank in range(2):
        said = (two / f"differences {rank}.txt").read_text().splitlines()
        assert said == [sentence + end for sentence in expected]


def checkpoint(folder):
    return torch.load(folder / "checkpoint.pt", weights_only=True)


def assert_close(ours, theirs):
    assert ours.keys() == theirs.keys()
    for key in theirs:
        torch.testing.assert_close(ours[key], theirs[key], rtol=1e-4, atol=2e-5)
