"""How data are split: by classes, by images, by the data's own splits; and that the test classes only test."""

import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from training_tools import QUICK, events, vectors
from tuplet import data, evaluation, training
from tuplet.errors import OptionError
from tuplet.reports.run import read_run
from tuplet.training import Settings
from tuplet.training.split import class_groups, split_examples


def labels_of(source, positions):
    return set(source.labels[positions].tolist())


@given(st.integers(6, 60), st.floats(0.05, 0.6), st.floats(0.2, 0.7), st.integers(0, 5))
def test_classes_are_split_without_overlap(classes, validation, test_share, seed):
    source = data.from_features(torch.zeros(3 * classes, 1), torch.arange(classes).repeat_interleave(3))
    split = split_examples(source, Settings(validation=validation, test_share=test_share, seed=seed))
    parts = [labels_of(source, part) for part in split[:3]]
    if split.validation_gallery is None:
        assert not parts[0] & parts[1]
        assert len(parts[0]) >= 2
    assert not (parts[0] | parts[1]) & parts[2]
    assert sorted(torch.cat(split[:3]).tolist()) == list(range(3 * classes))


def test_the_default_chooses_on_validation_classes_and_tests_once(tmp_path):
    source = vectors(classes=24)
    run = training.train(source, tmp_path, **{**QUICK, "validation": 0.2})
    split = split_examples(source, Settings())
    assert run.metrics["chosen_on"] == "validation"
    assert labels_of(source, split.test) == set(range(12, 24))
    assert len(labels_of(source, split.validation)) == 4
    fifth = split_examples(source, Settings(test_share=0.25))
    assert labels_of(source, fifth.test) == set(range(18, 24))


@pytest.mark.parametrize("split", ["classes", "images"])
def test_many_classes_are_split_in_a_moment(split):
    source = data.Dataset(
        torch.arange(20_000).repeat(5), tuple(map(str, range(20_000))), features=torch.zeros(100_000, 1)
    )
    start = time.process_time()
    split_examples(source, Settings(split=split))
    assert time.process_time() - start < 10


def test_relatives_are_held_out_together():
    names = [f"{alphabet}/{letter}" for alphabet in ("cyrillic", "greek", "hebrew", "latin") for letter in "abcdef"]
    source = data.Dataset(
        torch.arange(24).repeat_interleave(2),
        tuple(names),
        features=torch.zeros(48, 1),
        splits=("train",) * 46 + ("test",) * 2,
    )
    held_out = labels_of(source, split_examples(source, Settings(validation=0.25)).validation)
    assert len({names[c].split("/")[0] for c in held_out}) == 1
    assert class_groups([f"{i:03}.Bird" for i in range(40)])[1] == [4, 5, 6, 7]
    assert class_groups(["017", "018"]) == [[0], [1]]


@pytest.mark.parametrize(
    ("share", "sentence"),
    [
        (0.01, "test_share is 0.01, which leaves none of 8 classes to test on; choose a larger one"),
        (0.99, "test_share is 0.99, which leaves none of 8 classes to train on; choose a smaller one"),
    ],
)
def test_a_share_of_no_class_names_the_option(share, sentence):
    with pytest.raises(OptionError) as caught:
        split_examples(vectors(classes=8), Settings(test_share=share))
    assert (str(caught.value), caught.value.option) == (sentence, "test_share")


def test_few_classes_hold_out_images_and_two_need_split_images(tmp_path, caplog):
    with caplog.at_level("INFO", "tuplet"):
        run = training.train(vectors(classes=8), tmp_path / "eight", **{**QUICK, "validation": 0.2})
    assert "4 training classes are too few to hold some out: 4 images of them select the checkpoint" in caplog.text
    assert run.metrics["chosen_on"] == "validation"
    two = vectors(classes=2, each=20)
    with pytest.raises(ValueError, match=r"the data have 2 classes.*hold out images of both with split='images'"):
        training.train(two, tmp_path / "two", **QUICK)
    options = {**QUICK, "batch_size": 6, "validation": 0.2, "split": "images", "test_share": 0.25}
    run = training.train(two, tmp_path / "two", **options)
    assert (run.metrics["queries"], run.metrics["gallery"], run.metrics["classes"]) == (10, 24, 2)
    split = split_examples(two, Settings(split="images", test_share=0.25))
    x = run.embedder.embed(two.features)
    found = evaluation.recall_at_k(
        x[split.test], two.labels[split.test], gallery=x[split.train], gallery_labels=two.labels[split.train]
    )
    assert run.metrics["recall_at_1"] == found[1]
    reported = read_run(run.folder, two)
    queries, gallery = reported.queries_and_gallery()
    assert reported.indices[queries].tolist() == split.test.tolist()
    assert reported.indices[gallery].tolist() == split.train.tolist()
    assert not set(split.test.tolist()) & set(split.train.tolist())


@pytest.mark.parametrize("name", ["val", "valid", "validation"])
def test_a_validation_split_of_the_data_is_used(name, tmp_path, caplog):
    source = vectors(classes=12)
    splits = ["train"] * 36 + [name] * 18 + ["test"] * 18
    source = data.from_features(source.features, source.labels, splits=splits)
    split = split_examples(source, Settings())
    assert split.validation.tolist() == list(range(36, 54))
    run = training.train(source, tmp_path, **{**QUICK, "validation": 0.2})
    assert run.metrics["chosen_on"] == "validation"
    assert len(events(tmp_path, "evaluation")) == 4
    without = data.from_features(source.features[:54], source.labels[:54], splits=splits[:54])
    with caplog.at_level("INFO", "tuplet"):
        assert split_examples(without, Settings()).test.tolist() == list(range(36, 54))
    assert f"the data have no split test: the split {name} is tested on" in caplog.text
