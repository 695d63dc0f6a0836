"""Tests of failures: each gives one sentence. Losses that are not finite, full disks, folders in use."""

import math
import os
import resource
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from training_tools import events, start_process, vectors
from tuplet import losses, models, training
from tuplet.training.events import Events

QUICK = {
    "validation": 0.0,
    "loss": "raw",
    "steps": 8,
    "batch_size": 12,
    "per_class": 3,
    "dim": 5,
    "checkpoint_every": 2,
    "schedule": "constant",
}


class Broken(losses.RAWLoss):
    """A loss that is not finite from its fourth call on."""

    def __init__(self, how):
        super().__init__()
        self.calls, self.how = 0, how

    def value(self, view):
        self.calls += 1
        value = super().value(view)
        if self.calls < 4:
            return value
        if self.how == "gradient":
            return value + (0 * view.queries).sqrt().sum()
        return value * float(self.how)


@pytest.mark.parametrize(("how", "event"), [("nan", "the loss is nan"), ("inf", "the loss is inf")])
def test_a_loss_that_is_not_finite_stops_with_step_cause_and_files(how, event, tmp_path):
    with pytest.raises(
        FloatingPointError, match=f"step 4: {event}; the embeddings are finite and of unit length"
    ) as caught:
        training.train(vectors(), tmp_path, **{**QUICK, "loss": Broken(how)})
    sentence = str(caught.value)
    assert "\n" not in sentence
    assert "of the arrays in memory" in sentence
    assert sentence.endswith("and 7 more, listed in events.jsonl")
    (failure,) = events(tmp_path, "failure")
    assert failure["step"] == 4
    assert len(failure["files"]) == 12
    # The checkpoint before it is good.
    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert saved["progress"]["step"] == 2
    assert all(bool(value.isfinite().all()) for value in saved["embedder"].values())


def test_the_indices_of_a_bad_batch_refer_to_the_given_arrays(tmp_path):
    """They do not refer to the training examples, here the second half of the arrays."""
    data = replace(vectors(), splits=("test",) * 36 + ("train",) * 36)
    with pytest.raises(FloatingPointError):
        training.train(data, tmp_path, **{**QUICK, "loss": Broken("nan")})
    named = [int(file.split()[1]) for file in events(tmp_path, "failure")[0]["files"]]
    assert set(named) <= set(range(36, 72))
    assert len(data.labels[named].unique()) == 4


@pytest.mark.parametrize("how", ["nan", "gradient"])
def test_the_right_step_is_named_although_the_next_one_was_launched(how, tmp_path):
    loss, rare = Broken(how), dict.fromkeys(("log_every", "evaluate_every", "checkpoint_every"), 100)
    cause = "only its gradient is not finite" if how == "gradient" else "so the cause is the loss itself"
    with pytest.raises(FloatingPointError, match=rf"step 4: the loss is .*; .*{cause}"):
        training.train(vectors(), tmp_path, **{**QUICK, **rare, "loss": loss})
    assert events(tmp_path, "failure")[0]["step"] == 4


def test_a_gradient_that_is_not_finite_never_reaches_the_weights(tmp_path):
    with pytest.raises(FloatingPointError, match=r"step 4: the loss is .*; only its gradient is not finite: lower lr"):
        training.train(vectors(), tmp_path, **{**QUICK, "loss": Broken("gradient"), "checkpoint_every": 1})
    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert saved["progress"]["step"] == 3
    assert all(bool(value.isfinite().all()) for value in saved["embedder"].values())


@pytest.mark.parametrize("work", ["evaluate_every", "checkpoint_every"])
def test_weights_that_become_infinite_are_neither_evaluated_nor_saved(work, tmp_path):
    """Loss and gradient of the step are finite; a huge learning rate makes the weights infinite."""
    rare = dict.fromkeys(("log_every", "evaluate_every", "checkpoint_every"), 100)
    options = {**QUICK, **rare, "optimizer": "sgd", "lr": 1e38, "head_lr_scale": 10.0}
    with pytest.raises(
        FloatingPointError, match=r"step 1: training has diverged; the weights are not finite.*lower lr"
    ):
        training.train(vectors(), tmp_path, **{**options, work: 1})
    assert [event["event"] for event in events(tmp_path)] == ["evaluation", "failure"]  # of the start
    assert not (tmp_path / "checkpoint.pt").exists()


def test_parameters_of_the_loss_that_become_infinite_stop_the_run(tmp_path):
    """The network stays finite; the proxies, with their own learning rate, do not."""
    options = {**QUICK, "loss": "softmax", "optimizer": "sgd", "lr": 1e-7, "loss_lr_scale": 1e48}
    for every in (1, 100):
        with pytest.raises(FloatingPointError, match=r"step [12]: .*; the weights are not finite, so a step was"):
            training.train(vectors(), tmp_path / str(every), **{**options, "checkpoint_every": every})
        assert not (tmp_path / str(every) / "checkpoint.pt").exists()


class Overflowing(torch.nn.Module):
    """A network with finite weights whose output is infinite in its fourth step."""

    def __init__(self):
        super().__init__()
        self.layer, self.steps = torch.nn.Linear(10, 5), 0

    def forward(self, x):
        self.steps += self.training
        return self.layer(x) * (math.inf if self.steps == 4 else 1)


@pytest.mark.parametrize(
    ("precision", "cause"),
    [("float32", "lower lr from 0.0001"), ("float16", "as float16 overflows above 65,504: use precision='bfl")],
)
def test_an_output_that_is_not_finite_is_told_from_weights_that_are_not(precision, cause, tmp_path):
    options = {k: v for k, v in QUICK.items() if k != "dim"}
    network = models.create(Overflowing(), dim=None, example=torch.zeros(1, 10))
    message = f"step 4: the loss is nan; the network's output is not finite.*{cause}"
    with pytest.raises(FloatingPointError, match=message):
        training.train(vectors(), tmp_path, model=network, precision=precision, **options)


def test_float16_stops_if_no_scale_helps(tmp_path):
    """The loss makes the gradient NaN. Without the limit all steps would be skipped silently."""
    loss = Broken("gradient")
    with pytest.raises(FloatingPointError, match=r"step 44: the loss is .*; only its gradient is not finite"):
        training.train(vectors(), tmp_path, **{**QUICK, "loss": loss, "precision": "float16", "steps": 100})


def test_a_collapse_gives_one_warning(tmp_path):
    class Pull(losses.RowLoss):
        """Pulls all pairs together."""

        def rows(self, s, positive, negative):
            return (1 - s).sum(1), positive.any(1)

    options = {**QUICK, "loss": Pull(), "lr": 0.1, "steps": 100, "evaluate_every": 10, "normalize": True}
    with pytest.warns(UserWarning, match="step 50: the embeddings have collapsed, with a mean cosine of ") as warned:
        training.train(vectors(), tmp_path, **options)
    assert [warning.filename for warning in warned if "collapsed" in str(warning.message)] == [__file__]
    assert events(tmp_path, "evaluation")[-1]["mean_cosine"] > 0.98


def test_a_run_without_a_collapse_gives_no_warning(tmp_path, recwarn):
    training.train(vectors(), tmp_path, **QUICK)
    assert not [warning for warning in recwarn if "collapsed" in str(warning.message)]
    found, run = events(tmp_path, "evaluation")[-1], torch.nn.functional.normalize
    saved = load_file(tmp_path / "vectors.safetensors")["embeddings"].double()
    cosines = run(saved, dim=1) @ run(saved, dim=1).T
    apart = ~torch.eye(len(saved), dtype=torch.bool)
    assert found["mean_cosine"] == pytest.approx(cosines[apart].mean().item(), abs=1e-6)


def test_a_learning_rate_that_is_too_high_is_named(tmp_path):
    options = {**QUICK, "loss": "npair", "normalize": False, "optimizer": "sgd", "lr": 1e12, "steps": 50}
    with pytest.raises(FloatingPointError, match=r"lower lr from 1e\+12, or set warmup or clip"):
        training.train(vectors(), tmp_path, **options)


FULL = """
import resource, sys, torch
from training_tools import vectors
from training.test_diagnostics import QUICK
from tuplet import training
torch.set_num_threads(1)
data = vectors()
training.train(data, sys.argv[1], **{**QUICK, "steps": 2})
resource.setrlimit(resource.RLIMIT_FSIZE, (int(sys.argv[2]), resource.RLIM_INFINITY))
try:
    training.train(data, sys.argv[1], **QUICK)
except OSError as error:
    print(error)
"""


@pytest.mark.parametrize(("limit", "file"), [(2000, "checkpoint.pt"), (200, "run.json")])
def test_a_full_disk_raises_one_sentence_and_does_no_harm(limit, file, tmp_path):
    """A limit on the size of files simulates a full disk: writing fails in the middle of a file."""
    child = start_process(FULL, tmp_path, limit)
    printed, errors = child.communicate(timeout=120)
    assert child.returncode == 0, errors
    assert printed.count("\n") == 1
    assert f"{tmp_path / file} could not be written" in printed
    assert printed.endswith("; make room, then call again\n")
    assert training.train(vectors(), tmp_path, **QUICK).metrics["step"] > 0
    assert [event["step"] for event in events(tmp_path, "train")] == [2, 8]


def test_a_disk_that_is_too_full_for_the_log_raises_one_sentence(tmp_path):
    log = Events(tmp_path, 0, 0)
    log.write("train", step=1, loss=0.5)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (60, limits[1]))
    try:
        with pytest.raises(OSError, match=r"events.jsonl could not be written .*make room, then call again$"):
            log.write("train", step=2, loss=0.4)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_one_folder_holds_one_run_at_a_time(tmp_path):
    folder = training.folder.RunFolder(tmp_path)
    with folder.locked(), pytest.raises(BlockingIOError, match="is in use by another run; wait for it or give another"):
        training.train(vectors(), tmp_path, **QUICK)
    training.train(vectors(), tmp_path, **QUICK)


def test_a_folder_that_cannot_be_written_is_named_in_the_error(tmp_path, monkeypatch):
    def refuse(self, *_, **__):
        raise PermissionError(13, "Permission denied", str(self))

    for function in ("open", "mkdir"):
        with monkeypatch.context() as patch:
            patch.setattr(Path, function, refuse)
            with pytest.raises(OSError, match=r"could not be written \(.*Permission denied.*\); give another folder"):
                training.train(vectors(), tmp_path / "run", **QUICK)


def test_the_log_is_closed_after_an_error(tmp_path, monkeypatch):
    opened = []
    monkeypatch.setattr(
        Events, "__init__", lambda self, *a, init=Events.__init__: opened.append(self) or init(self, *a)
    )
    with pytest.raises(FloatingPointError):
        training.train(vectors(), tmp_path, **{**QUICK, "loss": Broken("nan")})
    assert [log._file.closed for log in opened] == [True]


def test_a_file_in_place_of_the_folder_raises_an_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(NotADirectoryError, match="is a file; give a folder for the run"):
        training.train(vectors(), tmp_path / "file", **QUICK)
    with pytest.raises(OSError, match=r"could not be written \(.*Not a directory.*\); give another folder"):
        training.train(vectors(), tmp_path / "file" / "run", **QUICK)
    with pytest.raises(FileNotFoundError, match="does not exist; give a folder, a tar, a table"):
        training.train(tmp_path / "nowhere", tmp_path / "run", **QUICK)


@pytest.mark.parametrize("out", [None, 3, b"run", ""], ids=repr)
def test_a_wrong_out_raises_an_error_before_data_are_read(out):
    nowhere = "/nowhere/at/all"
    for call in (
        lambda: training.train(nowhere, out, **QUICK),
        lambda: training.compare(nowhere, ["raw"], [0], out=out),
    ):
        with pytest.raises(TypeError, match=f"out is {out!r}; give the path of a folder"):
            call()


def test_an_out_that_is_not_utf_8_raises_an_error_before_data_are_read():
    with pytest.raises(ValueError, match=r"out is 'run\\udcff', which is not UTF-8; give another folder"):
        training.train("/nowhere/at/all", os.fsdecode(b"run\xff"), **QUICK)
