"""What a run is measured on, and what chooses its best embedder."""

import pytest
import torch
from safetensors.torch import load_file

import tuplet
from training_tools import QUICK, SMALL, events, image_set, same, vectors, weights
from tuplet import data, evaluation, load, models, training


def test_some_training_classes_can_choose_the_best(tmp_path):
    source = vectors(classes=16)
    run = training.train(source, tmp_path, **{**QUICK, "validation": 0.25})
    assert run.metrics["chosen_on"] == "validation"
    assert run.metrics["queries"] == 8 * 6
    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert saved["progress"]["best_step"] == run.metrics["step"]
    proxies = training.train(source, tmp_path / "proxies", **{**QUICK, "validation": 0.25, "loss": "softmax"})
    assert proxies.metrics["chosen_on"] == "validation"
    learned = torch.load(tmp_path / "proxies" / "checkpoint.pt", weights_only=True)["objective"]
    assert learned["losses.0.proxies"].shape[0] == 6  # of 8 training classes


SUM = {"parts": [{"loss": "softmax"}, {"loss": "contrastive", "weight": 0.1}]}


@pytest.mark.parametrize(("loss", "options", "prefix"), [("softmax", {}, ""), ("sum", SUM, "losses.0.")])
def test_a_classifier_is_measured_on_held_out_images_of_its_classes(tmp_path, loss, options, prefix):
    source = vectors(classes=9, each=8, nuisance=0.3)
    chosen = {**QUICK, "loss": loss, "loss_options": options, "lr": 0.05, "steps": 20, "loss_lr_scale": 1.0}
    run = training.train(source, tmp_path, split="images", test_share=0.25, **chosen)
    stored = load_file(tmp_path / "vectors.safetensors")
    held_out = stored["indices"][stored["is_query"]]
    embedder = load(tmp_path / "last").train()  # vectors of free length
    learned = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["objective"]
    weight, bias = (learned[f"losses.0.{prefix}{name}"].double() for name in ("proxies", "bias"))
    found = (embedder(source.features[held_out]).double() @ weight.T + bias).argmax(1)
    expected = (found == source.labels[held_out]).double().mean().item()
    assert run.metrics["classifier_accuracy"] == pytest.approx(expected)
    assert expected > 0.3  # by chance 0.11


def test_new_classes_and_losses_without_a_classifier_have_no_accuracy_of_one(tmp_path):
    softmax = {**QUICK, "loss": "softmax"}
    assert "classifier_accuracy" not in training.train(vectors(), tmp_path / "classes", **softmax).metrics
    assert "classifier_accuracy" not in training.train(vectors(), tmp_path / "raw", split="images", **QUICK).metrics
    # Each process has a share of the classes, so none of them can classify.
    shares = {**softmax, "loss_options": {"sharded": True}, "split": "images"}
    assert "classifier_accuracy" not in training.train(vectors(), tmp_path / "shares", **shares).metrics


def test_options_can_be_chosen_without_a_look_at_the_test_split(tmp_path):
    source = vectors(classes=16)
    run = training.train(source, tmp_path, **{**QUICK, "validation": 0.25, "test_on": "validation"})
    train, test = source.split()
    assert run.metrics["split"] == "validation"
    assert run.metrics["queries"] == 2 * 6  # of 8 training classes
    assert run.metrics["recall_at_1"] == events(tmp_path, "evaluation")[-1]["recall_at_1"]
    seen = load_file(tmp_path / "vectors.safetensors")["labels"]
    assert set(seen.tolist()) < set(train.labels.tolist())
    assert not set(seen.tolist()) & set(test.labels.tolist())
    with pytest.raises(ValueError, match="test_on='validation' needs validation: the share of the training classes"):
        training.train(source, tmp_path / "none", test_on="validation", **QUICK)


def test_neighbours_among_the_classes_can_be_held_out_together(tmp_path):
    source = vectors(classes=16)
    options = {**QUICK, "test_on": "validation", "validation": 0.25}
    training.train(source, tmp_path, validation_from=0.5, **options)
    assert load_file(tmp_path / "vectors.safetensors")["labels"].unique().tolist() == [4, 5]  # of 0 … 7
    with pytest.raises(
        ValueError, match=r"validation_from 0.9, which do not fit into 8 training classes; choose shares"
    ):
        training.train(source, tmp_path / "late", validation_from=0.9, **options)


def test_nothing_better_for_long_enough_stops_the_run_and_the_best_is_kept(tmp_path, monkeypatch):
    scores = iter([0.9, 0.3, 0.5, 0.5, 0.4, 0.9])  # the first is that of the start, which is not kept
    monkeypatch.setattr("tuplet.training.loop.recalls", lambda *_: {"recall_at_1": next(scores)})
    run = training.train(vectors(), tmp_path, **{**QUICK, "steps": 100, "patience": 2, "checkpoint_every": 50})
    assert [event["step"] for event in events(tmp_path, "evaluation")] == [0, 2, 4, 6, 8]
    assert run.metrics["step"] == 4
    assert not same(weights(tmp_path, "best"), weights(tmp_path, "last"))
    # The same call finds it finished, a more patient one goes on.
    assert training.train(vectors(), tmp_path, **{**QUICK, "steps": 100, "patience": 2}).metrics == run.metrics
    again = training.train(vectors(), tmp_path, **{**QUICK, "steps": 10, "patience": 3})
    assert again.metrics["step"] == 10


@pytest.mark.parametrize(("classes", "validation", "what"), [(3, 0.0, "test"), (12, 0.2, "validation")])
def test_measuring_a_single_class_is_warned_of(classes, validation, what, tmp_path):
    """All neighbours are of the one class, so the first evaluation stays the best."""
    options = {"validation": validation, "validation_from": 0.5} if validation else {}
    with pytest.warns(UserWarning, match=rf"the {what} split has a single class, '\d+', so its Recall@K does not"):
        run = training.train(vectors(classes), tmp_path, **{**QUICK, "batch_size": 6, **options})
    assert run.metrics["step"] == 2


TRAINED = [0, 1, 2, 3] * 6


@pytest.mark.parametrize(
    ("what", "labels", "splits", "options"),
    [
        ("test", [*TRAINED, *range(10, 22)], ["train"] * 24 + ["test"] * 12, {}),
        ("test", TRAINED + [4] * 6 + [5] * 6, ["train"] * 24 + ["query"] * 6 + ["gallery"] * 6, {}),
        (
            "validation",
            [*TRAINED, 4, 5, 6, 7, *[8, 9] * 4],
            ["train"] * 28 + ["test"] * 8,
            {"validation": 0.5, "validation_from": 0.5},
        ),
    ],
)
def test_measuring_without_a_positive_is_refused_before_training(what, labels, splits, options, tmp_path):
    """Its Recall@K is 0 whatever is learned."""
    source = data.from_features(vectors(classes=6).features, labels, splits=splits)
    with pytest.raises(ValueError, match=rf"no example of the {what} split has a positive; give"):
        training.train(source, tmp_path / "run", **{**QUICK, **options})
    assert not (tmp_path / "run").exists()


def test_testing_on_classes_that_were_trained_on_is_warned_of(tmp_path):
    """As in the splits that classifiers are trained with."""
    source = vectors(classes=8)
    splits = ["train" if i % 2 or label < 4 else "test" for i, label in enumerate(source.labels.tolist())]
    source = data.from_features(source.features, source.labels, splits=splits)
    with pytest.warns(UserWarning, match="4 of the 4 test classes are trained on too, so the result") as said:
        run = training.train(source, tmp_path, **QUICK)
    assert said[0].filename == __file__
    assert run.metrics["trained_classes"] == run.metrics["classes"] == 4
    assert "new examples of the training classes" in (tmp_path / "best/README.md").read_text()


def test_mirrored_views_are_measured_beside_the_plain_ones(tmp_path):
    source = image_set()
    run = training.train(source, tmp_path, flip_test=True, **{**QUICK, **SMALL})
    test = source.split()[1]
    plain, other = (run.embedder.embed(images) for images in (test.images, test.images.flip(3)))
    both = torch.nn.functional.normalize((plain + other) / 2)
    for found, x in ((run.metrics, plain), (run.metrics["flip_test"], both)):
        for k, expected in evaluation.recall_at_k(x, test.labels, ks=(1, 2, 4, 8)).items():
            assert found[f"recall_at_{k}"] == expected


def test_queries_look_into_a_gallery_where_the_data_have_one(tmp_path):
    source = vectors()
    splits = ["train"] * 36 + ["query", "gallery", "gallery"] * 12
    source = data.from_features(source.features, source.labels, splits=splits)
    run = training.train(source, tmp_path, **QUICK)
    assert (run.metrics["queries"], run.metrics["gallery"]) == (12, 24)
    saved = load_file(tmp_path / "vectors.safetensors")
    query = torch.tensor([source.splits[i] == "query" for i in saved["indices"].tolist()])
    x, y = saved["embeddings"], saved["labels"]
    expected = evaluation.recall_at_k(x[query], y[query], gallery=x[~query], gallery_labels=y[~query])[1]
    assert run.metrics["recall_at_1"] == expected


def test_training_examples_are_measured_without_test_examples():
    source = data.from_features(torch.eye(8), torch.arange(8) // 2, splits=["train"] * 6 + ["val"] * 2)
    assert tuplet.evaluate(models.create("mlp", features=8, dim=2), source, on="train")["queries"] == 6


def test_evaluate_takes_a_folder_and_refuses_an_unknown_split(tmp_path):
    data = vectors()
    embedder = models.create("mlp", features=data.features.shape[1], dim=4)
    embedder.save(tmp_path / "model")
    found = tuplet.evaluate(embedder, data, on="train")
    assert tuplet.evaluate(tmp_path / "model", data, on="train") == found
    with pytest.raises(ValueError, match="on is 'val'; use test, train or all"):
        tuplet.evaluate(embedder, data, on="val")
    with pytest.raises(TypeError, match=r"embedder is of type Tensor; .* vectors to tuplet\.evaluation"):
        tuplet.evaluate(data.features, data.labels)
