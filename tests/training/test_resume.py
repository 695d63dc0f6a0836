"""Tests of resume: an interrupted run ends with the weights of an uninterrupted one, bit for bit."""

import itertools
import json
import random
import signal
import time
from pathlib import Path

import pytest
import torch
from torch.utils._pytree import tree_leaves

from training_tools import CASES, EVERY, TESTS, events, same, start_process, vectors, weights
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


def raise_at_call(at, *functions):
    """Wrap functions to raise an `Interruption` in their `at`-th call, counted over all of them."""
    calls = itertools.count(1)

    def counted(function):
        def call(*arguments, **options):
            if next(calls) == at:
                raise Interruption
            return function(*arguments, **options)

        return call

    return [counted(function) for function in functions]


def train_case(case, folder, **more):
    data, options = CASES[case]()
    return training.train(data, folder, **{**options, **EVERY, **more})


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    folders = {}

    def get(case):
        if case not in folders:
            folders[case] = tmp_path_factory.mktemp(case)
            train_case(case, folders[case])
        return folders[case]

    return get


def wait_for_training(folder, child):
    """Wait until the process has written an event or has ended."""
    log = folder / "events.jsonl"
    before = log.stat().st_size if log.exists() else 0
    while child.poll() is None and not (log.exists() and log.stat().st_size != before):
        time.sleep(0.01)


def check_same_run(folder, other):
    """Check that two runs have the same weights, events (except times), results and checkpoints."""
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
def test_a_killed_process_resumes_bit_for_bit(case, tmp_path, uninterrupted, soak):
    """Kill the process at random moments; the same call then ends like an uninterrupted run."""
    rng, kills, run = random.Random(case), 20 if soak else 1, 0
    while kills:
        folder = tmp_path / str(run)
        child = start_process(CHILD, case, folder)
        assert child.stdout.readline() == "ready\n", child.stderr.read()
        if rng.random() < 0.7:
            wait_for_training(folder, child)
        time.sleep(rng.uniform(0.0, 0.6))
        if child.poll() is None:
            child.send_signal(signal.SIGKILL)
            kills -= 1
        else:  # it finished before the kill: check it, and start another run
            assert child.returncode == 0, child.stderr.read()
            check_same_run(folder, uninterrupted(case))
            run += 1
        child.communicate()
        steps = [event["step"] for event in events(folder, "train")] if (folder / "events.jsonl").exists() else []
        assert steps == sorted(set(steps))
    train_case(case, tmp_path / str(run))
    check_same_run(tmp_path / str(run), uninterrupted(case))


def test_a_kill_at_any_change_of_the_disk_loses_nothing(tmp_path, soak):
    """The best and the last embedder stay readable, and the run ends like an uninterrupted one."""
    program = TESTS / "training" / "kill_at_each_change.py"
    done = start_process(program, tmp_path, "1" if soak else "0.015", command=("-u",))
    output, errors = done.communicate(timeout=1200)
    assert done.returncode == 0, errors
    assert json.loads(output)["kills"] >= (100 if soak else 2)


#: The function that is interrupted, and in which of its calls.
MOMENTS = {
    "before the step": (loop, "set_lr", 23),
    "in the log": (loop.Loop, "_log", 5),
    "in the evaluation": (loop.Loop, "_evaluate", 4),
    "in the checkpoint": (training.folder.os, "replace", 7),
}


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("moment", MOMENTS)
def test_an_interruption_at_any_place_resumes_bit_for_bit(case, moment, tmp_path, uninterrupted, monkeypatch):
    """Interrupt each kind of work after some steps."""
    owner, name, at = MOMENTS[moment]
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, *raise_at_call(at, getattr(owner, name)))
        with pytest.raises(Interruption):
            train_case(case, tmp_path)
    train_case(case, tmp_path)
    check_same_run(tmp_path, uninterrupted(case))


def test_a_finished_run_is_returned_and_not_trained_again(tmp_path, monkeypatch):
    first = train_case("proxies", tmp_path)
    monkeypatch.setattr(training.run, "build", lambda *_: pytest.fail("decoded and trained again"))
    again = train_case("proxies", tmp_path)
    assert again.metrics == first.metrics
    assert same(first.embedder.state_dict(), again.embedder.state_dict())
    assert len(events(tmp_path, "end")) == 1


def test_a_run_can_be_resumed_with_more_steps_unless_the_schedule_depends_on_them(tmp_path):
    train_case("proxies", tmp_path / "one call")
    train_case("proxies", tmp_path / "two calls", steps=21)
    train_case("proxies", tmp_path / "two calls")
    assert same(weights(tmp_path / "one call"), weights(tmp_path / "two calls"))
    train_case("everything", tmp_path / "cosine", steps=3)
    with pytest.raises(ValueError, match=r"steps=3, on which its cosine schedule depends, not steps=36.*resume=False"):
        train_case("everything", tmp_path / "cosine")


def test_a_killed_run_can_be_resumed_with_fewer_steps_than_it_has_done(tmp_path, monkeypatch):
    """Nothing was evaluated yet. The current step becomes the last one, which is always evaluated."""
    rare = {"evaluate_every": 100}
    with monkeypatch.context() as patch:
        patch.setattr(loop, "set_lr", *raise_at_call(8, loop.set_lr))
        with pytest.raises(Interruption):
            train_case("proxies", tmp_path, **rare)
    run = train_case("proxies", tmp_path, steps=5, **rare)
    assert run.metrics["step"] == 6
    train_case("proxies", tmp_path / "clean", steps=6, **rare)
    assert same(weights(tmp_path, "best"), weights(tmp_path / "clean", "best"))
    train_case("proxies", tmp_path, steps=9, **rare)
    assert [event["step"] for event in events(tmp_path, "evaluation")] == [0, 6, 9]


@pytest.mark.parametrize("optimizer", ["sgd", "adam", "adamw"])
def test_a_checkpoint_of_an_optimizer_that_was_not_fused_can_be_resumed(optimizer, tmp_path):
    train_case("proxies", tmp_path / "one call", optimizer=optimizer)
    train_case("proxies", tmp_path / "two calls", optimizer=optimizer, steps=21)
    saved = torch.load(tmp_path / "two calls" / "checkpoint.pt", weights_only=True)
    for group in saved["optimizer"]["param_groups"]:
        group["fused"] = False
    torch.save(saved, tmp_path / "two calls" / "checkpoint.pt")
    train_case("proxies", tmp_path / "two calls", optimizer=optimizer)
    assert same(weights(tmp_path / "one call"), weights(tmp_path / "two calls"))


def test_other_settings_or_data_raise_one_sentence(tmp_path):
    train_case("proxies", tmp_path, steps=3)
    for change in ({"lr": 0.5}, {"loss": "raw"}, {"dim": 7}, {"seed": 1}, {"model_options": {"hidden": [8]}}):
        (name,) = change
        with pytest.raises(
            ValueError, match=f"holds a run with {name}=.*give another folder, or resume=False"
        ) as caught:
            train_case("proxies", tmp_path, **change)
        assert "\n" not in str(caught.value)
    train_case("proxies", tmp_path / "object", steps=3, loss=losses.MarginLoss(learn_beta=True))
    for other in (losses.MarginLoss(), losses.MarginLoss(beta=0.9, learn_beta=True)):
        with pytest.raises(ValueError, match=r"holds a run with loss='Margin.*beta learned from 1.2.*, not loss="):
            train_case("proxies", tmp_path / "object", loss=other)
    _, options = CASES["proxies"]()
    with pytest.raises(ValueError, match=r"holds a run on other data \(examples 72, now 60\)"):
        # Some settings follow from the data. The message must name the data, which the user changed.
        training.train(vectors(classes=10), tmp_path, **{**options, **EVERY, "batch_size": 9})
    with pytest.raises(ValueError, match=r"holds a run on other data \(contents "):
        training.train(vectors(seed=1), tmp_path, **{**options, **EVERY})
    assert train_case("proxies", tmp_path, lr=0.5, steps=3, resume=False).metrics["step"] == 3


def test_an_option_that_the_checkpoint_does_not_know_had_its_default(tmp_path):
    train_case("proxies", tmp_path, steps=3)
    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    for option in ("head_steps", "augment"):
        del saved["identity"]["settings"][option]
    torch.save(saved, tmp_path / "checkpoint.pt")
    with pytest.raises(ValueError, match="holds a run with head_steps=0, not head_steps=2"):
        train_case("proxies", tmp_path, head_steps=2)
    train_case("proxies", tmp_path)
    assert [event["step"] for event in events(tmp_path, "evaluation")][:3] == [0, 3, 7]


def test_another_model_raises_one_sentence(tmp_path):
    """Two modules of the user with the same number of parameters: only the shapes differ."""
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
    train_case("proxies", tmp_path, steps=3)
    whole = (tmp_path / "checkpoint.pt").read_bytes()
    for damaged in (whole[: len(whole) // 2], b"", b"not a checkpoint"):
        (tmp_path / "checkpoint.pt").write_bytes(damaged)
        with pytest.raises(ValueError, match=r"checkpoint.pt is damaged .*resume=False to start again") as caught:
            train_case("proxies", tmp_path)
        assert "\n" not in str(caught.value)
    # The partial file of a killed process is ignored.
    (tmp_path / "checkpoint.pt").write_bytes(whole)
    (tmp_path / "checkpoint.pt.part").write_bytes(whole[:100])
    assert train_case("proxies", tmp_path).metrics["step"] > 0


def test_a_checkpoint_without_a_part_is_a_sentence(tmp_path):
    train_case("proxies", tmp_path, steps=3)
    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    weight = next(iter(saved["embedder"]))
    broken = {name: {key: value for key, value in saved.items() if key != name} for name in saved}
    for name in ("identity", "progress", "optimizer", "objective", "sampler", "rng", "embedder"):
        broken[f"no {name}"], broken[f"another {name}"] = saved | {name: None}, saved | {name: {"a": 1}}
    broken["settings"] = saved | {"identity": {"data": saved["identity"]["data"]}}
    broken["progress of another kind"] = saved | {"progress": saved["progress"] | {"laps": 3}}
    broken["weights"] = saved | {"embedder": {key: value for key, value in saved["embedder"].items() if key != weight}}
    broken["generators"] = saved | {"rng": [[]]}
    broken["a list"] = [1, 2]
    for name, state in broken.items():
        torch.save(state, tmp_path / "checkpoint.pt")
        with pytest.raises(ValueError, match=r"checkpoint.pt is damaged .*resume=False to start again") as caught:
            train_case("proxies", tmp_path)
        assert "\n" not in str(caught.value), name
    torch.save(saved, tmp_path / "checkpoint.pt")
    assert train_case("proxies", tmp_path).metrics["step"] > 0


def test_resume_truncates_the_log_to_the_checkpoint(tmp_path):
    """Events after the last checkpoint are removed, since their steps are done again."""
    train_case("proxies", tmp_path, steps=6)
    with (tmp_path / "events.jsonl").open("a") as log:
        log.write('{"event": "train", "step": 99}\n{"event": "tr')
    train_case("proxies", tmp_path, steps=9)
    assert [event["step"] for event in events(tmp_path)] == [0, 4, 6, 6, 7, 8, 9, 9, 9]


def test_a_removed_log_starts_at_the_resumed_step(tmp_path):
    train_case("proxies", tmp_path, steps=6)
    (tmp_path / "events.jsonl").unlink()
    train_case("proxies", tmp_path, steps=9)
    assert [event["step"] for event in events(tmp_path, "evaluation")] == [7, 9]


def test_a_finished_run_without_its_checkpoint_is_not_removed(tmp_path):
    train_case("proxies", tmp_path, steps=3)
    (tmp_path / "checkpoint.pt").unlink()
    with pytest.raises(
        FileNotFoundError, match=r"checkpoint.pt of a finished run is missing.*best can be used as it is; .*resu"
    ):
        train_case("proxies", tmp_path, steps=3)
    assert (tmp_path / "best").is_dir()
    train_case("proxies", tmp_path, steps=3, resume=False)


@pytest.mark.parametrize("moment", range(1, 5))
def test_an_interruption_while_an_earlier_run_is_removed_does_no_harm(moment, tmp_path, monkeypatch):
    first = train_case("proxies", tmp_path, steps=3)
    shutil, path = training.folder.shutil, training.folder.Path
    rmtree, unlink = raise_at_call(moment, shutil.rmtree, path.unlink)
    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", rmtree)
        patch.setattr(path, "unlink", unlink)
        with pytest.raises(Interruption):
            train_case("proxies", tmp_path, steps=3, resume=False)
    assert train_case("proxies", tmp_path, steps=3).metrics == first.metrics


def test_starting_again_removes_the_earlier_run_and_no_other_files(tmp_path):
    train_case("proxies", tmp_path, steps=3)
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "best.9").mkdir()
    train_case("proxies", tmp_path, steps=6, resume=False)
    assert (tmp_path / "notes.txt").read_text() == "mine"
    assert not (tmp_path / "best.9").exists()
    assert [event["step"] for event in events(tmp_path, "train")] == [4, 6]


def test_files_that_belong_to_no_run_are_not_removed(tmp_path):
    (tmp_path / "best").mkdir()
    (tmp_path / "best" / "photo.jpg").write_text("mine")
    with pytest.raises(FileExistsError, match="best exists and belongs to no run; give another folder"):
        train_case("proxies", tmp_path, steps=3)
    assert (tmp_path / "best" / "photo.jpg").read_text() == "mine"


@pytest.mark.parametrize("moment", ["write_checkpoint", "promote", "rmdir"])
def test_the_best_embedder_is_the_one_that_the_checkpoint_names(moment, tmp_path, monkeypatch):
    """Interrupt around a checkpoint; the repeated evaluation is worse, as can happen on a GPU."""
    scores = {7: 0.3, 14: 0.9}
    monkeypatch.setattr(loop, "recalls", lambda *_: {"recall_at_1": scores[state[0]]})
    state, at = [7], {"write_checkpoint": 5, "promote": 2, "rmdir": 2}[moment]
    evaluate, owner = loop.Loop._evaluate, Path if moment == "rmdir" else training.folder.RunFolder

    def at_step(self):
        state[0] = self.state.progress.step
        return evaluate(self)

    monkeypatch.setattr(loop.Loop, "_evaluate", at_step)
    with monkeypatch.context() as patch:
        patch.setattr(owner, moment, *raise_at_call(at, getattr(owner, moment)))
        with pytest.raises(Interruption):
            train_case("proxies", tmp_path, steps=16)
    progress = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["progress"]
    scores |= {14: 0.2, 16: 0.1}
    run = train_case("proxies", tmp_path, steps=16)
    committed = moment != "write_checkpoint"
    assert progress["best_step"] == run.metrics["step"] == (14 if committed else 7)
    train_case("proxies", tmp_path / "clean", steps=14 if committed else 7)
    assert same(weights(tmp_path, "best"), weights(tmp_path / "clean", "last"))
    assert not list(tmp_path.glob("best.*"))


def test_no_flipped_bit_of_a_checkpoint_is_silent(tmp_path, soak):
    train_case("proxies", tmp_path, steps=3)
    folder, path, rng = training.folder.RunFolder(tmp_path), tmp_path / "checkpoint.pt", random.Random(0)
    good, truth = path.read_bytes(), tree_leaves(folder.read_checkpoint())
    refusals = []
    for _ in range(1000 if soak else 100):
        content, bit = bytearray(good), rng.randrange(8 * len(good))
        content[bit // 8] ^= 1 << bit % 8
        path.write_bytes(content)
        try:
            leaves = tree_leaves(folder.read_checkpoint())
        except ValueError as error:
            refusals.append(str(error))
            continue
        # A bit that fills up a block changes nothing.
        pairs = zip(leaves, truth, strict=True)
        assert all(torch.equal(x, y) if torch.is_tensor(x) else x == y for x, y in pairs)
    assert len(refusals) > 50
    assert all("checkpoint.pt is damaged (" in refusal for refusal in refusals)
