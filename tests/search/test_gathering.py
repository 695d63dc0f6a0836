"""Photographs from folders, tars and tables into an index: ids, labels, unreadable files; queries, sheets."""

import io
import os
import tarfile

import numpy as np
import pytest
import torch
from PIL import Image

from tuplet import models, search
from tuplet.search import gathering
from tuplet.search.gathering import gather, photographs
from tuplet.search.looking import contact_sheet, query_views


@pytest.fixture(scope="module")
def embedder():
    torch.manual_seed(0)
    return models.create("convnet", dim=8)


def picture(seed):
    values = np.random.default_rng(seed).integers(0, 256, (6, 9, 3)).astype(np.uint8)
    return Image.fromarray(values).resize((90, 60))


@pytest.fixture
def folder(tmp_path):
    """Two classes, one picture at the top, two that cannot be read, and a file that is none."""
    for number, name in enumerate(["ant/1.png", "ant/2.jpg", "bee/1.png", "top.png", "bee/ünï.webp"]):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        picture(number).save(path)
    whole = (tmp_path / "photos/ant/1.png").read_bytes()
    (tmp_path / "photos/ant/cut.png").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "photos/bee/text.jpg").write_text("no picture")
    (tmp_path / "photos/readme.txt").write_text("not looked at")
    return tmp_path / "photos"


def test_a_folder(tmp_path, folder, embedder):
    (folder / "ant/gone.jpg").symlink_to("nowhere.jpg")
    index = search.create(tmp_path / "i", embedder=embedder)
    report = gather(index, photographs(folder))
    assert (report.added, report.known) == (5, 0)
    assert [sentence.partition(" cannot be read: ")[0].rpartition("/")[2] for sentence in report.unreadable] == [
        "cut.png", "gone.jpg", "text.jpg"
    ]  # fmt: skip
    there = {hit.id for hit in index.search(torch.zeros(8), 10)[0]}
    assert there == {"ant/1.png", "ant/2.jpg", "bee/1.png", "top.png", "bee/ünï.webp"}
    assert index.counts() == {"ant": 2, "bee": 2}
    expected = embedder.embed([str(folder / "bee/1.png")])[0]
    assert np.allclose(index.vectors(["bee/1.png"])[0], expected, atol=1e-6)
    small = Image.open(io.BytesIO(index.picture("bee/1.png")))
    assert small.size == (90, 60)
    assert "5 photographs added" in str(report)


def test_names_that_are_no_text_stay_apart(tmp_path, embedder):
    (tmp_path / "photos").mkdir()
    for number, name in enumerate((b"a\xff.png", b"a\xfe.png")):
        picture(number).save(tmp_path / "photos" / os.fsdecode(name))
    index = search.create(tmp_path / "i", embedder=embedder)
    assert gather(index, photographs(tmp_path / "photos")).added == 2
    assert index.known([r"a\xff.png", r"a\xfe.png"]) == {r"a\xff.png", r"a\xfe.png"}
    # Folders of classes, with a picture beside them and without.
    classes = tmp_path / "photos" / os.fsdecode(b"caf\xe9")
    classes.mkdir()
    picture(3).save(classes / "1.png")
    assert gather(index, photographs(tmp_path / "photos")).added == 1
    assert index.counts() == {r"caf\xe9": 1}
    for path in (tmp_path / "photos").glob("*.png"):
        path.unlink()
    assert [photograph.label for photograph in photographs(tmp_path / "photos")] == [r"caf\xe9"]


def test_a_photograph_that_is_listed_twice_is_added_once(tmp_path, folder, embedder):
    (tmp_path / "twice.csv").write_text("path,label\nphotos/top.png,1\nphotos/bee/1.png,2\nphotos/top.png,3\n")
    index = search.create(tmp_path / "i", embedder=embedder)
    report = gather(index, photographs(tmp_path / "twice.csv"))
    assert (report.added, report.known) == (2, 1)
    assert index.counts() == {"1": 1, "2": 1}


def test_it_goes_on_where_it_was(tmp_path, folder, embedder, monkeypatch):
    monkeypatch.setattr(gathering, "BATCH", 2)
    index = search.create(tmp_path / "i", embedder=embedder)
    whole, calls = index.add, []

    def stopped(*arguments, **options):
        calls.append(1)
        if len(calls) == 2:
            raise KeyboardInterrupt
        whole(*arguments, **options)

    monkeypatch.setattr(index, "add", stopped)
    with pytest.raises(KeyboardInterrupt):
        gather(index, photographs(folder))
    again = search.open(tmp_path / "i")
    assert 0 < len(again) < 5
    report = gather(again, photographs(folder))
    assert report.known + report.added == 5
    assert len(again) == 5
    assert gather(again, photographs(folder)).added == 0


@pytest.mark.parametrize(("name", "mode"), [("photos.tar", "w"), ("photos.tgz", "w:gz")])
def test_the_ids_in_a_tar_are_the_names_in_it_compressed_or_linked(tmp_path, folder, name, mode):
    with tarfile.open(tmp_path / name, mode) as tar:
        tar.add(folder / "bee/1.png", "photos/bee/1.png")
        link = tarfile.TarInfo("photos/bee/2.png")
        link.type, link.linkname = tarfile.LNKTYPE, "photos/bee/1.png"
        tar.addfile(link)
    assert [photograph.id for photograph in photographs(tmp_path / name)] == ["photos/bee/1.png", "photos/bee/2.png"]


def test_tars_tables_and_splits(tmp_path, folder, embedder):
    with tarfile.open(tmp_path / "photos.tar", "w") as tar:
        tar.add(folder / "ant", "photos/ant")
        tar.add(folder / "bee/1.png", "photos/bee/1.png")
    index = search.create(tmp_path / "tar", embedder=embedder)
    assert gather(index, photographs(tmp_path / "photos.tar")).added == 3
    assert index.known(["photos/ant/1.png"])
    (tmp_path / "photos.csv").write_text(
        "path,label,split,width,height\nphotos/ant/1.png,ant,train,90,60\nphotos/bee/1.png,bee,test,60,90\n"
    )
    index = search.create(tmp_path / "csv", embedder=embedder)
    assert gather(index, photographs(tmp_path / "photos.csv", split="test")).added == 1
    assert [hit.label for hit in index.search(torch.zeros(8))[0]] == ["bee"]
    # Its true proportions are those of the table.
    assert Image.open(io.BytesIO(index.picture("photos/bee/1.png"))).size == (40, 60)
    np.save(tmp_path / "features.npy", np.zeros((3, 2), np.float32))
    np.save(tmp_path / "features_labels.npy", np.arange(3))
    with pytest.raises(ValueError, match="holds feature vectors and no photographs"):
        gather(index, photographs(tmp_path / "features.npy"))


def test_splits_without_files_have_no_id_in_common():
    train, test = ({photograph.id for photograph in photographs("glyphs", split)} for split in ("train", "test"))
    assert not train & test
    assert train | test == {photograph.id for photograph in photographs("glyphs")}


def test_views_of_a_query(tmp_path, folder, embedder):
    index = search.create(tmp_path / "i", embedder=embedder)
    gather(index, photographs(folder))
    one, two = folder / "ant/1.png", folder / "bee/1.png"
    plain = query_views(index, [one, two])
    assert plain.shape == (2, 1, 8)
    assert query_views(index, [one, two], mirror=True).shape == (2, 2, 8)
    both = query_views(index, [one, two], together=True)
    assert both.shape == (1, 2, 8)
    mean = index.search(plain[:, 0].mean(0))[0]
    assert [hit.id for hit in index.search(both)[0]] == [hit.id for hit in mean]
    mirrored = tmp_path / "mirrored.png"
    Image.open(one).transpose(Image.Transpose.FLIP_LEFT_RIGHT).save(mirrored)
    assert torch.allclose(query_views(index, [one], mirror=True)[0, 1], query_views(index, [mirrored])[0, 0], atol=1e-4)


def test_contact_sheet(tmp_path, folder, embedder):
    index = search.create(tmp_path / "i", embedder=embedder)
    gather(index, photographs(folder))
    query = folder / "ant/1.png"
    found = index.search([query], 3)
    sheet = contact_sheet(index, [Image.open(query)], found)
    assert sheet.width > 4 * 160
    tile = np.asarray(sheet)[12 : 12 + 160, 12 : 12 + 160].astype(int)
    nearest = np.asarray(sheet)[12 : 12 + 160, 184 : 184 + 160].astype(int)
    # The nearest of a picture in the index is itself.
    assert np.abs(tile - nearest).mean() < 12
