"""Tests of a whole run: its folder, its messages, and that the same seed gives the same weights."""

import json
import math
import re

import torch
from safetensors.torch import load_file

import tuplet
from training_tools import QUICK, SMALL, embedder_with_dropout, events, image_set, same, vectors, weights
from tuplet import data, evaluation, training


def test_the_folder_holds_everything_about_the_run(tmp_path):
    source = image_set()
    run = tuplet.train(source, tmp_path, recipe="demo", resize=12, stored_size=12, lr=0.01, **QUICK, **SMALL)
    about = json.loads((tmp_path / "run.json").read_text())
    assert about["tuplet"] == tuplet.__version__
    assert (about["recipe"], about["settings"]["lr"], about["settings"]["schedule"]) == ("demo", 0.01, "constant")
    assert about["settings"]["normalize"] is True  # None is replaced by what the loss needs
    assert about["settings"]["sampler"] == "class_balanced"
    trained = events(tmp_path, "train")
    assert [event["step"] for event in trained] == [2, 4, 6]
    assert all(event["loss"] > 0 and event["examples_per_second"] > 0 and event["seconds"] > 0 for event in trained)
    assert [event["step"] for event in events(tmp_path, "evaluation")] == [0, 2, 4, 6]
    assert events(tmp_path)[-1]["event"] == "end"

    modes = {path.name: path.stat().st_mode for path in tmp_path.rglob("*") if path.is_file()}
    assert len(set(modes.values())) == 1, modes  # all files have the same permissions

    saved = load_file(tmp_path / "vectors.safetensors")
    _, test = source.split()
    assert torch.equal(saved["labels"], test.labels)
    assert torch.equal(source.labels[saved["indices"]], test.labels)
    best = tuplet.load(tmp_path / "best")
    torch.testing.assert_close(saved["embeddings"], best.embed(source.images[saved["indices"]]))
    assert same(run.embedder.state_dict(), best.state_dict())
    assert not run.embedder.training

    found = json.loads((tmp_path / "evaluation.json").read_text())
    assert found == run.metrics
    assert found["recall_at_1"] == evaluation.recall_at_k(saved["embeddings"], saved["labels"])[1]
    curve = {event["step"]: event["recall_at_1"] for event in events(tmp_path, "evaluation") if event["step"]}
    assert found["recall_at_1"] == max(curve.values()) == curve[found["step"]]
    assert found["step"] == min(step for step, value in curve.items() if value == max(curve.values()))


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(tmp_path):
    options = {**QUICK, **SMALL, "augment": {"brightness": 0.3}, "resize": 14}
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        torch.randn(seed + len(name))
        training.train(image_set(), tmp_path / name, seed=seed, **options)
    assert same(weights(tmp_path / "a"), weights(tmp_path / "b"))
    assert not same(weights(tmp_path / "a"), weights(tmp_path / "c"))


def test_the_callers_random_numbers_stay_unchanged(tmp_path):
    embedder = embedder_with_dropout()
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    training.train(vectors(), tmp_path, model=embedder, loss="raw", steps=2, batch_size=8)
    assert torch.equal(torch.rand(3), expected)


def test_training_improves_recall_on_unseen_classes(tmp_path):
    hard = vectors(classes=40, each=8, dim=20, nuisance=2.0)
    run = training.train(hard, tmp_path, loss="multi_similarity", steps=150, batch_size=40, dim=8, lr=1e-3)
    _, test = hard.split()
    before = evaluation.recall_at_k(test.features, test.labels)[1]
    trained = [event["loss"] for event in events(tmp_path, "train")]
    assert trained[-1] < 0.8 * trained[0]
    assert run.metrics["recall_at_1"] > before + 0.2


def test_every_evaluation_is_logged(tmp_path, caplog):
    """Without a terminal there is no progress bar, so the log is the only sign of progress."""
    with caplog.at_level("INFO", "tuplet"):
        run = tuplet.train(vectors(), tmp_path, **QUICK)
        assert tuplet.train(vectors(), tmp_path, **QUICK | {"steps": 8}).folder == run.folder
    logged = {event["step"]: event["loss"] for event in events(tmp_path) if event["event"] == "train"}
    start, *found = [event for event in events(tmp_path) if event["event"] == "evaluation"]
    messages = [re.sub("after [0-9]+ s", "after … s", record.getMessage()) for record in caplog.records]
    before = f"before training: Recall@1 {100 * start['recall_at_1']:.2f} % on the test split"
    assert messages.pop(0) == f"{before} (the feature vectors)"
    messages = [message for message in messages if "interval contains" not in message]
    best = [event["recall_at_1"] > max([0.0, *(e["recall_at_1"] for e in found[:i])]) for i, event in enumerate(found)]
    lines = [
        f"step {event['step']} of {8 if event['step'] > 6 else 6} after … s: loss {logged[event['step']]:.4g}, "
        f"Recall@1 {100 * event['recall_at_1']:.2f} %{', the best so far' if better else ''}"
        for event, better in zip(found, best, strict=True)
    ]
    bests = [event["step"] for event, better in zip(found, best, strict=True) if better]
    first, last = (
        f"testing the embedder of step {max(step for step in bests if step <= end)} on 36 examples" for end in (6, 8)
    )
    assert messages == [*lines[:3], first, "resuming from step 6 of 8", lines[3], last]
    with caplog.at_level("INFO", "tuplet"):
        tuplet.train(vectors(), tmp_path, **QUICK | {"steps": 7})
    assert caplog.messages[-1] == f"{tmp_path} holds this run, finished after 8 steps"


def test_warnings_point_at_the_call(tmp_path, recwarn):
    """One warning of each kind that comes before training."""
    source = image_set(classes=4, each=5)
    few = source.select([i for i in range(20) if i not in (1, 2, 3, 4)])
    few = data.from_images(few.images, few.labels, splits=["train"] * 11 + ["test"] * 5)
    options = {**QUICK, "model": "convnet", "normalize": False, "steps": 1, "batch_size": 6}
    training.train(few, tmp_path, **options)
    kinds = ("defined on unit vectors", "a single class", "a single example")
    assert [kind in str(warning.message) for warning, kind in zip(recwarn, kinds, strict=True)] == [True] * 3
    assert {warning.filename for warning in recwarn} == {__file__}


def test_tensorboard_gets_the_numbers_if_it_is_installed(tmp_path, monkeypatch):
    written, opened = [], []

    class Writer:
        def __init__(self, folder, purge_step):
            opened.append((folder, purge_step))

        def add_scalar(self, name, value, step):
            written.append((name, step))
            assert math.isfinite(value)

        def close(self):
            opened.append("closed")

    monkeypatch.setattr("tuplet.training.events.find_spec", lambda name: name == "tensorboard")
    monkeypatch.setitem(__import__("sys").modules, "torch.utils.tensorboard", type("M", (), {"SummaryWriter": Writer}))
    training.train(vectors(), tmp_path, **QUICK)
    assert opened == [(tmp_path / "tensorboard", 1), "closed"]
    assert [step for name, step in written if name == "train/loss"] == [2, 4, 6]
    assert [step for name, step in written if name == "evaluation/recall_at_1"] == [0, 2, 4, 6]
