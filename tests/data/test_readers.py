"""Folders and tars: small real ones of each, written here and opened."""

import gzip
import io
import os
import tarfile
import zipfile

import numpy as np
import pytest
from PIL import Image

from data.written import pack, write_image, write_table
from tuplet import data as tuplet_data
from tuplet.data.files import Files, InMemory, Slice


@pytest.fixture
def photos(tmp_path):
    folder = tmp_path / "photos"
    for number, name in enumerate(["bee/1.png", "bee/2.JPG", "ant/1.webp", "ant/2.jfif", "cat/big/1.avif"]):
        write_image(folder / name, number * 10)
    (folder / "bee" / "notes.txt").write_text("not an image")
    (folder / "bee" / "._1.png").write_bytes(b"what macOS leaves behind")
    return folder


@pytest.mark.parametrize("form", ["folder", "tar", "tar.gz", "tgz"])
def test_class_folders_on_disk_and_in_tars(photos, tmp_path, form):
    source = photos if form == "folder" else pack(photos, tmp_path / f"p.{form}", "w:gz" if "g" in form else "w")
    data = tuplet_data.open(source)
    assert data.class_names == ("ant", "bee", "cat/big")
    assert data.labels.tolist() == [0, 0, 1, 1, 2]
    assert [round(data.image(i).getpixel((0, 0))[0], -1) for i in range(5)] == [20, 30, 0, 10, 40]
    assert data.path(4).endswith("cat/big/1.avif")
    assert data.splits is None


def test_top_folders_may_name_the_splits(tmp_path):
    for name in ["train/ant/1.png", "train/bee/1.png", "test/cat/1.png", "test/cat/2.png"]:
        write_image(tmp_path / name)
    data = tuplet_data.open(tmp_path)
    train, test = data.split()
    assert [train.class_names[c] for c in train.classes] == ["ant", "bee"]
    assert [test.class_names[c] for c in test.classes] == ["cat"]


def test_the_folders_of_splits_may_be_in_capitals(tmp_path):
    """Else `Train/ant` and `Test/ant` were two classes."""
    for name in ["Train/ant/1.png", "TEST/ant/1.png"]:
        write_image(tmp_path / name)
    data = tuplet_data.open(tmp_path)
    assert data.class_names == ("ant",)
    assert sorted(data.splits) == ["test", "train"]


def test_the_one_folder_of_a_tar_may_hold_the_splits(tmp_path):
    """As `tar cf birds.tar birds` packs it; else `birds/train/ant` and `birds/test/ant` were two classes."""
    for name in ["birds/train/ant/1.png", "birds/test/ant/1.png", "birds/test/bee/1.png"]:
        write_image(tmp_path / "here" / name)
    data = tuplet_data.open(pack(tmp_path / "here", tmp_path / "birds.tar"))
    assert data.class_names == ("ant", "bee")
    assert sorted(data.splits) == ["test", "test", "train"]


def test_folders_named_like_splits_among_others_are_classes(tmp_path):
    for name in ["birds/train/1.png", "birds/test/1.png", "cars/train/1.png"]:
        write_image(tmp_path / name)
    assert tuplet_data.open(tmp_path).class_names == ("birds/test", "birds/train", "cars/train")
    assert tuplet_data.open(tmp_path / "birds").class_names == ("test", "train")
    write_image(tmp_path / "one" / "cars" / "train" / "vw" / "1.png")
    assert tuplet_data.open(tmp_path / "one").class_names == ("cars/train/vw",)


@pytest.mark.parametrize("top", ["", "birds/"])
def test_splits_beside_something_else_are_classes_and_that_is_said(tmp_path, top):
    """Else `train/ant` and `test/ant` would be two classes, and the result no split's, without a word."""
    for name in ["train/ant/1.png", "Test/ant/1.png", "more/bee/1.png"]:
        write_image(tmp_path / "set" / f"{top}{name}")
    said = "Test and train in .* are read as parts of class names, since more/bee lies beside them; if .* move it"
    with pytest.warns(UserWarning, match=said):
        data = tuplet_data.open(tmp_path / "set")
    assert len(data.class_names) == 3
    assert data.splits is None


def test_a_folder_may_have_the_ending_of_a_file(tmp_path):
    for name in ("birds.csv", "birds.npz"):
        write_image(tmp_path / name / "ant" / "1.png")
        assert tuplet_data.open(tmp_path / name).class_names == ("ant",)


def test_members_of_plain_tars_are_read_in_place_and_of_compressed_ones_from_memory(photos, tmp_path):
    plain = Files.of(pack(photos, tmp_path / "p.tar"))
    packed = Files.of(pack(photos, tmp_path / "p.tar.gz", "w:gz"))
    assert all(isinstance(location, Slice) for location in plain.values())
    assert all(isinstance(location, InMemory) for location in packed.values())
    assert list(plain) == list(packed)
    assert [plain.content(name) for name in plain] == [packed.content(name) for name in packed]


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_a_tar_with_a_damaged_header_is_not_read_up_to_there(photos, tmp_path, mode):
    whole = pack(photos, tmp_path / "whole.tar")
    content = bytearray(whole.read_bytes())
    with tarfile.open(whole) as tar:
        content[tar.getmembers()[2].offset + 100] ^= 0xFF
    path = tmp_path / "damaged.tar"
    path.write_bytes(content if mode == "w" else gzip.compress(bytes(content)))
    with pytest.raises(ValueError, match=r"damaged\.tar cannot be read as a tar: .*; fetch it again, or"):
        tuplet_data.open(path)


def test_a_file_of_which_a_tar_leaves_out_the_zeros_is_whole(tmp_path):
    """What GNU tar writes with --sparse: a list of the parts that are kept, and then these."""
    whole = io.BytesIO()
    Image.new("RGB", (60, 60)).save(whole, "BMP")
    kept = whole.getvalue()[:512]
    stored = b"1\n0\n512\n".ljust(512, b"\0") + kept
    about = tarfile.TarInfo("ant/1.bmp")
    about.size = len(stored)
    about.pax_headers = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.name": "ant/1.bmp",
        "GNU.sparse.realsize": str(len(whole.getvalue())),
    }
    with tarfile.open(tmp_path / "s.tar", "w", format=tarfile.PAX_FORMAT) as tar:
        tar.addfile(about, io.BytesIO(stored))
    assert tuplet_data.open(tmp_path / "s.tar").image(0).size == (60, 60)


@pytest.mark.parametrize("form", ["gz", "bz2", "xz"])
def test_one_changed_byte_of_a_compressed_tar_gets_one_sentence(tmp_path, form):
    noise = np.random.default_rng(0).integers(0, 256, (100, 100, 3), np.uint8)
    for number in range(20):
        write_image(tmp_path / "set" / "ant" / f"{number}.png")
        Image.fromarray(noise + np.uint8(number)).save(tmp_path / "set" / "ant" / f"{number}.png")
    path = pack(tmp_path / "set", tmp_path / "set.tar", f"w:{form}")
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 0xFF
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"set\.tar cannot be read as a tar: .*; fetch it again, or"):
        tuplet_data.open(path)


def test_links_in_tars_are_followed_and_those_to_nowhere_get_one_sentence(photos, tmp_path):
    for target in ("1.png", "nowhere.png", "link.png"):
        link = tarfile.TarInfo("ant/link.png")
        link.type, link.linkname = tarfile.SYMTYPE, target
        with tarfile.open(tmp_path / f"{target}.tar", "w") as tar:
            tar.add(photos / "bee" / "1.png", "ant/1.png")
            tar.addfile(link)
    assert len(tuplet_data.open(tmp_path / "1.png.tar")) == 2
    remedy = "which is no file in it; pack it with tar --dereference, or without the link"
    for target in ("nowhere.png", "link.png"):  # the second leads to itself
        with pytest.raises(ValueError, match=rf"{target}\.tar has a link from ant/link\.png to {target}, {remedy}"):
            tuplet_data.open(tmp_path / f"{target}.tar")


@pytest.mark.parametrize("mode", ["w", "w:gz"])
def test_a_tar_cut_short_gets_one_sentence(photos, tmp_path, mode):
    path = pack(photos, tmp_path / "cut.tar", mode)
    path.write_bytes(path.read_bytes()[: 2048 if mode == "w" else 300])
    with pytest.raises(ValueError, match=r"cut\.tar cannot be read as a tar: .*; fetch it again, or"):
        tuplet_data.open(path)


def test_links_to_folders_are_followed_but_not_round_and_round(tmp_path):
    for name in ("ant", "bee"):
        write_image(tmp_path / "set" / name / "1.png")
    write_image(tmp_path / "elsewhere" / "1.png")
    (tmp_path / "set" / "cat").symlink_to(tmp_path / "elsewhere")
    (tmp_path / "set" / "ant" / "up").symlink_to("..")
    (tmp_path / "set" / "bee" / "beside").symlink_to("../ant")
    assert list(Files.of(tmp_path / "set")) == ["ant/1.png", "bee/1.png", "bee/beside/1.png", "cat/1.png"]


def test_what_is_no_file_is_not_waited_for(photos):
    os.mkfifo(photos / "bee/0.png")
    os.symlink("nowhere", photos / "bee/gone.png")
    names = [name for name in Files.of(photos) if name.startswith("bee")]
    assert names == ["bee/1.png", "bee/2.JPG", "bee/gone.png", "bee/notes.txt"]


def test_a_folder_that_may_not_be_read_is_named_and_not_passed_over(photos, monkeypatch):
    scandir = os.scandir

    def guarded(path):
        if str(path).endswith("bee"):
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr("os.scandir", guarded)
    with pytest.raises(PermissionError, match=r"photos/bee"):
        tuplet_data.open(photos)


def test_other_archives_and_single_images_get_one_sentence(tmp_path):
    write_image(tmp_path / "photo.png")
    with zipfile.ZipFile(tmp_path / "photos.zip", "w") as archive:
        archive.write(tmp_path / "photo.png", "ant/photo.png")
    (tmp_path / "list.tsv").write_text("path\tlabel\nphoto.png\t1\n")
    for name in ("photos.zip", "list.tsv"):
        with pytest.raises(
            ValueError, match=rf"{name} is no folder, tar, table \(\.csv, \.parquet, \.arrow\) or features file"
        ):
            tuplet_data.open(tmp_path / name)
    with pytest.raises(ValueError, match=r"photo\.png is a single image; give the folder that holds"):
        tuplet_data.open(tmp_path / "photo.png")


def test_folders_without_classes_or_images_get_one_sentence(tmp_path):
    with pytest.raises(ValueError, match="holds no images; expected one folder per class"):
        tuplet_data.open(tmp_path)
    (tmp_path / "photo.MOV").write_text("of a telephone")
    with pytest.raises(
        ValueError, match=r"holds no images, only files such as photo\.MOV; expected one folder per class"
    ):
        tuplet_data.open(tmp_path)
    write_image(tmp_path / "loose.png")
    with pytest.raises(ValueError, match=r"all 1 images in .*, such as loose\.png, lie in no class folder; .* pattern"):
        tuplet_data.open(tmp_path)


def test_images_beside_the_class_folders_are_ignored_and_counted(photos):
    before = tuplet_data.open(photos)
    write_image(photos / "stray.png")
    with pytest.warns(UserWarning, match=r"^1 image, stray\.png, is ignored: in .*photos but in no class folder; move"):
        assert list(tuplet_data.open(photos).images) == list(before.images)
    write_image(photos / "other.png")
    with pytest.warns(UserWarning, match=r"^2 images, such as other\.png, are ignored: in "):
        assert tuplet_data.open(photos).class_names == before.class_names


def test_options_that_the_source_does_not_take_are_refused(photos, tmp_path):
    path = write_table(tmp_path / "t.csv", [{"path": "photos/bee/1.png", "label": 0}])
    with pytest.raises(ValueError, match=r"columns is given, but .*photos is no table"):
        tuplet_data.open(photos, columns={"label": "species"})
    with pytest.raises(ValueError, match=r"layout is 'cub200' and pattern is given; give one of them"):
        tuplet_data.open(tmp_path, layout="cub200", pattern="(?P<label>.+)")
    with pytest.raises(ValueError, match=r"layout is 'cub200', but .*t\.csv is neither a folder nor a tar"):
        tuplet_data.open(path, layout="cub200")


def test_what_is_not_there_gets_one_sentence(tmp_path):
    with pytest.raises(FileNotFoundError, match="nowhere does not exist; give a folder, a tar"):
        tuplet_data.open(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="the name of the data is empty; give a folder, a tar"):
        tuplet_data.open("")
    with pytest.raises(TypeError, match=r"the data are of type ndarray; give a path, or make a dataset of arrays with"):
        tuplet_data.open(np.zeros((2, 2)))
    with pytest.raises(ValueError, match="there is no layout 'cub'; did you mean 'cub200'"):
        tuplet_data.open(tmp_path, layout="cub")


def test_a_file_that_was_appended_to_a_tar_again_counts_once(tmp_path):
    write_image(tmp_path / "ant" / "1.png", 1)
    with tarfile.open(tmp_path / "t.tar", "w") as tar:
        tar.add(tmp_path / "ant" / "1.png", "ant/1.png")
        write_image(tmp_path / "ant" / "1.png", 9)
        tar.add(tmp_path / "ant" / "1.png", "ant/1.png")
    data = tuplet_data.open(tmp_path / "t.tar")
    assert len(data) == 1
    assert data.image(0).getpixel((0, 0)) == (9, 0, 0)


def test_a_gzip_that_is_no_tar_gets_one_sentence(tmp_path):
    path = tmp_path / "x.tar.gz"
    buffer = io.BytesIO()
    with gzip.open(buffer, "w") as file:
        file.write(b"hello" * 1000)
    path.write_bytes(buffer.getvalue())
    with pytest.raises(ValueError, match=r"^.*x\.tar\.gz cannot be read as a tar: [^\n]*; fetch it again, or"):
        tuplet_data.open(path)
