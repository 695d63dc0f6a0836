"""Callbacks see a run, and cannot lose it."""

import pytest
import torch

from tuplet import data, train
from tuplet.training import Callback

DATA = data.from_features(torch.eye(8).repeat_interleave(5, 0), torch.arange(40) // 5)
QUICK = {"steps": 4, "batch_size": 16, "dim": 4, "device": "cpu"}
QUICK |= {"log_every": 2, "evaluate_every": 4, "checkpoint_every": 2}


class Record(Callback):
    def __init__(self):
        self.seen = []

    def on_step(self, step, values):
        self.seen.append(("step", step, "loss" in values))

    def on_evaluate(self, step, values):
        self.seen.append(("evaluate", step, 0 <= values["recall_at_1"] <= 1))

    def on_checkpoint(self, step, path):
        self.seen.append(("checkpoint", step, path.is_file()))

    def on_end(self, step, values):
        self.seen.append(("end", step, "best_step" in values))


def test_callbacks_are_told_of_everything(tmp_path):
    record = Record()
    train(DATA, tmp_path, callbacks=[record], **QUICK)
    assert record.seen[-1] == ("end", 4, True)
    assert all(right for *_, right in record.seen)
    assert [step for kind, step, _ in record.seen if kind == "step"] == [2, 4]
    assert {4} <= {step for kind, step, _ in record.seen if kind == "evaluate"}
    assert {2, 4} <= {step for kind, step, _ in record.seen if kind == "checkpoint"}


def test_a_callback_that_fails_is_left_out_and_the_run_goes_on(tmp_path, caplog):
    class Broken(Callback):
        def on_step(self, step, values):
            raise RuntimeError("no network")

    record = Record()
    run = train(DATA, tmp_path, callbacks=[Broken(), record], **QUICK)
    assert record.seen[-1][0] == "end"
    assert run.metrics["recall_at_1"] >= 0
    messages = [message for message in caplog.messages if "Broken" in message]
    assert messages == ["the callback Broken failed in on_step (no network) and is left out"]


def test_trackers_are_checked_before_training(tmp_path):
    with pytest.raises(ValueError, match="log is 'tensorbord'; choose one of mlflow, wandb"):
        train(DATA, tmp_path / "run", callbacks=["tensorbord"], **QUICK)
    for wrong in (Record, print):
        with pytest.raises(TypeError, match=r"callbacks has .*; give objects of subclasses"):
            train(DATA, tmp_path / "run", callbacks=[wrong], **QUICK)
    assert not (tmp_path / "run").exists()
