"""Tests of tuning: trials on validation classes, pruning, resume after a kill, and what is reported."""

import json
import signal
import sys

import pytest
import torch

from training_tools import events, start_process, vectors
from tuplet import training
from tuplet.data import from_features, from_images
from tuplet.training import Settings, tuning
from tuplet.training.search_space import check_space, default_space, first_parameters

QUICK = {"steps": 20, "batch_size": 16, "per_class": 4, "dim": 6, "device": "cpu"}
SPACE = {"lr": (1e-5, 1e-1), "loss": ["raw", "npair_all"]}
EXAMPLES = {"classes": 24, "each": 6, "nuisance": 2.0}


def timeless(found):
    """Return a result without the seconds, which differ from run to run."""
    return json.loads(json.dumps(found), object_hook=lambda row: {k: v for k, v in row.items() if k != "seconds"})


@pytest.fixture(scope="module")
def tuned(tmp_path_factory):
    folder = tmp_path_factory.mktemp("tuned")
    return folder, training.tune(vectors(**EXAMPLES), folder, 14, seeds=2, space=SPACE, **QUICK)


def test_the_best_mean_over_the_seeds_wins(tuned):
    folder, found = tuned
    assert json.loads((folder / "tuning.json").read_text()) == found
    trials = found["trials"]
    assert [row["trial"] for row in trials] == list(range(14))
    # The default loss is not in the space.
    assert trials[0]["options"] == {"lr": 1e-4, "loss": "raw", "evaluate_every": 4}
    assert not found["first_is_default"]
    complete = sorted((row for row in trials if row["state"] == "complete"), key=lambda row: -row["score"])
    assert {row["trial"] for row in trials if len(row["scores"]) == 2} == {0, *(row["trial"] for row in complete[:3])}
    for row in complete:
        metrics = json.loads((folder / f"trials/{row['trial']:03}/evaluation.json").read_text())
        assert (metrics["recall_at_1"], metrics["split"]) == (row["score"], "validation")
    second = json.loads((folder / f"trials/{complete[0]['trial']:03}_seed_1/evaluation.json").read_text())
    assert complete[0]["scores"] == [complete[0]["score"], second["recall_at_1"]]
    means = {row["trial"]: sum(row["scores"]) / 2 for row in trials if len(row["scores"]) == 2}
    assert means[found["best"]["trial"]] == max(means.values())
    assert max(means.values()) > means[0] + 0.05  # the default learning rate is far too low for 20 steps


def test_the_best_options_train_the_same_model(tuned, tmp_path):
    _, found = tuned
    best = found["best"]
    run = training.train(vectors(**EXAMPLES), tmp_path, **QUICK, **best["options"])
    assert run.metrics["split"] == "test"
    assert max(event["recall_at_1"] for event in events(tmp_path, "evaluation")[1:]) == best["score"]


@pytest.mark.parametrize("given", [{}, {"keep_start": True}])
def test_no_trial_falls_back_to_the_start_unless_asked(tmp_path, given):
    """The defaults for small data would, and then all trials that are worse than the start had its score."""
    options = {**given, **{name: value for name, value in QUICK.items() if name != "dim"}}
    found = training.tune(vectors(**EXAMPLES), tmp_path, 1, seeds=1, space={"lr": [1e-3]}, **options)
    settings = json.loads((tmp_path / "trials/000/run.json").read_text())["settings"]
    assert settings["select_by"] == "map_at_r"  # one of those defaults
    assert settings["keep_start"] == bool(given)
    assert set(found["best"]["options"]) == {"lr", "evaluate_every"}


def test_what_mattered_is_the_learning_rate(tuned):
    importance = tuned[1]["importance"]
    assert list(importance) == ["lr", "loss"]
    assert sum(importance.values()) == pytest.approx(1)


def test_bad_trials_are_stopped_early_and_weights_are_removed(tuned):
    folder, found = tuned
    stopped = [row for row in found["trials"] if row["state"] == "stopped"]
    assert stopped
    for row in stopped:
        steps = [event["step"] for event in events(folder / f"trials/{row['trial']:03}", "evaluation")]
        assert steps == list(range(0, steps[-1] + 1, 4))
        assert 8 <= steps[-1] < 20
    assert not [path for path in folder.rglob("*") if path.suffix in (".pt", ".safetensors")]


def test_the_test_classes_are_never_looked_at(tmp_path):
    """Other examples in the test classes change nothing."""
    examples = vectors(**EXAMPLES)
    changed = examples.features.clone()
    changed[72:] = torch.randn(72, 10)
    found = [
        timeless(training.tune(from_features(each, examples.labels), tmp_path / name, 3, seeds=2, space=SPACE, **QUICK))
        for name, each in (("one", examples.features), ("two", changed))
    ]
    assert found[0] == found[1]


TUNE = f"""
import os, signal, sys
from pathlib import Path
from training_tools import vectors
from tuplet import training
replace = os.replace
def replace_and_die(part, path):
    replace(part, path)
    if Path(path).match(sys.argv[2]):
        os.kill(os.getpid(), signal.SIGKILL)
os.replace = replace_and_die
training.tune(vectors(**{EXAMPLES}), sys.argv[1], 14, seeds=2, space={SPACE}, checkpoint_every=3, **{QUICK})
"""


def test_a_killed_tuning_continues_with_the_same_trials(tuned, tmp_path):
    """Killed in one of its trials and again between the seeds, it finds what an uninterrupted one finds."""
    for reached in ("trials/004/checkpoint.pt", "trials/*_seed_1/checkpoint.pt"):
        process = start_process(TUNE, tmp_path, reached)
        _, errors = process.communicate(timeout=300)
        assert process.returncode == -signal.SIGKILL, errors
    assert not (tmp_path / "tuning.json").exists()
    before = {path: path.stat().st_mtime_ns for path in tmp_path.glob("trials/00[0-3]/*")}
    again = training.tune(vectors(**EXAMPLES), tmp_path, 14, seeds=2, space=SPACE, checkpoint_every=3, **QUICK)
    assert timeless(again) == timeless(tuned[1])
    assert before == {path: path.stat().st_mtime_ns for path in before}


def test_more_trials_continue_a_finished_tuning(tmp_path, monkeypatch):
    examples, trained = vectors(**EXAMPLES), []
    original = tuning.train
    monkeypatch.setattr(tuning, "train", lambda *words, **options: trained.append(1) or original(*words, **options))
    first = training.tune(examples, tmp_path, 2, seeds=1, space=SPACE, **QUICK)
    assert training.tune(examples, tmp_path, 2, seeds=1, space=SPACE, **QUICK) == first
    assert len(trained) == 2
    more = training.tune(examples, tmp_path, 3, seeds=1, space=SPACE, **QUICK)
    assert len(trained) == 3
    assert more["trials"][:2] == first["trials"]
    (tmp_path / "mine.txt").touch()
    training.tune(examples, tmp_path, 1, seeds=1, space=SPACE, resume=False, **QUICK)
    assert len(trained) == 4
    assert sorted(path.name for path in tmp_path.glob("[!.]*")) == ["mine.txt", "study.db", "trials", "tuning.json"]
    assert [path.name for path in (tmp_path / "trials").iterdir()] == ["000"]


def test_a_tuning_with_other_options_is_refused(tmp_path):
    examples = vectors(**EXAMPLES)
    training.tune(examples, tmp_path, 1, seeds=1, space=SPACE, **QUICK)
    with pytest.raises(ValueError, match="holds a run with dim=6, not dim=7; give another folder, or resume=False"):
        training.tune(examples, tmp_path, 1, space=SPACE, **{**QUICK, "dim": 7})
    with pytest.raises(ValueError, match="holds a tuning of lr, loss with other values than now; give another folder"):
        training.tune(examples, tmp_path, 1, space={"lr": (1e-5, 1e-2)}, **QUICK)
    with pytest.raises(ValueError, match="holds a run on other data"):
        training.tune(vectors(**{**EXAMPLES, "each": 5}), tmp_path, 1, space=SPACE, **QUICK)


def test_no_trial_begins_when_the_time_is_over(tmp_path):
    found = training.tune(vectors(**EXAMPLES), tmp_path, 9, minutes=1e-6, seeds=1, space=SPACE, **QUICK)
    assert len(found["trials"]) == 1
    assert found["best"]["trial"] == 0


def test_trials_that_diverge_are_counted_and_avoided(tmp_path):
    options = {**QUICK, "loss": "npair_all", "optimizer": "sgd", "seeds": 1}
    found = training.tune(vectors(**EXAMPLES), tmp_path / "some", 6, space={"lr": [1e-4, 1e12]}, **options)
    by_lr = {(row["options"]["lr"], row["state"]) for row in found["trials"]}
    assert by_lr == {(1e-4, "complete"), (1e12, "failed")}
    failures = [row["failure"] for row in found["trials"] if row["state"] == "failed"]
    assert all("the loss is" in each or "diverged" in each for each in failures)
    with pytest.raises(FloatingPointError, match="none of 2 trials reached its end; the last one: "):
        training.tune(vectors(**EXAMPLES), tmp_path / "all", 2, space={"lr": [1e12, 1e13]}, **options)


def test_recipes_of_papers_are_tuned_on_validation_classes(tmp_path):
    """They select on the test split, which tuning never does."""
    options = {k: v for k, v in QUICK.items() if k != "per_class"}
    found = training.tune(vectors(**EXAMPLES), tmp_path, 1, seeds=1, recipe="raw_vthm", **{**options, "batch_size": 15})
    assert found["best"]["options"]["validation"] == 0.2
    assert "loss" not in found["space"]
    about = json.loads((tmp_path / "trials/000/run.json").read_text())
    assert about["settings"]["loss_options"]["mining"] == {"name": "valid_triplet", "epsilon": 0.1}


def test_wrong_calls_raise_one_sentence(tmp_path, monkeypatch):
    def refused(match, *words, error=ValueError, **options):
        with pytest.raises(error, match=match):
            training.tune(vectors(**EXAMPLES), tmp_path / "run", *words, **options)
        assert not (tmp_path / "run").exists()

    refused("test_on is 'test'; tuning leaves the test split unused, so leave it out", test_on="test")
    refused("final is True; tuning leaves the test split unused, so leave it out", final=True)
    refused("validation=0 would choose on the test split; tuning needs validation classes", validation=0.0)
    refused("trials is 0; it must be a whole number, 1 or more", 0, error=TypeError)
    refused("seeds is 0; it must be a whole number, 1 or more", seeds=0, error=TypeError)
    refused("minutes is 0; it must be above 0", minutes=0)
    refused("resume is None; give True to continue, or False to start again", resume=None, error=TypeError)
    refused("steps is 0, which trains nothing", steps=0)
    refused("there is no option 'learning_rate'; did you mean 'lr'", space={"learning_rate": (1, 2)}, error=TypeError)
    refused("lr is given and in the space; leave it out of one of them", lr=0.1, space={"lr": (1, 2)}, error=TypeError)
    refused("seed decides how trials are measured, which must be the same for all of them", space={"seed": [0, 1]})
    refused(r"space has \(2, 1\) for lr; give a list of values, or \(smallest, largest\)", space={"lr": (2, 1)})
    refused("space has 'raw' for loss; give a list of values", space={"loss": "raw"})
    refused("give values that JSON can hold, losses by name", space={"loss": [torch.nn.Linear(1, 1)]}, error=TypeError)
    refused("there is no loss 'rwa'; did you mean 'raw'", space={"loss": ["raw", "rwa"]})
    everything = {"loss": "raw", "lr": 0.1, "steps": 9, "per_class": 4}
    refused("all options that would be tried are given; leave some out, or give a space", **everything)
    monkeypatch.setitem(sys.modules, "optuna", None)
    refused(r"tuning needs the package 'optuna', .*pip install 'tuplet\[tune\]'", error=ImportError)


def test_the_space_suits_data_model_and_device():
    vector_space = default_space(Settings(model="mlp", weights=None), [], vectors(), on_gpu=True)
    assert list(vector_space) == ["loss", "lr", "steps", "per_class"]
    assert vector_space["per_class"] == [2, 4]  # classes of six have no eight
    images = from_images(torch.zeros(40, 3, 8, 8, dtype=torch.uint8), torch.arange(40) // 10)
    small = Settings(weights="w", dim=None, freeze_to="M", augment={"area": (0.3, 1.0)}, steps=40)
    space = default_space(small, ["steps"], images, on_gpu=False)
    assert space["augment"] == [{"area": [0.3, 1.0]}, {"area": [0.1, 1.0]}, {"area": [0.6, 1.0]}]
    assert space["freeze_to"] == ["M", "L"]
    assert space["lr"] == (1e-5, 1e-3)
    assert not {"steps", "head_lr_scale"} & {*space}  # given, and there is no new layer
    large = default_space(Settings(weights="w", loss="triplet"), [], images, on_gpu=True)
    assert large["loss"][0] == "triplet"
    assert large["freeze_to"] == [None, "M", "L"]
    assert large["head_lr_scale"] == (1.0, 10.0)
    assert "loss" not in default_space(Settings(loss="raw", loss_options={"alpha": 1.0}), [], images, on_gpu=True)
    assert "per_class" not in default_space(Settings(loss="npair", sampler="npair"), [], images, on_gpu=True)


def test_the_first_trial_has_the_defaults():
    space = {"augment": [{}, {"area": [0.1, 1.0]}], "freeze_to": ["L", None], "lr": (1e-5, 1e-2), "steps": (10, 20)}
    options = {"augment": {"area": [0.1, 1.0]}, "freeze_to": None, "lr": 1e-4, "steps": 10}
    first = {"augment": '{"area": [0.1, 1.0]}', "freeze_to": None, "lr": 1e-4, "steps": 10}
    assert first_parameters(options, check_space(space, [])) == (first, True)
    others = {"augment": {"mirror": 0.0}, "freeze_to": "M", "lr": 1.0, "steps": 5}
    nearest = {"augment": "{}", "freeze_to": "L", "lr": 1e-2, "steps": 10}
    assert first_parameters(others, check_space(space, [])) == (nearest, False)
    assert first_parameters({"clip": None}, {"clip": (0.1, 10.0)}) == ({"clip": 0.1}, False)
