"""The k nearest against sorted lists: order, ties, copies, blocks, spare candidates, mapped files."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import evaluation_oracles as oracle
from tuplet import evaluation as ev
from tuplet.evaluation import ranks, scores, topk


def literal(queries, gallery, k, metric, labels=None):
    """Indices by (score down, right label last where labels are given, index up)."""
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
def test_nearest_is_the_head_of_the_sorted_list(n, m, d, k, metric, grid, own, tied_labels, seed):
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


def test_copies_keep_the_order_of_their_places_in_any_tile(monkeypatch):
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(30, 65, generator=generator)
    gallery = base.repeat(40, 1)[torch.randperm(1200, generator=generator)]
    queries = base + 0.01 * torch.randn(30, 65, generator=generator)
    expected = ev.nearest(queries, gallery, k=50)
    for row, query in zip(expected.indices, base, strict=True):
        copies = (gallery == query).all(1).nonzero()[:, 0]
        assert torch.equal(row[:40], copies)
    monkeypatch.setattr(ranks, "TILE_ENTRIES", {"cpu": 301, "cuda": 1})
    monkeypatch.setattr(ranks, "TILE_QUERIES", {"cpu": 7, "cuda": 1})
    again = ev.nearest(queries, gallery, k=50)
    assert torch.equal(again.indices, expected.indices)
    assert torch.equal(again.scores, expected.scores)


@pytest.mark.parametrize("metric", scores.METRICS)
@pytest.mark.parametrize("labelled", [False, True])
def test_ties_in_hundreds_need_one_more_look_at_the_gallery(monkeypatch, metric, labelled):
    """Copies of a query among others, in tiles small enough that what is at hand is sorted out on the way."""
    monkeypatch.setattr(ranks, "TILE_ENTRIES", {"cpu": 512, "cuda": 1})
    monkeypatch.setattr(topk, "TILE_ENTRIES", {"cpu": 512, "cuda": 1})
    generator = torch.Generator().manual_seed(4)
    gallery = torch.nn.functional.normalize(torch.randn(3000, 12, generator=generator), dim=1)
    gallery[5::4] = gallery[2]
    queries, labels = gallery[5:21:4].clone(), torch.randint(0, 2, (3000,), generator=generator)
    looked, table = 0, scores.Scores.table

    def counted(self, block, columns):
        nonlocal looked
        found = table(self, block, columns)
        looked += found.numel()
        return found

    monkeypatch.setattr(scores.Scores, "table", counted)
    ties = (labels[5:21:4], labels) if labelled else None
    found = ev.nearest(queries, gallery, 30, metric=metric, wrong_first=ties)
    assert looked < 2.1 * len(queries) * len(gallery)
    assert found.indices.tolist() == literal(queries.double(), gallery.double(), 30, metric, ties)


def test_order_is_right_where_float32_tables_cannot_tell():
    """All members within 1e-4 of each other and far from the origin: a float32 product sees noise alone."""
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
def test_sizes_that_float32_products_cannot_hold_change_nothing(metric, scale, count):
    x = torch.randn(count, 16, generator=torch.Generator().manual_seed(3)).double()
    assert torch.equal(
        ev.nearest((x * scale).float(), k=5, metric=metric).indices,
        ev.nearest((x * scale).float().double(), k=5, metric=metric).indices,
    )


def test_overflow_does_not_bring_the_query_back():
    x = torch.tensor([[1e25], [-1e25], [-1e25]])
    assert ev.nearest(x, k=2, metric="dot").indices.tolist() == [[1, 2], [2, 0], [1, 0]]


def test_low_precision_products_elsewhere_change_nothing():
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


def test_bad_k_labels_and_mixed_devices_get_one_sentence():
    x = torch.eye(3)
    with pytest.raises(ValueError, match="k must be a positive integer, got 0"):
        ev.nearest(x, k=0)
    with pytest.raises(ValueError, match="queries are on cpu, gallery on meta; choose one with device="):
        scores.Scores(ev.Vectors(x, "queries"), _pretend_on_meta(x), "dot")
    with pytest.raises(ValueError, match=r"labels of the gallery must have shape \(3,\)"):
        ev.nearest(x, x, wrong_first=([0, 1, 2], [0, 1]))
    with pytest.raises(ValueError, match="embeddings are prepared for cpu, got device='meta'"):
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
def test_among_is_a_search_of_those_members_alone(m, k, metric, share, tile, seed):
    rng = np.random.default_rng(seed)
    queries, gallery = (torch.from_numpy(rng.integers(-1, 2, (s, 3)).astype(np.float32)) for s in (5, m))
    among = torch.from_numpy(rng.random(m) < share)
    members = among.nonzero()[:, 0]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(ranks.TILE_ENTRIES, "cpu", tile)
        found = ev.nearest(queries, gallery, k, metric=metric, among=among)
    if not len(members):
        assert found.indices.shape == (5, 0)
        return
    alone = ev.nearest(queries, gallery[members], k, metric=metric)
    assert torch.equal(found.indices, members[alone.indices])
    assert torch.equal(found.scores, alone.scores)
    assert torch.equal(ev.nearest(queries, gallery, k, metric=metric, among=among.tolist()).indices, found.indices)


def test_among_that_does_not_fit_is_refused():
    x = torch.eye(3)
    with pytest.raises(ValueError, match="among must be 3 booleans"):
        ev.nearest(x, x, among=torch.ones(2, dtype=torch.bool))
    with pytest.raises(ValueError, match="give gallery="):
        ev.nearest(x, among=torch.ones(3, dtype=torch.bool))


@pytest.mark.parametrize("order", ["random", "nearer and nearer", "one row in many"])
def test_tiles_that_hold_few_better_members_are_looked_at_in_groups(monkeypatch, order):
    """Many tiles: none better, all better, and better ones for a single query, whose padding must not be found."""
    monkeypatch.setattr(ranks, "TILE_ENTRIES", {"cpu": 20 * 640, "cuda": 1})
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
def test_a_query_alone_finds_what_it_finds_among_others(metric, lengths, kind):
    """Whichever way the table is made: for one query or several, from members of ordinary lengths and of others."""
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
        exact = scores.direct(query.double().expand(600, -1), gallery.double(), metric)
        assert torch.equal(alone.scores[0], scores.similarity(exact, metric).sort(descending=True).values[:20])
