"""Exact search compared with a sorted list: order, ties, deletions, views, images; wrong inputs."""

import io
import math
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tuplet import evaluation, models
from tuplet.search import Index, results


def score(query, member, metric):
    """Return the score in float64; higher is nearer."""
    if metric == "euclidean":
        return -math.sqrt(math.fsum((a - b) ** 2 for a, b in zip(query, member, strict=True)))
    product = math.fsum(a * b for a, b in zip(query, member, strict=True))
    if metric == "dot":
        return product
    lengths = math.sqrt(math.fsum(a * a for a in query)) * math.sqrt(math.fsum(b * b for b in member))
    return product / lengths if lengths else 0.0


def literal(items, query, k, metric, where=None, distinct=None):
    """Return (id, score) of the nearest items; items are (id, vector, metadata) in the order they were added."""

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
def test_exact_search_equals_a_sorted_list(tmp_path_factory, steps, metric, k, where, distinct, seed):
    """Any sequence of adding, deleting and reopening, on a coarse grid where most scores tie."""
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
        # Equal cosines may differ in their last bit, which changes their order.
        assert (
            got == expected
            if metric != "cosine"
            else sorted(h.score for h in hits) == pytest.approx(sorted(s for _, s in expected), abs=1e-12)
        )
        metadata = {name: about for name, _, about in items}
        assert all(hit.metadata == metadata[hit.id] for hit in hits)


def test_same_results_as_the_evaluator(tmp_path):
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


@pytest.mark.parametrize(("metric", "threshold"), [("cosine", 1.0), ("euclidean", 0.0)])
def test_the_highest_threshold_leaves_out_copies(metric, threshold):
    """The cosine of a vector with itself may be rounded to less than 1."""
    vectors = np.random.default_rng(0).normal(size=(200, 17)).astype(np.float32)
    vectors[7] = 0  # its cosine with every vector is 0
    copies = np.concatenate([vectors, vectors * 3 if metric == "cosine" else vectors])
    assert results.first_distinct(copies, metric, threshold, 400)[:200] == list(range(200))
    assert set(results.first_distinct(copies, metric, threshold, 400)) <= {*range(200), 207}


@pytest.mark.parametrize("block", [1, 2, 3, 256])
def test_first_distinct_for_any_block_size(monkeypatch, block):
    monkeypatch.setattr(results, "DISTINCT_BLOCK", block)
    vectors = np.random.default_rng(0).integers(-2, 3, (40, 2)).astype(np.float32)
    for k in (1, 5, 40):
        expected = []
        for place, vector in enumerate(vectors):
            apart = all(score(vector, vectors[other], "euclidean") < -1.5 for other in expected)
            expected += [place] if apart and len(expected) < k else []
        assert results.first_distinct(vectors, "euclidean", -1.5, k) == expected
    assert results.first_distinct(vectors[:0], "euclidean", -1.5, 3) == []


def test_views_are_averaged(tmp_path):
    index = Index.create(tmp_path / "i", dim=2, metric="cosine")
    index.add(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]), ["x", "y", "xy"])
    # Without scaling to unit length the longer view would win.
    assert index.search(torch.tensor([[[9.0, 0.0], [0.0, 1.0]]]))[0][0].id == "xy"
    dot = Index.create(tmp_path / "d", dim=2, metric="dot")
    dot.add(torch.eye(2), ["x", "y"])
    assert [(h.id, h.score) for h in dot.search(torch.tensor([[[9.0, 0.0], [0.0, 1.0]]]))[0]] == [
        ("x", 4.5),
        ("y", 0.5),
    ]


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_vectors_of_every_float_type(tmp_path, kind):
    index = Index.create(tmp_path / "i", dim=2)
    index.add(torch.eye(2, dtype=kind), ["a", "b"])
    assert [(hit.id, hit.score) for hit in index.search(torch.tensor([1, 0], dtype=kind), 1)[0]] == [("a", 0.0)]
    views = torch.tensor([[[2, 0], [0, 0]]], dtype=kind)
    assert [(hit.id, hit.score) for hit in index.search(views, 1)[0]] == [("a", 0.0)]


def test_views_in_an_array_with_negative_strides(tmp_path):
    index = Index.create(tmp_path / "i", dim=2)
    index.add(torch.eye(2), ["a", "b"])
    views = np.eye(2, dtype=np.float32)[:, None][::-1]
    assert [hits[0].id for hits in index.search(views, 1)] == ["b", "a"]
    with pytest.raises(TypeError, match=r"must be floating point, got torch\.int64"):
        index.search(torch.zeros(1, 2, 2, dtype=torch.int64))


def test_a_deleted_id_can_be_added_again(tmp_path):
    index = Index.create(tmp_path / "i", dim=1)
    index.add(torch.tensor([[1.0], [2.0]]), ["a", "b"])
    index.delete("a")
    index.add(torch.tensor([[5.0]]), ["a"])
    assert index.vectors(["a", "b"]).tolist() == [[5.0], [2.0]]
    assert [(hit.id, hit.score) for hit in index.search(torch.tensor([5.0]))[0]] == [("a", 0.0), ("b", -3.0)]


def test_ids_may_be_integers_and_single(tmp_path):
    index = Index.create(tmp_path / "i", dim=1)
    index.add(torch.tensor([[1.0], [2.0], [3.0]]), [10, 20, "north"], thumbnails=[b"p", b"", b""])
    assert index.vectors("north").tolist() == index.vectors(["north"]).tolist() == [[3.0]]
    assert index.vectors(20).tolist() == index.vectors([20]).tolist() == [[2.0]]
    assert index.thumbnail(10) == b"p"
    index.add(torch.tensor([4.0]), "south")
    index.delete(torch.tensor(10))
    assert index.known([10, np.int64(20), "south", "\udcff"]) == {"20", "south"}
    assert index.known([str(number) for number in range(100)]) == {"20"}
    for wrong in ([None], [1.5], [b"x"], b"x"):
        with pytest.raises(TypeError, match=r"the id .* is a .*; ids are text or integers"):
            index.add(torch.zeros(1, 1), wrong)


def test_wrong_inputs_add_nothing(tmp_path):
    index = Index.create(tmp_path / "i", dim=2)
    index.add(torch.eye(2), ["a", "b"])
    with pytest.raises(ValueError, match="'a' would exist twice"):
        index.add(torch.eye(2), ["c", "a"])
    with pytest.raises(ValueError, match="'c' would exist twice"):
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
        index.add(torch.zeros(1, 2), ["c"], ["label"])
    for about in ({"label": "bee"}, {"label": "bee", "year": 2011}):
        with pytest.raises(TypeError, match="metadata is one mapping; give a list of them, one for each vector"):
            index.add(torch.zeros(1, 2), ["c"], about)
    with pytest.raises(ValueError, match="key 'id'"):
        index.add(torch.zeros(1, 2), ["c"], [{"id": 3}])
    for thumbnail, kind in (("text", "str"), (None, "NoneType"), (memoryview(np.arange(3)), "memoryview")):
        with pytest.raises(TypeError, match=f"the thumbnail of 'd' is a {kind}; give the bytes"):
            index.add(torch.eye(2), ["c", "d"], thumbnails=[b"", thumbnail])
    with pytest.raises(TypeError, match="vectors need ids"):
        index.add(torch.eye(2))
    with pytest.raises(ValueError, match="has no id 'z'"):
        index.delete(["a", "z"])
    for query in ("photo.jpg", [0.0, 1.0]):
        with pytest.raises(TypeError, match="holds plain vectors and has no model; give vectors, a tensor or an array"):
            index.search(query)
    assert len(Index.open(tmp_path / "i")) == 2


@pytest.fixture
def images(tmp_path):
    colours = {"red.png": (200, 30, 30), "green.png": (30, 200, 30), "blue.jpg": (30, 30, 200)}
    for number, (name, colour) in enumerate(colours.items()):
        image = Image.new("RGB", (60, 40), colour)
        image.paste((255, 255, 255), (5, 5, 15 + 10 * number, 35))
        image.save(tmp_path / name)
    return [str(tmp_path / name) for name in colours]


def test_images(tmp_path, embedder, images):
    index = Index.create(tmp_path / "i", embedder=embedder)
    assert index.metric == "dot"
    assert list(index.search([])) == []
    index.add([])
    index.add(images, metadata=[{"label": Path(path).stem} for path in images])
    again = Index.open(tmp_path / "i")  # the model is loaded from the folder
    hits = again.search(images[1], k=2)[0]
    assert hits[0].id == images[1]
    assert hits[0].label == "green"
    assert hits[0].score == pytest.approx(1, abs=1e-5)
    assert np.allclose(again.vectors(images), embedder.embed(images), atol=1e-6)
    small = Image.open(io.BytesIO(again.thumbnail(images[0])))
    assert small.format == "WEBP"
    modes = {path.name: path.stat().st_mode for path in (tmp_path / "i").rglob("*") if path.is_file()}
    assert len(set(modes.values())) == 1, modes  # all files have the same permissions
    with pytest.raises(ValueError, match="cannot be read"):
        index.add([images[0], __file__], ids=["x", "y"])
    for nameless in (Image.new("RGB", (8, 8)), Path(images[0]).read_bytes()):
        with pytest.raises(TypeError, match="images that are not files have no names; give ids=, one for each"):
            index.add([nameless])
    assert len(index) == 3


def test_another_model_is_refused(tmp_path, embedder, images):
    index = Index.create(tmp_path / "i", embedder=embedder)
    torch.manual_seed(1)
    other = models.create("convnet", dim=8)
    with pytest.raises(ValueError, match=f"made by the model {embedder.fingerprint()[:12]}, not by") as caught:
        Index.open(tmp_path / "i", embedder=other)
    assert "\n" not in str(caught.value)
    other.save(tmp_path / "i" / "model")
    with pytest.raises(ValueError, match="made by the model"):
        Index.open(tmp_path / "i").search(images[0])
    plain = Index.create(tmp_path / "p", dim=8)
    with pytest.raises(ValueError, match="from plain vectors"):
        plain.check_model(embedder)
    assert index.embedder is embedder


@pytest.mark.parametrize("metric", ["euclidean", "cosine", "dot"])
def test_norms_of_known_vectors_are_not_computed_again(tmp_path, monkeypatch, metric):
    generator = torch.Generator().manual_seed(0)
    vectors, queries = torch.randn(50, 4, generator=generator), torch.randn(5, 4, generator=generator)
    index = Index.create(tmp_path / "i", dim=4, metric=metric)
    index.add(vectors[:30], range(30))
    reader = Index.open(tmp_path / "i")
    read, blocks = [0], evaluation.Vectors._blocks

    def counted(members):
        for block in blocks(members):
            read[0] += len(block) if members.name == "the index" else 0
            yield block

    def search(index):
        read[0] = 0
        return index.search(queries, 50), read[0]

    monkeypatch.setattr(evaluation.Vectors, "_blocks", counted)
    assert [search(index)[1], search(index)[1], search(reader)[1]] == [30, 0, 30]
    index.delete(range(7))
    assert [search(index)[1]] == [0]
    index.add(vectors[30:41], range(30, 41))
    index.add(1e3 * vectors[41:], range(41, 50))
    found, rows = search(index)
    assert rows == 20
    reader.refresh()
    again, rows = search(reader)
    assert rows == 20
    fresh, rows = search(Index.open(tmp_path / "i"))
    assert rows == 50
    for other in (found, again):
        assert np.array_equal(other.rows, fresh.rows)
        assert np.array_equal(other.scores, fresh.scores)
    shutil.rmtree(tmp_path / "i")
    Index.create(tmp_path / "i", dim=4, metric=metric).add(5 * vectors, range(50))
    reader.refresh()
    replaced, rows = search(reader)
    assert rows == 50
    assert np.array_equal(replaced.scores, search(Index.open(tmp_path / "i"))[0].scores)
