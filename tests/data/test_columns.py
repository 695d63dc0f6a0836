"""What the columns of a table mean: boxes, groups, metadata, several labels, levels, pairs and images as bytes."""

import io
import json
import tarfile

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from data.written import write_image, write_table
from tuplet import data as tuplet_data
from tuplet.data import CentreCrop
from tuplet.data.readers.columns import Table, dataset_of
from tuplet.images.crop import to_tensor


def write_halves(path, size=(40, 30)):
    """Write an image whose left half is red and whose right half is blue."""
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.zeros((size[1], size[0], 3), np.uint8)
    pixels[:, : size[0] // 2, 0] = pixels[:, size[0] // 2 :, 2] = 255
    Image.fromarray(pixels).save(path)


def jpeg(shade):
    file = io.BytesIO()
    Image.new("RGB", (8, 6), (shade, 0, 0)).save(file, "PNG")
    return file.getvalue()


@pytest.mark.parametrize(
    "box",
    [{"x": 20, "y": 5, "width": 12, "height": 10}, {"x1": 20, "y1": 5, "x2": 32, "y2": 15}],
    ids=["sides", "corners"],
)
def test_a_box_crops_before_everything_else(tmp_path, box):
    write_halves(tmp_path / "a.png")
    data = tuplet_data.open(write_table(tmp_path / "t.csv", [{"path": "a.png", "label": 0, **box}]))
    assert data.boxes.tolist() == [[20, 5, 32, 15]]
    assert data.aspects is None
    assert data.metadata == {}
    image = data.image(0)
    assert image.size == (12, 10)
    assert image.getpixel((0, 0)) == (0, 0, 255)
    store = tuplet_data.load(data, crop=CentreCrop(8, 8))
    assert torch.equal(store.values[0], to_tensor(CentreCrop(8, 8).crop(image)))
    assert store.aspects.tolist() == [np.float32(1.2)]


def test_boxes_make_different_caches(tmp_path):
    write_halves(tmp_path / "a.png")
    for x, colour in ((0, 255), (20, 0)):
        row = {"path": "a.png", "label": 0, "x": x, "y": 0, "width": 20, "height": 30}
        data = tuplet_data.open(write_table(tmp_path / f"{x}.csv", [row]))
        assert tuplet_data.load(data, 8, tmp_path / "cache").values[0, 0, 0, 0] == colour


def test_a_box_that_reaches_beyond_its_image_is_cut_and_one_outside_is_named(tmp_path):
    write_halves(tmp_path / "a.png")
    rows = [{"path": "a.png", "label": i, "x1": x, "y1": 0, "x2": x + 30, "y2": 30} for i, x in enumerate((25, 90))]
    data = tuplet_data.open(write_table(tmp_path / "t.csv", rows))
    assert data.image(0).size == (15, 30)
    with pytest.raises(ValueError, match=r"a\.png has the box 90, 0, 120, 30, which lies outside of its 40 × 30"):
        data.image(1)


def test_other_columns_are_metadata_with_their_types(tmp_path):
    write_image(tmp_path / "a.png")
    text = "path,label,price,sku,stock,note\na.png,0,1.5,007,3,new\na.png,1,2,8,,\n"
    (tmp_path / "t.csv").write_text(text)
    data = tuplet_data.open(tmp_path / "t.csv")
    assert data.metadata == {"price": (1.5, 2.0), "sku": ("007", "8"), "stock": (3, None), "note": ("new", None)}
    assert data.select([1]).metadata["price"] == (2.0,)


def test_the_group_is_a_column_by_its_name_or_as_given(tmp_path):
    write_image(tmp_path / "a.png")
    rows = [{"path": "a.png", "label": 0, "camera": camera, "shop": 1} for camera in ("c2", "c1", "c2")]
    path = write_table(tmp_path / "t.csv", rows)
    data = tuplet_data.open(path)
    assert (data.groups.name, data.groups.codes.tolist()) == ("camera", [1, 0, 1])
    assert data.metadata["camera"] == ("c2", "c1", "c2"), "metadata too"
    assert tuplet_data.open(path, columns={"group": "shop"}).groups.name == "shop"
    assert tuplet_data.open(path, columns={"group": ""}).groups is None
    both = write_table(tmp_path / "both.csv", [{**row, "session": 1} for row in rows])
    with pytest.raises(ValueError, match="has the columns camera and session, and either may be the group"):
        tuplet_data.open(both)


def test_several_labels_and_a_hierarchy(tmp_path):
    write_image(tmp_path / "a.png")
    rows = [{"path": "a.png", "labels": labels} for labels in ("pet|cat", "dog", "dog|pet")]
    data = tuplet_data.open(write_table(tmp_path / "t.csv", rows))
    assert data.class_names == ("cat", "dog", "pet")
    assert data.targets.tolist() == [[2, 0], [1, -1], [1, 2]]
    assert data.class_sizes() == {0: 1, 1: 2, 2: 2}
    assert data.select([1, 2]).dense().targets.tolist() == [[0, -1], [0, 1]]
    listed = [{"path": "a.png", "label": row["labels"].split("|")} for row in rows]
    assert torch.equal(tuplet_data.open(write_table(tmp_path / "t.parquet", listed)).targets, data.targets)
    tree = [("wren", "bird|animal"), ("tit", "bird|animal"), ("oak", "tree|plant")]
    rows = [{"path": "a.png", "label": name, "parent": parent} for name, parent in tree]
    data = tuplet_data.open(write_table(tmp_path / "tree.csv", rows))
    assert data.label_sets.tolist() == [[2, 0, 0], [1, 0, 0], [0, 1, 1]]
    assert data.levels["parent"] == ("animal/bird", "plant/tree")
    assert data.at_level("parent").labels.tolist() == [0, 0, 1]
    assert data.targets.tolist() == [2, 1, 0]


def test_pairs_become_classes_by_the_chains_of_same_ones(tmp_path):
    for name in "abcde":
        write_image(tmp_path / f"{name}.png")
    pairs = [("a", "b", 1), ("b", "c", 1), ("c", "d", 0), ("d", "e", 1)]
    rows = [{"a": f"{a}.png", "b": f"{b}.png", "same": same} for a, b, same in pairs]
    data = tuplet_data.open(write_table(tmp_path / "t.csv", rows))
    assert data.labels.tolist() == [0, 0, 0, 1, 1]
    assert data.class_names == ("a.png", "d.png")
    assert data.pairs.same.tolist() == [True, True, False, True]
    part = data.select([2, 3, 4]).pairs
    assert (part.first.tolist(), part.second.tolist()) == ([0, 1], [1, 2])
    rows.append({"a": "a.png", "b": "c.png", "same": "no"})
    with pytest.raises(ValueError, match=r"row 6 of .* says that a\.png and c\.png differ, and other rows that"):
        tuplet_data.open(write_table(tmp_path / "t.csv", rows))


def test_triplets(tmp_path):
    for name in "abcd":
        write_image(tmp_path / f"{name}.png")
    rows = [{"anchor": f"{a}.png", "positive": f"{p}.png", "negative": f"{n}.png"} for a, p, n in ("abc", "cdb")]
    data = tuplet_data.open(write_table(tmp_path / "t.csv", rows))
    assert data.labels.tolist() == [0, 0, 1, 1]
    assert data.pairs.triplets.tolist() == [[0, 1, 2], [2, 3, 1]]


def hugging_face(table):
    """Return a table with the features that Hugging Face's datasets write beside it."""
    features = {"label": {"names": ["zebra", "ant"], "_type": "ClassLabel"}, "image": {"_type": "Image"}}
    return table.replace_schema_metadata({"huggingface": json.dumps({"info": {"features": features}})})


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_images_as_bytes_as_hugging_face_saves_them(tmp_path, kind):
    for split, shades in (("train", (10, 20, 30)), ("test", (40, 50))):
        images = [{"bytes": jpeg(shade), "path": None} for shade in shades]
        table = hugging_face(pyarrow.table({"image": images, "label": [0, 1, 0][: len(shades)], "price": shades}))
        file = tmp_path / "set" / split / f"data-00000-of-00001.{kind}"
        file.parent.mkdir(parents=True)
        if kind == "parquet":
            pyarrow.parquet.write_table(table, file, row_group_size=2)
        else:
            with pyarrow.ipc.new_stream(file, table.schema) as writer:
                writer.write_table(table)
    data = tuplet_data.open(tmp_path / "set")
    assert data.splits == ("test", "test", "train", "train", "train")
    assert [data.class_names[label] for label in data.labels] == ["zebra", "ant", "zebra", "ant", "zebra"]
    assert data.metadata == {"price": (40, 50, 10, 20, 30)}
    assert [data.image(i).getpixel((0, 0))[0] for i in (4, 0, 3, 1, 2)] == [30, 40, 20, 50, 10]
    store = tuplet_data.load(data, 4, tmp_path / "cache", workers=1)
    assert store.values[:, 0, 0, 0].tolist() == [40, 50, 10, 20, 30]


def test_an_empty_cell_is_named(tmp_path):
    table = pyarrow.table({"image": pyarrow.array([jpeg(1), None], pyarrow.binary()), "label": [0, 1]})
    pyarrow.parquet.write_table(table, tmp_path / "t.parquet")
    with pytest.raises(ValueError, match=r"image in row 3 of .*t\.parquet cannot be read"):
        tuplet_data.open(tmp_path / "t.parquet").image(1)


def test_a_column_image_may_hold_paths(tmp_path):
    write_image(tmp_path / "sub" / "a.png", 7)
    rows = [{"image": "sub/a.png", "label": "x", "price": 3}]
    for columns in (None, {"path": "image"}):
        data = tuplet_data.open(write_table(tmp_path / "t.csv", rows), columns=columns)
        assert data.image(0).getpixel((0, 0))[0] == 7
        assert data.metadata == {"price": (3,)}
    found = tuplet_data.open(write_table(tmp_path / "u.csv", [{"image": "sub/a.png"}]), pattern="(?P<label>a)")
    assert found.class_names == ("a",)


def write_tar(path, files):
    with tarfile.open(path, "w") as tar:
        for name, content in files.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(content)
            tar.addfile(entry, io.BytesIO(content))


def test_a_webdataset_in_one_tar_and_in_a_folder_of_them(tmp_path):
    (tmp_path / "shards").mkdir()
    for split, label in (("train", b"3"), ("test", b"5")):
        about = json.dumps({"price": 7, "colour": ""}).encode()
        files = {"0001.png": jpeg(9), "0001.cls": label, "0001.json": about, "0002.png": jpeg(8), "0002.cls": label}
        write_tar(tmp_path / "shards" / f"birds-{split}-000.tar", files)
    data = tuplet_data.open(tmp_path / "shards")
    assert (data.class_names, data.splits) == (("3", "5"), ("test", "test", "train", "train"))
    assert data.metadata == {"price": (7, None, 7, None), "colour": (None,) * 4}
    one = tuplet_data.open(tmp_path / "shards" / "birds-test-000.tar")
    assert one.image(1).getpixel((0, 0))[0] == 8
    write_tar(tmp_path / "bad.tar", {"1.png": jpeg(1), "1.cls": b"a", "2.png": jpeg(1)})
    with pytest.raises(ValueError, match=r"sample 2 of .*bad\.tar has no label; fill it in or remove the row"):
        tuplet_data.open(tmp_path / "bad.tar")


def test_the_class_may_be_found_in_the_path(tmp_path):
    for name in ("0002_c1s1.png", "0002_c2s1.png", "0007_c1s1.png"):
        write_image(tmp_path / "all" / name)
    data = tuplet_data.open(tmp_path / "all", pattern=r"(?P<label>\d+)_c(?P<camera>\d)")
    assert data.class_names == ("0002", "0007")
    assert data.groups.codes.tolist() == [0, 1, 0]
    assert data.opened_with == {"pattern": r"(?P<label>\d+)_c(?P<camera>\d)"}
    write_table(tmp_path / "t.csv", [{"path": "all/0002_c1s1.png", "price": 3}])
    assert tuplet_data.open(tmp_path / "t.csv", pattern=r"/(?P<label>\d+)_").class_names == ("0002",)
    write_image(tmp_path / "all" / "junk.png")
    with pytest.raises(ValueError, match=r"1 of the 4 names in .*all do not match the pattern .*, first junk\.png"):
        tuplet_data.open(tmp_path / "all", pattern=r"(?P<label>\d+)_")
    for bad, message in (("(", "no regular expression"), (r"\d", r"has no group \(\?P<label>…\)")):
        with pytest.raises(ValueError, match=message):
            tuplet_data.open(tmp_path / "all", pattern=bad)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("path,label,x,y\na.png,1,0,0\n", "has the column 'x' of a box and no column 'width'; a box is x1, y1,"),
        (
            "path,label,x1,y1,x2,y2\na.png,1,0,0,9,9\na.png,1,5,5,5,9\n",
            "row 3 .* has the box x1 5, y1 5, x2 5, y2 9",
        ),
        (
            "path,label,x1,y1,x2,y2\na.png,1,0,0,9,wide\n",
            "row 2 of .* has the box x1 0, y1 0, x2 9, y2 wide",
        ),
        ("path,label,x1,y1,x2,y2\n\na.png,1,0,0,,9\n", "row 3 of .* has no x2; fill it in or remove the row"),
        ("path,label,camera\na.png,1,\n", "row 2 of .* has no group; fill it in"),
        ("path,labels\na.png,a|\n", r"row 2 of .* has an empty label among its labels; name one or more, a\|b"),
        (
            "path,label,parent\na.png,1,x\na.png,1,y\n",
            "row 3 of .* puts '1' below 'y', and row 2 of .* below 'x'",
        ),
        (
            "path,label,parent\na.png,1,x\na.png,2,x|y\n",
            "row 3 of .* has 2 ancestors, and row 2 of .* 1; give",
        ),
        ("a,b,same\na.png,a.png,maybe\n", "row 2 of .* has 'maybe' as same; write 1 or 0, true or false"),
        (
            "a,b,same,split\na.png,b.png,1,train\na.png,b.png,1,test\n",
            "row 3 .* puts a.png into 'test', and",
        ),
    ],
)
def test_bad_columns_get_one_sentence(tmp_path, text, message):
    write_image(tmp_path / "a.png")
    write_image(tmp_path / "b.png")
    (tmp_path / "t.csv").write_text(text)
    with pytest.raises(ValueError, match=message):
        tuplet_data.open(tmp_path / "t.csv")


@given(st.data())
def test_any_table_gives_a_dataset_that_agrees_with_its_rows(draw):
    """Columns in any order and number: each row keeps its label, box, group and metadata through selections."""
    count = draw.draw(st.integers(1, 12))
    column = lambda values: st.lists(values, min_size=count, max_size=count)  # noqa: E731
    labels = draw.draw(column(st.integers(-5, 5) | st.sampled_from(["a", "b"])))
    cameras = draw.draw(column(st.integers(0, 3)))
    corners = draw.draw(column(st.tuples(*[st.integers(0, 50)] * 2, *[st.integers(1, 50)] * 2)))
    notes = draw.draw(column(st.none() | st.text(max_size=3)))
    columns = {
        "path": [f"{i}.png" for i in range(count)],
        "label": labels,
        "camera": cameras,
        "note": notes,
        **{name: [box[i] for box in corners] for i, name in enumerate(("x", "y", "width", "height"))},
    }
    order = draw.draw(st.permutations(list(columns)))
    table = Table("t", {name: columns[name] for name in order}, lambda row: f"row {row}").with_roles(None)
    data = dataset_of(table, columns["path"])
    chosen = draw.draw(st.lists(st.integers(0, count - 1), min_size=1))
    part = data.select(chosen)
    for place, row in enumerate(chosen):
        assert part.class_names[part.labels[place]] == str(labels[row])
        x, y, width, height = corners[row]
        assert part.boxes[place].tolist() == [x, y, x + width, y + height]
        assert part.metadata["note"][place] == notes[row]
        assert part.path(place) == f"{row}.png"
    for one, a in enumerate(chosen):
        for other, b in enumerate(chosen):
            assert (part.groups.codes[one] == part.groups.codes[other]) == (cameras[a] == cameras[b])
