"""Small real files of every official layout, with the counts of the official ones checked."""

import dataclasses
import gzip
import io
import json
import os
import re
import struct

import numpy as np
import pytest
import scipy.io
from PIL import Image

from commands import SMALL, typed
from data.written import pack
from tuplet import data as tuplet_data
from tuplet.data import official


def write_images(folder, names):
    for shade, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("L", (4, 4), shade).save(path)


def expect(monkeypatch, layout, **counts):
    """Make these sizes of a small copy the official ones."""
    monkeypatch.setitem(official.LAYOUTS, layout, dataclasses.replace(official.LAYOUTS[layout], counts=counts))


def open_small(monkeypatch, layout, source, boxes=False, **counts):
    """Open a small copy as if its sizes were the official ones."""
    expect(monkeypatch, layout, **counts)
    return tuplet_data.open(source, boxes=boxes)


def write_graded(folder, names):
    """Write images of 30 × 20 pixels: red counts the columns, green the rows, blue the images."""
    y, x = np.mgrid[:20, :30]
    for number, name in enumerate(names):
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(np.stack([x, y, np.full_like(x, number)], 2).astype(np.uint8)).save(path, "png")


def shown(image):
    """Return left, top, right and bottom of the part of a graded image that a crop of it shows."""
    return *image.getpixel((0, 0))[:2], *(last + 1 for last in image.getpixel((image.width - 1, image.height - 1))[:2])


def cub(folder, classes=(1, 1, 100, 101, 200)):
    names = [f"{c:03d}.Bird_{c}/Bird_{c}_{number:04d}.jpg" for number, c in enumerate(classes)]
    write_images(folder / "CUB_200_2011" / "images", names)
    root = folder / "CUB_200_2011"
    (root / "images.txt").write_text("".join(f"{i} {name}\n" for i, name in enumerate(names, 1)))
    (root / "image_class_labels.txt").write_text("".join(f"{i} {c}\n" for i, c in enumerate(classes, 1)))
    (root / "classes.txt").write_text("".join(f"{c} {c:03d}.Bird_{c}\n" for c in range(1, 201)))
    return folder


def test_cub(monkeypatch, tmp_path):
    data = open_small(monkeypatch, "cub200", cub(tmp_path), train=3, test=2)
    assert data.labels.tolist() == [0, 0, 99, 100, 199]
    assert data.splits == ("train", "train", "train", "test", "test")
    assert data.class_names[100] == "101.Bird_101"
    assert data.image(3).getpixel((0, 0)) == (3, 3, 3)


def cub_with_boxes(folder, classes=(1, 1, 101, 200)):
    """Write a copy with boxes; the images are listed in another order than the boxes, and one box is too wide."""
    cub(folder, classes)
    root = folder / "CUB_200_2011"
    names = [line.split()[1] for line in (root / "images.txt").read_text().splitlines()]
    write_graded(root / "images", names)
    boxes = [(i, 2.0 + i, 3.0, 10.0 if i > 1 else 99.0, 5.0) for i in range(len(classes), 0, -1)]
    (root / "bounding_boxes.txt").write_text("".join(" ".join(map(str, row)) + "\n" for row in boxes))
    return folder


def test_boxes_of_cub(monkeypatch, tmp_path):
    data = open_small(monkeypatch, "cub200", cub_with_boxes(tmp_path), boxes=True, train=2, test=2)
    assert data.opened_with == {"boxes": True}
    assert [shown(data.image(i)) for i in range(4)] == [(3, 3, 30, 8), (4, 3, 14, 8), (5, 3, 15, 8), (6, 3, 16, 8)]
    assert [data.image(i).getpixel((0, 0))[2] for i in range(4)] == [0, 1, 2, 3]
    assert tuplet_data.open(tmp_path).boxes is None
    lines = (tmp_path / "CUB_200_2011/bounding_boxes.txt").read_text().splitlines(keepends=True)
    (tmp_path / "CUB_200_2011/bounding_boxes.txt").write_text("".join(lines[1:]))
    with pytest.raises(ValueError, match=r"CUB-200-2011 in .* is damaged \(no entry '.*Bird_200_0003.jpg'\)"):
        tuplet_data.open(tmp_path, boxes=True)
    (tmp_path / "CUB_200_2011/bounding_boxes.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"has no bounding_boxes.txt, which the official layout has"):
        tuplet_data.open(tmp_path, boxes=True)


def test_data_without_boxes_are_a_sentence(tmp_path):
    write_images(tmp_path, ["ant/1.png", "bee/1.png"])
    with pytest.raises(ValueError, match=r"boxes is given, but .* has none; leave it out for all but CUB-200-2011, Ca"):
        tuplet_data.open(tmp_path, boxes=True)


def test_boxes_from_the_command_line(monkeypatch, tmp_path):
    expect(monkeypatch, "cub200", train=12, test=8)
    cub_with_boxes(tmp_path / "birds", [*[1] * 4, *[2] * 4, *[3] * 4, *[101] * 4, *[200] * 4])
    found = typed("data", "birds", "--boxes", cwd=tmp_path)
    assert found.exit_code == 0, found.output
    assert "boxes: every image is cropped to its own, 10 × 5 pixels in the middle" in found.output
    found = typed("train", "birds", "--boxes", "--out", "run", *SMALL, "--batch-size", "8", cwd=tmp_path)
    assert found.exit_code == 0, found.output
    assert json.loads((tmp_path / "run/run.json").read_text())["opened_with"] == {"boxes": True}

    def recall(*words):
        found = typed("evaluate", *words, "--json", "--device", "cpu", cwd=tmp_path)
        assert found.exit_code == 0, found.output
        return json.loads(found.stdout)

    # A run knows how its data were opened.
    whole, cropped, same = recall("run", "birds"), recall("run", "birds", "--boxes"), recall("run")
    assert same == cropped != whole
    again = typed("train", "birds", "--out", "run", *SMALL, "--batch-size", "8", cwd=tmp_path)
    assert again.exit_code == 1
    assert "holds a run on other data (contents" in again.stderr


def test_a_wrong_count_is_a_sentence(tmp_path):
    with pytest.raises(
        ValueError, match=r"^CUB-200-2011 has 5,864 train images, but .* has 3: fetch it again, or open it"
    ):
        tuplet_data.open(cub(tmp_path))
    assert len(tuplet_data.open(tmp_path, complete=False)) == 5


def test_a_image_that_is_missing_shows_in_the_count(monkeypatch, tmp_path):
    cub(tmp_path)
    (tmp_path / "CUB_200_2011/images/101.Bird_101/Bird_101_0003.jpg").unlink()
    with pytest.raises(ValueError, match=r"has 2 test images, but .* has 1:"):
        open_small(monkeypatch, "cub200", tmp_path, train=3, test=2)
    data = tuplet_data.open(tmp_path, complete=False)
    assert data.labels.tolist() == [0, 0, 99, 199]


def test_lists_without_any_image_are_a_sentence(tmp_path):
    cub(tmp_path)
    (tmp_path / "CUB_200_2011/images").rename(tmp_path / "elsewhere")
    with pytest.raises(FileNotFoundError, match=r"none of the 5 listed images lies in .*; the first is CUB_"):
        tuplet_data.open(tmp_path)


def struct_array(fields, rows):
    array = np.zeros((1, len(rows)), dtype=[(name, object) for name in fields])
    for i, row in enumerate(rows):
        array[0, i] = tuple(np.array([[value]]) if isinstance(value, int) else value for value in row)
    return array


def mat(path, compressed=True, **variables):
    path.parent.mkdir(parents=True, exist_ok=True)
    scipy.io.savemat(path, variables, do_compression=compressed)


CAR_NAMES = np.array([[f"Car {c}" for c in range(1, 197)]], dtype=object)


@pytest.mark.parametrize("compressed", [True, False])
def test_cars_from_the_one_list(monkeypatch, tmp_path, compressed):
    rows = [(f"car_ims/{i:06d}.jpg", 5, c, i % 2) for i, c in enumerate([1, 98, 99, 196])]
    write_images(tmp_path, [row[0] for row in rows])
    annotations = struct_array(["relative_im_path", "bbox_x1", "class", "test"], rows)
    mat(tmp_path / "cars_annos.mat", compressed, annotations=annotations, class_names=CAR_NAMES)
    data = open_small(monkeypatch, "cars196", tmp_path, train=2, test=2)
    assert data.labels.tolist() == [0, 97, 98, 195]
    assert data.splits == ("train", "train", "test", "test")
    assert data.class_names[195] == "Car 196"


BOX_SIDES = ["bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2"]


def test_boxes_of_cars(monkeypatch, tmp_path):
    """MATLAB counts from 1, and the last pixel is inside."""
    write_graded(tmp_path / "one", ["car_ims/000001.jpg", "car_ims/000002.jpg"])
    rows = [("car_ims/000001.jpg", 1, 1, 30, 20, 3), ("car_ims/000002.jpg", 5, 3, 9, 12, 150)]
    annotations = struct_array(["relative_im_path", *BOX_SIDES, "class"], rows)
    mat(tmp_path / "one" / "cars_annos.mat", annotations=annotations, class_names=CAR_NAMES)
    data = open_small(monkeypatch, "cars196", tmp_path / "one", boxes=True, train=1, test=1)
    assert [shown(data.image(i)) for i in range(2)] == [(0, 0, 30, 20), (4, 2, 9, 12)]

    write_graded(tmp_path / "two", ["cars_train/00001.jpg", "cars_test/00001.jpg"])
    for name, row in (("train", (2, 2, 3, 3, 98, "00001.jpg")), ("test", (5, 3, 9, 12, 99, "00001.jpg"))):
        ending = "_withlabels" if name == "test" else ""
        annotations = struct_array([*BOX_SIDES, "class", "fname"], [row])
        mat(tmp_path / "two" / f"cars_{name}_annos{ending}.mat", annotations=annotations)
    mat(tmp_path / "two" / "cars_meta.mat", class_names=CAR_NAMES)
    data = open_small(monkeypatch, "cars196", tmp_path / "two", boxes=True, train=1, test=1)
    assert [shown(data.image(i)) for i in range(2)] == [(1, 1, 3, 3), (4, 2, 9, 12)]


def test_cars_from_the_lists_of_the_devkit(monkeypatch, tmp_path):
    write_images(tmp_path, ["cars_train/00001.jpg", "cars_train/00002.jpg", "cars_test/00001.jpg"])
    fields = ["bbox_x1", "class", "fname"]
    train = struct_array(fields, [(1, 150, "00001.jpg"), (1, 3, "00002.jpg")])
    mat(tmp_path / "devkit/cars_train_annos.mat", annotations=train)
    mat(tmp_path / "cars_test_annos_withlabels.mat", annotations=struct_array(fields, [(1, 98, "00001.jpg")]))
    mat(tmp_path / "devkit/cars_meta.mat", class_names=CAR_NAMES)
    data = open_small(monkeypatch, "cars196", tmp_path, train=2, test=1)
    assert data.labels.tolist() == [149, 2, 97]
    assert data.splits == ("test", "train", "train")
    assert [data.image(i).getpixel((0, 0))[0] for i in range(3)] == [0, 1, 2]


def test_a_damaged_mat_file_is_a_sentence():
    buffer = io.BytesIO()
    scipy.io.savemat(buffer, {"x": np.arange(1000)}, do_compression=True)
    content = buffer.getvalue()
    for damaged in (content[:200], content[:150] + bytes(20) + content[170:], b"hello", bytes(500)):
        with pytest.raises(ValueError, match="MAT-file"):
            official.read_mat(damaged)


def test_a_mat_file_reads_as_scipy_does():
    buffer = io.BytesIO()
    values = {"a": np.arange(6.0).reshape(2, 3), "b": np.array([[1, -2]], np.int8), "text": "Ümlaut", "none": ""}
    scipy.io.savemat(buffer, values)
    read = official.read_mat(buffer.getvalue())
    assert (read["a"] == values["a"]).all()
    assert (read["b"] == values["b"]).all()
    assert (read["text"], read["none"]) == ("Ümlaut", "")


def test_stanford_online_products(monkeypatch, tmp_path):
    lists = {"train": [(1, 2, "bicycle"), (2, 2, "bicycle"), (3, 10, "chair")], "test": [(4, 11, "chair")]}
    for split, rows in lists.items():
        names = [f"{kind}_final/{number}_0.JPG" for number, _, kind in rows]
        lines = [f"{n} {product} 1 {name}\n" for (n, product, _), name in zip(rows, names, strict=True)]
        (tmp_path / f"Ebay_{split}.txt").write_text("image_id class_id super_class_id path\n" + "".join(lines))
        write_images(tmp_path, names)
    data = open_small(monkeypatch, "sop", tmp_path, train=3, test=1)
    assert data.labels.tolist() == [0, 0, 1, 2]
    assert data.class_names == ("2", "10", "11")
    assert data.splits == ("train", "train", "train", "test")


def test_in_shop(monkeypatch, tmp_path):
    rows = [
        ("img/WOMEN/Dresses/id_00000002/02_1_front.jpg", "id_00000002", "train"),
        ("img/WOMEN/Dresses/id_00000007/01_1_front.jpg", "id_00000007", "query"),
        ("img/MEN/Shirts/id_00000007/01_2_side.jpg", "id_00000007", "gallery"),
    ]
    write_images(tmp_path / "Img", [row[0] for row in rows])
    (tmp_path / "Eval").mkdir()
    lines = [f"{path}    {item} {split}\n" for path, item, split in rows]
    header = "3\nimage_name item_id evaluation_status\n"
    (tmp_path / "Eval" / "list_eval_partition.txt").write_text(header + "".join(lines))
    data = open_small(monkeypatch, "inshop", tmp_path, train=1, query=1, gallery=1)
    _, test = data.split()
    assert test.part("query").labels.tolist() == test.part("gallery").labels.tolist() == [1]
    assert data.image(2).getpixel((0, 0)) == (2, 2, 2)
    write_graded(tmp_path / "Img", [row[0] for row in rows])
    (tmp_path / "Anno").mkdir()
    header = "3\nimage_name clothes_type pose_type x_1 y_1 x_2 y_2\n"
    lines = [f"{path}  1 2 {3 + i:03d} 004 {9 + i:03d} 011\n" for i, (path, _, _) in enumerate(rows)]
    (tmp_path / "Anno" / "list_bbox_inshop.txt").write_text(header + "".join(reversed(lines)))
    data = tuplet_data.open(tmp_path, boxes=True)
    assert [shown(data.image(i)) for i in range(3)] == [(3, 4, 9, 11), (4, 4, 10, 11), (5, 4, 11, 11)]


PEOPLE = {"Zoe_Ames": 3, "Aaron_Eckhart": 1, "Zhu_Rongji": 2}


def lfw(folder, pairs="", ending="jpg"):
    names = [f"{name}/{name}_{i:04d}.{ending}" for name, n in PEOPLE.items() for i in range(1, n + 1)]
    write_images(folder / "lfw", names)
    (folder / "people.txt").write_text("1\n3\nZoe_Ames\t3\nAaron_Eckhart\t1\nZhu_Rongji\t2\n")
    (folder / "peopleDevTest.txt").write_text("3\nZoe_Ames\t3\nAaron_Eckhart\t1\nZhu_Rongji\t2\n")
    if pairs:
        (folder / "pairs.txt").write_text(pairs)
    return folder


PAIRS = "2\t1\nZoe_Ames\t1\t3\nAaron_Eckhart\t1\tZhu_Rongji\t2\nZhu_Rongji\t1\t2\nZhu_Rongji\t1\tZoe_Ames\t2\n"


@pytest.mark.parametrize(("ending", "packed"), [("jpg", False), ("png", False), ("jpg", True)])
def test_lfw_people_and_pairs(tmp_path, ending, packed):
    source = lfw(tmp_path / "there", PAIRS, ending)
    data = tuplet_data.open(pack(source, tmp_path / "lfw.tgz", "w:gz") if packed else source)
    assert data.class_names == ("Aaron_Eckhart", "Zhu_Rongji", "Zoe_Ames")
    assert data.labels.tolist() == [0, 1, 1, 2, 2, 2]
    assert (data.protocol, set(data.splits)) == ("lfw", {"test"})
    listed = [
        tuple(data.path(int(i)).rpartition("/")[2].partition(".")[0] for i in pair)
        for pair in zip(data.pairs.first, data.pairs.second, strict=True)
    ]
    assert listed == [
        ("Zoe_Ames_0001", "Zoe_Ames_0003"),
        ("Aaron_Eckhart_0001", "Zhu_Rongji_0002"),
        ("Zhu_Rongji_0001", "Zhu_Rongji_0002"),
        ("Zhu_Rongji_0001", "Zoe_Ames_0002"),
    ]
    assert data.pairs.same.tolist() == [True, False, True, False]
    assert data.pairs.folds.tolist() == [0, 0, 1, 1]
    assert data.select([1, 2, 3]).pairs.folds.tolist() == [1]


def test_lfw_without_the_list_of_ten_folds(tmp_path):
    lfw(tmp_path)
    assert tuplet_data.open(tmp_path).protocol is None  # nothing tells it from other class folders
    assert tuplet_data.open(tmp_path, layout="lfw").pairs is None
    (tmp_path / "pairsDevTest.txt").write_text("1\nZoe_Ames\t1\t3\nAaron_Eckhart\t1\tZhu_Rongji\t2\n")
    data = tuplet_data.open(tmp_path)
    assert data.pairs.same.tolist() == [True, False]


def test_pairs_of_something_else_are_no_lfw(tmp_path):
    write_images(tmp_path, ["ant/1.jpg", "ant/2.jpg", "bee/1.jpg"])
    (tmp_path / "pairs.txt").write_text("ant bee\n")
    assert tuplet_data.open(tmp_path).protocol is None


def test_lfw_names_what_is_missing(tmp_path):
    lfw(tmp_path, PAIRS)
    (tmp_path / "lfw/Zoe_Ames/Zoe_Ames_0003.jpg").unlink()
    with pytest.warns(UserWarning, match=r"^1 of the 4 pairs of pairs.txt are left out: .*, such as Zoe_Ames_0003$"):
        data = tuplet_data.open(tmp_path)
    assert data.pairs.folds.tolist() == [0, 1, 1]
    write_images(tmp_path / "lfw", ["George_W_Bush/George_W_Bush_0001.jpg"])
    (tmp_path / "pairs.txt").unlink()
    with pytest.warns(UserWarning, match=r"^LFW has 13,233 images, but .* has 6; results on others are not comparable"):
        tuplet_data.open(tmp_path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "does not begin with the numbers of folds and of pairs in each"),
        ("Zoe_Ames 1 2\n", "does not begin with the numbers of folds and of pairs in each"),
        ("2 1\nZoe_Ames 1 2\n", "announces 2 × 2 × 1 pairs, but has 1"),
        ("1\nZoe_Ames 1 2\n\nZoe_Ames 1 Bob\n", "line 4 is not 'name i j' or 'name i other j': 'Zoe_Ames 1 Bob'"),
        ("1\nAda 1 2\nAda 1 Bob 2\n", "none of the 2 pairs of pairs.txt has both of its images"),
    ],
)
def test_a_broken_list_of_pairs_is_a_sentence(tmp_path, text, reason):
    lfw(tmp_path)
    (tmp_path / "pairs.txt").write_text(text)
    with pytest.raises(ValueError, match=rf"^LFW in .* is damaged \(.*{re.escape(reason)}\); fetch it again$"):
        tuplet_data.open(tmp_path)


def test_two_copies_of_lfw_are_a_sentence(tmp_path):
    lfw(tmp_path, PAIRS)
    write_images(tmp_path / "aligned", ["Zoe_Ames/Zoe_Ames_0001.png"])
    with pytest.raises(ValueError, match=r"aligned/Zoe_.* and lfw/Zoe_.* are the same image: give the folder of one"):
        tuplet_data.open(tmp_path)


def test_omniglot(monkeypatch, tmp_path):
    names = [f"images_background/Greek/character0{c}/0{c}_0{i}.png" for c in (1, 2) for i in (1, 2)]
    names += ["images_evaluation/Tibetan/character01/09_01.png"]
    names += ["images_background_small1/Greek/character01/01_01.png"]  # a smaller training set, beside the whole one
    write_images(tmp_path / "Omniglot Dataset", names)
    data = open_small(monkeypatch, "omniglot", tmp_path, train=4, test=1)
    assert data.class_names == ("Greek/character01", "Greek/character02", "Tibetan/character01")
    assert data.splits == ("train",) * 4 + ("test",)


def idx(array):
    return struct.pack(f">BBBB{array.ndim}I", 0, 0, 8, array.ndim, *array.shape) + array.tobytes()


@pytest.mark.parametrize(("form", "dot"), [("plain", "-"), ("gz", "-"), ("plain", ".")])
def test_mnist(monkeypatch, tmp_path, form, dot):
    rng = np.random.default_rng(0)
    images = {"train": rng.integers(0, 256, (5, 28, 28), np.uint8), "t10k": rng.integers(0, 256, (3, 28, 28), np.uint8)}
    labels = {"train": np.array([3, 1, 0, 1, 2], np.uint8), "t10k": np.array([2, 3, 0], np.uint8)}
    for part in images:
        for kind, array in (("images", images[part]), ("labels", labels[part])):
            name = f"{part}-{kind}{dot}idx{array.ndim}-ubyte"
            content = idx(array)
            path = tmp_path / (name + (".gz" if form == "gz" else ""))
            path.write_bytes(gzip.compress(content) if form == "gz" else content)
    data = open_small(monkeypatch, "mnist", tmp_path, train=5, test=3)
    train, test = data.split()
    assert train.labels.tolist() == [3, 1, 0, 1, 2]
    assert (np.asarray(test.image(1).convert("L")) == images["t10k"][1]).all()
    if form == "gz":
        damaged = bytearray(path.read_bytes())
        damaged[10] ^= 0xFF  # the first byte of what is compressed
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=r"^MNIST in .* is damaged \(t10k-labels.*\); fetch it again$"):
            tuplet_data.open(tmp_path)
    path.write_bytes(b"not idx")
    with pytest.raises(ValueError, match=r"^MNIST in .* is damaged \(t10k-labels.*\); fetch it again$"):
        tuplet_data.open(tmp_path)
    path.unlink()
    with pytest.raises(FileNotFoundError, match="has no file t10k-labels-idx1-ubyte"):
        tuplet_data.open(tmp_path)


def test_a_list_that_is_missing_is_named(tmp_path):
    cub(tmp_path)
    (tmp_path / "CUB_200_2011/classes.txt").unlink()
    with pytest.raises(FileNotFoundError, match=r"has no CUB_200_2011/classes\.txt; fetch it again"):
        tuplet_data.open(tmp_path)


def test_a_layout_that_is_not_there_is_named(tmp_path):
    (tmp_path / "readme").touch()
    with pytest.raises(FileNotFoundError, match=r"has no image_class_labels\.txt, which the official layout has"):
        tuplet_data.open(tmp_path, layout="cub200")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(ValueError, match="pipe is neither a folder nor a file; give a folder or a tar"):
        tuplet_data.open(tmp_path / "pipe")


def test_a_line_with_too_few_columns_is_a_sentence(tmp_path):
    cub(tmp_path)
    (tmp_path / "CUB_200_2011/images.txt").write_text("1 a.jpg\n2\n")
    with pytest.raises(ValueError, match=r"a line of .*images\.txt in .* does not have 2 columns: '2'"):
        tuplet_data.open(tmp_path)


@pytest.mark.parametrize(
    ("lines", "reason"),
    [
        (b"1 1\n2 1\n3 100\n4 101\n", "no entry '5'"),
        (b"1 one\n", "invalid literal for int"),
        (b"1 \xff\n", "'utf-8' codec can't decode"),
        (b"1 1\n2 1\n3 100\n4 101\n5 999\n", "labels run from 0 to 998, outside the 200 class names"),
    ],
)
def test_a_damaged_list_gets_one_sentence(tmp_path, lines, reason):
    cub(tmp_path)
    (tmp_path / "CUB_200_2011/image_class_labels.txt").write_bytes(lines)
    with pytest.raises(ValueError, match=rf"^CUB-200-2011 in .* is damaged \({reason}.*\); fetch it again$"):
        tuplet_data.open(tmp_path)


def test_the_table_of_official_counts():
    """The counts that the papers print."""
    counts = {name: layout.counts for name, layout in official.LAYOUTS.items()}
    assert counts["cub200"] == {"train": 5864, "test": 5924}
    assert counts["cars196"] == {"train": 8054, "test": 8131}
    assert counts["sop"] == {"train": 59551, "test": 60502}
    assert counts["inshop"] == {"train": 25882, "query": 14218, "gallery": 12612}
    assert counts["omniglot"] == {"train": 964 * 20, "test": 659 * 20}
    assert sum(counts["mnist"].values()) == 70000
