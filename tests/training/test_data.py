"""The examples of a run: images from files, and batches that the classes can fill."""

import json
import os

import pytest
from PIL import Image
from safetensors.torch import load_file

from training_tools import QUICK, SMALL, image_set, same, vectors, weights
from tuplet import data, training
from tuplet.training.events import Events


@pytest.fixture
def photos(tmp_path):
    """Thirty images of six classes as files."""
    folder, source = tmp_path / "photos", image_set(classes=6, each=5)
    for i in range(len(source)):
        place = folder / f"class {source.labels[i]}"
        place.mkdir(parents=True, exist_ok=True)
        Image.fromarray(source.images[i].permute(1, 2, 0).numpy()).save(place / f"{i:02}.png")
    return folder


def test_runs_on_images_that_are_held_are_those_on_the_files(photos, tmp_path):
    opened = data.open(photos)
    held = data.hold(opened, 14)
    options = {**QUICK, **SMALL, "resize": 14, "batch_size": 6, "per_class": 2}
    training.train(opened, tmp_path / "files", **options)
    training.train(held, tmp_path / "held", **options)
    assert same(weights(tmp_path / "files"), weights(tmp_path / "held"))
    assert held.source == opened.source
    (photos / "class 0" / "00.png").write_bytes(b"")
    with pytest.warns(UserWarning, match="1 of 30 images were skipped"):
        some = data.hold(opened, 14, unreadable="skip")
    assert (len(some), some.source) == (29, None)  # which is a part of what was opened


def test_data_may_lie_in_a_folder_whose_name_is_no_text(photos, tmp_path):
    odd = photos.rename(tmp_path / os.fsdecode(b"photos\xff"))
    run = training.train(odd, tmp_path / "run", **{**QUICK, **SMALL, "batch_size": 6, "per_class": 2})
    assert json.loads((run.folder / "run.json").read_text())["data"] == str(odd)
    log = Events(run.folder, length=0, step=0)
    log.write("failure", step=1, files=[str(odd)])
    log.close()
    assert json.loads((run.folder / "events.jsonl").read_text())["files"] == [str(odd)]


def test_files_that_cannot_be_read_stop_the_run_or_are_left_out(photos, tmp_path):
    """With the file's name; and the vectors know which examples they are."""
    for path in (photos / "class 0" / "01.png", photos / "class 4" / "22.png"):
        path.write_bytes(b"no image")
    options = {**QUICK, **SMALL, "batch_size": 6, "cache_folder": tmp_path / "cache"}
    with pytest.raises(ValueError, match=r"01\.png cannot be read: .*; .* leave it out with unreadable='skip'$"):
        training.train(photos, tmp_path / "run", **options)
    with pytest.warns(UserWarning, match="1 of 15 images were skipped"):
        training.train(photos, tmp_path / "run", unreadable="skip", **options)
    saved = load_file(tmp_path / "run" / "vectors.safetensors")
    assert sorted(saved["indices"].tolist()) == [i for i in range(15, 30) if i != 22]


def test_a_split_of_which_no_file_can_be_read_is_a_sentence(photos, tmp_path):
    for path in photos.rglob("class [345]/*.png"):
        path.write_bytes(b"no image")
    with pytest.raises(
        ValueError, match=r"^none of the 15 images can be loaded, first: image .*15\.png cannot be read"
    ):
        training.train(photos, tmp_path / "run", **{**QUICK, **SMALL, "batch_size": 6, "unreadable": "skip"})


def test_decoded_or_cached_the_images_train_the_same_weights(photos, tmp_path):
    options = {**QUICK, **SMALL, "loss": "proxy_anchor", "batch_size": 6, "cache_folder": tmp_path / "cache"}
    for name in ("decoded", "cached"):
        training.train(photos, tmp_path / name, **options)
    assert same(weights(tmp_path / "decoded"), weights(tmp_path / "cached"))


def test_small_classes_are_named_before_training(tmp_path, recwarn):
    source = vectors(classes=8, each=5)
    few = source.select([i for i in range(40) if i not in (1, 2, 3, 4, 7, 8, 9)])
    training.train(few, tmp_path, **{**QUICK, "batch_size": 9})
    assert [str(warning.message) for warning in recwarn][:2] == [
        "1 of 4 training classes have a single example, which has no positive, and are left out: 0",
        "1 of 4 training classes have fewer than 3 examples, and they come more than once in a batch: 1 (2)",
    ]
    with pytest.raises(ValueError, match="a batch of 12 is 4 classes of 3, and only 3 training classes have two"):
        training.train(few, tmp_path / "too many", **QUICK)
    with pytest.raises(
        ValueError, match=r"2 classes, too few to train on one .*hold out images of both with split='images'"
    ):
        training.train(vectors(classes=2), tmp_path / "two", **{**QUICK, "batch_size": None})
    with pytest.raises(ValueError, match="the data have 1 class: '0'; a split into train and test needs two"):
        training.train(vectors(classes=1), tmp_path / "one", **QUICK)


def test_a_batch_has_two_classes_however_many_examples_of_each(tmp_path):
    with pytest.warns(UserWarning, match="fewer than 100 examples, and they come more than once"):
        training.train(vectors(), tmp_path, loss="raw", per_class=100, dim=5, steps=1, validation=0)
    assert json.loads((tmp_path / "run.json").read_text())["settings"]["batch_size"] == 200


def test_triplets_that_are_disjoint_come_in_threes(tmp_path):
    options = {**QUICK, "loss": "triplet", "loss_options": {"mining": "disjoint"}, "per_class": 4}
    training.train(vectors(), tmp_path, **options)
    assert json.loads((tmp_path / "run.json").read_text())["settings"]["sampler"] == "triplet"
    with pytest.raises(ValueError, match="batch_size is 8 and the sampler triplet takes 3 at a time; choose"):
        training.train(vectors(), tmp_path / "eight", **{**options, "batch_size": 8})


def test_a_batch_of_groups_is_no_larger_than_small_classes_fill(tmp_path):
    """Eight training classes of three give 24 examples, which is six groups of four."""
    with pytest.warns(UserWarning, match="fewer than 4 examples, and other classes fill the batch up"):
        training.train(
            vectors(classes=16, each=3), tmp_path, loss="raw", sampler="ngroup", dim=5, steps=1, validation=0
        )
    assert json.loads((tmp_path / "run.json").read_text())["settings"]["batch_size"] == 24
