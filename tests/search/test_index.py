"""The index against a literal search of a list: order, ties, filters, deletions, copies, views; and what it refuses."""

import errno
import json
import math
import os
import shutil
import threading
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tuplet import evaluation, models
from tuplet.search import Hit, Index, files, results
from tuplet.search.snapshot import Snapshot


def score(query, member, metric):
    """Higher is nearer; float64."""
    if metric == "euclidean":
        return -math.sqrt(math.fsum((a - b) ** 2 for a, b in zip(query, member, strict=True)))
    product = math.fsum(a * b for a, b in zip(query, member, strict=True))
    if metric == "dot":
        return product
    lengths = math.sqrt(math.fsum(a * a for a in query)) * math.sqrt(math.fsum(b * b for b in member))
    return product / lengths if lengths else 0.0


def literal(items, query, k, metric, where=None, distinct=None):
    """(id, score) of the nearest items, which are (id, vector, metadata) in the order they were added."""

    def fits(metadata):
        wanted = (where or {}).items()
        return all(metadata.get(key) in (v if isinstance(v, list) else [v]) for key, v in wanted)

    order = sorted(
        ((-score(query, vector, metric), place) for place, (_, vector, about) in enumerate(items) if fits(about))
    )
    kept = []
    for _, place in order:
        apart = all(score(items[place][1], items[other][1], metric) < distinct for other in kept) if distinct else True
        if apart and len(kept) < k:
            kept.append(place)
    return [(items[place][0], score(query, items[place][1], metric)) for place in kept]


@given(
    steps=st.lists(st.tuples(st.sampled_from(["add", "add", "delete", "reopen"]), st.integers(0, 30)), max_size=8),
    metric=st.sampled_from(["euclidean", "cosine", "dot"]),
    k=st.integers(1, 40),
    where=st.sampled_from([None, {"label": "a"}, {"label": ["a", "c"]}, {"label": "b", "odd": True}, {"odd": 7}]),
    distinct=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_exact_search_is_a_sorted_list(tmp_path_factory, steps, metric, k, where, distinct, seed):
    """Any sequence of adding, deleting and opening again, on a grid so coarse that most scores tie."""
    rng = np.random.default_rng(seed)
    folder = tmp_path_factory.mktemp("index") / "i"
    index = Index.create(folder, dim=3, metric=metric)
    items, born = [], 0
    for action, size in [("add", 3), *steps]:
        if action == "add":
            vectors = rng.integers(-1, 2, (size, 3)).astype(np.float32)
            about = [{"label": "abc"[i % 3], "odd": bool(i % 2)} for i in range(born, born + size)]
            new = [(str(born + i), vectors[i].tolist(), about[i]) for i in range(size)]
            index.add(torch.from_numpy(vectors), [name for name, _, _ in new], about)
            items, born = items + new, born + size
        elif action == "delete" and items:
            gone = {items[i][0] for i in rng.integers(0, len(items), size)}
            index.delete(sorted(gone))
            items = [item for item in items if item[0] not in gone]
        else:
            index = Index.open(folder)
    queries = rng.integers(-1, 2, (4, 3)).astype(np.float32)
    threshold = {"euclidean": -0.5, "cosine": 0.99, "dot": 1.5}[metric] if distinct else None
    found = index.search(queries, k, where=where, distinct=threshold)
    assert len(index) == len(items)
    for query, hits in zip(queries.tolist(), found, strict=True):
        expected = literal(items, query, k, metric, where, threshold)
        got = [(hit.id, pytest.approx(hit.score, rel=1e-12, abs=1e-12)) for hit in hits]
        # Cosines that are equal as numbers may differ in their last bit, and so change places.
        assert (
            got == expected
            if metric != "cosine"
            else sorted(h.score for h in hits) == pytest.approx(sorted(s for _, s in expected), abs=1e-12)
        )
        metadata = {name: about for name, _, about in items}
        assert all(hit.metadata == metadata[hit.id] for hit in hits)


def test_the_same_answers_as_the_evaluator(tmp_path):
    generator = torch.Generator().manual_seed(0)
    gallery = torch.randn(500, 16, generator=generator).repeat(2, 1)
    queries = gallery[:40] + 0.1 * torch.randn(40, 16, generator=generator)
    for metric in ("euclidean", "cosine", "dot"):
        index = Index.create(tmp_path / metric, dim=16, metric=metric)
        index.add(gallery, range(1000))
        expected = evaluation.nearest(queries, gallery, 20, metric=metric)
        found = index.search(queries, 20)
        assert np.array_equal(found.rows, expected.indices.numpy())
        assert np.array_equal(found.scores, expected.scores.numpy())


@pytest.mark.parametrize("block", [1, 2, 3, 256])
def test_near_duplicates_are_left_out_in_blocks_as_at_once(monkeypatch, block):
    monkeypatch.setattr(results, "UNLIKE_BLOCK", block)
    vectors = np.random.default_rng(0).integers(-2, 3, (40, 2)).astype(np.float32)
    for k in (1, 5, 40):
        expected = []
        for place, vector in enumerate(vectors):
            apart = all(score(vector, vectors[other], "euclidean") < -1.5 for other in expected)
            expected += [place] if apart and len(expected) < k else []
        assert results.unlike(vectors, "euclidean", -1.5, k) == expected
    assert results.unlike(vectors[:0], "euclidean", -1.5, 3) == []


def test_views_are_averaged(tmp_path):
    index = Index.create(tmp_path / "i", dim=2, metric="cosine")
    index.add(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]), ["x", "y", "xy"])
    # Two views, of which the longer one would win without making them unit.
    assert index.search(torch.tensor([[[9.0, 0.0], [0.0, 1.0]]]))[0][0].id == "xy"
    dot = Index.create(tmp_path / "d", dim=2, metric="dot")
    dot.add(torch.eye(2), ["x", "y"])
    assert [(h.id, h.score) for h in dot.search(torch.tensor([[[9.0, 0.0], [0.0, 1.0]]]))[0]] == [
        ("x", 4.5),
        ("y", 0.5),
    ]


def test_the_folder_can_be_read_by_eye(tmp_path):
    index = Index.create(tmp_path / "i", dim=2)
    index.add(torch.eye(2), ["a", "ünïcode \n"], [{"label": "eins"}, {}], pictures=[b"one", b""])
    about = json.loads((tmp_path / "i" / "index.json").read_text())
    assert about["rows"] == 2
    assert about["dim"] == 2
    lines = (tmp_path / "i" / "items.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == [{"id": "a", "label": "eins"}, {"id": "ünïcode \n"}]
    assert np.fromfile(tmp_path / "i" / "vectors.f32", "<f4").tolist() == [1, 0, 0, 1]
    assert (index.picture("a"), index.picture("ünïcode \n"), index.picture("b")) == (b"one", None, None)


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_vectors_of_every_floating_type(tmp_path, kind):
    index = Index.create(tmp_path / "i", dim=2)
    index.add(torch.eye(2, dtype=kind), ["a", "b"])
    assert [(hit.id, hit.score) for hit in index.search(torch.tensor([1, 0], dtype=kind), 1)[0]] == [("a", 0.0)]
    views = torch.tensor([[[2, 0], [0, 0]]], dtype=kind)
    assert [(hit.id, hit.score) for hit in index.search(views, 1)[0]] == [("a", 0.0)]


def test_views_in_an_array_that_runs_backwards(tmp_path):
    index = Index.create(tmp_path / "i", dim=2)
    index.add(torch.eye(2), ["a", "b"])
    views = np.eye(2, dtype=np.float32)[:, None][::-1]
    assert [hits[0].id for hits in index.search(views, 1)] == ["b", "a"]
    with pytest.raises(TypeError, match=r"must be floating point, got torch\.int64"):
        index.search(torch.zeros(1, 2, 2, dtype=torch.int64))


def test_equal_numbers_are_one_value_and_true_is_another(tmp_path):
    index = Index.create(tmp_path / "i", dim=1)
    values = [2011, 2011.0, 1, True, 0.5]
    index.add(torch.arange(5.0)[:, None], range(5), [{"value": value} for value in values])
    for asked, expected in ((2011, "01"), (2011.0, "01"), (1, "2"), (1.0, "2"), (True, "3"), ([0.5, 1], "24")):
        assert {hit.id for hit in index.search(torch.zeros(1), where={"value": asked})[0]} == set(expected), asked
    # A mapping of Python takes True for 1.
    assert index.counts("value") == {1: 2, 2011: 2, 0.5: 1}


def test_keys_that_no_row_has_cost_nothing_to_keep(tmp_path):
    index = Index.create(tmp_path / "i", dim=1)
    index.add(torch.zeros(2, 1), ["a", "b"], [{"label": "x"}, {}])
    for key in map(str, range(50)):
        assert index.search(torch.zeros(1), where={key: 1})[0] == []
        assert [hit.id for hit in index.search(torch.zeros(1), where={key: None})[0]] == ["a", "b"]
    assert [hit.id for hit in index.search(torch.zeros(1), where={"label": "x"})[0]] == ["a"]
    assert set(index._columns._columns) == {"label"}
    index.add(torch.zeros(2, 1), ["c", "d"], [{"7": 1}, {"label": "x"}])
    assert [hit.id for hit in index.search(torch.zeros(1), where={"7": 1})[0]] == ["c"]
    assert [hit.id for hit in index.search(torch.zeros(1), where={"label": "x", "7": None})[0]] == ["a", "d"]


def test_a_picture_is_that_of_its_id_while_the_folder_is_replaced(tmp_path, monkeypatch):
    Index.create(tmp_path / "i", dim=1).add(torch.zeros(2, 1), ["a", "b"], pictures=[b"A", b"B"])
    reader, find = Index.open(tmp_path / "i"), Snapshot.find
    shutil.rmtree(tmp_path / "i")
    Index.create(tmp_path / "i", dim=1).add(torch.zeros(2, 1), ["b", "a"], pictures=[b"B", b"A"])

    def then_refresh(snapshot, names):
        found = find(snapshot, names)
        reader.refresh()
        return found

    monkeypatch.setattr(Snapshot, "find", then_refresh)
    assert [reader.picture("a"), reader.picture("a")] == [b"A", b"A"]


def test_columns_of_another_index_are_not_mixed(tmp_path):
    """While a folder is replaced, searches of the old state and of the new one take turns."""
    old, new = (Index.create(tmp_path / name, dim=1) for name in ("old", "new"))
    old.add(torch.zeros(2, 1), ["a", "b"], [{"label": "x"}, {"label": "y"}])
    new.add(torch.zeros(3, 1), ["a", "b", "c"], [{"label": "y"}, {"label": "y"}, {"label": "x"}])
    columns = old._columns
    for _ in range(2):
        assert columns.allowed({"label": "x"}, old.snapshot).tolist() == [True, False]
        assert columns.allowed({"label": "x"}, new.snapshot).tolist() == [False, False, True]


def test_ids_come_back_after_deleting_with_their_new_vector(tmp_path):
    index = Index.create(tmp_path / "i", dim=1)
    index.add(torch.tensor([[1.0], [2.0]]), ["a", "b"])
    index.delete("a")
    index.add(torch.tensor([[5.0]]), ["a"])
    assert index.vectors(["a", "b"]).tolist() == [[5.0], [2.0]]
    assert [(hit.id, hit.score) for hit in index.search(torch.tensor([5.0]))[0]] == [("a", 0.0), ("b", -3.0)]


def test_counts_and_known(tmp_path):
    index = Index.create(tmp_path / "i", dim=1)
    index.add(torch.zeros(4, 1), list("abcd"), [{"label": "x"}, {"label": "y"}, {"label": "y"}, {}])
    index.delete(["a"])
    assert index.counts() == {"y": 2}
    assert index.known(["a", "b", "z"]) == {"b"}


def test_a_reader_goes_on_with_its_snapshot(tmp_path):
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


def test_conditions_that_cannot_be_are_named(tmp_path):
    index = Index.create(tmp_path / "i", dim=1)
    index.add(torch.zeros(1, 1), ["a"], [{"year": 2011}])
    with pytest.raises(
        ValueError, match=r"the filter year=.*object.* is nothing that JSON can hold; use text, numbers"
    ):
        index.search(torch.zeros(1), where={"year": object()})
    with pytest.raises(TypeError, match=r"where is 'year'; it must be a mapping, such as \{'label': 'bee'\}"):
        index.search(torch.zeros(1), where="year")
    for distinct in (math.nan, "most"):
        with pytest.raises(ValueError, match=rf"distinct is {distinct!r}; it must be a number"):
            index.search(torch.zeros(1), distinct=distinct)


def test_numbers_of_numpy_and_torch_are_numbers(tmp_path):
    index = Index.create(tmp_path / "i", dim=1)
    metadata = [{"label": label, "share": share} for label, share in zip(np.arange(3), torch.eye(3)[0], strict=True)]
    index.add(np.zeros((3, 1), np.float32), torch.arange(3), metadata)
    assert [hit.metadata for hit in index.search(torch.zeros(1), 1)[0]] == [{"label": 0, "share": 1.0}]
    for label in (np.int64(2), np.array([2]), torch.tensor([2]), torch.tensor(2), np.array(2), {2.0}):
        where = {"label": label}
        assert [hit.id for hit in index.search(torch.zeros(1), where=where)[0]] == ["2"]
    assert index.known(np.arange(5)) == {"0", "1", "2"}


def test_an_id_may_be_a_number_and_may_come_alone(tmp_path):
    index = Index.create(tmp_path / "i", dim=1)
    index.add(torch.tensor([[1.0], [2.0], [3.0]]), [10, 20, "north"], pictures=[b"p", b"", b""])
    assert index.vectors("north").tolist() == index.vectors(["north"]).tolist() == [[3.0]]
    assert index.vectors(20).tolist() == index.vectors([20]).tolist() == [[2.0]]
    assert index.picture(10) == b"p"
    index.add(torch.tensor([4.0]), "south")
    index.delete(torch.tensor(10))
    assert index.known([10, np.int64(20), "south", "\udcff"]) == {"20", "south"}
    assert index.known([str(number) for number in range(100)]) == {"20"}
    for wrong in (None, 1.5, b"x"):
        with pytest.raises(TypeError, match=r"the id .* is a .*; ids are text or whole numbers"):
            index.add(torch.zeros(1, 1), [wrong])


def test_another_index_in_its_place_brings_its_own_metadata(tmp_path):
    Index.create(tmp_path / "i", dim=1).add(torch.zeros(1, 1), ["a"], [{"label": "old"}])
    reader = Index.open(tmp_path / "i")
    assert reader.counts() == {"old": 1}
    shutil.rmtree(tmp_path / "i")
    Index.create(tmp_path / "i", dim=1).add(torch.zeros(2, 1), ["a", "b"], [{"label": "new"}] * 2)
    reader.refresh()
    assert reader.counts() == {"new": 2}


def test_a_second_writer_is_told_so(tmp_path):
    index, other = Index.create(tmp_path / "i", dim=1), Index.open(tmp_path / "i")
    with index.writing():
        index.add(torch.zeros(1, 1), ["a"])
        with pytest.raises(BlockingIOError, match="is being written by process"):
            other.add(torch.zeros(1, 1), ["b"])
    other.add(torch.zeros(1, 1), ["b"])  # it first takes in what the other wrote
    assert len(other) == 2


def test_threads_of_one_index_take_turns(tmp_path):
    index = Index.create(tmp_path / "i", dim=1)
    threads = [threading.Thread(target=index.add, args=(torch.zeros(1, 1), [str(i)])) for i in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert Index.open(tmp_path / "i").known([str(i) for i in range(16)]) == {str(i) for i in range(16)}


def test_what_a_killed_writer_left_is_neither_seen_nor_kept(tmp_path):
    index = Index.create(tmp_path / "i", dim=2)
    index.add(torch.eye(2), ["a", "b"], pictures=[b"A", b"B"])
    for name in (files.VECTORS, files.ITEMS, files.ROWS, files.DELETED, files.PICTURES):
        with open(tmp_path / "i" / name, "ab") as file:
            file.write(b"half a li")
    (tmp_path / "i" / "index.json.part").write_text('{"format": 1, "ro')
    again = Index.open(tmp_path / "i")
    assert [hit.id for hit in again.search(torch.tensor([1.0, 0.0]))[0]] == ["a", "b"]
    again.add(torch.tensor([[5.0, 5.0]]), ["c"], pictures=[b"C"])
    again.delete("a")
    last = Index.open(tmp_path / "i")
    assert [hit.id for hit in last.search(torch.tensor([5.0, 5.0]))[0]] == ["c", "b"]
    assert (last.picture("b"), last.picture("c")) == (b"B", b"C")
    assert (tmp_path / "i" / files.VECTORS).stat().st_size == 3 * 2 * 4


@pytest.mark.parametrize("change", ["add", "delete"])
def test_a_full_disk_at_any_write_is_named_and_leaves_all_or_nothing(tmp_path, monkeypatch, change):
    for moment in range(20):
        folder = tmp_path / str(moment)
        index = Index.create(folder, dim=1)
        index.add(torch.tensor([[1.0], [2.0]]), ["1", "2"], pictures=[b"1", b"2"])
        written = []

        def full(_, moment=moment, written=written):
            written.append(1)
            if len(written) > moment:
                raise OSError(errno.ENOSPC, "No space left on device")

        with monkeypatch.context() as disk:
            disk.setattr(os, "fsync", full)
            sentence = ""
            try:
                index.add(torch.tensor([[3.0]]), ["3"], pictures=[b"3"]) if change == "add" else index.delete("1")
            except OSError as error:
                sentence = str(error)
        if not sentence:
            break
        assert len(written) == moment + 1
        # Only when the change has happened is there no file to name.
        assert sentence.endswith("; make room, then call again") or len(Index.open(folder)) != 2
        assert "No space left on device" in sentence
        again = Index.open(folder)
        assert again.known(list("123")) in ({"1", "2"}, {"1", "2", "3"} if change == "add" else {"2"})
        index.add(torch.tensor([[4.0]]), ["4"], pictures=[b"4"])
        again.refresh()
        for name in again.known(list("1234")):
            assert again.vectors(name).tolist() == [[float(name)]]
            assert again.picture(name) == name.encode()
    assert 3 <= moment < 20


def test_a_folder_that_cannot_be_written_can_be_searched(tmp_path, monkeypatch):
    index = Index.create(tmp_path / "i", dim=1)
    index.add(torch.zeros(1, 1), ["a"])

    def read_only(*_, **__):
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(Path, "touch", read_only)
    again = Index.open(tmp_path / "i")
    assert [hit.id for hit in again.search(torch.zeros(1))[0]] == ["a"]
    with pytest.raises(
        OSError, match=r"writer.lock could not be written .*Read-only file system.*; give another folder"
    ):
        again.delete("a")


def test_the_folder_may_be_a_link_and_the_process_may_move(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("elsewhere").mkdir()
    Index.create("real", dim=1).add(torch.zeros(1, 1), ["a"])
    Path("link").symlink_to("real")
    index = Index.open("link")
    monkeypatch.chdir("elsewhere")
    index.add(torch.ones(1, 1), ["b"])
    assert Index.open("../real").known(["a", "b"]) == {"a", "b"}
    assert not list(Path().iterdir())


def test_nothing_is_added_where_something_is_wrong(tmp_path):
    index = Index.create(tmp_path / "i", dim=2)
    index.add(torch.eye(2), ["a", "b"])
    with pytest.raises(ValueError, match="'a' would be there twice"):
        index.add(torch.eye(2), ["c", "a"])
    with pytest.raises(ValueError, match="'c' would be there twice"):
        index.add(torch.eye(2), ["c", "c"])
    with pytest.raises(ValueError, match=r"takes floating-point vectors \(n, 2\), got float32 \(1, 3\)"):
        index.add(torch.zeros(1, 3), ["c"])
    with pytest.raises(ValueError, match="vector 1 is not finite"):
        index.add(torch.tensor([[0.0, 0.0], [math.nan, 0.0]]), ["c", "d"])
    with pytest.raises(ValueError, match="vector 0 is not finite in float32"):
        index.add(torch.full((1, 2), 1e300, dtype=torch.float64), ["c"])
    with pytest.raises(ValueError, match="metadata has 1 entries for 2 vectors"):
        index.add(torch.eye(2), ["c", "d"], [{}])
    with pytest.raises(ValueError, match="cannot be written as JSON"):
        index.add(torch.zeros(1, 2), ["c"], [{"when": object()}])
    with pytest.raises(ValueError, match="cannot be written as JSON"):
        index.add(torch.zeros(1, 2), ["\udcff"])
    with pytest.raises(
        TypeError, match=r"the metadata of 'c' is 'label'; it must be a mapping, such as \{'label': 'bee'\}"
    ):
        index.add(torch.zeros(1, 2), ["c"], {"label": "bee"})
    with pytest.raises(ValueError, match="key 'id'"):
        index.add(torch.zeros(1, 2), ["c"], [{"id": 3}])
    with pytest.raises(TypeError, match="vectors need ids"):
        index.add(torch.eye(2))
    with pytest.raises(ValueError, match="holds no 'z'"):
        index.delete(["a", "z"])
    for query in ("photo.jpg", [0.0, 1.0]):
        with pytest.raises(
            TypeError, match="holds plain vectors and has no model; search it with a tensor or an array"
        ):
            index.search(query)
    assert len(Index.open(tmp_path / "i")) == 2


def test_folders_that_are_no_index_are_refused(tmp_path):
    with pytest.raises(FileNotFoundError, match="is no index"):
        Index.open(tmp_path)
    index = Index.create(tmp_path / "i", dim=2)
    index.add(torch.eye(2), ["a", "b"])
    with pytest.raises(FileExistsError, match="is an index already"):
        Index.create(tmp_path / "i", dim=2)
    manifest = tmp_path / "i" / "index.json"
    good = manifest.read_text()
    for text, sentence in (("{", "damaged"), (good.replace('"format": 1', '"format": 9'), "install a newer")):
        manifest.write_text(text)
        with pytest.raises(ValueError, match=sentence):
            Index.open(tmp_path / "i")
    manifest.write_text(good)
    (tmp_path / "i" / "vectors.f32").write_bytes(b"1234")
    with pytest.raises(ValueError, match="has 4 bytes of 16"):
        Index.open(tmp_path / "i")
    (tmp_path / "photos").mkdir()
    (tmp_path / "photos/1.jpg").touch()
    with pytest.raises(FileExistsError, match=r"photos holds other files, such as 1\.jpg; give a folder that is new"):
        Index.create(tmp_path / "photos", dim=2)
    assert [path.name for path in (tmp_path / "photos").iterdir()] == ["1.jpg"]
    with pytest.raises(TypeError, match="either dim=, for vectors, or embedder="):
        Index.create(tmp_path / "j")
    with pytest.raises(ValueError, match="metric must be one of"):
        Index.create(tmp_path / "j", dim=2, metric="hamming")


@pytest.fixture(scope="module")
def embedder():
    torch.manual_seed(0)
    return models.create("convnet", dim=8)


@pytest.fixture
def photographs(tmp_path):
    colours = {"red.png": (200, 30, 30), "green.png": (30, 200, 30), "blue.jpg": (30, 30, 200)}
    for number, (name, colour) in enumerate(colours.items()):
        image = Image.new("RGB", (60, 40), colour)
        image.paste((255, 255, 255), (5, 5, 15 + 10 * number, 35))
        image.save(tmp_path / name)
    return [str(tmp_path / name) for name in colours]


def test_photographs(tmp_path, embedder, photographs):
    index = Index.create(tmp_path / "i", embedder=embedder)
    assert index.metric == "dot"
    index.add(photographs, metadata=[{"label": Path(path).stem} for path in photographs])
    again = Index.open(tmp_path / "i")  # without the model at hand: it lies inside
    hits = again.search(photographs[1], k=2)[0]
    assert hits[0].id == photographs[1]
    assert hits[0].label == "green"
    assert hits[0].score == pytest.approx(1, abs=1e-5)
    assert np.allclose(again.vectors(photographs), embedder.embed(photographs), atol=1e-6)
    small = Image.open(__import__("io").BytesIO(again.picture(photographs[0])))
    assert small.format == "WEBP"
    modes = {path.name: path.stat().st_mode for path in (tmp_path / "i").rglob("*") if path.is_file()}
    assert len(set(modes.values())) == 1, modes  # whoever may read one file of it may read all
    with pytest.raises(ValueError, match="cannot be read"):
        index.add([photographs[0], __file__], ids=["x", "y"])
    for nameless in (Image.new("RGB", (8, 8)), Path(photographs[0]).read_bytes()):
        with pytest.raises(TypeError, match="a photograph that is no file has no name; give ids=, one for each"):
            index.add([nameless])
    assert len(index) == 3


def test_another_model_is_refused(tmp_path, embedder, photographs):
    index = Index.create(tmp_path / "i", embedder=embedder)
    torch.manual_seed(1)
    other = models.create("convnet", dim=8)
    with pytest.raises(ValueError, match=f"made by the model {embedder.fingerprint()[:12]}, not by") as caught:
        Index.open(tmp_path / "i", embedder=other)
    assert "\n" not in str(caught.value)
    other.save(tmp_path / "i" / "model")
    with pytest.raises(ValueError, match="made by the model"):
        Index.open(tmp_path / "i").search(photographs[0])
    plain = Index.create(tmp_path / "p", dim=8)
    with pytest.raises(ValueError, match="from plain vectors"):
        plain.check_model(embedder)
    assert index.embedder is embedder
