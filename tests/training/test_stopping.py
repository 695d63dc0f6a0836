"""Ctrl-C while a run trains keeps what it has learned, and stops at once where it must."""

import signal
import threading

import pytest
import torch

from training_tools import QUICK, same, vectors, weights
from tuplet import training
from tuplet.training import loop

RARE = {**QUICK, "steps": 9, "checkpoint_every": 100, "evaluate_every": 4, "log_every": 100, "memory": 20}


@pytest.fixture
def usual():
    """What Python does on ctrl-C, whoever runs the tests."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


def pressing(monkeypatch, at, times=1):
    """Have ctrl-C pressed in the middle of a step, counted from 1."""
    set_rate = loop.set_rate

    def press(optimizer, settings, step):
        for _ in range(times if step + 1 == at else 0):
            signal.raise_signal(signal.SIGINT)
        return set_rate(optimizer, settings, step)

    monkeypatch.setattr(loop, "set_rate", press)


def kept(folder):
    return torch.load(folder / "checkpoint.pt", weights_only=True)["progress"]["step"]


@pytest.mark.usefixtures("usual")
@pytest.mark.parametrize("at", [1, 4, 6, 9])
def test_the_step_under_way_is_finished_and_kept(at, tmp_path, monkeypatch):
    training.train(vectors(), tmp_path / "whole", **RARE)
    with monkeypatch.context() as patch:
        pressing(patch, at)
        with pytest.raises(KeyboardInterrupt):
            training.train(vectors(), tmp_path / "stopped", **RARE)
    assert kept(tmp_path / "stopped") == at
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    training.train(vectors(), tmp_path / "stopped", **RARE)
    for name in ("best", "last"):
        assert same(weights(tmp_path / "stopped", name), weights(tmp_path / "whole", name))


@pytest.mark.usefixtures("usual")
def test_pressed_twice_it_stops_at_once(tmp_path, monkeypatch):
    pressing(monkeypatch, at=6, times=2)
    with pytest.raises(KeyboardInterrupt):
        training.train(vectors(), tmp_path, **RARE)
    assert kept(tmp_path) == 4  # which was evaluated, and the best so far


def test_a_handler_of_the_callers_own_is_left_alone(tmp_path, monkeypatch):
    pressed = []
    before = signal.signal(signal.SIGINT, lambda *_: pressed.append(True))
    try:
        pressing(monkeypatch, at=2, times=2)
        training.train(vectors(), tmp_path, **RARE)
    finally:
        signal.signal(signal.SIGINT, before)
    assert (pressed, kept(tmp_path)) == ([True, True], 9)


@pytest.mark.usefixtures("usual")
def test_a_run_in_another_thread_trains(tmp_path):
    thread = threading.Thread(target=training.train, args=(vectors(), tmp_path), kwargs=RARE)
    thread.start()
    thread.join()
    assert kept(tmp_path) == 9
