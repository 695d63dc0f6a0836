"""Approximate search compared with exact search: recall, scores, filters, deletions, later rows."""

import subprocess
import sys

import numpy as np
import pytest
import torch

from tuplet.cli.flags import flag_spelling
from tuplet.cli.index import index as index_command
from tuplet.errors import OptionError
from tuplet.evaluation import nearest
from tuplet.search import Index, exact

faiss = pytest.importorskip("faiss", reason="approximate search needs faiss")


def clustered(count, dim=16, seed=0):
    rng = np.random.default_rng(seed)
    centres = np.random.default_rng(9).normal(size=(50, dim))
    return (centres[rng.integers(0, 50, count)] + 0.4 * rng.normal(size=(count, dim))).astype(np.float32)


@pytest.fixture(scope="module", params=["euclidean", "cosine", "dot"])
def index(request, tmp_path_factory):
    index = Index.create(tmp_path_factory.mktemp("a") / "i", dim=16, metric=request.param)
    vectors = clustered(3000)
    if request.param == "dot":
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    index.add(vectors, range(3000), [{"label": "abc"[i % 3], "rare": i % 100} for i in range(3000)])
    return index


def recall(index, queries, k=10, **options):
    truth = index.search(queries, k, exact=True, **options)
    found = index.search(queries, k, **options)
    # Scores are those of exact search, up to float32.
    for scores, rows, true_scores, true_rows in zip(found.scores, found.rows, truth.scores, truth.rows, strict=True):
        known = dict(zip(true_rows.tolist(), true_scores.tolist(), strict=True))
        for row, score in zip(rows.tolist(), scores.tolist(), strict=True):
            assert known.get(row, score) == pytest.approx(score, rel=1e-5, abs=1e-5)
        assert np.all(np.diff(scores) <= 0)
    return float((found.scores >= truth.scores[:, -1:] - 1e-5).mean())


def test_a_reader_whose_build_is_gone_searches_exactly(tmp_path):
    """The file of one earlier build is kept for readers that have not loaded it yet, not of two."""
    writer = Index.create(tmp_path / "i", dim=16)
    writer.add(clustered(100), range(100))
    writer.build_approximate("hnsw", recall=0)
    reader, query = Index.open(tmp_path / "i"), clustered(1, seed=1)
    expected = reader.search(query, 5, exact=True).rows.tolist()
    for _ in range(2):
        writer.build_approximate("hnsw", recall=0)
    with pytest.warns(UserWarning, match=r"built again; searching exactly until refresh\(\)"):
        assert reader.search(query, 5).rows.tolist() == expected
    reader.refresh()
    assert len(reader.search(query, 5).rows[0]) == 5
    (tmp_path / "i" / writer.approximate.file).unlink()
    with pytest.raises(FileNotFoundError, match="build the approximate index again"):
        Index.open(tmp_path / "i").search(query, 5)


@pytest.mark.parametrize("kind", ["hnsw", "ivf_pq"])
def test_stated_recall_is_true(index, kind, capsys):
    about = index.build_approximate(kind, recall=0.9)
    assert f"recall@10 {about.recall_at_10:.3f}" in capsys.readouterr().out
    assert about.recall_at_10 >= 0.9
    again = Index.open(index.folder)
    assert again.approximate == about
    queries = clustered(200, seed=1)
    assert recall(again, queries) == pytest.approx(about.recall_at_10, abs=0.07)
    assert recall(again, queries, where={"label": ["a", "b"]}) > 0.8
    # A filter that leaves few rows is answered exactly.
    assert recall(again, queries, where={"rare": 7}) == 1.0
    assert len(list(index.folder.glob("approximate.*"))) <= 2


def test_stated_recall_holds_for_new_queries(tmp_path):
    """In 96 dimensions a graph finds its own rows far more easily than new queries."""
    drawn = np.random.default_rng(0).normal(size=(10_500, 96)).astype(np.float32)
    index = Index.create(tmp_path / "i", dim=96)
    index.add(drawn[:10_000], range(10_000))
    about = index.build_approximate("hnsw", recall=0.5)
    assert recall(index, drawn[10_000:]) == pytest.approx(about.recall_at_10, abs=0.03)


@pytest.mark.parametrize("kind", ["hnsw", "ivf_pq"])
def test_recall_with_filters_and_deletions(tmp_path, kind):
    """The nearest of the allowed rows are farther away than the nearest of all rows."""
    index = Index.create(tmp_path / "i", dim=16, metric="cosine")
    index.add(clustered(8_000), range(8_000), [{"seventh": i % 7} for i in range(8_000)])
    about = index.build_approximate(kind, recall=0.9)
    queries = clustered(300, seed=1)
    assert recall(index, queries, where={"seventh": 3}) > about.recall_at_10 - 0.015
    index.delete([i for i in range(8_000) if i % 7 > 1])
    assert recall(index, queries) > about.recall_at_10 - 0.015


def test_recall_with_many_results(tmp_path):
    """For 1,000 results among one row in seven, a graph must visit 7,000 rows."""
    index = Index.create(tmp_path / "i", dim=16, metric="dot")
    index.add(clustered(20_000), range(20_000), [{"half": i % 2, "seventh": i % 7} for i in range(20_000)])
    about = index.build_approximate("hnsw", recall=0.9)
    queries = clustered(50, seed=1)
    for k, where in (
        (800, {}),
        (300, {"half": 1}),
        (1000, {"half": 1}),
        (100, {"seventh": 3}),
        (1000, {"seventh": 3}),
    ):
        assert recall(index, queries, k, where=where) > about.recall_at_10 - 0.015, (k, where)


@pytest.mark.parametrize("kind", ["hnsw", "ivf_pq"])
def test_recall_if_the_filter_excludes_the_neighbourhood(tmp_path, kind):
    """A filter may exclude all rows around the query, as when searching for similar items of another class."""
    vectors = clustered(8_000)
    centres = np.random.default_rng(9).normal(size=(50, 16)).astype(np.float32)
    group = np.linalg.norm(vectors[:, None] - centres, axis=2).argmin(1) % 5
    index = Index.create(tmp_path / "i", dim=16)
    index.add(vectors, range(8_000), [{"group": int(each)} for each in group])
    about = index.build_approximate(kind, recall=0.9)
    for each in range(5):
        others = centres[np.arange(50) % 5 != each]
        assert recall(index, others, where={"group": each}) > about.recall_at_10 - 0.015
    # Later rows must not hide that too few candidates were allowed.
    index.add(centres[:20] + np.float32(8), range(8_000, 8_020), [{"group": 1}] * 20)
    assert recall(index, centres[::5], where={"group": 1}) > about.recall_at_10 - 0.015


def test_recall_with_one_result(tmp_path):
    """With a prime number of dimensions the codes are coarse: their first candidate is seldom the nearest."""
    drawn = np.random.default_rng(0).normal(size=(5_200, 17)).astype(np.float32)
    index = Index.create(tmp_path / "i", dim=17)
    index.add(drawn[:5_000], range(5_000))
    about = index.build_approximate("ivf_pq", recall=0.5)
    assert recall(index, drawn[5_000:], 1) > about.recall_at_10 - 0.015


def test_rows_outside_the_graph_are_found(tmp_path):
    """The filter excludes all rows of the graph and allows all later ones."""
    index = Index.create(tmp_path / "i", dim=16)
    index.add(clustered(300), range(300), [{"old": 1}] * 300)
    index.build_approximate()
    index.add(clustered(300, seed=2), range(300, 600))
    assert recall(index, clustered(5, seed=3), where={"old": None}) == 1.0


def test_later_rows_and_deletions_take_effect_at_once(tmp_path):
    index = Index.create(tmp_path / "i", dim=16)
    vectors = clustered(1000)
    index.add(vectors, range(1000))
    index.build_approximate()
    query = vectors[17]
    assert index.search(query)[0][0].id == "17"
    index.delete("17")
    assert "17" not in [hit.id for hit in index.search(query, 1000)[0]]
    index.add(query[None], ["new"])
    assert index.search(query)[0][0].id == "new"
    assert [h.id for h in index.search(query, 1000)[0]] == [h.id for h in index.search(query, 1000, exact=True)[0]]
    assert len(index.search(query, 20, distinct=-0.5)[0]) == 20


@pytest.mark.parametrize("later", [20, 2000])
def test_later_rows_alone_are_searched_exactly(tmp_path, monkeypatch, later):
    """Exact search reads the later rows only, also if some are deleted or excluded."""
    index = Index.create(tmp_path / "i", dim=16)
    index.add(clustered(1000), range(1000))
    index.build_approximate(recall=0.99)
    new = clustered(later, seed=2)
    index.add(new, range(1000, 1000 + later), [{"label": "few" if i < 5 else "many"} for i in range(later)])
    index.delete("1001")
    queries, truth = clustered(30, seed=3), index.search(clustered(30, seed=3), exact=True)
    read = []
    monkeypatch.setattr(
        exact, "nearest", lambda q, gallery, *a, **o: read.append(gallery) or nearest(q, gallery, *a, **o)
    )
    found = index.search(queries)
    assert [getattr(gallery, "count", None) for gallery in read] == [later]
    assert (found.scores >= truth.scores[:, -1:] - 1e-5).mean() > 0.97
    assert "1000" in [hit.id for hit in index.search(new[0])[0]]
    assert "1001" not in [hit.id for hit in index.search(new[1])[0]]


def test_low_recall_is_refused(tmp_path):
    index = Index.create(tmp_path / "i", dim=64)
    index.add(torch.randn(2000, 64, generator=torch.Generator().manual_seed(0)), range(2000))
    with pytest.raises(ValueError, match=r"reaches a recall@10 of 0\.\d+ .* below the 1.1 asked for; choose 'hnsw'"):
        index.build_approximate("ivf_pq", recall=1.1)
    assert index.approximate is None
    assert not list(index.folder.glob("approximate.*"))
    with pytest.raises(ValueError, match="kind must be one of 'hnsw', 'ivf_pq'"):
        index.build_approximate("annoy")


def test_the_recall_named_in_the_error_is_reached(tmp_path):
    """The recall is 0.997 here; the error must not round it up."""
    index = Index.create(tmp_path / "i", dim=64)
    index.add(torch.randn(300, 64, generator=torch.Generator().manual_seed(6)), range(300))
    with pytest.raises(OptionError, match=r"recall=0\.99, or search exactly") as refused:
        index.build_approximate("ivf_pq", recall=1.0)
    assert "accept it with --recall 0.99" in refused.value.spelled(flag_spelling(index_command))
    assert index.build_approximate("ivf_pq", recall=0.99).recall_at_10 > 0.99


@pytest.mark.parametrize(("kind", "fewest"), [("hnsw", 11), ("ivf_pq", 16)])
def test_smallest_index(tmp_path, kind, fewest):
    index = Index.create(tmp_path / "i", dim=7)
    index.add(clustered(fewest - 1, dim=7), range(fewest - 1))
    sentence = f"the index holds {fewest - 1} vectors, and {kind} needs {fewest}; search exactly"
    with pytest.raises(ValueError, match=sentence):
        index.build_approximate(kind, recall=0.5)
    index.add(clustered(1, dim=7), ["last"])
    index.build_approximate(kind, recall=0.0)
    assert len(index.search(clustered(1, dim=7, seed=1), fewest)[0]) == fewest


def test_a_reader_keeps_the_previous_file(tmp_path):
    index = Index.create(tmp_path / "i", dim=16)
    index.add(clustered(200), range(200))
    index.build_approximate()
    reader = Index.open(tmp_path / "i")
    index.build_approximate()
    assert reader.search(clustered(1))[0]


def test_damaged_file(tmp_path):
    index = Index.create(tmp_path / "i", dim=16)
    index.add(clustered(200), range(200))
    path = index.folder / index.build_approximate().file
    whole = path.read_bytes()
    for kept in (0, 10, len(whole) // 2, len(whole) - 100):
        path.write_bytes(whole[:kept])
        again = Index.open(tmp_path / "i")
        with pytest.raises(
            ValueError, match=rf"{path.name} has {kept:,} bytes of {len(whole):,}; call build_approximate again"
        ):
            again.search(clustered(1))
        assert again.search(clustered(1), exact=True)[0]
    again.build_approximate()
    assert again.search(clustered(1))[0]


def test_exact_search_works_without_faiss(tmp_path, monkeypatch):
    index = Index.create(tmp_path / "i", dim=16)
    index.add(clustered(100), range(100))
    index.build_approximate()
    monkeypatch.setitem(__import__("sys").modules, "faiss", None)
    again = Index.open(tmp_path / "i")
    assert again.search(clustered(1), exact=True)[0]
    with pytest.raises(ImportError, match=r"tuplet\[search\]"):
        again.search(clustered(1))


def test_search_with_faiss_contrib_torch_utils(tmp_path):
    """faiss.contrib.torch_utils, which other libraries import, replaces `search` by one without parameters."""
    script = f"""
import faiss.contrib.torch_utils, numpy as np
from tuplet import search
vectors = np.random.default_rng(0).normal(size=(400, 8)).astype("float32")
index = search.create({str(tmp_path / "i")!r}, dim=8, metric="euclidean")
index.add(vectors, ids=[str(i) for i in range(400)])
index.build_approximate("hnsw")
assert [hits[0].id for hits in index.search(vectors[:5], k=1)] == ["0", "1", "2", "3", "4"]
"""
    subprocess.run([sys.executable, "-c", script], check=True, capture_output=True)


@pytest.mark.parametrize("kind", ["hnsw", "ivf_pq"])
@pytest.mark.parametrize("size", [1e-25, 1e25])
def test_cosine_of_very_small_and_large_vectors(tmp_path, kind, size):
    index = Index.create(tmp_path / "i", dim=16, metric="cosine")
    vectors = clustered(1000) * np.float32(size)
    vectors[7] = 0
    index.add(vectors, range(1000))
    about = index.build_approximate(kind, recall=0.8)
    queries = clustered(50, seed=1) * np.float32(size)
    assert recall(index, queries) == pytest.approx(about.recall_at_10, abs=0.1)
    assert index.search(queries[0], 1)[0][0].score > 0.5


def test_recall_is_measured_with_exact_scores(tmp_path):
    """faiss's squared distances of such vectors are all 0, so its own scores would state a recall of 1."""
    index = Index.create(tmp_path / "i", dim=16)
    index.add(clustered(300) * np.float32(1e-25), range(300))
    with pytest.raises(ValueError, match=r"reaches a recall@10 of 0\.\d+"):
        index.build_approximate("hnsw")


@pytest.mark.parametrize("kind", ["hnsw", "ivf_pq"])
@pytest.mark.parametrize("metric", ["euclidean", "dot"])
def test_vectors_too_long_for_float32_are_searched_exactly(tmp_path, kind, metric):
    """faiss would abort the process on infinite squares."""
    index = Index.create(tmp_path / "i", dim=16, metric=metric)
    index.add(clustered(1000), range(1000))
    index.build_approximate(kind, recall=0.8)
    queries = clustered(5, seed=1)[1:] * np.float32(5e37)  # the first one is short enough
    assert index.search(queries).rows.tolist() == index.search(queries, exact=True).rows.tolist()
    index.add(clustered(2, seed=2) * np.float32(1e25), ["long", "longer"])
    with pytest.raises(ValueError, match=r"longest vector has a length of \d.*e\+25, .*; scale .*, or search exactly"):
        index.build_approximate(kind)


def test_a_search_uses_one_state(tmp_path, monkeypatch):
    """A running search is not affected if another thread loads a state with an approximate index."""
    writer = Index.create(tmp_path / "i", dim=16)
    writer.add(clustered(50), range(50))
    reader = Index.open(tmp_path / "i")
    writer.add(clustered(50, seed=1), range(50, 100))
    writer.build_approximate()
    allowed = reader._columns.allowed

    def later(*arguments):
        reader.refresh()
        return allowed(*arguments)

    monkeypatch.setattr(reader._columns, "allowed", later)
    query = clustered(50, seed=1)[0]
    assert {int(hit.id) for hit in reader.search(query, 50)[0]} == set(range(50))
    assert reader.search(query, 1)[0][0].id == "50"


def test_deleted_rows_are_not_built(tmp_path):
    index = Index.create(tmp_path / "i", dim=16)
    vectors = clustered(1000)
    index.add(vectors, range(1000))
    index.build_approximate()
    whole = (index.folder / index.approximate.file).stat().st_size
    index.delete(range(500))
    index.build_approximate()
    assert (index.folder / index.approximate.file).stat().st_size < 0.6 * whole
    assert recall(index, vectors[:100]) > 0.9
    assert all(int(hit.id) >= 500 for hits in index.search(vectors[:100]) for hit in hits)


def test_failed_and_killed_builds_leave_no_file(tmp_path, monkeypatch):
    index = Index.create(tmp_path / "i", dim=16)
    index.add(clustered(100), range(100))

    def full(built, path):
        with open(path, "wb") as file:
            file.write(b"half of it")
        raise RuntimeError("Error in faiss: write error: No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr(faiss, "write_index", full)
        with pytest.raises(OSError, match=r"faiss could not be written \(.*No space left on device\); make room"):
            index.build_approximate()
    assert not list(index.folder.glob("approximate.*"))
    (index.folder / "approximate.12345678.faiss.part").touch()
    about = index.build_approximate()
    assert [path.name for path in index.folder.glob("approximate.*")] == [about.file]
