"""A run that is interrupted, however and whenever, ends with the weights of one that is not."""

import itertools
import random
import signal
import time

import pytest
import torch

from training_tools import CASES, EVERY, events, same, start, vectors, weights
from tuplet import losses, models, training
from tuplet.training import loop

CHILD = """
import sys, torch
from training_tools import CASES, EVERY
from tuplet import training
torch.set_num_threads(1)
data, options = CASES[sys.argv[1]]()
print("ready", flush=True)
training.train(data, sys.argv[2], **{**options, **EVERY})
"""


class Interruption(BaseException):
    pass


def breaking_off(at, *functions):
    """The functions, which break off at their `at`-th call, all counted together."""
    calls = itertools.count(1)

    def counted(function):
        def breaks_off(*arguments, **options):
            if next(calls) == at:
                raise Interruption
            return function(*arguments, **options)

        return breaks_off

    return [counted(function) for function in functions]


def go(case, folder, **more):
    data, options = CASES[case]()
    return training.train(data, folder, **{**options, **EVERY, **more})


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folders = {}

    def get(case):
        if case not in folders:
            folders[case] = tmp_path_factory.mktemp(case)
            go(case, folders[case])
        return folders[case]

    return get


def wait_for_training(folder, child):
    """Until the process has written something, or has ended."""
    log = folder / "events.jsonl"
    before = log.stat().st_size if log.exists() else 0
    while child.poll() is None and not (log.exists() and log.stat().st_size != before):
        time.sleep(0.01)


def check_alike(folder, other):
    """The same weights, best and last, and the same events but for their times."""
    for name in ("last", "best"):
        assert same(weights(folder, name), weights(other, name))
    timed = {"seconds", "examples_per_second"}
    ours, theirs = ([{k: v for k, v in e.items() if k not in timed} for e in events(f)] for f in (folder, other))
    assert ours == theirs
    assert (folder / "evaluation.json").read_text() == (other / "evaluation.json").read_text()
    one, two = (torch.load(f / "checkpoint.pt", weights_only=True) for f in (folder, other))
    for part in ("objective", "embedder"):
        assert same(one[part], two[part])


@pytest.mark.parametrize("case", CASES)
def test_a_killed_process_goes_on_bit_for_bit(case, tmp_path, uninterrupted, soak):
    """kill -9 at a random moment, again and again; the same call then ends as if nothing had been."""
    chance, kills, run = random.Random(case), 20 if soak else 1, 0
    while kills:
        folder = tmp_path / str(run)
        child = start(CHILD, case, folder)
        assert child.stdout.readline() == "ready\n", child.stderr.read()
        if chance.random() < 0.7:
            wait_for_training(folder, child)
        time.sleep(chance.uniform(0.0, 0.6))
        if child.poll() is None:
            child.send_signal(signal.SIGKILL)
            kills -= 1
        else:  # it was faster: so it must have ended well, and another one begins
            assert child.returncode == 0, child.stderr.read()
            check_alike(folder, uninterrupted(case))
            run += 1
        child.communicate()
        steps = [event["step"] for event in events(folder, "train")] if (folder / "events.jsonl").exists() else []
        assert steps == sorted(set(steps))
    go(case, tmp_path / str(run))
    check_alike(tmp_path / str(run), uninterrupted(case))


#: What breaks off, and at which of its calls.
MOMENTS = {
    "before the step": (loop, "set_rate", 23),
    "in the log": (loop.Loop, "_log", 5),
    "in the evaluation": (loop.Loop, "_evaluate", 4),
    "in the checkpoint": (training.folder.os, "replace", 7),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("moment", MOMENTS)
def test_an_interruption_at_any_place_goes_on_bit_for_bit(case, moment, tmp_path, uninterrupted, monkeypatch):
    """After some steps the process breaks off in the middle of each kind of work."""
    owner, name, at = MOMENTS[moment]
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, *breaking_off(at, getattr(owner, name)))
        with pytest.raises(Interruption):
            go(case, tmp_path)
    go(case, tmp_path)
    check_alike(tmp_path, uninterrupted(case))


def test_a_finished_run_is_returned_and_not_trained_again(tmp_path, monkeypatch):
    first = go("proxies", tmp_path)
    monkeypatch.setattr(training.run, "assemble", lambda *_: pytest.fail("decoded and trained again"))
    again = go("proxies", tmp_path)
    assert again.metrics == first.metrics
    assert same(first.embedder.state_dict(), again.embedder.state_dict())
    assert len(events(tmp_path, "end")) == 1


def test_more_steps_continue_a_run_whose_schedule_allows_it(tmp_path):
    go("proxies", tmp_path / "at once")
    go("proxies", tmp_path / "in two", steps=21)
    go("proxies", tmp_path / "in two")
    assert same(weights(tmp_path / "at once"), weights(tmp_path / "in two"))
    go("everything", tmp_path / "cosine", steps=3)
    with pytest.raises(ValueError, match=r"steps=3, on which its cosine schedule depends, not steps=36.*resume=False"):
        go("everything", tmp_path / "cosine")


def test_fewer_steps_end_a_run_that_was_killed_after_them(tmp_path, monkeypatch):
    """Before anything was measured: the step where it stands is the last one, and that is always measured."""
    rare = {"evaluate_every": 100}
    with monkeypatch.context() as patch:
        patch.setattr(loop, "set_rate", *breaking_off(8, loop.set_rate))
        with pytest.raises(Interruption):
            go("proxies", tmp_path, **rare)
    run = go("proxies", tmp_path, steps=5, **rare)
    assert run.metrics["step"] == 6
    go("proxies", tmp_path / "clean", steps=6, **rare)
    assert same(weights(tmp_path, "best"), weights(tmp_path / "clean", "best"))
    go("proxies", tmp_path, steps=9, **rare)
    assert [event["step"] for event in events(tmp_path, "evaluation")] == [6, 9]


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_a_checkpoint_of_an_optimiser_that_was_not_fused_goes_on(optimizer, tmp_path):
    go("proxies", tmp_path / "at once", optimizer=optimizer)
    go("proxies", tmp_path / "in two", optimizer=optimizer, steps=21)
    saved = torch.load(tmp_path / "in two" / "checkpoint.pt", weights_only=True)
    for group in saved["optimizer"]["param_groups"]:
        group["fused"] = False
    torch.save(saved, tmp_path / "in two" / "checkpoint.pt")
    go("proxies", tmp_path / "in two", optimizer=optimizer)
    assert same(weights(tmp_path / "at once"), weights(tmp_path / "in two"))


def test_a_checkpoint_of_other_settings_or_data_is_refused_in_one_sentence(tmp_path):
    go("proxies", tmp_path, steps=3)
    for change in ({"rate": 0.5}, {"loss": "raw"}, {"dim": 7}, {"seed": 1}, {"model_options": {"hidden": [8]}}):
        (name,) = change
        with pytest.raises(
            ValueError, match=f"holds a run with {name}=.*give another folder, or resume=False"
        ) as caught:
            go("proxies", tmp_path, **change)
        assert "\n" not in str(caught.value)
    go("proxies", tmp_path / "object", steps=3, loss=losses.MarginLoss(learn_beta=True))
    for other in (losses.MarginLoss(), losses.MarginLoss(beta=0.9, learn_beta=True)):
        with pytest.raises(ValueError, match=r"holds a run with loss='MarginLoss\(.*beta learns from 1.2.*, not loss="):
            go("proxies", tmp_path / "object", loss=other)
    _, options = CASES["proxies"]()
    with pytest.raises(ValueError, match=r"holds a run on other data \(examples 72, here 60\)"):
        # Settings that were left open follow from the data, and are not what the user has changed.
        training.train(vectors(classes=10), tmp_path, **{**options, **EVERY, "batch_size": 9})
    with pytest.raises(ValueError, match=r"holds a run on other data \(contents "):
        training.train(vectors(seed=1), tmp_path, **{**options, **EVERY})
    assert go("proxies", tmp_path, rate=0.5, steps=3, resume=False).metrics["step"] == 3


def test_a_run_from_before_an_option_was_there_goes_on_with_its_default(tmp_path):
    go("proxies", tmp_path, steps=3)
    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    for option in ("head_steps", "augment"):
        del saved["identity"]["settings"][option]
    torch.save(saved, tmp_path / "checkpoint.pt")
    with pytest.raises(ValueError, match="holds a run with head_steps=0, not head_steps=2"):
        go("proxies", tmp_path, head_steps=2)
    go("proxies", tmp_path)
    assert [event["step"] for event in events(tmp_path, "evaluation")][:2] == [3, 7]


def test_a_checkpoint_of_another_model_is_refused_in_one_sentence(tmp_path):
    """Two modules of the user's own with as many parameters: only their shapes tell them apart."""
    one, other = (
        models.create(
            torch.nn.Sequential(torch.nn.Linear(10, a, bias=False), torch.nn.Linear(a, b, bias=False)),
            dim=5,
            example=torch.zeros(1, 10),
        )
        for a, b in ((5, 2), (3, 5))
    )
    assert sum(p.numel() for p in one.parameters()) == sum(p.numel() for p in other.parameters())
    options = {"loss": "raw", "batch_size": 8, "steps": 2}
    training.train(vectors(), tmp_path, model=one, **options)
    with pytest.raises(ValueError, match="another model, whose weights have other shapes"):
        training.train(vectors(), tmp_path, model=other, **options)


def test_a_damaged_checkpoint_is_never_loaded(tmp_path):
    go("proxies", tmp_path, steps=3)
    whole = (tmp_path / "checkpoint.pt").read_bytes()
    for torn in (whole[: len(whole) // 2], b"", b"not a checkpoint"):
        (tmp_path / "checkpoint.pt").write_bytes(torn)
        with pytest.raises(ValueError, match=r"checkpoint.pt is damaged .*resume=False to begin again") as caught:
            go("proxies", tmp_path)
        assert "\n" not in str(caught.value)
    # What a killed process leaves beside it is not looked at.
    (tmp_path / "checkpoint.pt").write_bytes(whole)
    (tmp_path / "checkpoint.pt.part").write_bytes(whole[:100])
    assert go("proxies", tmp_path).metrics["step"] > 0


def test_resuming_leaves_the_log_of_a_later_moment_out(tmp_path):
    """Events after the last checkpoint are cut off: their steps come again."""
    go("proxies", tmp_path, steps=6)
    with (tmp_path / "events.jsonl").open("a") as log:
        log.write('{"event": "train", "step": 99}\n{"event": "tr')
    go("proxies", tmp_path, steps=9)
    assert [event["step"] for event in events(tmp_path)] == [4, 6, 6, 7, 8, 9, 9, 9]


def test_a_log_that_was_removed_begins_where_the_run_goes_on(tmp_path):
    go("proxies", tmp_path, steps=6)
    (tmp_path / "events.jsonl").unlink()
    go("proxies", tmp_path, steps=9)
    assert [event["step"] for event in events(tmp_path, "evaluation")] == [7, 9]


def test_a_finished_run_without_its_checkpoint_is_not_wiped_out(tmp_path):
    go("proxies", tmp_path, steps=3)
    (tmp_path / "checkpoint.pt").unlink()
    with pytest.raises(FileNotFoundError, match=r"checkpoint.pt of a finished run is gone; give another folder, or"):
        go("proxies", tmp_path, steps=3)
    assert (tmp_path / "best").is_dir()
    go("proxies", tmp_path, steps=3, resume=False)


@pytest.mark.parametrize("moment", range(1, 5))
def test_an_interruption_while_the_earlier_run_is_cleared_is_no_harm(moment, tmp_path, monkeypatch):
    first = go("proxies", tmp_path, steps=3)
    shutil, path = training.folder.shutil, training.folder.Path
    rmtree, unlink = breaking_off(moment, shutil.rmtree, path.unlink)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", rmtree)
        patch.setattr(path, "unlink", unlink)
        with pytest.raises(Interruption):
            go("proxies", tmp_path, steps=3, resume=False)
    assert go("proxies", tmp_path, steps=3).metrics == first.metrics


def test_beginning_again_clears_the_earlier_run_and_nothing_else(tmp_path):
    go("proxies", tmp_path, steps=3)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "best.9").mkdir()
    go("proxies", tmp_path, steps=6, resume=False)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert not (tmp_path / "best.9").exists()
    assert [event["step"] for event in events(tmp_path, "train")] == [4, 6]


def test_a_folder_of_somebody_else_is_left_alone(tmp_path):
    (tmp_path / "best").mkdir()
    (tmp_path / "best" / "photo.jpg").write_text("mine")
    with pytest.raises(FileExistsError, match="best is there and belongs to no run; give another folder"):
        go("proxies", tmp_path, steps=3)
    assert (tmp_path / "best" / "photo.jpg").read_text() == "mine"


@pytest.mark.parametrize("moment", ["write_checkpoint", "crown", "rename"])
def test_the_best_embedder_is_the_one_that_the_checkpoint_speaks_of(moment, tmp_path, monkeypatch):
    """Killed around a checkpoint, and then not as good again, as may be on a GPU."""
    scores = {7: 0.3, 14: 0.9}
    monkeypatch.setattr(loop, "recalls", lambda *_: {"recall_at_1": scores[state[0]]})
    state, at = [7], {"write_checkpoint": 5, "crown": 2, "rename": 2}[moment]
    evaluate, owner = loop.Loop._evaluate, training.folder.os if moment == "rename" else training.folder.RunFolder

    def at_step(self):
        state[0] = self.state.progress.step
        return evaluate(self)

    monkeypatch.setattr(loop.Loop, "_evaluate", at_step)
    with monkeypatch.context() as patch:
        patch.setattr(owner, moment, *breaking_off(at, getattr(owner, moment)))
        with pytest.raises(Interruption):
            go("proxies", tmp_path, steps=16)
    whole = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["progress"]
    scores |= {14: 0.2, 16: 0.1}
    run = go("proxies", tmp_path, steps=16)
    committed = moment != "write_checkpoint"
    assert whole["best_step"] == run.metrics["step"] == (14 if committed else 7)
    go("proxies", tmp_path / "clean", steps=14 if committed else 7)
    assert same(weights(tmp_path, "best"), weights(tmp_path / "clean", "last"))
    assert not list(tmp_path.glob("best.*"))
