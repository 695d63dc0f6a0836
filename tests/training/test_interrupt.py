"""Tests of ctrl-C: the current step is finished and kept; a second ctrl-C stops at once."""

import shlex
import signal
import threading
import time

import numpy as np
import pytest
import torch

from training_tools import QUICK, same, start_process, vectors, weights
from tuplet import training
from tuplet.training import loop

RARE = {**QUICK, "steps": 9, "checkpoint_every": 100, "evaluate_every": 4, "log_every": 100, "memory": 20}


@pytest.fixture
def default_handler():
    """Install Python's own handlers of signals, whatever runs the tests."""
    usual = {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}
    before = {number: signal.signal(number, handler) for number, handler in usual.items()}
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def press_ctrl_c(monkeypatch, at, times=1, number=signal.SIGINT):
    """Press ctrl-C during a step, counted from 1, or send another signal."""
    set_lr = loop.set_lr

    def press(optimizer, settings, step):
        for _ in range(times if step + 1 == at else 0):
            signal.raise_signal(number)
        return set_lr(optimizer, settings, step)

    monkeypatch.setattr(loop, "set_lr", press)


def saved_step(folder):
    return torch.load(folder / "checkpoint.pt", weights_only=True)["progress"]["step"]


@pytest.mark.usefixtures("default_handler")
@pytest.mark.parametrize("at", [1, 4, 6, 9])
def test_the_current_step_is_finished_and_saved(at, tmp_path, monkeypatch):
    training.train(vectors(), tmp_path / "whole", **RARE)
    with monkeypatch.context() as patch:
        press_ctrl_c(patch, at)
        with pytest.raises(KeyboardInterrupt):
            training.train(vectors(), tmp_path / "stopped", **RARE)
    assert saved_step(tmp_path / "stopped") == at
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    training.train(vectors(), tmp_path / "stopped", **RARE)
    for name in ("best", "last"):
        assert same(weights(tmp_path / "stopped", name), weights(tmp_path / "whole", name))


@pytest.mark.usefixtures("default_handler")
def test_sigterm_finishes_the_step_and_ends_with_its_code(tmp_path, monkeypatch, caplog):
    training.train(vectors(), tmp_path / "whole", **RARE)
    with monkeypatch.context() as patch, caplog.at_level("INFO", "tuplet"):
        press_ctrl_c(patch, 6, number=signal.SIGTERM)
        with pytest.raises(SystemExit, match="143"):
            training.train(vectors(), tmp_path / "stopped", **RARE)
    assert "stopping after this step, with a checkpoint; once more stops at once" in caplog.messages
    assert saved_step(tmp_path / "stopped") == 6
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    training.train(vectors(), tmp_path / "stopped", **RARE)
    assert same(weights(tmp_path / "stopped"), weights(tmp_path / "whole"))


def test_the_command_ends_with_a_checkpoint_on_sigterm(tmp_path):
    """A real process and a real signal, as docker stop sends it."""
    source = vectors()
    np.savez(tmp_path / "features.npz", features=source.features.numpy(), labels=source.labels.numpy())
    options = shlex.split("--steps 1000000 --batch-size 12 --per-class 3 --dim 5 --validation 0 --log-every 5")
    command = ["-m", "tuplet", "train", tmp_path / "features.npz", "--out", tmp_path / "run", *options]
    child = start_process(command[-1], command=command[:-1])
    log = tmp_path / "run" / "events.jsonl"
    while child.poll() is None and not (log.exists() and '"train"' in log.read_text()):
        time.sleep(0.05)
    child.send_signal(signal.SIGTERM)
    _, errors = child.communicate(timeout=120)
    assert child.returncode == 143, errors
    assert "tuplet: stopping after this step, with a checkpoint; once more stops at once\n" in errors
    assert errors.endswith("tuplet: stopped; the same command continues from the last checkpoint\n")
    assert saved_step(tmp_path / "run") >= 5


def test_a_checkpoint_is_written_after_some_minutes(tmp_path, monkeypatch):
    """Between two of `checkpoint_every`, however long steps take."""
    saved, write = [], training.folder.RunFolder.write_checkpoint
    monkeypatch.setattr(
        training.folder.RunFolder,
        "write_checkpoint",
        lambda self, state: saved.append(state["progress"]["step"]) or write(self, state),
    )
    training.train(vectors(), tmp_path, **RARE, checkpoint_minutes=1e-9)
    assert saved == [*range(1, 10)]


@pytest.mark.usefixtures("default_handler")
def test_a_second_ctrl_c_stops_at_once(tmp_path, monkeypatch):
    press_ctrl_c(monkeypatch, at=6, times=2)
    with pytest.raises(KeyboardInterrupt):
        training.train(vectors(), tmp_path, **RARE)
    assert saved_step(tmp_path) == 4  # the last checkpoint: step 4 was evaluated and is the best


def test_a_handler_of_the_caller_stays_installed(tmp_path, monkeypatch):
    pressed = []
    before = signal.signal(signal.SIGINT, lambda *_: pressed.append(True))
    try:
        press_ctrl_c(monkeypatch, at=2, times=2)
        training.train(vectors(), tmp_path, **RARE)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (pressed, saved_step(tmp_path)) == ([True, True], 9)


@pytest.mark.usefixtures("default_handler")
def test_a_run_in_another_thread_can_train(tmp_path):
    thread = threading.Thread(target=training.train, args=(vectors(), tmp_path), kwargs=RARE)
    thread.start()
    thread.join()
    assert saved_step(tmp_path) == 9
