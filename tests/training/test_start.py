"""The model before training: it is measured, compared with the result, averaged with it, and kept if it is better."""

import json

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

import tuplet
from training_tools import QUICK, SMALL, events, image_set, same, vectors, weights
from tuplet import evaluation, models, training
from tuplet.reports.metrics import describe_gain
from tuplet.training.ema import AVERAGES, averages
from tuplet.training.evaluate import gain, report_gain
from tuplet.training.model import make_start
from tuplet.training.settings import Settings


def raw_recall(source, part=1):
    test = source.split()[part]
    return evaluation.recall_at_k(normalize(test.features), test.labels)[1]


def test_feature_vectors_are_the_start_of_a_new_network(tmp_path):
    source = vectors()
    run = training.train(source, tmp_path, **QUICK)
    assert run.metrics["start"]["recall_at_1"] == raw_recall(source)
    assert run.metrics["start"]["model"] == "the feature vectors"
    assert {"recall_at_8", "map_at_r"} <= set(run.metrics["start"])
    assert events(tmp_path, "evaluation")[0] | {"mean_cosine": 0} == {
        "event": "evaluation",
        "step": 0,
        "mean_cosine": 0,
        **{name: value for name, value in run.metrics["start"].items() if name.startswith("recall_at_")},
    }
    difference = run.metrics["recall_at_1"] - run.metrics["start"]["recall_at_1"]
    assert run.metrics["gain"]["recall_at_1"] == pytest.approx(difference)
    low, high = run.metrics["gain"]["interval"]
    assert low <= difference <= high
    assert run.metrics["gain"]["confidence"] == 0.95


@pytest.mark.parametrize("parts", [{}, {"heads": [1, 3], "part_weights": [1, 3]}])
def test_the_start_of_pretrained_weights_is_without_the_new_layer(parts):
    embedder = models.create("convnet", size=12, channels=3, dim=4, **parts)
    pretrained = training.Settings(model="convnet", weights="a file")
    start = make_start(embedder, pretrained, image_set()).embedder
    images = image_set().images
    expected = normalize(embedder.backbone(embedder._prepare(images))["H"])
    torch.testing.assert_close(start.embed(images), expected.detach())
    assert same(
        make_start(embedder, training.Settings(weights=None), image_set()).embedder.weights(), embedder.weights()
    )


def test_every_loss_starts_from_the_same_network(tmp_path):
    """The proxies of a loss draw random numbers too."""
    options = {"model": "convnet", "model_options": {"size": 12, "channels": 3}, "dim": 4, "steps": 0}
    plain, proxies = (
        training.train(image_set(), tmp_path / loss, loss=loss, **options).embedder.weights()
        for loss in ("multi_similarity", "proxy_anchor")
    )
    assert same(plain, proxies)


def test_the_interval_is_that_of_a_paired_bootstrap():
    rng = np.random.default_rng(0)
    before, after = (torch.tensor(rng.random(300) < share).double() for share in (0.6, 0.7))
    found = gain(before, after, seed=0)
    draws = rng.integers(300, size=(4000, 300))
    expected = np.quantile((after - before).numpy()[draws].mean(1), [0.025, 0.975])
    assert found["recall_at_1"] == pytest.approx(float((after - before).mean()))
    assert found["interval"] == pytest.approx(expected, abs=0.01)


def test_steps_0_measure_the_start_and_write_a_complete_run(tmp_path):
    source = vectors()
    run = training.train(source, tmp_path, **{**QUICK, "steps": 0})
    assert run.metrics["step"] == 0
    assert run.metrics["recall_at_1"] == run.metrics["start"]["recall_at_1"] == raw_recall(source)
    assert run.metrics["gain"]["interval"] == [0.0, 0.0]
    assert describe_gain(run.metrics) == "Recall@1 75.0 % is that of the model before training"
    names = {path.name for path in tmp_path.glob("[a-z]*")} - {"tensorboard"}
    assert names == {
        *("best", "last", "checkpoint.pt", "evaluation.json", "events.jsonl"),
        "run.json",
        "vectors.safetensors",
    }
    again = training.train(source, tmp_path, **{**QUICK, "steps": 0})
    assert again.metrics == run.metrics
    torch.testing.assert_close(tuplet.load(tmp_path / "best").embed(source.features), normalize(source.features))


def test_a_result_that_is_worse_is_warned_of_or_the_start_is_kept(tmp_path):
    """A few steps of a random layer."""
    worse = {**QUICK, "steps": 2, "lr": 0.01}
    message = r"training made the model worse: Recall@1 75.00 → .*; try lr=0\.003, steps=1, another loss, or keep_start"
    with pytest.warns(UserWarning, match=message) as w:
        training.train(vectors(), tmp_path / "worse", **worse)
    assert {warning.filename for warning in w} == {__file__}
    run = training.train(vectors(), tmp_path / "kept", keep_start=True, **worse)
    assert (run.metrics["step"], run.metrics["gain"]["recall_at_1"]) == (0, 0.0)
    assert run.embedder.width == 10
    assert training.train(vectors(), tmp_path / "kept", keep_start=True, **worse).embedder.width == 10


def test_a_gain_that_may_be_chance_is_logged_with_its_interval(caplog):
    caplog.set_level("INFO", logger="tuplet")
    found = {"recall_at_1": -0.0067, "interval": [-0.0433, 0.0333], "confidence": 0.95}
    metrics = {"step": 60, "start": {"recall_at_1": 0.6533}, "recall_at_1": 0.6467, "gain": found}
    report_gain(metrics, Settings(steps=60))
    assert caplog.messages == [
        "these test queries do not tell whether training helped: Recall@1 65.33 → 64.67 % "
        "(-0.67 points, 95 % interval -4.33 to +3.33)"
    ]


def test_a_linear_layer_starts_from_the_vectors_and_is_averaged_with_them(tmp_path):
    """The default for vectors: where only some numbers tell classes apart, it learns which."""
    source = vectors(classes=40, each=8, dim=20, nuisance=2.0)
    run = training.train(source, tmp_path, lr=1e-3)
    settings = json.loads((tmp_path / "run.json").read_text())["settings"]
    assert (settings["dim"], settings["model_options"]) == (20, {"hidden": []})
    assert run.metrics["chosen_on"] == "validation"
    assert run.metrics["gain"]["interval"][0] > 0
    tried = events(tmp_path, "wise_ft")
    assert [event["share"] for event in tried] == list(AVERAGES)
    cosines = [event["mean_cosine"] for event in (events(tmp_path, "evaluation")[0], *tried)]
    assert len({*cosines}) == len(AVERAGES) + 1  # from the vectors towards the result
    scores = [event["map_at_r"] for event in events(tmp_path) if event["event"] in ("evaluation", "wise_ft")]
    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["progress"]
    assert saved["best_score"] == max(scores)


def test_an_average_that_is_best_is_kept_and_the_final_model_has_its_share(tmp_path):
    """Steps are so large that weights between the first and the last ones are better than the last."""
    source = vectors(classes=24, each=8, dim=20)
    options = {"lr": 0.1, "steps": 4, "evaluate_every": 4, "validation": 0.4, "keep_start": False}
    run = training.train(source, tmp_path, final=True, **options)
    share = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["progress"]["best_average"]
    assert run.metrics["average_with_start"] == pytest.approx(1 - share)
    for folder in (tmp_path, tmp_path / "final"):
        last, best = (models.load(folder / name).heads["H"].weight for name in ("last", "best"))
        torch.testing.assert_close(best, torch.lerp(torch.eye(20), last, share))


def test_an_average_has_the_weights_between(tmp_path):
    start, result = (models.create("mlp", features=3, hidden=[], dim=2) for _ in range(2))
    headless = models.create("mlp", features=3, hidden=[4], dim=None)
    for share, mixed in averages(start, result):
        expected = (1 - share) * start.heads["H"].weight + share * result.heads["H"].weight
        torch.testing.assert_close(mixed.heads["H"].weight, expected)
    whole = models.create("mlp", features=3, hidden=[4], dim=2)
    _, mixed = next(averages(headless, whole))
    assert torch.equal(mixed.heads["H"].weight, whole.heads["H"].weight)
    assert not torch.equal(mixed.weights()["backbone.layers.0.0.weight"], whole.weights()["backbone.layers.0.0.weight"])


def test_final_trains_on_all_examples_and_keeps_the_honest_result(tmp_path):
    options = {**QUICK, **SMALL, "validation": 0.5}
    plain = training.train(image_set(), tmp_path / "run", **options)
    final = training.train(image_set(), tmp_path / "run", final=True, **options)
    assert final.metrics == plain.metrics
    assert same(final.embedder.weights(), weights(tmp_path / "run" / "final", "best"))
    assert not same(weights(tmp_path / "run" / "final", "best"), weights(tmp_path / "run", "best"))
    assert events(tmp_path / "run" / "final", "evaluation") == []
    assert events(tmp_path / "run" / "final", "train")[-1]["step"] == plain.metrics["step"]
    again = training.train(image_set(), tmp_path / "run", final=True, **options)
    assert same(again.embedder.weights(), final.embedder.weights())
