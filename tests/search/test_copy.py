"""Copies of an index are equal to it, and complete or absent."""

import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from tuplet import models, search
from tuplet.search import index as folder_index


@pytest.fixture
def points(tmp_path, monkeypatch):
    """An index of 40 points with every seventh deleted, read in small batches."""
    monkeypatch.setattr(folder_index, "BATCH", 6)
    vectors = np.random.default_rng(0).normal(size=(40, 4)).astype(np.float32)
    index = search.create(tmp_path / "points.index", dim=4, metric="cosine")
    metadata = [{"label": f"käfer {i % 3}", "year": 2000 + i} if i % 5 else {} for i in range(40)]
    index.add(vectors, range(40), metadata, thumbnails=[b"picture" * i for i in range(40)])
    index.delete(range(0, 40, 7))
    return index


def contents(index):
    return {
        name: (vector.tolist(), metadata, picture)
        for part in index.batches()
        for name, vector, metadata, picture in zip(part.ids, part.vectors, part.metadata, part.thumbnails, strict=True)
    }


def test_deleted_items_are_not_copied(points, tmp_path):
    made = search.copy(tmp_path / "points.index", tmp_path / "smaller.index")
    assert (len(made), made.metric) == (34, "cosine")
    assert list(contents(made)) == [str(i) for i in range(40) if i % 7]
    assert contents(made) == contents(points)
    assert (tmp_path / "smaller.index" / "vectors.f32").stat().st_size == 34 * 4 * 4
    queries = torch.randn(3, 4)
    assert list(made.search(queries, 40)) == list(points.search(queries, 40))
    made.add(torch.ones(1, 4), "7")
    assert len(search.open(tmp_path / "smaller.index")) == 35


def test_the_model_is_copied(tmp_path):
    Image.new("RGB", (32, 32), "red").save(tmp_path / "red.png")
    index = search.create(tmp_path / "things.index", embedder=models.create("convnet", dim=8))
    index.add(tmp_path / "red.png", "red")
    made = search.copy(tmp_path / "things.index", tmp_path / "copy.index")
    assert made.thumbnail("red") == index.thumbnail("red")
    assert made.search(tmp_path / "red.png")[0] == index.search(tmp_path / "red.png")[0]


def test_a_copy_that_fails_leaves_nothing(points, tmp_path, monkeypatch):
    def batches(self):
        yield from list(whole(self))[:2]
        raise OSError("the disk is full")

    whole = search.Index.batches
    monkeypatch.setattr(search.Index, "batches", batches)
    with pytest.raises(OSError, match="the disk is full"):
        search.copy(tmp_path / "points.index", tmp_path / "smaller.index")
    assert [path.name for path in tmp_path.iterdir()] == ["points.index"]


HALF = """
import sys, time
from tuplet import search
whole = search.Index.batches
def batches(self):
    yield next(whole(self))
    print("half", flush=True)
    time.sleep(60)
search.Index.batches = batches
search.copy(*sys.argv[1:])
"""


def test_the_next_copy_removes_what_a_killed_one_left(points, tmp_path):
    """Running copies and other folders with such names stay."""
    (tmp_path / "smaller.index.my photos.part").mkdir()
    (tmp_path / "smaller.index.00000000.part").mkdir()
    (tmp_path / "smaller.index.00000000.part" / "cat.jpg").touch()
    copies = []
    for _ in range(2):
        arguments = [sys.executable, "-c", HALF, tmp_path / "points.index", tmp_path / "smaller.index"]
        copies.append(subprocess.Popen(arguments, stdout=subprocess.PIPE, text=True))
        assert copies[-1].stdout.readline() == "half\n"
    killed, living = copies
    try:
        killed.kill()
        killed.wait()
        assert len(list(tmp_path.glob("*.part"))) == 4
        assert len(search.copy(tmp_path / "points.index", tmp_path / "smaller.index")) == 34
        assert len(list(tmp_path.glob("*.part"))) == 3
        assert (tmp_path / "smaller.index.00000000.part" / "cat.jpg").exists()
    finally:
        living.kill()
        living.wait()
    search.copy(tmp_path / "smaller.index", tmp_path / "smaller.index.copy")
    assert len(list(tmp_path.glob("*.part"))) == 3


def test_changing_the_current_folder_during_a_copy(points, tmp_path, monkeypatch):
    def batches(self):
        (tmp_path / "elsewhere").mkdir()
        monkeypatch.chdir(tmp_path / "elsewhere")
        yield from whole(self)

    whole = search.Index.batches
    monkeypatch.setattr(search.Index, "batches", batches)
    monkeypatch.chdir(tmp_path)
    search.copy("points.index", "smaller.index")
    assert len(search.open(tmp_path / "smaller.index")) == 34


def test_existing_files_are_not_overwritten(points, tmp_path):
    with pytest.raises(FileExistsError, match="exists; copy to a new name"):
        search.copy(tmp_path / "points.index", tmp_path / "points.index")
    (tmp_path / "points.index" / "link").symlink_to("nowhere")
    with pytest.raises(FileExistsError, match="link exists; copy to a new name"):
        search.copy(tmp_path / "points.index", tmp_path / "points.index" / "link")
    with pytest.raises(FileNotFoundError, match=r"none.index does not exist"):
        search.copy(tmp_path / "none.index", tmp_path / "copy.index")
    assert [path.name for path in tmp_path.iterdir()] == ["points.index"]


def test_an_empty_index(tmp_path):
    search.create(tmp_path / "empty.index", dim=3)
    assert len(search.copy(tmp_path / "empty.index", tmp_path / "copy.index")) == 0


def test_a_copy_into_milvus_that_fails_leaves_no_collection(points, tmp_path):
    pytest.importorskip("pymilvus", reason="Milvus needs pymilvus")
    pytest.importorskip("milvus_lite", reason="the embedded Milvus needs milvus-lite")
    points.add(torch.ones(1, 4), "x" * 2000)
    for _ in range(2):
        with pytest.raises(ValueError, match="over 1024 bytes"):
            search.copy(tmp_path / "points.index", tmp_path / "points.db")
    with pytest.raises(FileNotFoundError, match="has no collection 'tuplet'"):
        search.open(tmp_path / "points.db")


def test_to_milvus_and_back(points, tmp_path):
    pytest.importorskip("pymilvus", reason="Milvus needs pymilvus")
    pytest.importorskip("milvus_lite", reason="the embedded Milvus needs milvus-lite")
    collection = search.copy(tmp_path / "points.index", tmp_path / "points.db")
    assert contents(collection) == contents(points)
    collection.close()
    back = search.copy(tmp_path / "points.db", tmp_path / "back.index")
    assert (back.metric, contents(back)) == ("cosine", contents(points))
