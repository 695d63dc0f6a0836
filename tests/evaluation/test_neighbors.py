"""The k nearest members against sorted lists: order, ties, copies, tiles and spare candidates."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import evaluation_oracles as oracle
from tuplet import evaluation as ev
from tuplet.evaluation import scores


def literal(queries, gallery, k, metric, labels=None):
    """Sort indices by score (descending), by wrong label before right if labels are given, and by index."""
    alone = gallery is None
    members = queries if alone else gallery
    found = []
    for i, query in enumerate(queries.tolist()):
        keys = [
            (-oracle.score(query, member, metric), labels is not None and bool(labels[0][i] == labels[1][j]), j)
            for j, member in enumerate(members.tolist())
            if not (alone and i == j)
        ]
        found.append([j for _, _, j in sorted(keys)][:k])
    return found


@given(
    n=st.integers(1, 12),
    m=st.integers(1, 40),
    d=st.integers(1, 4),
    k=st.integers(1, 45),
    metric=st.sampled_from(scores.METRICS),
    grid=st.booleans(),
    own=st.booleans(),
    tied_labels=st.booleans(),
    seed=st.integers(0, 2**32),
)
def test_nearest_equals_the_start_of_the_sorted_list(n, m, d, k, metric, grid, own, tied_labels, seed):
    rng = np.random.default_rng(seed)
    draw = (lambda s: rng.integers(-1, 2, s).astype(np.float32)) if grid else lambda s: rng.normal(size=s)
    queries, gallery = torch.from_numpy(draw((n, d))), None if own else torch.from_numpy(draw((m, d)))
    size = n - 1 if own else m
    labels = (torch.from_numpy(rng.integers(0, 2, n)), torch.from_numpy(rng.integers(0, 2, n if own else m)))
    found = ev.nearest(queries, gallery, k, metric=metric, wrong_first=labels if tied_labels else None)
    assert found.indices.shape == (n, min(k, size))
    assert found.indices.tolist() == literal(queries, gallery, k, metric, labels if tied_labels else None)
    members = queries if own else gallery
    for i in range(n):
        for value, j in zip(found.scores[i].tolist(), found.indices[i].tolist(), strict=True):
            exact = oracle.score(queries[i].tolist(), members[j].tolist(), metric)
            assert value == pytest.approx(-((-exact) ** 0.5) if metric == "euclidean" else exact, rel=1e-12, abs=1e-12)


def test_copies_are_ordered_by_index_for_any_tile_size(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(30, 65, generator=generator)
    gallery = base.repeat(40, 1)[torch.randperm(1200, generator=generator)]
    queries = base + 0.01 * torch.randn(30, 65, generator=generator)
    expected = ev.nearest(queries, gallery, k=50)
    for row, query in zip(expected.indices, base, strict=True):
        copies = (gallery == query).all(1).nonzero()[:, 0]
        assert torch.equal(row[:40], copies)
    monkeypatch.setitem(scores.TILE_ENTRIES, "cpu", 301)
    monkeypatch.setitem(scores.TILE_QUERIES, "cpu", 7)
    again = ev.nearest(queries, gallery, k=50)
    assert torch.equal(again.indices, expected.indices)
    assert torch.equal(again.scores, expected.scores)


@pytest.mark.parametrize("metric", scores.METRICS)
@pytest.mark.parametrize("labelled", [False, True])
def test_hundreds_of_ties_need_only_one_more_pass(monkeypatch, metric, labelled):
    """Copies of a query in small tiles, so that the members found are reduced to the best k on the way."""
    monkeypatch.setitem(scores.TILE_ENTRIES, "cpu", 512)
    generator = torch.Generator().manual_seed(4)
    gallery = torch.nn.functional.normalize(torch.randn(3000, 12, generator=generator), dim=1)
    gallery[5::4] = gallery[2]
    queries, labels = gallery[5:21:4].clone(), torch.randint(0, 2, (3000,), generator=generator)
    entries, table = 0, scores.ScoreTables.table

    def counted(self, block, columns):
        nonlocal entries
        found = table(self, block, columns)
        entries += found.numel()
        return found

    monkeypatch.setattr(scores.ScoreTables, "table", counted)
    ties = (labels[5:21:4], labels) if labelled else None
    found = ev.nearest(queries, gallery, 30, metric=metric, wrong_first=ties)
    assert entries < 2.1 * len(queries) * len(gallery)
    assert found.indices.tolist() == literal(queries.double(), gallery.double(), 30, metric, ties)


def test_order_is_exact_where_float32_cannot_tell():
    """All members are within 1e-4 of each other and far from the origin: float32 products hold only noise."""
    generator = torch.Generator().manual_seed(1)
    centre = 3 * torch.randn(64, generator=generator)
    x = centre + 1e-4 * torch.randn(500, 64, generator=generator)
    found = ev.nearest(x, k=5)
    distances = torch.cdist(x.double(), x.double(), compute_mode="donot_use_mm_for_euclid_dist").fill_diagonal_(
        torch.inf
    )
    assert torch.equal(found.indices, distances.argsort(1)[:, :5])


@pytest.mark.parametrize("scale", [1e-43, 1e-30, 1e-21, 1e-19, 1e18, 1e25])
@pytest.mark.parametrize("metric", scores.METRICS)
@pytest.mark.parametrize("count", [6, 120])
def test_overflow_and_underflow_of_float32_products_change_nothing(metric, scale, count):
    x = torch.randn(count, 16, generator=torch.Generator().manual_seed(3)).double()
    assert torch.equal(
        ev.nearest((x * scale).float(), k=5, metric=metric).indices,
        ev.nearest((x * scale).float().double(), k=5, metric=metric).indices,
    )


def test_a_query_does_not_find_itself_after_an_overflow():
    x = torch.tensor([[1e25], [-1e25], [-1e25]])
    assert ev.nearest(x, k=2, metric="dot").indices.tolist() == [[1, 2], [2, 0], [1, 0]]


def test_global_low_precision_settings_change_nothing():
    x = torch.randn(300, 64, generator=torch.Generator().manual_seed(2))
    expected = ev.nearest(x, k=4).indices
    matmul = torch.backends.mkldnn.matmul
    before = matmul.fp32_precision
    try:
        matmul.fp32_precision = "bf16"
        assert torch.equal(ev.nearest(x, k=4).indices, expected)
        assert matmul.fp32_precision == "bf16"
    finally:
        matmul.fp32_precision = before


def test_a_function_orders_equal_members():
    match = torch.tensor([0.5, 0.25, 0.75, 0.25])
    found = ev.nearest(torch.ones(1, 2), torch.ones(4, 2), 3, wrong_first=lambda rows, columns: match[columns])
    assert found.indices.tolist() == [[1, 3, 0]]


def test_bad_k_labels_and_devices_raise_a_clear_error():
    x = torch.eye(3)
    with pytest.raises(ValueError, match="k must be a positive integer, got 0"):
        ev.nearest(x, k=0)
    with pytest.raises(ValueError, match="queries are on cpu, gallery on meta; choose one with device="):
        scores.ScoreTables(ev.Vectors(x, "queries"), _pretend_on_meta(x), "dot")
    with pytest.raises(ValueError, match=r"labels of the gallery must have shape \(3,\)"):
        ev.nearest(x, x, wrong_first=([0, 1, 2], [0, 1]))
    with pytest.raises(ValueError, match="embeddings are Vectors on cpu, got device='meta'"):
        ev.recall_at_k(ev.Vectors(x), range(3), device="meta")


def _pretend_on_meta(x):
    vectors = ev.Vectors(x, "gallery")
    vectors.device = torch.device("meta")
    return vectors


@given(
    m=st.integers(1, 40),
    k=st.integers(1, 45),
    metric=st.sampled_from(scores.METRICS),
    share=st.sampled_from([0.0, 0.1, 0.5, 1.0]),
    tile=st.sampled_from([64, 1 << 21]),
    seed=st.integers(0, 2**32),
)
def test_among_equals_a_search_of_those_members(m, k, metric, share, tile, seed):
    rng = np.random.default_rng(seed)
    queries, gallery = (torch.from_numpy(rng.integers(-1, 2, (s, 3)).astype(np.float32)) for s in (5, m))
    among = torch.from_numpy(rng.random(m) < share)
    members = among.nonzero()[:, 0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(scores.TILE_ENTRIES, "cpu", tile)
        found = ev.nearest(queries, gallery, k, metric=metric, among=among)
    if not len(members):
        assert found.indices.shape == (5, 0)
        return
    alone = ev.nearest(queries, gallery[members], k, metric=metric)
    assert torch.equal(found.indices, members[alone.indices])
    assert torch.equal(found.scores, alone.scores)
    assert torch.equal(ev.nearest(queries, gallery, k, metric=metric, among=among.tolist()).indices, found.indices)


def test_among_of_the_wrong_shape_is_refused():
    x = torch.eye(3)
    with pytest.raises(ValueError, match="among must be 3 booleans"):
        ev.nearest(x, x, among=torch.ones(2, dtype=torch.bool))
    with pytest.raises(ValueError, match="give gallery="):
        ev.nearest(x, among=torch.ones(3, dtype=torch.bool))


@pytest.mark.parametrize("order", ["random", "nearer and nearer", "one row in many"])
def test_many_tiles_are_merged_into_the_best_members(monkeypatch, order):
    """Later tiles hold no better members, only better members, or better members for a single query."""
    monkeypatch.setitem(scores.TILE_ENTRIES, "cpu", 20 * 640)
    generator = torch.Generator().manual_seed(2)
    queries, gallery = torch.randn(20, 8, generator=generator), torch.randn(6400, 8, generator=generator)
    if order == "nearer and nearer":
        gallery = gallery[torch.cdist(gallery, queries[:1])[:, 0].argsort(descending=True)]
    elif order == "one row in many":
        gallery[3000:] = queries[7] + 0.1 * gallery[3000:]
    among = torch.rand(6400, generator=generator) < 0.5
    distances = torch.cdist(queries.double(), gallery.double(), compute_mode="donot_use_mm_for_euclid_dist")
    assert torch.equal(ev.nearest(queries, gallery, k=9).indices, distances.argsort(1)[:, :9])
    hidden = distances.masked_fill(~among, torch.inf)
    assert torch.equal(ev.nearest(queries, gallery, k=9, among=among).indices, hidden.argsort(1)[:, :9])


@pytest.mark.parametrize("metric", scores.METRICS)
@pytest.mark.parametrize("lengths", [(1, 1), (1e-10, 1e10), (1e-44, 2e-44), (1e-18, 1e18)])
@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_a_single_query_finds_the_same_as_among_others(metric, lengths, kind):
    """Tables are computed differently for one query and for several, and for very short or long members."""
    generator = torch.Generator().manual_seed(0)
    gallery = torch.randn(300, 24, generator=generator, dtype=kind).repeat(2, 1)
    ends = [math.log10(length) for length in lengths]
    gallery = (gallery.double() * torch.logspace(*ends, 600, dtype=torch.float64)[:, None]).to(kind)
    gallery[7] = 0
    queries = gallery[::20] + gallery[1::20]
    several = ev.nearest(queries, gallery, 20, metric=metric)
    for place, query in enumerate(queries):
        alone = ev.nearest(query[None], gallery, 20, metric=metric)
        assert torch.equal(alone.indices[0], several.indices[place])
        assert torch.equal(alone.scores[0], several.scores[place])
        exact = scores.exact_scores(query.double().expand(600, -1), gallery.double(), metric)
        assert torch.equal(alone.scores[0], scores.similarity(exact, metric).sort(descending=True).values[:20])
