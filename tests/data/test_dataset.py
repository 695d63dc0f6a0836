"""Splits by column, by class and by fold, and the views of a dataset they give."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tuplet import data as data_room
from tuplet.data import Dataset, from_features, from_images


def features(sizes, splits=None):
    labels = np.repeat(np.arange(len(sizes)), sizes)
    return from_features(np.arange(len(labels), dtype=np.float32)[:, None], labels, splits=splits)


@given(
    st.lists(st.integers(1, 5), min_size=2, max_size=20), st.floats(0.1, 0.9), st.one_of(st.none(), st.integers(0, 99))
)
def test_a_split_by_ratio_shares_no_class_and_loses_nothing(sizes, ratio, seed):
    data = features(sizes)
    if not 0 < round(len(sizes) * ratio) < len(sizes):
        with pytest.raises(ValueError, match=f"a ratio of {ratio} leaves one side of {len(sizes)} classes empty"):
            data.split(ratio, seed)
        return
    train, test = data.split(ratio, seed)
    assert not set(train.classes) & set(test.classes)
    assert len(train.classes) == round(len(sizes) * ratio)
    assert sorted(torch.cat([train.features, test.features])[:, 0].tolist()) == list(range(len(data)))
    assert [half.tolist() for half in (train.labels, data.split(ratio, seed)[0].labels)] == [train.labels.tolist()] * 2


def test_a_split_without_arguments_is_the_first_half_of_the_classes():
    train, test = features([2, 3, 4, 5]).split()
    assert (train.classes, test.classes) == ([0, 1], [2, 3])


def test_a_single_class_cannot_be_split():
    with pytest.raises(ValueError, match="the data have 1 class: '0'; a split into train and test needs two or more"):
        features([4]).split()


def test_what_was_opened_is_remembered_and_parts_of_it_are_not(tmp_path, monkeypatch):
    np.savez(tmp_path / "f.npz", features=np.eye(4, dtype=np.float32), labels=[0, 0, 1, 1])
    monkeypatch.chdir(tmp_path)
    data = data_room.open("f.npz")
    assert data.source == str(tmp_path / "f.npz")
    parts = [*data.split(), data.select([0, 1, 2, 3]), data.dense(), features([2, 2])]
    assert [part.source for part in parts] == [None] * 5


def test_seeds_choose_different_classes():
    data = features([2] * 30)
    assert data.split(seed=0)[0].classes != data.split(seed=1)[0].classes


def test_the_split_of_the_data_comes_first():
    data = features([2, 2, 2], splits=["test", "train", "train", "val", "test", "train"])
    train, test = data.split()
    assert train.features[:, 0].tolist() == [1, 2, 5]
    assert test.features[:, 0].tolist() == [0, 4]
    assert data.part("val").features[:, 0].tolist() == [3]
    assert data.split(ratio=0.34)[0].classes == [0]


def test_query_and_gallery_make_the_test_part_and_share_labels():
    data = features([2, 2, 2], splits=["train", "train", "query", "gallery", "gallery", "query"])
    _, test = data.split()
    assert len(test) == 4
    assert test.part("query").labels.tolist() == [1, 2]
    assert test.part("gallery").labels.tolist() == [1, 2]


@given(st.integers(2, 12), st.integers(2, 6), st.integers(0, 9))
def test_folds_validate_on_each_class_once(classes, count, seed):
    data = features([3] * classes)
    if count > classes:
        with pytest.raises(ValueError, match="folds"):
            next(data.folds(count, seed))
        return
    held_out = []
    for train, validation in data.folds(count, seed):
        assert not set(train.classes) & set(validation.classes)
        assert len(train) + len(validation) == len(data)
        held_out += validation.classes
    assert sorted(held_out) == list(range(classes))


def test_dense_labels_count_from_zero_and_keep_their_names():
    data = features([2, 2, 2]).of_classes([0, 2]).dense()
    assert data.labels.tolist() == [0, 0, 1, 1]
    assert data.class_names == ("0", "2")


def test_selecting_keeps_everything_in_step():
    images = torch.arange(4, dtype=torch.uint8)[:, None, None].expand(4, 2, 2)
    data = from_images(images, [0, 0, 1, 1], class_names=["ant", "bee"], splits=["a", "b", "a", "b"])
    data = Dataset(data.labels, data.class_names, data.images, splits=data.splits, aspects=torch.arange(1.0, 5.0))
    some = data.select([3, 0])
    assert some.labels.tolist() == [1, 0]
    assert some.splits == ("b", "a")
    assert some.aspects.tolist() == [4, 1]
    assert [some.image(i).getpixel((0, 0))[0] for i in range(2)] == [3, 0]
    assert data.select(torch.tensor([False, True, False, False])).labels.tolist() == [0]


@given(
    st.lists(st.integers(-9, 8), max_size=9)
    | st.builds(lambda a, b: list(range(a, b)), st.integers(-9, 9), st.integers(0, 9))
)
def test_selecting_takes_the_examples_that_are_named(indices):
    data = features([3, 3, 3])
    chosen = data.select(indices)
    assert chosen.features[:, 0].tolist() == [i % 9 for i in indices]
    assert torch.equal(chosen.labels, data.labels[torch.tensor(indices).long()])


def test_examples_in_a_row_are_not_copied():
    images = torch.zeros(9, 3, 8, 8, dtype=torch.uint8)
    data = from_images(images, [0, 0, 0, 1, 1, 1, 2, 2, 2])
    assert data.of_classes([1, 2]).images.data_ptr() == data.images[3].data_ptr()
    assert data.of_classes([0, 2]).images.untyped_storage().nbytes() == 6 * images[0].nbytes


def test_paths_survive_selection(tmp_path):
    for name in "abc":
        Image.new("RGB", (2, 2), name.encode()[0]).save(tmp_path / f"{name}.png")
    data = Dataset(torch.tensor([0, 0, 1]), ("x", "y"), images=[str(tmp_path / f"{name}.png") for name in "abc"])
    assert data.select([2, 1]).path(0).endswith("c.png")
    assert data.select([2, 1]).image(0).getpixel((0, 0))[0] == ord("c")


def test_images_in_memory_may_be_grey_or_have_channels_on_either_side():
    grey = from_images(np.full((2, 5, 7), 9, np.uint8), [0, 1])
    assert grey.image(1).size == (7, 5)
    assert grey.image(1).getpixel((0, 0)) == (9, 9, 9)
    last = np.random.default_rng(0).integers(0, 256, (2, 5, 7, 3), np.uint8)
    assert (from_images(last, [0, 1]).images == from_images(last.transpose(0, 3, 1, 2), [0, 1]).images).all()


def test_labels_are_renumbered_and_remember_their_values():
    data = from_features(torch.zeros(4, 2), [9, -5, 9, 2**40])
    assert data.labels.tolist() == [1, 0, 1, 2]
    assert data.class_names == ("-5", "9", str(2**40))


def test_labels_may_be_names():
    for labels in (["bee", "ant", "bee"], np.array(["bee", "ant", "bee"]), np.array(["bee", "ant", "bee"], object)):
        data = from_features(torch.zeros(3, 2), labels)
        assert data.labels.tolist() == [1, 0, 1]
        assert data.class_names == ("ant", "bee")


@pytest.mark.filterwarnings("error::UserWarning")
def test_images_may_come_as_a_list_of_arrays():
    assert len(from_images([np.zeros((5, 7, 3), np.uint8)] * 2, [0, 1])) == 2


def test_it_says_what_it_holds():
    assert repr(features([2, 2], splits=["train"] * 3 + ["test"])) == (
        "Dataset(4 feature vectors, 2 classes, 3 train, 1 test)"
    )


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Dataset(torch.tensor([0]), ("a",)), "either images or features"),
        (lambda: Dataset(torch.tensor([0.0]), ("a",), features=torch.zeros(1, 2)), "labels must be int64"),
        (lambda: Dataset(torch.tensor([0, 1]), ("a", "b"), features=torch.zeros(1, 2)), "features has 1 entries for 2"),
        (lambda: Dataset(torch.tensor([2]), ("a", "b"), features=torch.zeros(1, 2)), "labels run from 2 to 2, outside"),
        (lambda: features([2, 2]).part("train"), "there is no split .train. here; the data have no splits: take"),
        (lambda: features([2], ["train", "val"]).split(), "no split 'test', nor 'query' and .* train, val: rename"),
        (lambda: features([2, 2]).split(ratio=float("nan")), "a ratio of nan leaves one side of 2 classes empty"),
        (lambda: features([2, 2]).select([True, False]), "the mask has 2 entries for 4 examples"),
        (lambda: features([2, 2]).select([0.7, 1.2]), r"indices must be integers or a mask, got torch\.float32"),
        (lambda: from_images(np.zeros((2, 0, 5), np.uint8), [0, 1]), r"got \(2, 3, 0, 5\)"),
        (
            lambda: from_images([np.zeros((4, 4), np.uint8), np.zeros((5, 4), np.uint8)], [0, 1]),
            "the list of 2 has members of several shapes; bring them to one shape, or keep images in files",
        ),
        (lambda: from_features([[1.0, 2.0], [3.0]], [0, 1]), "the list of 2 has members of several shapes"),
        (lambda: from_features(np.zeros((2, 0)), [0, 1]), r"got torch\.float64 \(2, 0\)"),
        (lambda: features([2, 2]).image(0), "holds feature vectors and no images; see its features"),
        (lambda: from_images(np.zeros((2, 5), np.uint8), [0, 1]), r"got \(2, 5\)"),
        (
            lambda: from_features(np.zeros(4, np.float32), [0] * 4),
            r"got torch.float32 \(4,\); give one vector for each",
        ),
        (lambda: from_features(np.zeros((4, 2), int), [0] * 4), r"got torch.int64 \(4, 2\);.*convert .* \.float\(\)"),
        (lambda: from_features(np.array([[0.0], [np.nan]]), [0, 1]), "row 1 of the features is not finite"),
        (lambda: from_features(np.array([[0.0], [1e300]]), [0, 1]), "row 1 of the features is not finite in float32"),
    ],
)
def test_bad_data_get_one_sentence(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_types_that_are_not_bytes_or_integers_are_refused():
    with pytest.raises(TypeError, match=r"images must be uint8 from 0 to 255, got torch.float32"):
        from_images(np.zeros((2, 5, 5), np.float32), [0, 1])
    with pytest.raises(TypeError, match=r"labels must be integers or names, got float64; number the classes with"):
        from_features(np.zeros((2, 5), np.float32), [0.5, 1])
    with pytest.raises(TypeError, match=r"labels are names already; leave class_names out"):
        from_features(np.zeros((2, 5), np.float32), ["ant", "bee"], class_names=["x", "y"])


def test_features_that_a_network_has_just_made_are_only_numbers():
    data = from_features(torch.nn.Linear(3, 2)(torch.eye(3)), [0, 1, 2])
    assert not data.features.requires_grad


def test_arrays_may_run_backwards_and_have_another_byte_order():
    bgr = np.random.default_rng(0).integers(0, 256, (2, 5, 7, 3), np.uint8)
    assert (from_images(bgr[..., ::-1], [0, 1]).images.flip(1).permute(0, 2, 3, 1).numpy() == bgr).all()
    data = from_features(np.array([[1.0], [2.0]], ">f8"), np.array([9, 7], ">i4")[::-1])
    assert data.features.tolist() == [[1.0], [2.0]]
    assert data.class_names == ("7", "9")
    assert data.labels.tolist() == [0, 1]
