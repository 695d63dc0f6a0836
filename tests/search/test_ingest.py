"""Add images of folders, tars and tables to an index: ids, labels, unreadable files; queries and contact sheets."""

import errno
import io
import os
import tarfile
import zlib

import numpy as np
import pytest
import torch
from PIL import Image

from tuplet import models, search
from tuplet.data.readers import glyphs
from tuplet.search import listing
from tuplet.search.ingest import add_images, find_changes
from tuplet.search.inputs import query_views
from tuplet.search.listing import list_images
from tuplet.search.sheet import contact_sheet


@pytest.fixture(scope="module")
def embedder():
    torch.manual_seed(0)
    return models.create("convnet", dim=8)


def random_image(seed):
    values = np.random.default_rng(seed).integers(0, 256, (6, 9, 3)).astype(np.uint8)
    return Image.fromarray(values).resize((90, 60))


@pytest.fixture
def folder(tmp_path):
    """Two classes, an image at the top, two unreadable images and a text file."""
    for number, name in enumerate(["ant/1.png", "ant/2.jpg", "bee/1.png", "top.png", "bee/ünï.webp"]):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        random_image(number).save(path)
    whole = (tmp_path / "photos/ant/1.png").read_bytes()
    (tmp_path / "photos/ant/cut.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "photos/bee/text.jpg").write_text("no picture")
    (tmp_path / "photos/readme.txt").write_text("not looked at")
    return tmp_path / "photos"


def test_folder(tmp_path, folder, embedder):
    (folder / "ant/gone.jpg").symlink_to("nowhere.jpg")
    index = search.create(tmp_path / "i", embedder=embedder)
    report = add_images(index, list_images(folder))
    assert (report.added, report.known) == (5, 0)
    assert [sentence.partition(" cannot be read: ")[0].rpartition("/")[2] for sentence in report.unreadable] == [
        "cut.png", "gone.jpg", "text.jpg"
    ]  # fmt: skip
    there = {hit.id for hit in index.search(torch.zeros(8), 10)[0]}
    assert there == {"ant/1.png", "ant/2.jpg", "bee/1.png", "top.png", "bee/ünï.webp"}
    assert index.counts() == {"ant": 2, "bee": 2}
    expected = embedder.embed([str(folder / "bee/1.png")])[0]
    assert np.allclose(index.vectors(["bee/1.png"])[0], expected, atol=1e-6)
    small = Image.open(io.BytesIO(index.thumbnail("bee/1.png")))
    assert small.size == (90, 60)
    assert "5 images added" in str(report)


def test_file_names_that_are_not_utf8(tmp_path, embedder):
    (tmp_path / "photos").mkdir()
    for number, name in enumerate((b"a\xff.png", b"a\xfe.png")):
        random_image(number).save(tmp_path / "photos" / os.fsdecode(name))
    index = search.create(tmp_path / "i", embedder=embedder)
    assert add_images(index, list_images(tmp_path / "photos")).added == 2
    assert index.known([r"a\xff.png", r"a\xfe.png"]) == {r"a\xff.png", r"a\xfe.png"}
    # Class folders, with and without an image beside them.
    classes = tmp_path / "photos" / os.fsdecode(b"caf\xe9")
    classes.mkdir()
    random_image(3).save(classes / "1.png")
    assert add_images(index, list_images(tmp_path / "photos")).added == 1
    assert index.counts() == {r"caf\xe9": 1}
    for path in (tmp_path / "photos").glob("*.png"):
        path.unlink()
    assert [image.metadata for image in list_images(tmp_path / "photos")] == [{"label": r"caf\xe9"}]


def test_an_image_listed_twice_is_added_once(tmp_path, folder, embedder):
    (tmp_path / "twice.csv").write_text("path,label\nphotos/top.png,1\nphotos/bee/1.png,2\nphotos/top.png,3\n")
    index = search.create(tmp_path / "i", embedder=embedder)
    report = add_images(index, list_images(tmp_path / "twice.csv"))
    assert (report.added, report.known) == (2, 1)
    assert index.counts() == {"1": 1, "2": 1}


def test_a_stopped_run_continues(tmp_path, folder, embedder, monkeypatch):
    monkeypatch.setattr("tuplet.embedding.pipeline.CHUNK", 2)
    index = search.create(tmp_path / "i", embedder=embedder)
    whole, calls = index.add, []

    def stopped(*arguments, **options):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        whole(*arguments, **options)

    monkeypatch.setattr(index, "add", stopped)
    with pytest.raises(KeyboardInterrupt):
        add_images(index, list_images(folder))
    again = search.open(tmp_path / "i")
    assert 0 < len(again) < 5
    report = add_images(again, list_images(folder))
    assert report.known + report.added == 5
    assert len(again) == 5
    assert add_images(again, list_images(folder)).added == 0


@pytest.mark.parametrize(("name", "mode"), [("photos.tar", "w"), ("photos.tgz", "w:gz")])
def test_ids_in_a_tar_are_its_names(tmp_path, folder, name, mode):
    with tarfile.open(tmp_path / name, mode) as tar:
        tar.add(folder / "bee/1.png", "photos/bee/1.png")
        link = tarfile.TarInfo("photos/bee/2.png")
        link.type, link.linkname = tarfile.LNKTYPE, "photos/bee/1.png"
        tar.addfile(link)
    assert [image.id for image in list_images(tmp_path / name)] == ["photos/bee/1.png", "photos/bee/2.png"]


def test_tars_tables_and_splits(tmp_path, folder, embedder):
    with tarfile.open(tmp_path / "photos.tar", "w") as tar:
        tar.add(folder / "ant", "photos/ant")
        tar.add(folder / "bee/1.png", "photos/bee/1.png")
    index = search.create(tmp_path / "tar", embedder=embedder)
    assert add_images(index, list_images(tmp_path / "photos.tar")).added == 3
    assert index.known(["photos/ant/1.png"])
    (tmp_path / "photos.csv").write_text(
        "path,label,split,width,height\nphotos/ant/1.png,ant,train,90,60\nphotos/bee/1.png,bee,test,60,90\n"
    )
    index = search.create(tmp_path / "csv", embedder=embedder)
    assert add_images(index, list_images(tmp_path / "photos.csv", split="test")).added == 1
    assert [hit.label for hit in index.search(torch.zeros(8))[0]] == ["bee"]
    # The table states the true proportions.
    assert Image.open(io.BytesIO(index.thumbnail("photos/bee/1.png"))).size == (40, 60)
    np.save(tmp_path / "features.npy", np.zeros((3, 2), np.float32))
    np.save(tmp_path / "features_labels.npy", np.arange(3))
    with pytest.raises(ValueError, match="holds feature vectors and no images"):
        add_images(index, list_images(tmp_path / "features.npy"))


def test_tables_need_no_labels(tmp_path, folder, embedder):
    (tmp_path / "shop.csv").write_text("path,price\nphotos/ant/1.png,5\nphotos/bee/1.png,7\n")
    index = search.create(tmp_path / "index", embedder=embedder)
    with pytest.warns(UserWarning, match="the images get no label"):
        assert add_images(index, list_images(tmp_path / "shop.csv")).added == 2
    hits = index.search(torch.zeros(8), where={"price": 7})[0]
    assert [(hit.id, hit.label) for hit in hits] == [("photos/bee/1.png", None)]


def test_splits_without_files_share_no_ids(monkeypatch):
    drawings, names = glyphs.draw_characters()
    monkeypatch.setattr(glyphs, "draw_characters", lambda: (drawings[:, :20], names[:20]))
    train, test = ({image.id for image in list_images("glyphs", split)} for split in ("train", "test"))
    assert not train & test
    assert train | test == {image.id for image in list_images("glyphs")}


def test_views_of_a_query(tmp_path, folder, embedder):
    index = search.create(tmp_path / "i", embedder=embedder)
    add_images(index, list_images(folder))
    one, two = folder / "ant/1.png", folder / "bee/1.png"
    plain = query_views(index.embedder, [one, two])
    assert plain.shape == (2, 1, 8)
    assert query_views(index.embedder, [one, two], mirror=True).shape == (2, 2, 8)
    both = query_views(index.embedder, [one, two], together=True)
    assert both.shape == (1, 2, 8)
    mean = index.search(plain[:, 0].mean(0))[0]
    assert [hit.id for hit in index.search(both)[0]] == [hit.id for hit in mean]
    mirrored = tmp_path / "mirrored.png"
    Image.open(one).transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(mirrored)
    assert torch.allclose(
        query_views(index.embedder, [one], mirror=True)[0, 1], query_views(index.embedder, [mirrored])[0, 0], atol=1e-4
    )


def test_contact_sheet(tmp_path, folder, embedder):
    index = search.create(tmp_path / "i", embedder=embedder)
    add_images(index, list_images(folder))
    query = folder / "ant/1.png"
    found = index.search([query], 3)
    sheet = contact_sheet(index, [Image.open(query)], found)
    assert sheet.width > 4 * 160
    tile = np.asarray(sheet)[12 : 12 + 160, 12 : 12 + 160].astype(int)
    nearest = np.asarray(sheet)[12 : 12 + 160, 184 : 184 + 160].astype(int)
    # The nearest image of an indexed image is itself.
    assert np.abs(tile - nearest).mean() < 12


def test_the_metadata_name_the_file(tmp_path, folder, embedder):
    index = search.create(tmp_path / "i", embedder=embedder)
    add_images(index, list_images(folder))
    path = folder / "bee/1.png"
    about = dict(index.items())["bee/1.png"]
    assert about == {
        "label": "bee",
        "file": {
            "source": str(folder), "path": str(path), "size": path.stat().st_size,
            "modified": path.stat().st_mtime_ns, "crc32": zlib.crc32(path.read_bytes()),
        },
    }  # fmt: skip


def test_sync_follows_the_folder(tmp_path, folder, embedder):
    index = search.create(tmp_path / "i", embedder=embedder)
    index.add(torch.zeros(1, 8), ["of/another/source.png"])
    add_images(index, list_images(folder))
    old = index.vectors(["ant/1.png", "ant/2.jpg"])
    random_image(11).save(folder / "ant/1.png")  # changed
    os.utime(folder / "ant/2.jpg", (1, 1))  # another time, the same content
    (folder / "bee/1.png").unlink()
    random_image(12).save(folder / "bee/new.png")
    changes = find_changes(index, list_images(folder), sync=True)
    assert [image.id for image in changes.changed] == ["ant/1.png"]
    # Images that could not be read are tried again.
    assert [image.id for image in changes.new] == ["ant/cut.png", "bee/new.png", "bee/text.jpg"]
    assert changes.deleted == ["bee/1.png"]
    report = add_images(index, list_images(folder), sync=True)
    assert (report.added, report.replaced, report.deleted, report.known) == (1, 1, 1, 3)
    assert "1 image added" in str(report)
    assert "1 replaced, 1 deleted, 3 known already" in str(report)
    expected = embedder.embed([str(folder / "ant/1.png")])[0]
    assert np.allclose(index.vectors(["ant/1.png"])[0], expected, atol=1e-6)
    assert not np.allclose(old[0], expected, atol=1e-3)
    assert np.array_equal(index.vectors(["ant/2.jpg"])[0], old[1])
    assert index.known(["bee/1.png", "of/another/source.png"]) == {"of/another/source.png"}
    again = find_changes(index, list_images(folder), sync=True)
    assert ([image.id for image in again.new], again.changed, again.deleted) == (
        ["ant/cut.png", "bee/text.jpg"],
        [],
        [],
    )


def test_sync_reports_a_file_that_cannot_be_read_any_more(tmp_path, folder, embedder, monkeypatch):
    index = search.create(tmp_path / "i", embedder=embedder)
    add_images(index, list_images(folder))
    locked = folder / "ant/1.png"
    os.utime(locked, (1, 1))
    read = listing.read_bytes

    def refuse(origin):
        if origin == str(locked):
            raise PermissionError(errno.EACCES, "Permission denied", origin)
        return read(origin)

    monkeypatch.setattr(listing, "read_bytes", refuse)
    before = index.vectors("ant/1.png").tolist()
    report = add_images(index, list_images(folder), sync=True)
    assert any("ant/1.png cannot be read" in sentence for sentence in report.unreadable)
    assert index.vectors("ant/1.png").tolist() == before


def test_sync_follows_a_folder_that_was_moved(tmp_path, folder, embedder):
    index = search.create(tmp_path / "i", embedder=embedder)
    add_images(index, list_images(folder))
    moved = folder.rename(tmp_path / "moved")
    add_images(index, list_images(moved), sync=True)
    assert index.metadata("ant/1.png")[0]["file"]["path"] == str(moved / "ant/1.png")
    (moved / "ant/1.png").unlink()
    assert find_changes(index, list_images(moved), sync=True).deleted == ["ant/1.png"]


def test_sync_of_one_split_keeps_the_others(tmp_path, folder, embedder):
    rows = ["photos/ant/1.png,ant,train", "photos/ant/2.jpg,ant,test", "photos/bee/1.png,bee,test"]
    table = tmp_path / "photos.csv"
    table.write_text("\n".join(["path,label,split", *rows]))
    index = search.create(tmp_path / "i", embedder=embedder)
    for split in ("train", "test"):
        add_images(index, list_images(table, split))
    table.write_text("\n".join(["path,label,split", rows[0], "photos/bee/1.png,wasp,test"]))
    report = add_images(index, list_images(table, "test"), sync=True)
    assert (report.added, report.replaced, report.deleted) == (0, 1, 1)
    assert index.counts() == {"ant": 1, "wasp": 1}


def test_sync_compares_the_members_of_a_tar(tmp_path, folder, embedder):
    def pack(*names):
        with tarfile.open(tmp_path / "photos.tar", "w") as tar:
            for name in names:
                tar.add(folder / name, name)

    pack("ant/1.png", "bee/1.png")
    index = search.create(tmp_path / "i", embedder=embedder)
    add_images(index, list_images(tmp_path / "photos.tar"))
    random_image(11).save(folder / "ant/1.png")
    pack("ant/1.png", "ant/2.jpg")
    changes = find_changes(index, list_images(tmp_path / "photos.tar"), sync=True)
    assert [[image.id for image in images] for images in (changes.new, changes.changed)] == [
        ["ant/2.jpg"],
        ["ant/1.png"],
    ]
    assert changes.deleted == ["bee/1.png"]
