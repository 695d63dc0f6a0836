"""An index in milvus-lite gives the same results as one in a folder."""

import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import Image

from tuplet import models, search
from tuplet.search import milvus

pytest.importorskip("pymilvus", reason="Milvus needs pymilvus")
pytest.importorskip("milvus_lite", reason="the embedded Milvus needs milvus-lite")

LABELS = ["ant", 'a "bee"', "back\\slash", "großer Käfer"]


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    return str(tmp_path_factory.mktemp("milvus") / "things.db")


@pytest.mark.parametrize("metric", ["euclidean", "cosine", "dot"])
def test_same_results_as_the_folder(tmp_path, address, metric):
    rng = np.random.default_rng(0)
    vectors = rng.normal(size=(60, 8)).astype(np.float32)
    vectors[30:40] = vectors[20:30] + 0.001
    metadata = [{"label": LABELS[i % 4], "even": i % 2 == 0, "number": i} for i in range(60)]
    queries = rng.normal(size=(5, 8)).astype(np.float32)
    apart = {"euclidean": -0.1, "cosine": 0.999, "dot": 7.0}[metric]
    answers = []
    for where in (tmp_path / "things.index", f"{address}#{metric}"):
        index = search.create(where, dim=8, metric=metric)
        index.add(vectors, range(60), metadata, thumbnails=[b"picture"] + [b""] * 59)
        index.delete(["7", "11"])
        index = search.open(where)
        assert (len(index), index.dim, index.metric) == (58, 8, metric)
        assert (index.thumbnail("0"), index.thumbnail("1"), index.thumbnail("7")) == (b"picture", None, None)
        assert index.known(["0", "7", "x"]) == {"0"}
        assert np.array_equal(index.vectors(["9", "3"]), vectors[[9, 3]])
        with pytest.raises(ValueError, match="has no id '7'"):
            index.delete(["0", "7"])
        with pytest.raises(ValueError, match="'0' would exist twice"):
            index.add(vectors[:1], ["0"])
        found = [
            index.search(queries, 10),
            index.search(queries, 100),
            index.search(queries, 20, where={"label": [LABELS[1], LABELS[2]], "even": False}),
            index.search(queries, 20, where={"label": LABELS[3]}),
            index.search(queries, 10, where={"label": []}),
            index.search(queries, 12, distinct=apart),
            index.search(queries[0]),
            index.search(queries[None]),
        ]
        answers.append(([[list(hits) for hits in part] for part in found], index.counts(), index.counts("even")))
    (folder, *counts), (milvus, *other_counts) = answers
    assert counts == other_counts
    for part, other in zip(folder, milvus, strict=True):
        for hits, other_hits in zip(part, other, strict=True):
            assert [hit.id for hit in hits] == [hit.id for hit in other_hits]
            assert [h.metadata for h in hits] == [h.metadata for h in other_hits]
            assert [h.score for h in hits] == pytest.approx([h.score for h in other_hits], abs=1e-3)
    assert folder[3][0]
    assert not folder[4][0]


def test_images_need_the_model_of_the_collection(tmp_path, address):
    torch.manual_seed(0)
    embedder, other = models.create("convnet", dim=8), models.create("convnet", dim=8)
    image = tmp_path / "red.png"
    Image.new("RGB", (40, 30), (200, 20, 20)).save(image)
    where = f"{address}#images"
    search.create(where, embedder=embedder).add([image], ids=["red"])
    index = search.open(where, embedder)
    hit = index.search(image)[0][0]
    assert (hit.id, hit.score) == ("red", pytest.approx(1, abs=1e-5))
    assert index.thumbnail("red").startswith(b"RIFF")
    with pytest.raises(ValueError, match=f"made by the model {embedder.fingerprint()[:12]}, not by"):
        search.open(where, other)
    with pytest.raises(TypeError, match="does not store a model; give it with embedder="):
        search.open(where).search(image)


def test_another_process_finds_added_items(tmp_path):
    where = str(tmp_path / "kept.db")
    add = "search.create(where, dim=2).add(torch.eye(2), ['east', 'north'])"
    find = "print([hit.id for hit in search.open(where).search(torch.tensor([2.0, 1.0]))[0]])"
    for line in (add, find):
        script = f"import sys, torch; from tuplet import search; where = sys.argv[1]; {line}"
        done = subprocess.run([sys.executable, "-c", script, where], capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
    assert done.stdout == "['east', 'north']\n"


def test_opening_creates_nothing(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"none.db does not exist; make it with tuplet index"):
        search.open(str(tmp_path / "none.db#things"))
    with pytest.raises(TypeError, match="needs either dim=, for vectors, or embedder="):
        search.create(str(tmp_path / "none.db"))
    assert not list(tmp_path.iterdir())


def test_unreachable_server_is_named():
    with pytest.raises(ConnectionError, match=r"http://127.0.0.1:1 does not answer as Milvus"):
        search.open("http://127.0.0.1:1#things")


def test_ids_may_contain_any_characters(address):
    names = [
        "it's",
        'say "x"',
        'it\'s "odd"',
        "back\\slash",
        "two\nlines",
        "' or id != '",
        '" or id != "',
        "ü日本",
        "100%",
        "\\u0001",
        *(f"control{chr(code)}" for code in (*range(32), 127)),
    ]
    index = search.create(f"{address}#names", dim=2)
    index.add(
        torch.arange(2.0 * len(names) + 2).view(-1, 2), ["other", *names], [{}, *({name: name} for name in names)]
    )
    assert index.known(names) == set(names)
    assert index.vectors(names)[:, 0].tolist() == [2.0 * place for place in range(1, len(names) + 1)]
    for left, name in zip(range(len(names), 0, -1), names, strict=True):
        assert [hit.id for hit in index.search(torch.zeros(2), where={name: name})[0]] == [name]
        index.delete(name)
        assert len(index) == left
        assert index.known([name, "other"]) == {"other"}


def test_iteration_reaches_ids_with_any_characters(address, monkeypatch):
    monkeypatch.setattr(milvus, "BATCH", 1)
    names = ["a\\tb", "a\\x41", 'say "x"', "back\\", "it's", "two\nlines", '" or id != "', "ü日本", "zebra"]
    names = sorted([*names, "a bell\a", "a page\f", "a back\b"])
    index = search.create(f"{address}#pages", dim=2)
    index.add(torch.arange(24.0).view(12, 2), names, [{"label": "x"}] * 12)
    assert sorted(name for part in index.batches() for name in part.ids) == names
    assert index.counts() == {"x": 12}


def test_wrong_inputs_are_refused(address):
    index = search.create(f"{address}#refusals", dim=2)
    with pytest.raises(FileExistsError, match="already"):
        search.create(f"{address}#refusals", dim=2)
    with pytest.raises(FileNotFoundError, match="has no collection 'absent'"):
        search.open(f"{address}#absent")
    with pytest.raises(ValueError, match="not finite"):
        index.add(torch.tensor([[math.nan, 0.0]]), ["a"])
    with pytest.raises(ValueError, match="over 1024 bytes"):
        index.add(torch.zeros(1, 2), ["x" * 2000])
    with pytest.raises(ValueError, match="the thumbnail of 'b' has over 49,151 bytes; give a smaller one"):
        index.add(torch.zeros(2, 2), ["a", "b"], thumbnails=[b"", bytes(50_000)])
    for value in (None, math.nan):
        with pytest.raises(ValueError, match=f"Milvus cannot filter by label={value}; use text, numbers"):
            index.search(torch.zeros(2), where={"label": value})
    assert len(index) == 0


def test_k_beyond_the_limit_of_milvus_is_refused(address, monkeypatch):
    monkeypatch.setattr(milvus, "MAX_RESULTS", 5)
    index = search.create(f"{address}#many", dim=2)
    index.add(torch.zeros(5, 2), range(5))
    assert len(index.search(torch.zeros(2), 9)[0]) == 5
    index.add(torch.zeros(1, 2), ["5"])
    assert len(index.search(torch.zeros(2), 5)[0]) == 5
    with pytest.raises(ValueError, match="k is 9, and Milvus returns at most 5 results; choose a smaller k"):
        index.search(torch.zeros(2), 9)
