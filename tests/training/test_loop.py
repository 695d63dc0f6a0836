"""A run from data to results: its folder, its choices, and that the same seed gives the same weights."""

import json
import math
import re
from dataclasses import replace

import pytest
import torch
from PIL import Image
from safetensors.torch import load_file

import tuplet
from training_tools import dropping, events, pictures, same, vectors, weights
from tuplet import data, evaluation, losses, models, training
from tuplet.training.network import make_embedder

QUICK = {"loss": "raw", "steps": 6, "batch_size": 12, "per_class": 3, "dim": 5, "evaluate_every": 2, "log_every": 2}
QUICK["schedule"] = "constant"
SMALL = {"model": "convnet", "model_options": {"size": 12, "channels": 3}}


def test_the_folder_holds_everything_about_the_run(tmp_path):
    source = pictures()
    run = tuplet.train(source, tmp_path, recipe="demo", resize=12, stored_size=12, rate=0.01, **QUICK, **SMALL)
    about = json.loads((tmp_path / "run.json").read_text())
    assert about["tuplet"] == tuplet.__version__
    assert (about["recipe"], about["settings"]["rate"], about["settings"]["schedule"]) == ("demo", 0.01, "constant")
    assert about["settings"]["normalize"] is True  # decided, not left open
    assert about["settings"]["sampler"] == "class_balanced"
    trained = events(tmp_path, "train")
    assert [event["step"] for event in trained] == [2, 4, 6]
    assert all(event["loss"] > 0 and event["examples_per_second"] > 0 and event["seconds"] > 0 for event in trained)
    assert [event["step"] for event in events(tmp_path, "evaluation")] == [2, 4, 6]
    assert events(tmp_path)[-1]["event"] == "end"

    modes = {path.name: path.stat().st_mode for path in tmp_path.rglob("*") if path.is_file()}
    assert len(set(modes.values())) == 1, modes  # whoever may read one file of it may read all

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
    curve = {event["step"]: event["recall_at_1"] for event in events(tmp_path, "evaluation")}
    assert found["recall_at_1"] == max(curve.values()) == curve[found["step"]]
    assert found["step"] == min(step for step, value in curve.items() if value == max(curve.values()))


def test_the_same_seed_gives_the_same_weights_and_another_seed_others(tmp_path):
    options = {**QUICK, **SMALL, "augment": {"brightness": 0.3}, "resize": 14}
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        torch.randn(seed + len(name))
        training.train(pictures(), tmp_path / name, seed=seed, **options)
    assert same(weights(tmp_path / "a"), weights(tmp_path / "b"))
    assert not same(weights(tmp_path / "a"), weights(tmp_path / "c"))


def test_the_callers_random_numbers_are_left_alone(tmp_path):
    embedder = dropping()
    torch.manual_seed(1)
    expected = torch.rand(3)
    torch.manual_seed(1)
    training.train(vectors(), tmp_path, model=embedder, loss="raw", steps=2, batch_size=8)
    assert torch.equal(torch.rand(3), expected)


def test_training_learns_what_matters_for_classes_that_it_has_not_seen(tmp_path):
    hard = vectors(classes=40, each=8, dim=20, nuisance=2.0)
    run = training.train(hard, tmp_path, loss="multi_similarity", steps=150, batch_size=40, dim=8, rate=1e-3)
    _, test = hard.split()
    before = evaluation.recall_at_k(test.features, test.labels)[1]
    trained = [event["loss"] for event in events(tmp_path, "train")]
    assert trained[-1] < 0.8 * trained[0]
    assert run.metrics["recall_at_1"] > before + 0.2


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_precisions_train_and_agree_roughly(precision, tmp_path):
    # Steps so small that none overflows in float16: the weights then move by some 3e-3.
    options = {**QUICK, **SMALL, "optimizer": "sgd", "rate": 1e-3, "head_rate": 1.0}
    training.train(pictures(), tmp_path, precision=precision, **options)
    training.train(pictures(), tmp_path / "full", **options)
    ours, theirs = weights(tmp_path), weights(tmp_path / "full")
    for name in theirs:
        assert ours[name].dtype == torch.float32
        torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=0 if precision == "float32" else 2e-4)
    assert same(ours, theirs) == (precision == "float32")


def test_float16_leaves_out_steps_that_overflow_and_lowers_its_scale(tmp_path):
    """A scale of 65,536 overflows at first; the run goes on, and the weights stay finite."""
    run = training.train(vectors(), tmp_path, **{**QUICK, "steps": 20, "precision": "float16", "loss": Huge()})
    scaler = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["scaler"]
    assert scaler["scale"] < 65536
    assert all(bool(value.isfinite().all()) for value in run.embedder.state_dict().values())


class Huge(losses.ContrastiveLoss):
    def value(self, view):
        return 3e33 * super().value(view)


def test_frozen_batchnorm_stays_as_it_starts(tmp_path):
    def net():
        torch.manual_seed(0)
        layers = torch.nn.Sequential(torch.nn.Linear(10, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU())
        return models.create(layers, dim=5, example=torch.zeros(2, 10))

    options = {k: v for k, v in QUICK.items() if k != "dim"}
    for frozen in (False, True, "statistics"):
        training.train(vectors(), tmp_path / str(frozen), model=net(), frozen_batchnorm=frozen, rate=0.01, **options)
        moved = {
            name: not torch.equal(value, net().state_dict()[name])
            for name, value in weights(tmp_path / str(frozen)).items()
        }
        assert moved["backbone.module.0.weight"]
        assert moved["backbone.module.1.running_mean"] == (frozen is False)
        assert moved["backbone.module.1.weight"] == (frozen is not True)
    with pytest.raises(ValueError, match="has BatchNorm, whose statistics would be those of a piece"):
        training.train(vectors(), tmp_path / "pieces", model=net(), piece_size=4, **options)
    frozen = net().freeze_batchnorm()
    with pytest.raises(ValueError, match="frozen_batchnorm is False and the embedder was given with"):
        training.train(vectors(), tmp_path / "given", model=frozen, frozen_batchnorm=False, **options)


def test_batchnorm_is_frozen_by_default_where_weights_are_given():
    known = training.Settings(model="efficientnet_lite0", weights="efficientnet_lite0_imagenet")
    for settings, frozen in ((known, True), (replace(known, frozen_batchnorm=False), False)):
        embedder, decided = make_embedder(settings, losses.RAWLoss(), pictures())
        assert embedder.frozen_batchnorm == decided.frozen_batchnorm == frozen
    with pytest.warns(UserWarning, match="random weights"):
        _, decided = make_embedder(replace(known, weights=None), losses.RAWLoss(), pictures())
    assert decided.frozen_batchnorm is False


def test_pieces_train_as_the_whole_does(tmp_path):
    options = {**QUICK, **SMALL, "resize": 14}
    training.train(pictures(), tmp_path / "whole", **options)
    training.train(pictures(), tmp_path / "pieces", piece_size=5, **options)
    for ours, theirs in zip(weights(tmp_path / "pieces").values(), weights(tmp_path / "whole").values(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_compiled_network_trains_as_it_does_uncompiled(tmp_path, soak):
    if not soak:
        pytest.skip("compiling takes half a minute: make soak")
    for name in ("plain", "compiled"):
        training.train(vectors(), tmp_path / name, compile=name == "compiled", **QUICK)
    for ours, theirs in zip(weights(tmp_path / "compiled").values(), weights(tmp_path / "plain").values(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("whole", [True, False])
def test_a_network_that_was_compiled_before_trains_and_is_saved_as_any(whole, tmp_path):
    """Compiled is the embedder or a module of the user's, here by a compiler that leaves it as it is."""

    def net(compiler):
        torch.manual_seed(0)
        layers = torch.nn.Sequential(torch.nn.Linear(10, 8), torch.nn.ReLU())
        embedder = models.create(layers if whole else compiler(layers), dim=5, example=torch.zeros(2, 10))
        embedder.backbone = compiler(embedder.backbone) if whole else embedder.backbone
        return embedder

    def compiled(module):
        return torch.compile(module, backend="eager")

    options = {k: v for k, v in QUICK.items() if k != "dim"}
    run = training.train(vectors(), tmp_path / "compiled", model=net(compiled), **options)
    training.train(vectors(), tmp_path / "plain", model=net(lambda module: module), **options)
    assert same(weights(tmp_path / "compiled"), weights(tmp_path / "plain"))
    own = compiled(torch.nn.Sequential(torch.nn.Linear(10, 8), torch.nn.ReLU()))
    again = models.load(tmp_path / "compiled" / "best", backbone=own)
    assert again.fingerprint() == run.embedder.fingerprint()


def test_nothing_better_for_long_enough_stops_the_run_and_the_best_is_kept(tmp_path, monkeypatch):
    scores = iter([0.3, 0.5, 0.5, 0.4, 0.9])
    monkeypatch.setattr("tuplet.training.loop.recalls", lambda *_: {"recall_at_1": next(scores)})
    run = training.train(vectors(), tmp_path, **{**QUICK, "steps": 100, "patience": 2, "checkpoint_every": 50})
    assert [event["step"] for event in events(tmp_path, "evaluation")] == [2, 4, 6, 8]
    assert run.metrics["step"] == 4
    assert not same(weights(tmp_path, "best"), weights(tmp_path, "last"))
    # The same call finds it finished, a more patient one goes on.
    assert training.train(vectors(), tmp_path, **{**QUICK, "steps": 100, "patience": 2}).metrics == run.metrics
    again = training.train(vectors(), tmp_path, **{**QUICK, "steps": 10, "patience": 3})
    assert again.metrics["step"] == 10


def test_some_training_classes_can_choose_the_best(tmp_path):
    source = vectors(classes=16)
    run = training.train(source, tmp_path, validation=0.25, **QUICK)
    assert run.metrics["chosen_on"] == "validation"
    assert run.metrics["queries"] == 8 * 6
    saved = torch.load(tmp_path / "checkpoint.pt", weights_only=True)
    assert saved["progress"]["best_step"] == run.metrics["step"]
    proxies = training.train(source, tmp_path / "proxies", validation=0.25, **{**QUICK, "loss": "softmax"})
    assert proxies.metrics["chosen_on"] == "validation"
    learned = torch.load(tmp_path / "proxies" / "checkpoint.pt", weights_only=True)["objective"]
    assert learned["losses.0.proxies"].shape[0] == 6  # of 8 training classes


def test_options_can_be_chosen_without_a_look_at_the_test_split(tmp_path):
    source = vectors(classes=16)
    run = training.train(source, tmp_path, validation=0.25, test_on="validation", **QUICK)
    train, test = source.split()
    assert run.metrics["split"] == "validation"
    assert run.metrics["queries"] == 2 * 6  # of 8 training classes
    assert run.metrics["recall_at_1"] == events(tmp_path, "evaluation")[-1]["recall_at_1"]
    seen = load_file(tmp_path / "vectors.safetensors")["labels"]
    assert set(seen.tolist()) < set(train.labels.tolist())
    assert not set(seen.tolist()) & set(test.labels.tolist())
    with pytest.raises(ValueError, match="test_on='validation' needs validation=, the share of the training classes"):
        training.train(source, tmp_path / "none", test_on="validation", **QUICK)


@pytest.mark.parametrize(("classes", "validation", "what"), [(3, 0.0, "test"), (12, 0.1, "validation")])
def test_measuring_a_single_class_is_warned_of(classes, validation, what, tmp_path):
    """All neighbours are of the one class, so the first evaluation stays the best."""
    with pytest.warns(UserWarning, match=rf"the {what} split has a single class, '\d+', whose Recall@K is the same"):
        run = training.train(vectors(classes), tmp_path, validation=validation, **{**QUICK, "batch_size": 6})
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
    with pytest.raises(ValueError, match=rf"no example of the {what} split has another one of its class to find; give"):
        training.train(source, tmp_path / "run", **QUICK, **options)
    assert not (tmp_path / "run").exists()


def test_testing_on_classes_that_were_trained_on_is_warned_of(tmp_path):
    """As in the splits that classifiers are trained with."""
    source = vectors(classes=8)
    splits = ["train" if i % 2 or label < 4 else "test" for i, label in enumerate(source.labels.tolist())]
    source = data.from_features(source.features, source.labels, splits=splits)
    with pytest.warns(UserWarning, match="4 of the 4 test classes are trained on too, so that the result") as said:
        training.train(source, tmp_path, **QUICK)
    assert said[0].filename == __file__


def test_neighbours_among_the_classes_can_be_held_out_together(tmp_path):
    source = vectors(classes=16)
    options = {**QUICK, "test_on": "validation", "validation": 0.25}
    training.train(source, tmp_path, validation_from=0.5, **options)
    assert load_file(tmp_path / "vectors.safetensors")["labels"].unique().tolist() == [4, 5]  # of 0 … 7
    with pytest.raises(
        ValueError, match=r"validation_from 0.9, which do not fit into 8 training classes; choose shares"
    ):
        training.train(source, tmp_path / "late", validation_from=0.9, **options)


def test_mirrored_views_are_measured_beside_the_plain_ones(tmp_path):
    source = pictures()
    run = training.train(source, tmp_path, mirrored=True, **{**QUICK, **SMALL})
    test = source.split()[1]
    plain, other = (run.embedder.embed(images) for images in (test.images, test.images.flip(3)))
    both = torch.nn.functional.normalize((plain + other) / 2)
    for found, x in ((run.metrics, plain), (run.metrics["mirrored"], both)):
        for k, expected in evaluation.recall_at_k(x, test.labels, ks=(1, 2, 4, 8)).items():
            assert found[f"recall_at_{k}"] == expected


def test_runs_on_pictures_that_are_held_are_those_on_the_files(photos, tmp_path):
    opened = data.open(photos)
    held = data.hold(opened, 14)
    options = {**QUICK, **SMALL, "resize": 14, "batch_size": 6, "per_class": 2}
    training.train(opened, tmp_path / "files", **options)
    training.train(held, tmp_path / "held", **options)
    assert same(weights(tmp_path / "files"), weights(tmp_path / "held"))
    assert held.source == opened.source


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


@pytest.fixture
def photos(tmp_path):
    """Thirty pictures of six classes as files."""
    folder, source = tmp_path / "photos", pictures(classes=6, each=5)
    for i in range(len(source)):
        place = folder / f"class {source.labels[i]}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(source.images[i].permute(1, 2, 0).numpy()).save(place / f"{i:02}.png")
    return folder


def test_files_that_cannot_be_read_stop_the_run_or_are_left_out(photos, tmp_path):
    """With the file's name; and the vectors know which examples they are."""
    for path in (photos / "class 0" / "01.png", photos / "class 4" / "22.png"):
        path.write_bytes(b"no picture")
    options = {**QUICK, **SMALL, "batch_size": 6, "cache_folder": tmp_path / "cache"}
    with pytest.raises(ValueError, match=r"01\.png cannot be read: .*; replace it or skip it with unreadable='skip'$"):
        training.train(photos, tmp_path / "run", **options)
    with pytest.warns(UserWarning, match="1 of 15 images were skipped"):
        training.train(photos, tmp_path / "run", unreadable="skip", **options)
    saved = load_file(tmp_path / "run" / "vectors.safetensors")
    assert sorted(saved["indices"].tolist()) == [i for i in range(15, 30) if i != 22]


def test_decoded_or_cached_the_pictures_train_the_same_weights(photos, tmp_path):
    options = {**QUICK, **SMALL, "loss": "proxy_anchor", "batch_size": 6, "cache_folder": tmp_path / "cache"}
    for name in ("decoded", "cached"):
        training.train(photos, tmp_path / name, **options)
    assert same(weights(tmp_path / "decoded"), weights(tmp_path / "cached"))


def test_small_classes_are_named_before_training(tmp_path, recwarn):
    source = vectors(classes=8, each=5)
    few = source.select([i for i in range(40) if i not in (1, 2, 3, 4, 7, 8, 9)])
    training.train(few, tmp_path, **{**QUICK, "batch_size": 9})
    assert [str(warning.message) for warning in recwarn] == [
        "1 of 4 training classes have a single example, which has no positive, and are left out: 0",
        "1 of 4 training classes have fewer than 3 examples, and they come more than once in a batch: 1 (2)",
    ]
    with pytest.raises(ValueError, match="a batch of 12 is 4 classes of 3, and only 3 training classes have two"):
        training.train(few, tmp_path / "too many", **QUICK)
    with pytest.raises(ValueError, match="training needs two classes of two examples or more, and there are 1; add"):
        training.train(vectors(classes=2), tmp_path / "two", **{**QUICK, "batch_size": None})
    with pytest.raises(ValueError, match="the data have 1 class: '0'; a split into train and test needs two"):
        training.train(vectors(classes=1), tmp_path / "one", **QUICK)


def test_warnings_point_at_the_call(tmp_path, recwarn):
    """One of each kind that is said before training."""
    source = pictures(classes=4, each=5)
    few = source.select([i for i in range(20) if i not in (1, 2, 3, 4)])
    few = data.from_images(few.images, few.labels, splits=["train"] * 11 + ["test"] * 5)
    options = {**QUICK, "model": "googlenet", "size": 32, "resize": 32, "normalize": False, "steps": 1, "batch_size": 6}
    training.train(few, tmp_path, **options)
    kinds = ("random weights", "defined on unit vectors", "a single class", "a single example")
    assert [kind in str(warning.message) for warning, kind in zip(recwarn, kinds, strict=True)] == [True] * 4
    assert {warning.filename for warning in recwarn} == {__file__}


def test_a_batch_has_two_classes_however_many_examples_of_each(tmp_path):
    with pytest.warns(UserWarning, match="fewer than 100 examples, and they come more than once"):
        training.train(vectors(), tmp_path, loss="raw", per_class=100, dim=5, steps=1)
    assert json.loads((tmp_path / "run.json").read_text())["settings"]["batch_size"] == 200


def test_a_batch_of_groups_is_no_larger_than_small_classes_fill(tmp_path):
    """Eight training classes of three give 24 examples, which is six groups of four."""
    with pytest.warns(UserWarning, match="fewer than 4 examples, and other classes fill the batch up"):
        training.train(vectors(classes=16, each=3), tmp_path, loss="raw", sampler="ngroup", dim=5, steps=1)
    assert json.loads((tmp_path / "run.json").read_text())["settings"]["batch_size"] == 24


def test_a_backbone_from_random_weights_is_warned_of(tmp_path):
    with pytest.warns(UserWarning, match="googlenet starts from random weights; give weights="):
        training.train(pictures(), tmp_path, **{**QUICK, "model": "googlenet", "steps": 1, "size": 32, "resize": 32})


def test_every_evaluation_is_told(tmp_path, caplog):
    """Without a terminal there is no bar, and hours without a word are long."""
    with caplog.at_level("INFO", "tuplet"):
        run = tuplet.train(vectors(), tmp_path, **QUICK)
        assert tuplet.train(vectors(), tmp_path, **QUICK | {"steps": 8}).folder == run.folder
    logged = {event["step"]: event["loss"] for event in events(tmp_path) if event["event"] == "train"}
    found = [event for event in events(tmp_path) if event["event"] == "evaluation"]
    told = [re.sub("after [0-9]+ s", "after … s", record.getMessage()) for record in caplog.records]
    best = [event["recall_at_1"] > max([0.0, *(e["recall_at_1"] for e in found[:i])]) for i, event in enumerate(found)]
    lines = [
        f"step {event['step']} of {8 if event['step'] > 6 else 6} after … s: loss {logged[event['step']]:.4g}, "
        f"Recall@1 {100 * event['recall_at_1']:.2f} %{', the best so far' if better else ''}"
        for event, better in zip(found, best, strict=True)
    ]
    assert told == [*lines[:3], "going on from step 6 of 8", lines[3]]


def test_tensorboard_gets_the_numbers_where_it_is_installed(tmp_path, monkeypatch):
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
    assert [step for name, step in written if name == "evaluation/recall_at_1"] == [2, 4, 6]
