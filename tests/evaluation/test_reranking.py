"""Re-ranking against a literal version of k-reciprocal encoding."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tuplet import evaluation as ev


def reference(distances, k1, k2, weight):
    """Return the new distances of all pairs, by the steps of Zhong et al. 2017 in loops."""
    n = len(distances)
    d = distances / distances.max(1, keepdims=True)
    ranked = np.argsort(d, axis=1, kind="stable")

    def reciprocal(i, k):
        return [j for j in ranked[i, : k + 1] if i in ranked[j, : k + 1]]

    described = np.zeros((n, n))
    for i in range(n):
        near = reciprocal(i, k1)
        expanded = set(near)
        for j in near:
            theirs = reciprocal(j, round(k1 / 2))
            if len(set(theirs) & set(near)) > 2 / 3 * len(theirs):
                expanded |= set(theirs)
        columns = sorted(expanded)
        described[i, columns] = np.exp(-d[i, columns]) / np.exp(-d[i, columns]).sum()
    described = np.stack([described[ranked[i, :k2]].mean(0) for i in range(n)])
    shared = np.array([np.minimum(row, described).sum(1) for row in described])
    return (1 - weight) * (1 - shared / (2 - shared)) + weight * d


def clusters(n=120, classes=12, spread=0.9, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % classes
    centres = torch.randn(classes, 10, generator=generator, dtype=torch.float64)
    return centres[labels] + spread * torch.randn(n, 10, generator=generator, dtype=torch.float64), labels


def squared_distances(x):
    return (x[:, None] - x).square().sum(2).numpy()


@given(st.integers(1, 30), st.integers(1, 8), st.sampled_from([0.0, 0.3, 1.0]), st.integers(0, 100))
def test_equals_the_paper_where_queries_search_among_themselves(k1, k2, weight, seed):
    x, _ = clusters(n=50, seed=seed)
    found = ev.rerank(x, k=49, k1=k1, k2=k2, weight=weight)
    expected = reference(squared_distances(x), k1, k2, weight)
    np.testing.assert_allclose(-found.scores, np.take_along_axis(expected, found.indices.numpy(), 1), atol=1e-12)
    assert (found.scores.diff(dim=1) <= 0).all()
    assert all(sorted(row) == [j for j in range(50) if j != i] for i, row in enumerate(found.indices.tolist()))


@pytest.mark.parametrize("metric", ["euclidean", "cosine"])
def test_equals_the_paper_with_a_gallery(metric):
    x, _ = clusters()
    scaled = x if metric == "euclidean" else torch.nn.functional.normalize(x)
    expected = reference(squared_distances(scaled), 20, 6, 0.3)[:40, 40:]
    found = ev.rerank(x[:40], x[40:], k=80, metric=metric)
    np.testing.assert_allclose(-found.scores, np.take_along_axis(expected, found.indices.numpy(), 1), atol=1e-12)


def test_block_size_changes_nothing(monkeypatch):
    x, _ = clusters()
    expected = ev.rerank(x, k=30)
    monkeypatch.setitem(ev.reranking.TILE_ENTRIES, "cpu", 1000)
    found = ev.rerank(x, k=30)
    assert torch.equal(found.indices, expected.indices)
    torch.testing.assert_close(found.scores, expected.scores, rtol=0, atol=1e-14)


def test_only_the_nearest_k_get_a_new_order():
    x, _ = clusters()
    found, plain = ev.rerank(x, k=10), ev.nearest(x, k=10)
    assert torch.equal(found.indices.sort(1).values, plain.indices.sort(1).values)
    assert not torch.equal(found.indices, plain.indices)
    assert torch.equal(ev.rerank(x, k=10, weight=1.0).indices, plain.indices)


def literal_metrics(distances, labels, own, ks, groups=None):
    """Return Recall@K and MAP@R of tables of distances; ties count against the system."""
    recalls, precisions = {k: [] for k in ks}, []
    for i, row in enumerate(distances):
        members = [j for j in range(len(row)) if not (own and i == j)]
        if groups is not None:
            members = [j for j in members if labels[j] != labels[i] or groups[j] != groups[i]]
        hits = [labels[j] == labels[i] for j in sorted(members, key=lambda j: (row[j], labels[j] == labels[i]))]
        count = sum(hits)
        for k in ks:
            recalls[k].append(any(hits[:k]))
        if count:
            precisions.append(sum(hit * sum(hits[: n + 1]) / (n + 1) for n, hit in enumerate(hits[:count])) / count)
    return {**{f"recall_at_{k}": np.mean(found) for k, found in recalls.items()}, "map_at_r": np.mean(precisions)}


@pytest.mark.parametrize("grouped", [False, True])
def test_metrics_follow_from_the_new_order(grouped):
    x, labels = clusters(n=90, classes=9)
    groups = torch.arange(90) // 30 if grouped else None
    expected = literal_metrics(reference(squared_distances(x), 20, 6, 0.3), labels, True, (1, 2, 8), groups)
    assert ev.reranked_metrics(x, labels, ks=(1, 2, 8), groups=groups) == pytest.approx(expected)


def test_several_labels_and_a_gallery():
    x, labels = clusters(n=90, classes=9)
    expected = ev.reranked_metrics(x[:30], labels[:30], gallery=x[30:], gallery_labels=labels[30:])
    several = torch.stack([labels, torch.full_like(labels, -1)], 1)
    found = ev.reranked_metrics(x[:30], several[:30], gallery=x[30:], gallery_labels=several[30:])
    assert found == expected
    assert 0 < found["map_at_r"] < 1


def test_it_helps_where_classes_are_chains():
    """Neighbours of neighbours tell more than a distance across a gap."""
    generator = torch.Generator().manual_seed(0)
    angle = 3.1 * torch.rand(400, generator=generator)
    labels = torch.arange(400) % 2
    moons = torch.stack([angle.cos() * (1 - 2 * labels) + labels, angle.sin() * (1 - 2 * labels) + 0.25 * labels], 1)
    moons += 0.1 * torch.randn(400, 2, generator=generator)
    assert ev.reranked_metrics(moons, labels, ks=(1,))["map_at_r"] > ev.map_at_r(moons, labels)


def test_copies_count_against_the_system():
    x = torch.zeros(8, 3)
    found = ev.reranked_metrics(x, [0, 0, 0, 0, 1, 1, 1, 1], ks=(1,))
    assert found == {"recall_at_1": 0.0, "map_at_r": 0.0}


def test_a_single_vector_finds_nothing():
    assert ev.rerank(torch.ones(1, 3)).indices.shape == (1, 0)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"metric": "dot"}, "metric must be one of 'euclidean', 'cosine', got 'dot'"),
        ({"weight": 1.5}, "weight must be from 0 to 1, got 1.5"),
        ({"k1": 0}, "k1 must be a positive integer, got 0"),
        ({"k2": 0}, "k2 must be a positive integer, got 0"),
    ],
)
def test_wrong_options_are_named(options, words):
    with pytest.raises(ValueError, match=words):
        ev.rerank(torch.randn(5, 2), **options)
