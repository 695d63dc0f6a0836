"""The folder of an index: its files, concurrent writers, kills and full disks."""

import errno
import json
import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
import torch

from search.damage import seal
from tuplet.search import Hit, Index, files
from tuplet.search.snapshot import Snapshot


def test_content_of_the_files(tmp_path):
    index = Index.create(tmp_path / "i", dim=2)
    index.add(torch.eye(2), ["a", "ünïcode \n"], [{"label": "eins"}, {}], thumbnails=[b"one", b""])
    about = json.loads((tmp_path / "i" / "index.json").read_text())
    assert about["rows"] == 2
    assert about["dim"] == 2
    lines = (tmp_path / "i" / "items.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"id": "a", "label": "eins"}, {"id": "ünïcode \n"}]
    assert np.fromfile(tmp_path / "i" / "vectors.f32", "<f4").tolist() == [1, 0, 0, 1]
    assert (index.thumbnail("a"), index.thumbnail("ünïcode \n"), index.thumbnail("b")) == (b"one", None, None)


def test_a_reader_keeps_its_snapshot_until_refresh(tmp_path):
    writer = Index.create(tmp_path / "i", dim=1)
    writer.add(torch.tensor([[1.0], [2.0]]), ["a", "b"], [{"label": "x"}] * 2)
    reader = Index.open(tmp_path / "i")
    held = reader.search(torch.tensor([1.0]))
    writer.delete("a")
    writer.add(torch.tensor([[1.0]]), ["c"])
    assert [hit.id for hit in reader.search(torch.tensor([1.0]))[0]] == ["a", "b"]
    assert reader.refresh()
    assert not reader.refresh()
    assert [hit.id for hit in reader.search(torch.tensor([1.0]))[0]] == ["c", "b"]
    assert reader.search(torch.tensor([1.0]), where={"label": "x"})[0] == [Hit("b", -1.0, {"label": "x"})]
    assert [hit.id for hit in held[0]] == ["a", "b"]


def test_thumbnail_matches_its_id_while_the_folder_is_replaced(tmp_path, monkeypatch):
    Index.create(tmp_path / "i", dim=1).add(torch.zeros(2, 1), ["a", "b"], thumbnails=[b"A", b"B"])
    reader, find = Index.open(tmp_path / "i"), Snapshot.find
    shutil.rmtree(tmp_path / "i")
    Index.create(tmp_path / "i", dim=1).add(torch.zeros(2, 1), ["b", "a"], thumbnails=[b"B", b"A"])

    def then_refresh(snapshot, names):
        found = find(snapshot, names)
        reader.refresh()
        return found

    monkeypatch.setattr(Snapshot, "find", then_refresh)
    assert [reader.thumbnail("a"), reader.thumbnail("a")] == [b"A", b"A"]


def test_a_second_writer_is_refused(tmp_path):
    index, other = Index.create(tmp_path / "i", dim=1), Index.open(tmp_path / "i")
    with index.writing():
        index.add(torch.zeros(1, 1), ["a"])
        with pytest.raises(BlockingIOError, match="is being written by process"):
            other.add(torch.zeros(1, 1), ["b"])
    other.add(torch.zeros(1, 1), ["b"])  # it refreshes first
    assert len(other) == 2


def test_threads_of_one_index_take_turns(tmp_path):
    index = Index.create(tmp_path / "i", dim=1)
    threads = [threading.Thread(target=index.add, args=(torch.zeros(1, 1), [str(i)])) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Index.open(tmp_path / "i").known([str(i) for i in range(16)]) == {str(i) for i in range(16)}


def test_bytes_of_a_killed_writer_are_ignored_and_removed(tmp_path):
    index = Index.create(tmp_path / "i", dim=2)
    index.add(torch.eye(2), ["a", "b"], thumbnails=[b"A", b"B"])
    for name in (files.VECTORS, files.ITEMS, files.ROWS, files.DELETED, files.THUMBNAILS):
        with open(tmp_path / "i" / name, "ab") as file:
            file.write(b"half a li")
    (tmp_path / "i" / "index.json.part").write_text('{"format": 1, "ro')
    again = Index.open(tmp_path / "i")
    assert [hit.id for hit in again.search(torch.tensor([1.0, 0.0]))[0]] == ["a", "b"]
    again.add(torch.tensor([[5.0, 5.0]]), ["c"], thumbnails=[b"C"])
    again.delete("a")
    last = Index.open(tmp_path / "i")
    assert [hit.id for hit in last.search(torch.tensor([5.0, 5.0]))[0]] == ["c", "b"]
    assert (last.thumbnail("b"), last.thumbnail("c")) == (b"B", b"C")
    assert (tmp_path / "i" / files.VECTORS).stat().st_size == 3 * 2 * 4


@pytest.mark.parametrize("change", ["add", "delete"])
def test_a_full_disk_at_any_write_leaves_all_or_nothing(tmp_path, monkeypatch, change):
    for moment in range(20):
        folder = tmp_path / str(moment)
        index = Index.create(folder, dim=1)
        index.add(torch.tensor([[1.0], [2.0]]), ["1", "2"], thumbnails=[b"1", b"2"])
        written = []

        def full(_, moment=moment, written=written):
            written.append(1)
            if len(written) > moment:
                raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as disk:
            disk.setattr(os, "fsync", full)
            sentence = ""
            try:
                index.add(torch.tensor([[3.0]]), ["3"], thumbnails=[b"3"]) if change == "add" else index.delete("1")
            except OSError as error:
                sentence = str(error)
        if not sentence:
            break
        assert len(written) == moment + 1
        # The error names no file only if the change was committed.
        assert sentence.endswith("; make room, then call again") or len(Index.open(folder)) != 2
        assert "No space left on device" in sentence
        again = Index.open(folder)
        assert again.known(list("123")) in ({"1", "2"}, {"1", "2", "3"} if change == "add" else {"2"})
        index.add(torch.tensor([[4.0]]), ["4"], thumbnails=[b"4"])
        again.refresh()
        for name in again.known(list("1234")):
            assert again.vectors(name).tolist() == [[float(name)]]
            assert again.thumbnail(name) == name.encode()
    assert 3 <= moment < 20


def test_a_read_only_folder_can_be_searched(tmp_path, monkeypatch):
    index = Index.create(tmp_path / "i", dim=1)
    index.add(torch.zeros(1, 1), ["a"])

    def read_only(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "touch", read_only)
    again = Index.open(tmp_path / "i")
    assert [hit.id for hit in again.search(torch.zeros(1))[0]] == ["a"]
    with pytest.raises(OSError, match=r"could not be written .*Read-only file system.*; give another folder"):
        again.delete("a")


def test_links_and_changes_of_the_current_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("elsewhere").mkdir()
    Index.create("real", dim=1).add(torch.zeros(1, 1), ["a"])
    Path("link").symlink_to("real")
    index = Index.open("link")
    monkeypatch.chdir("elsewhere")
    index.add(torch.ones(1, 1), ["b"])
    assert Index.open("../real").known(["a", "b"]) == {"a", "b"}
    assert not list(Path().iterdir())


def test_other_folders_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="is not an index"):
        Index.open(tmp_path)
    index = Index.create(tmp_path / "i", dim=2)
    index.add(torch.eye(2), ["a", "b"])
    with pytest.raises(FileExistsError, match="is an index already"):
        Index.create(tmp_path / "i", dim=2)
    manifest = tmp_path / "i" / "index.json"
    good = manifest.read_text()
    for text, sentence in (
        ("{", "damaged"),
        (good.replace('"format": 2', '"format": 9'), "install a newer"),
        (good.replace('"format": 2', '"format": 1'), "has format 1 and this tuplet reads 2; index again"),
        (good.replace('"rows": 2', '"rows": 1'), "do not fit the bytes"),
        (good.replace("euclidean", "cosine"), "its checksum does not fit"),
    ):
        manifest.write_text(text)
        with pytest.raises(ValueError, match=sentence):
            Index.open(tmp_path / "i")
    manifest.write_text(good)
    (tmp_path / "i" / "vectors.f32").write_bytes(b"1234")
    with pytest.raises(ValueError, match="has 4 bytes of 16"):
        Index.open(tmp_path / "i")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/1.jpg").touch()
    with pytest.raises(FileExistsError, match=r"photos holds other files, such as 1\.jpg; give a new or empty folder"):
        Index.create(tmp_path / "photos", dim=2)
    assert [path.name for path in (tmp_path / "photos").iterdir()] == ["1.jpg"]
    for place in ("photos/1.jpg", "photos/1.jpg/below"):
        with pytest.raises(OSError, match=rf"{place} could not be written \(.*\); give another folder"):
            Index.create(tmp_path / place, dim=2)
    with pytest.raises(TypeError, match="either dim=, for vectors, or embedder="):
        Index.create(tmp_path / "j")
    with pytest.raises(ValueError, match="metric must be one of"):
        Index.create(tmp_path / "j", dim=2, metric="hamming")


@pytest.mark.parametrize("name", ["items.jsonl", "rows.u64"])
@pytest.mark.parametrize("byte", [b"\0", b"\xff"])
def test_damaged_lines_are_reported(tmp_path, name, byte):
    Index.create(tmp_path / "i", dim=1).add(torch.zeros(3, 1), ["a", "b", "c"], [{"label": "x"}] * 3)
    path = tmp_path / "i" / name
    path.write_bytes(byte * path.stat().st_size)
    seal(tmp_path / "i")
    index = Index.open(tmp_path / "i")
    for read in (lambda: index.search(torch.zeros(1))[0], lambda: list(index.batches())):
        with pytest.raises(
            ValueError, match=r"i is damaged: items.jsonl and rows.u64 do not fit .*; restore it from a copy"
        ):
            read()
    with pytest.raises(ValueError, match="i is damaged"):
        index.counts()


def test_a_writer_does_not_change_a_replaced_index(tmp_path):
    """Appending vectors of the old dimension would damage the new index."""
    Index.create(tmp_path / "i", dim=3).add(torch.eye(3), ["a", "b", "c"])
    adding, deleting = Index.open(tmp_path / "i"), Index.open(tmp_path / "i")
    shutil.rmtree(tmp_path / "i")
    Index.create(tmp_path / "i", dim=2).add(torch.eye(2), ["a", "b"])
    refused = r"i was replaced by another index; call again to change that one"
    with pytest.raises(ValueError, match=refused):
        adding.add(torch.ones(2, 3), ["c", "d"])
    with pytest.raises(ValueError, match=refused):
        deleting.delete("a")
    assert Index.open(tmp_path / "i").vectors(["a", "b"]).tolist() == [[1.0, 0.0], [0.0, 1.0]]
    adding.add(torch.ones(2, 2), ["c", "d"])
    deleting.delete("a")
    assert Index.open(tmp_path / "i").known(list("abcd")) == {"b", "c", "d"}


def test_a_change_whose_last_sync_failed_is_kept(tmp_path, monkeypatch):
    """The rename commits a change; syncing the folder afterwards may still fail."""
    index = Index.create(tmp_path / "i", dim=1)

    def full(_):
        raise OSError(errno.ENOSPC, "No space left on device")

    with index.writing():
        index.add(torch.tensor([[1.0]]), ["1"])
        with monkeypatch.context() as disk:
            disk.setattr(
                "tuplet.atomic.os.replace", lambda *names: (os.rename(*names), disk.setattr(os, "fsync", full))
            )
            with pytest.raises(OSError, match="No space left"):
                index.add(torch.tensor([[2.0]]), ["2"])
        assert Index.open(tmp_path / "i").known(["1", "2"]) == {"1", "2"}
        index.add(torch.tensor([[3.0]]), ["3"])
    again = Index.open(tmp_path / "i")
    assert again.vectors(["1", "2", "3"]).tolist() == [[1.0], [2.0], [3.0]]


def test_replacing_the_index_during_a_search_keeps_its_metric(tmp_path):
    Index.create(tmp_path / "i", dim=2).add(torch.eye(2), ["a", "b"])
    Index.create(tmp_path / "new", dim=2, metric="dot")
    reader = Index.open(tmp_path / "i")

    class Conditions(dict):
        """Replace and refresh the index when the filter is read."""

        def items(self):
            shutil.rmtree(tmp_path / "i")
            (tmp_path / "new").rename(tmp_path / "i")
            reader.refresh()
            return super().items()

    found = reader.search(torch.tensor([1.0, 0.0]), where=Conditions(x=None), distinct=-0.1)
    assert [hit.id for hit in found[0]] == ["a", "b"]


def test_replacing_the_index_while_it_is_opened_is_an_error(tmp_path, monkeypatch):
    Index.create(tmp_path / "i", dim=1).add(torch.zeros(1, 1), ["a"])
    Index.create(tmp_path / "new", dim=1).add(torch.ones(2, 1), ["b", "c"])
    read = files.read_manifest

    def then_replaced(folder):
        manifest = read(folder)
        if (tmp_path / "new").exists():
            shutil.rmtree(tmp_path / "i")
            (tmp_path / "new").rename(tmp_path / "i")
        return manifest

    monkeypatch.setattr(files, "read_manifest", then_replaced)
    with pytest.raises(ValueError, match=r"i was replaced by another index while it was opened; open it again"):
        Index.open(tmp_path / "i")
    assert len(Index.open(tmp_path / "i")) == 2
