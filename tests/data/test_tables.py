"""Tables of paths and labels, and files of features: small real ones of each, written here and opened."""

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from data.written import pack, write_image, write_table
from tuplet import data as tuplet_data
from tuplet.data.files import Slice


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_tables_of_paths_labels_and_splits(tmp_path, ending):
    rows = []
    for number, (name, label, split) in enumerate([("a", 10, "train"), ("b", 9, "train"), ("c", 10, "test")]):
        write_image(tmp_path / "sub" / f"{name}.png", number)
        rows.append({"path": f"sub/{name}.png", "label": label, "split": split, "class": f"kind {label}"})
    data = tuplet_data.open(write_table(tmp_path / f"t.{ending}", rows))
    assert data.labels.tolist() == [1, 0, 1]
    assert data.class_names == ("kind 9", "kind 10")
    assert data.splits == ("train", "train", "test")
    assert data.aspects is None
    assert [data.image(i).getpixel((0, 0))[0] for i in range(3)] == [0, 1, 2]


def test_labels_may_be_names_and_columns_may_be_called_otherwise(tmp_path):
    rows = []
    for name in "ab":
        write_image(tmp_path / f"{name}.png")
        rows.append({"file": f"{name}.png", "species": f"species {name}"})
    path = write_table(tmp_path / "t.csv", rows)
    data = tuplet_data.open(path, columns={"path": "file", "label": "species"})
    assert data.class_names == ("species a", "species b")


def test_splits_may_be_in_capitals(tmp_path):
    write_image(tmp_path / "a.png")
    rows = [{"path": "a.png", "label": label, "split": split} for label, split in enumerate(("Train", "TRAIN", "Test"))]
    train, test = tuplet_data.open(write_table(tmp_path / "t.csv", rows)).split()
    assert (train.labels.tolist(), test.labels.tolist()) == ([0, 1], [2])


def test_paths_inside_tars_and_true_proportions(tmp_path):
    """Images squashed into squares, in two tars beside the table, whose width and height tell their proportions."""
    rows = []
    for part in ("train", "test"):
        for number in range(2):
            write_image(tmp_path / part / f"{part}/{number}.png", 10 * number, size=(32, 32))
            rows.append({"path": f"{part}/{number}.png", "label": number, "split": part, "width": 60, "height": 40})
        pack(tmp_path / part, tmp_path / f"birds_{part}.tar")
    pack(tmp_path / "train", tmp_path / "cars_train.tar")  # another table's, with the same names in it
    data = tuplet_data.open(write_table(tmp_path / "birds.csv", rows))
    assert all(isinstance(image, Slice) for image in data.images)
    assert data.aspects.tolist() == [1.5] * 4
    assert [data.image(i).getpixel((0, 0))[0] for i in range(4)] == [0, 10, 0, 10]
    store = tuplet_data.load(data, size=16, workers=2)
    assert store.aspects.tolist() == [1.5] * 4


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,label\n", "has no rows below its header; write one for each image"),
        ("path,species\na.png,1\n", "has no column 'label'; its columns are path, species: rename one, or"),
        ("path;label\na.png;1\n", "has the one column 'path;label'; separate path and label by commas"),
        ("path\tlabel\na.png\t1, 2\n", r"has the one column 'path\\tlabel'; separate path and label by commas"),
        ("", "t.csv is empty; its first line must name the columns path and label"),
        ("path,label\na.png\n", "row 2 of .* has 1 fields, its header has 2; put fields that hold commas in quotes"),
        (
            "path,label,class\na.png,1,x\na.png,1,y\n",
            "row 3 of .* names the label 1 'y', and row 2 of .* 'x'; give",
        ),
        ("path,label,width,height\na.png,1,5,0\n", "row 2 of .* has the size 5 × 0; both must be numbers above 0"),
        ("path,label,width,height\na.png,1,5,tall\n", "row 2 of .* has the size 5 × tall"),
        ("path,label\na.png,1\na.png,\n", "row 3 of .* has no label"),
        ("path,label\na.png,1\na.png, \n", "row 3 of .* has no label"),
        ("path,label,label\na.png,1,2\n", "has the column 'label' twice"),
        ("path,label,width,height\na.png,1,inf,9\n", "row 2 of .* has the size inf × 9; both must be numbers above 0"),
        ("path,label\na.png,1\na.png,01\n", "writes the label 1 as '01' and as '1'; write it one way"),
        ('path,label\n"a.png,1\n' + "a.png,1\n" * 20_000, r"t\.csv cannot be read \(field larger .*\); .* quotes"),
        ("path,label\na.png,caf\xe9\n", r"t\.csv is not in UTF-8: .*; save it as UTF-8"),
    ],
)
def test_bad_tables_get_one_sentence(tmp_path, text, message):
    write_image(tmp_path / "a.png")
    path = tmp_path / "t.csv"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(ValueError, match=message):
        tuplet_data.open(path)


def test_columns_that_no_table_has_are_named_first(tmp_path):
    (tmp_path / "t.csv").write_text("image,label\na.png,1\n")
    with pytest.raises(ValueError, match="columns has 'paths'; did you mean 'path'"):
        tuplet_data.open(tmp_path / "t.csv", columns={"paths": "image"})


def test_a_missing_column_is_explained_with_an_example(tmp_path):
    (tmp_path / "t.csv").write_text("file,label\na.png,1\n")
    with pytest.raises(ValueError, match="no column 'path'; its columns are file, label: rename one, or give columns="):
        tuplet_data.open(tmp_path / "t.csv")


def test_an_example_keeps_the_columns_that_were_found(tmp_path):
    (tmp_path / "t.csv").write_text("file,species,camera\na.png,1,2\n")
    with pytest.raises(ValueError, match=r"rename one, or give columns=\{'path': 'file', 'label': 'species'\}$"):
        tuplet_data.open(tmp_path / "t.csv", columns={"path": "file"})
    with pytest.raises(ValueError, match=r"has no column 'specis'; did you mean 'species'\?$"):
        tuplet_data.open(tmp_path / "t.csv", columns={"path": "file", "label": "specis"})
    (tmp_path / "t.csv").write_text("path\na.png\n")
    with pytest.raises(ValueError, match=r"has no column 'label'; its columns are path: add it$"):
        tuplet_data.open(tmp_path / "t.csv")


def test_the_class_is_the_label_where_no_column_is(tmp_path):
    write_image(tmp_path / "a.png")
    (tmp_path / "t.csv").write_text("path,class\na.png,owl\na.png,bee\n")
    data = tuplet_data.open(tmp_path / "t.csv")
    assert data.class_names == ("bee", "owl")
    assert data.labels.tolist() == [1, 0]


def test_labels_may_be_missing_where_none_is_needed(tmp_path):
    write_image(tmp_path / "a.png")
    rows = [{"path": "a.png", "price": 3}, {"path": "a.png", "price": 4}]
    for name in ("t.csv", "t.parquet"):
        with pytest.warns(UserWarning, match="the images get no label: .* has no column 'label'; .*{'label': 'price'}"):
            data = tuplet_data.open(write_table(tmp_path / name, rows), labelled=False)
        assert (data.class_names, data.labels.tolist()) == (("",), [0, 0])
        assert list(data.metadata["price"]) == [3, 4]
    (tmp_path / "some.csv").write_text("path,label\na.png,owl\na.png,\n")
    assert tuplet_data.open(tmp_path / "some.csv", labelled=False).class_names == ("", "owl")


def test_who_has_no_labels_gets_no_warning(tmp_path, recwarn):
    write_image(tmp_path / "a.png")
    (tmp_path / "only.csv").write_text("path\na.png\n")
    assert tuplet_data.open(tmp_path / "only.csv", labelled=False).class_names == ("",)
    (tmp_path / "price.csv").write_text("path,price\na.png,3\n")
    assert tuplet_data.open(tmp_path / "price.csv", columns={"label": ""}, labelled=False).class_names == ("",)
    assert not recwarn


def test_a_damaged_parquet_table_is_named(tmp_path):
    (tmp_path / "t.parquet").write_bytes(b"garbage")
    with pytest.raises(ValueError, match=r"^[^\n]*t\.parquet cannot be read \([^\n]+\); save it again$"):
        tuplet_data.open(tmp_path / "t.parquet")


def test_a_label_that_is_no_number_is_missing_in_a_parquet_table(tmp_path):
    rows = [{"path": "a.png", "label": 1.0}, {"path": "a.png", "label": float("nan")}]
    with pytest.raises(ValueError, match=r"row 3 of .*t\.parquet has no label; fill it in or remove the row"):
        tuplet_data.open(write_table(tmp_path / "t.parquet", rows))


def test_spaces_around_a_field_do_not_make_another_class(tmp_path):
    for name in "ab":
        write_image(tmp_path / f"{name}.png")
    (tmp_path / "t.csv").write_text("path, label\na.png, 3\n b.png,3 \n")
    assert tuplet_data.open(tmp_path / "t.csv").class_names == ("3",)


def test_endings_may_be_in_capitals(tmp_path):
    write_image(tmp_path / "a.png")
    write_table(tmp_path / "t.csv", [{"path": "a.png", "label": 0}]).rename(tmp_path / "T.CSV")
    write_table(tmp_path / "t.parquet", [{"path": "a.png", "label": 0}]).rename(tmp_path / "T.Parquet")
    np.savez(tmp_path / "v.npz", features=np.eye(2), labels=[0, 1])
    (tmp_path / "v.npz").rename(tmp_path / "V.NPZ")
    assert [len(tuplet_data.open(tmp_path / name)) for name in ("T.CSV", "T.Parquet", "V.NPZ")] == [1, 1, 2]


@pytest.mark.parametrize("stem", ["birds", "birds[1]"])
def test_paths_inside_tars_may_begin_with_a_dot_and_a_slash(tmp_path, stem):
    write_image(tmp_path / "set" / "sub" / "a.png", 7)
    pack(tmp_path / "set", tmp_path / f"{stem}.tar")
    data = tuplet_data.open(write_table(tmp_path / f"{stem}.csv", [{"path": "./sub/a.png", "label": 0}]))
    assert data.image(0).getpixel((0, 0))[0] == 7


def test_images_that_a_table_names_in_vain_are_counted(tmp_path):
    write_image(tmp_path / "a.png")
    path = write_table(tmp_path / "t.csv", [{"path": f"{name}.png", "label": 0} for name in "abc"])
    with pytest.raises(FileNotFoundError, match=r"2 of the 3 images in .* are missing, first .*b\.png \(row 3 of .*\)"):
        tuplet_data.open(path)


def test_a_name_in_two_tars_is_refused(tmp_path):
    write_image(tmp_path / "x" / "a.png")
    pack(tmp_path / "x", tmp_path / "t1.tar")
    pack(tmp_path / "x", tmp_path / "t2.tar")
    path = write_table(tmp_path / "t.csv", [{"path": "a.png", "label": 0}])
    with pytest.raises(ValueError, match=r"a\.png lies both in .*t1\.tar/a\.png and in .*t2\.tar"):
        tuplet_data.open(path)


def test_features_from_every_kind_of_file(tmp_path):
    features, labels = torch.randn(6, 4), torch.tensor([5, 5, 7, 7, 9, 9])
    np.save(tmp_path / "v.npy", features.numpy())
    np.save(tmp_path / "v_labels.npy", labels.numpy())
    np.savez(tmp_path / "v.npz", features=features.numpy(), labels=labels.numpy())
    save_file({"features": features.double(), "labels": labels}, tmp_path / "v.safetensors")
    for ending in ("npy", "npz", "safetensors"):
        data = tuplet_data.open(tmp_path / f"v.{ending}")
        assert torch.equal(data.features, features)
        assert data.features.dtype == torch.float32
        assert data.class_names == ("5", "7", "9")


def test_labels_of_features_may_be_names(tmp_path):
    np.savez(tmp_path / "v.npz", features=np.eye(3), labels=["elk", "ant", "elk"])
    data = tuplet_data.open(tmp_path / "v.npz")
    assert data.class_names == ("ant", "elk")
    assert data.labels.tolist() == [1, 0, 1]


def test_features_without_labels_get_one_sentence(tmp_path):
    np.save(tmp_path / "v.npy", np.zeros((2, 2)))
    with pytest.raises(FileNotFoundError, match=r"the labels of .*v\.npy are missing; save them as v_labels\.npy"):
        tuplet_data.open(tmp_path / "v.npy")
    np.savez(tmp_path / "v.npz", vectors=np.zeros((2, 2)))
    with pytest.raises(ValueError, match=r"has no entry 'features', its entries are vectors; give the vectors this"):
        tuplet_data.open(tmp_path / "v.npz")
    np.savez(tmp_path / "embedded.npz", embeddings=np.zeros((3, 2)))
    with pytest.raises(ValueError, match=r"has no entry 'labels', .* are embeddings; add the class of each vector$"):
        tuplet_data.open(tmp_path / "embedded.npz")


@pytest.mark.parametrize("ending", ["npy", "npz", "safetensors"])
def test_a_damaged_features_file_is_named(tmp_path, ending):
    path = tmp_path / f"v.{ending}"
    path.write_bytes(b"garbage")
    np.save(tmp_path / "labels.npy", [0])
    with pytest.raises(ValueError, match=rf"^features .*v\.{ending} cannot be read \([^\n]+\); save it again$"):
        tuplet_data.open(path)


def test_labels_saved_as_python_objects_get_their_remedy(tmp_path):
    np.savez(tmp_path / "v.npz", features=np.eye(2), labels=np.array(["elk", None], dtype=object))
    with pytest.raises(
        ValueError, match=r"Object arrays .*; save labels as numbers or as text, labels\.astype\(str\)$"
    ):
        tuplet_data.open(tmp_path / "v.npz")
