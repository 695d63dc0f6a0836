"""Retrieval metrics against literal loops: values, ties, copies, galleries, block sizes and dtypes."""

import math
import warnings
from contextlib import contextmanager

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import evaluation_oracles as oracle
from tuplet import evaluation as ev
from tuplet.evaluation import positives, ranking, scores, top_ranks

NAMES = ("recall_at_1", "recall_at_3", "mean_average_precision", "map_at_r", "r_precision", "mean_reciprocal_rank")
FUNCTIONS = {
    "mean_average_precision": ev.mean_average_precision,
    "map_at_r": ev.map_at_r,
    "r_precision": ev.r_precision,
    "mean_reciprocal_rank": ev.mean_reciprocal_rank,
}


@st.composite
def problems(draw, most=9, kinds=("grid", "normal", "few")):
    """Draw queries, labels and perhaps a gallery: normal vectors, grids with many ties, or copies of two vectors."""
    n, m, d = draw(st.integers(1, most)), draw(st.integers(1, most)), draw(st.integers(1, 5))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    kind = draw(st.sampled_from(kinds))
    total = n + m
    if kind == "grid":
        x = rng.integers(-1, 2, (total, d)).astype(np.float64)
    elif kind == "normal":
        x = rng.normal(size=(total, d))
    else:
        x = rng.normal(size=(2, d))[rng.integers(0, 2, total)]
    x = torch.from_numpy(x).to(draw(st.sampled_from([torch.float64, torch.float32])))
    pool = draw(st.sampled_from([[0, 1], [5], list(range(20)), [-(2**62), 2**62, 2**62 + 1]]))
    y = torch.tensor([draw(st.sampled_from(pool)) for _ in range(total)])
    if draw(st.booleans()):
        return x[:n], y[:n], x[n:], y[n:]
    return x[:n], y[:n], None, None


@pytest.mark.parametrize("metric", scores.METRICS)
@pytest.mark.parametrize("ties", ["pessimistic", "optimistic"])
@given(problem=problems())
def test_every_metric_equals_the_literal_loop(problem, metric, ties):
    x, y, g, gl = problem
    values, positives = ev.per_query(x, y, metrics=NAMES, gallery=g, gallery_labels=gl, metric=metric, ties=ties)
    for name in NAMES:
        expected = oracle.per_query(x, y, g, gl, metric, ties, name)
        assert values[name].tolist() == pytest.approx(expected, abs=1e-12), name
    members = y if g is None else gl
    assert positives.tolist() == [int((members == label).sum()) - (g is None) for label in y]


@given(problem=problems(most=6, kinds=("grid", "few")))
def test_expected_ties_are_the_mean_over_all_orders(problem):
    x, y, g, gl = problem
    values, _ = ev.per_query(x, y, metrics=NAMES, gallery=g, gallery_labels=gl, ties="expected")
    for name in NAMES:
        expected = oracle.per_query(x, y, g, gl, "euclidean", "expected", name)
        assert values[name].tolist() == pytest.approx(expected, abs=1e-9), name


@given(problem=problems())
def test_ranking_only_the_nearest_positive_gives_the_same_values(problem):
    x, y, g, gl = problem
    for ties in ("pessimistic", "optimistic", "expected"):
        options = {"gallery": g, "gallery_labels": gl, "ties": ties}
        every, _ = ev.per_query(x, y, metrics=NAMES, **options)
        first, _ = ev.per_query(x, y, metrics=("recall_at_1", "recall_at_3", "mean_reciprocal_rank"), **options)
        for name in first:
            assert torch.equal(every[name], first[name])


TOP_METRICS = ("recall_at_1", "recall_at_3", "map_at_r", "r_precision")


@contextmanager
def only_top_ranks(wanted):
    """Force ranking within the first ranks (True) or among all negatives (False)."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(top_ranks, "MIN_GALLERY_RATIO", 0.0 if wanted else math.inf)
        patch.setattr(top_ranks, "EXACT_COST", 1e-9)
        if wanted:
            patch.setattr(ranking, "_rank_block", lambda *_: pytest.fail("ranked among all negatives"))
        yield


@pytest.mark.parametrize("metric", scores.METRICS)
@pytest.mark.parametrize("names", [TOP_METRICS, TOP_METRICS[:2], TOP_METRICS[3:]])
@given(problem=problems(), ties=st.sampled_from(["pessimistic", "optimistic", "expected"]))
def test_top_ranks_equal_those_of_the_full_list(problem, names, ties, metric):
    x, y, g, gl = problem
    options = {"metrics": names, "gallery": g, "gallery_labels": gl, "metric": metric, "ties": ties}
    with only_top_ranks(False):
        expected, _ = ev.per_query(x, y, **options)
    with only_top_ranks(True):
        values, _ = ev.per_query(x, y, **options)
    for name in names:
        assert torch.equal(values[name], expected[name]), name


@pytest.mark.parametrize("entries", [8000, 20_000, 1 << 21])
@pytest.mark.parametrize("offset", [0.0, 3.0])
def test_top_ranks_equal_those_of_the_full_list_for_any_tile_size(monkeypatch, entries, offset):
    """With copies, and with near copies whose order float32 products cannot tell."""
    generator = torch.Generator().manual_seed(12)
    y = torch.randint(0, 40, (600,), generator=generator)
    x = torch.randn(40, 24, generator=generator)[y] + torch.randn(600, 24, generator=generator)
    x[200:250] = x[:50]
    x[300:350] = x[:50] * (1 + 1e-6)
    x += offset
    monkeypatch.setitem(scores.TILE_ENTRIES, "cpu", entries)
    monkeypatch.setitem(scores.TILE_QUERIES, "cpu", 50)
    with only_top_ranks(False):
        expected, _ = ev.per_query(x, y, metrics=TOP_METRICS)
    with only_top_ranks(True):
        values, _ = ev.per_query(x, y, metrics=TOP_METRICS)
    for name in TOP_METRICS:
        assert torch.equal(values[name], expected[name]), name


def test_full_lists_are_ranked_only_if_float32_cannot_decide(monkeypatch):
    blocks = []
    monkeypatch.setattr(ranking, "_rank_block", lambda *args, rank=ranking._rank_block: blocks.append(1) or rank(*args))
    generator = torch.Generator().manual_seed(13)
    y = torch.randint(0, 100, (1000,), generator=generator)
    x = torch.randn(100, 32, generator=generator)[y] + torch.randn(1000, 32, generator=generator)
    ev.per_query(x, y, metrics=TOP_METRICS)
    assert not blocks
    for hard in (x + 1e4, torch.full_like(x, 0.3), x.sign()[:, :3]):  # far from 0, collapsed, few different vectors
        ev.per_query(hard, y, metrics=TOP_METRICS)
        assert blocks
        blocks.clear()


@pytest.mark.parametrize("entries", [5, 64, 1000])
@pytest.mark.parametrize("few", [0, 4])
def test_tile_size_and_method_of_counting_change_nothing(monkeypatch, entries, few):
    generator = torch.Generator().manual_seed(1)
    x = torch.randn(83, 6, generator=generator)
    x[40:60] = x[:20]
    y = torch.randint(0, 9, (83,), generator=generator)
    expected, _ = ev.per_query(x, y, metrics=NAMES)
    monkeypatch.setitem(scores.TILE_ENTRIES, "cpu", entries)
    monkeypatch.setitem(scores.TILE_QUERIES, "cpu", 13)
    monkeypatch.setattr(positives, "FEW_THRESHOLDS", few)
    values, _ = ev.per_query(x, y, metrics=NAMES)
    for name in NAMES:
        assert values[name].tolist() == pytest.approx(expected[name].tolist(), abs=1e-14), name


@pytest.mark.parametrize("queries_per_class", [1, 5, 40])
def test_no_table_is_larger_than_a_tile(monkeypatch, queries_per_class):
    """Also if each query has a large class of its own, so that a block has more positives than queries."""
    sizes = []

    def spy(self, block, columns, table=scores.ScoreTables.table):
        result = table(self, block, columns)
        sizes.append(result.numel())
        return result

    monkeypatch.setattr(scores.ScoreTables, "table", spy)
    monkeypatch.setitem(scores.TILE_ENTRIES, "cpu", 2000)
    labels, gallery_labels = torch.arange(10).repeat(queries_per_class), torch.arange(10).repeat(40)
    generator = torch.Generator().manual_seed(0)
    x, g = (torch.randn(len(y), 3, generator=generator) for y in (labels, gallery_labels))
    ev.map_at_r(x, labels, gallery=g, gallery_labels=gallery_labels)
    assert max(sizes) <= 2000


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("metric", scores.METRICS)
def test_copies_tie_at_any_position(metric, dtype):
    """A copy of the positive with a wrong label comes before it, although products round differently there."""
    generator = torch.Generator().manual_seed(2)
    base = torch.randn(300, 77, generator=generator).to(dtype)
    queries = base + 0.1 * torch.randn(300, 77, generator=generator).to(dtype)
    away = -torch.ones(4000, 77, dtype=dtype)
    gallery = torch.cat([base, away, base[torch.randperm(300, generator=generator)]])
    labels = torch.arange(300)
    wrong = torch.full((4300,), -1)
    options = {"gallery": gallery, "gallery_labels": torch.cat([labels, wrong]), "metric": metric}
    assert ev.recall_at_k(queries, labels, ks=(1, 2), **options) == {1: 0.0, 2: 1.0}
    assert ev.recall_at_k(queries, labels, ks=(1,), ties="optimistic", **options) == {1: 1.0}
    assert ev.recall_at_k(queries, labels, ks=(1,), ties="expected", **options)[1] == pytest.approx(0.5)


@pytest.mark.parametrize("noise", [0.0, 1e-7])
def test_the_lists_of_a_collapsed_model_are_exact(monkeypatch, noise):
    """Close pairs outnumber the scores, so that each score is computed once; the classes differ in size."""
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn(1, 24, generator=generator).repeat(90, 1), torch.arange(90) ** 2 % 11
    x += noise * torch.randn(x.shape, generator=generator)
    counted, exact = [], positives.NegativeCounter._exact
    monkeypatch.setattr(positives.NegativeCounter, "_exact", lambda *given: counted.append(len(given)) or exact(*given))
    values, _ = ev.per_query(x, y, metrics=NAMES)
    assert counted
    for name in NAMES:
        expected = oracle.per_query(x.tolist(), y.tolist(), None, None, "euclidean", "pessimistic", name)
        assert values[name].tolist() == pytest.approx(expected, abs=1e-12), name


def test_near_copies_are_ordered_exactly():
    generator = torch.Generator().manual_seed(3)
    x = torch.nn.functional.normalize(torch.randn(200, 128, generator=generator), dim=1)
    direction = torch.nn.functional.normalize(torch.randn(200, 128, generator=generator), dim=1)
    gallery = torch.cat([x + 1e-6 * direction, x + 2e-6 * direction])
    labels = torch.arange(200)
    result = ev.recall_at_k(x, labels, (1,), gallery=gallery, gallery_labels=torch.cat([labels, labels + 1000]))
    truth = (gallery[:200].double() - x.double()).norm(dim=1) < (gallery[200:].double() - x.double()).norm(dim=1)
    assert truth.float().mean() > 0.95
    assert result[1] == truth.double().mean()


@pytest.mark.parametrize("ties", ["pessimistic", "optimistic", "expected"])
def test_collapsed_embeddings(ties):
    n, classes = 3000, 30
    y = torch.arange(n) % classes
    values, _ = ev.per_query(torch.full((n, 64), 0.3), y, metrics=NAMES, ties=ties)
    kin, others = n // classes - 1, n - n // classes
    chance = kin / (kin + others)
    expected = {"pessimistic": 0.0, "optimistic": 1.0, "expected": chance}[ties]
    assert values["recall_at_1"].mean().item() == pytest.approx(expected)
    assert values["r_precision"].mean().item() == pytest.approx(expected)


def test_half_collapsed_embeddings():
    generator = torch.Generator().manual_seed(4)
    x = torch.randn(1200, 33, generator=generator)
    x[:600] = x[0]
    y = torch.randint(0, 5, (1200,), generator=generator)
    values, _ = ev.per_query(x, y, metrics=("recall_at_1", "map_at_r"))
    sample = [0, 1, 599, 600, 1199]
    for i in sample:
        scored = oracle.scored_list(x[i].tolist(), y[i].item(), i, x.tolist(), y.tolist(), "euclidean")
        [hits] = oracle.orders(scored, "pessimistic")
        assert values["map_at_r"][i] == pytest.approx(oracle.measure(hits, "map_at_r"))
        assert values["recall_at_1"][i] == oracle.measure(hits, "recall_at_1")


@pytest.mark.parametrize("metric", scores.METRICS)
def test_binary_codes_with_many_ties(metric):
    generator = torch.Generator().manual_seed(5)
    x = torch.randint(0, 2, (60, 12), generator=generator).float() * 2 - 1
    y = torch.randint(0, 3, (60,), generator=generator)
    for name in NAMES:
        values, _ = ev.per_query(x, y, metrics=(name,), metric=metric)
        expected = oracle.per_query(x.tolist(), y.tolist(), None, None, metric, "pessimistic", name)
        assert values[name].tolist() == pytest.approx(expected)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_scored_as_the_numbers_it_holds(dtype):
    x = torch.randn(200, 16, generator=torch.Generator().manual_seed(6)).to(dtype)
    y = torch.arange(200) % 20
    assert ev.recall_at_k(x, y) == ev.recall_at_k(x.double(), y)
    assert ev.mean_average_precision(x * 100, y) == ev.mean_average_precision((x * 100).double(), y)


def test_autocast_and_gradients_change_nothing():
    x = torch.randn(300, 32, generator=torch.Generator().manual_seed(7), requires_grad=True)
    y = torch.arange(300) % 10
    expected = ev.map_at_r(x.detach(), y)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert ev.map_at_r(x, y) == expected
        assert torch.equal(ev.nearest(x, k=3).indices, ev.nearest(x.detach(), k=3).indices)


def test_the_default_device_changes_nothing(monkeypatch):
    """The device "meta" stands for a GPU on which a script creates its tensors by default."""
    monkeypatch.setitem(scores.TILE_ENTRIES, "cpu", 20 * 64)
    generator = torch.Generator().manual_seed(14)
    x, g = torch.randn(20, 3, generator=generator), torch.randn(640, 3, generator=generator)
    x[:5], y, gl = x[0], torch.arange(20) % 7, torch.arange(640) % 7
    calls = [
        lambda: ev.evaluate(x, y, gallery=g, gallery_labels=gl, ties="expected", runs=0, bootstrap=5),
        lambda: ev.map_at_r(x.repeat(40, 1), y.repeat(40)),
        lambda: ev.recall_at_k(x, y, ks=(1, 2), gallery=g, gallery_labels=gl),
        lambda: ev.recall_at_k(x.numpy(), y.tolist()),
        lambda: ev.nearest(x, g, k=2).indices.tolist(),
        lambda: ev.recognition(x, y, k=3),
        lambda: ev.identification(x, y, g[:5], gl[:5]),
        lambda: ev.clustering(x, y, runs=2),
        lambda: ev.verification(x, y, negatives=3),
    ]
    expected = [call() for call in calls]
    with torch.device("meta"):
        assert [call() for call in calls] == expected


def test_k_beyond_the_gallery_means_the_whole_gallery():
    x = torch.randn(20, 4, generator=torch.Generator().manual_seed(8))
    y = torch.arange(20) // 2
    assert ev.recall_at_k(x, y, ks=(19, 20, 10**20)) == {19: 1.0, 20: 1.0, 10**20: 1.0}


def test_queries_without_positives_are_misses_for_recall_and_left_out_elsewhere():
    x, y = torch.tensor([[0.0], [1.0], [5.0]]), [3, 3, 4]
    assert ev.recall_at_k(x, y, ks=(1,))[1] == pytest.approx(2 / 3)
    for name, function in FUNCTIONS.items():
        with pytest.warns(UserWarning, match=f"1 of 3 queries have no positive in the gallery; {name} leaves them out"):
            assert function(x, y) == 1.0


def test_no_warning_if_every_query_has_a_positive():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert ev.mean_average_precision([[0.0], [1.0]], [3, 3]) == 1.0


def test_all_singletons_have_recall_0_and_no_average_precision():
    x = torch.eye(4)
    assert ev.recall_at_k(x, range(4), ks=(1,)) == {1: 0.0}
    with pytest.raises(ValueError, match="none of the 4 queries shares its label"):
        ev.mean_average_precision(x, range(4))


def test_one_class_is_perfect():
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(9))
    assert ev.recall_at_k(x, [7] * 50) == {1: 1.0, 2: 1.0, 4: 1.0, 8: 1.0}
    assert ev.mean_average_precision(x, [7] * 50) == 1.0


def test_one_query_alone():
    assert ev.recall_at_k([[1.0, 2.0]], [0], ks=(1,)) == {1: 0.0}


def test_huge_and_tiny_numbers_keep_their_order():
    x = torch.randn(40, 8, generator=torch.Generator().manual_seed(10))
    y = torch.arange(40) % 4
    expected = ev.mean_average_precision(x, y)
    for scale in (1e-30, 1e25):
        assert ev.mean_average_precision(x * scale, y) == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_errors_name_the_row_of_a_bad_number(bad):
    x = torch.zeros(9, 3)
    x[4, 1] = x[7, 2] = bad
    with pytest.raises(ValueError, match=f"embeddings must be finite, but row 4 holds {bad}"):
        ev.recall_at_k(x, range(9))
    with pytest.raises(ValueError, match="gallery must be finite, but row 4"):
        ev.recall_at_k(torch.zeros(1, 3), [0], gallery=x, gallery_labels=range(9))


def test_vectors_too_long_for_distances_are_refused():
    """Float64 holds the squares 1e306 and 1e308, but (|q| + |g|)² only of the first."""
    long = 1e153
    x = torch.tensor([[long], [-long], [0.9 * long]], dtype=torch.float64)
    assert ev.nearest(x, k=1).indices.tolist() == [[2], [2], [0]]
    assert ev.recall_at_k(x, [0, 1, 0], ks=(1,)) == {1: pytest.approx(2 / 3)}
    assert ev.pair_scores(x[:1], x[1:2]).tolist() == [-2 * long]
    x[2] = 10 * long
    for call in (lambda: ev.nearest(x, k=1), lambda: ev.recall_at_k(x, [0, 1, 0]), lambda: ev.pair_scores(x, x)):
        with pytest.raises(ValueError, match="row 2 is too long for distances in float64"):
            call()


def test_bad_input_raises_a_clear_error():
    x, y = torch.eye(3), torch.arange(3)
    cases = [
        (ValueError, "labels must have shape \\(3,\\)", lambda: ev.recall_at_k(x, [0, 1])),
        (TypeError, "labels must be integers, got float32", lambda: ev.recall_at_k(x, y.float())),
        (TypeError, "embeddings must be floating point", lambda: ev.recall_at_k(y[:, None], y)),
        (
            ValueError,
            "embeddings must have shape \\(N, d\\).*; give one vector for each",
            lambda: ev.recall_at_k(x[0], y),
        ),
        (ValueError, "embeddings must have shape", lambda: ev.recall_at_k(x[:0], y[:0])),
        (ValueError, "each k in ks must be a positive integer, got 0", lambda: ev.recall_at_k(x, y, ks=(0,))),
        (TypeError, "ks must be a sequence of numbers, got 1; give \\(1,\\)", lambda: ev.recall_at_k(x, y, ks=1)),
        (TypeError, "ks must be a sequence of numbers, got 8", lambda: ev.evaluate(x, y, ks=8)),
        (TypeError, "recall_at_k has no option 'k'; did you mean 'ks'", lambda: ev.recall_at_k(x, y, k=5)),
        (TypeError, "map_at_r has no option 'ks'; choose one of device", lambda: ev.map_at_r(x, y, ks=(5,))),
        (ValueError, "metric must be one of 'euclidean'", lambda: ev.recall_at_k(x, y, metric="manhattan")),
        (ValueError, "ties must be one of 'pessimistic'", lambda: ev.recall_at_k(x, y, ties="none")),
        (ValueError, "gallery is given without gallery_labels", lambda: ev.recall_at_k(x, y, gallery=x)),
        (ValueError, "gallery_labels is given without gallery", lambda: ev.recall_at_k(x, y, gallery_labels=y)),
        (ValueError, "gallery is given without gallery_labels", lambda: ev.recognition(x, y, gallery=x)),
        (ValueError, "gallery_labels is given without gallery", lambda: ev.recognition(x, y, gallery_labels=y)),
        (
            ValueError,
            "gallery must have the dimension of embeddings, 3, got 2",
            lambda: ev.recall_at_k(x, y, gallery=x[:, :2], gallery_labels=y),
        ),
        (ValueError, "metrics must be .* got 'map'", lambda: ev.per_query(x, y, metrics=("map",))),
        (ValueError, "metrics must be .* got 'recall_at_0'", lambda: ev.per_query(x, y, metrics=("recall_at_0",))),
        (ValueError, "labels must fit into int64", lambda: ev.recall_at_k(x, np.array([0, 1, 2**63], dtype=np.uint64))),
    ]
    for kind, message, call in cases:
        with pytest.raises(kind, match=message):
            call()


def test_arrays_lists_and_mapped_files_equal_tensors(tmp_path):
    x = torch.randn(64, 8, generator=torch.Generator().manual_seed(11))
    y = torch.arange(64) % 7
    expected = ev.recall_at_k(x, y), ev.map_at_r(x, y)
    np.save(tmp_path / "x.npy", x.numpy())
    mapped = np.load(tmp_path / "x.npy", mmap_mode="r")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for source in (
            x.numpy(),
            x.flip(0).numpy()[::-1],
            mapped,
            x.tolist(),
            ev.Vectors(mapped),
            x.numpy().astype(">f4"),
        ):
            assert (ev.recall_at_k(source, y.tolist()), ev.map_at_r(source, y.numpy().astype(np.int16))) == expected
