"""k-means, NMI, AMI and pairwise F1 against pair loops and scikit-learn."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from sklearn.cluster import KMeans
from sklearn.metrics import adjusted_mutual_info_score, normalized_mutual_info_score

from tuplet import evaluation as ev
from tuplet.evaluation import k_means
from tuplet.evaluation.k_means import POOL_ENTRIES, plus_plus, pools

PARTITIONS = st.integers(1, 40).flatmap(
    lambda n: st.tuples(
        *[
            st.sampled_from([0, 1, 2, 5, n]).flatmap(lambda top: st.lists(st.integers(0, top), min_size=n, max_size=n))
            for _ in range(2)
        ]
    )
)


def literal_f1(labels, clusters):
    pairs = list(itertools.combinations(range(len(labels)), 2))
    together = [(labels[i] == labels[j], clusters[i] == clusters[j]) for i, j in pairs]
    hits = sum(a and b for a, b in together)
    if not any(a or b for a, b in together):
        return 1.0
    if not hits:
        return 0.0
    precision, recall = hits / sum(b for _, b in together), hits / sum(a for a, _ in together)
    return 2 * precision * recall / (precision + recall)


@given(partitions=PARTITIONS)
def test_agreement_of_partitions(partitions):
    labels, clusters = partitions
    assert ev.pairwise_f1(labels, clusters) == pytest.approx(literal_f1(labels, clusters))
    assert ev.nmi(labels, clusters) == pytest.approx(normalized_mutual_info_score(labels, clusters), abs=1e-10)
    # If both partitions consist of singletons, AMI is one rounding error divided by another.
    if len(set(labels)) < len(labels) or len(set(clusters)) < len(clusters):
        assert ev.ami(labels, clusters) == pytest.approx(adjusted_mutual_info_score(labels, clusters), abs=1e-8)


def test_agreement_of_large_partitions_with_scikit_learn():
    rng = np.random.default_rng(0)
    labels = rng.zipf(1.5, 5000) % 300 + 2**53
    clusters = np.where(rng.random(5000) < 0.6, labels, rng.integers(0, 200, 5000))
    assert ev.nmi(labels, clusters) == pytest.approx(normalized_mutual_info_score(labels, clusters), rel=1e-10)
    assert ev.ami(labels, clusters) == pytest.approx(adjusted_mutual_info_score(labels, clusters), rel=1e-9)
    permuted = rng.permutation(labels)
    assert abs(ev.ami(labels, permuted)) < 0.02 < ev.nmi(labels, permuted)


def test_partitions_into_singletons_or_into_one_group():
    assert ev.nmi([0, 0, 0], [1, 1, 1]) == ev.ami([0, 0, 0], [1, 1, 1]) == ev.pairwise_f1([0, 0, 0], [1, 1, 1]) == 1.0
    assert ev.nmi([0, 0, 0], [1, 2, 3]) == ev.ami([0, 0, 0], [1, 2, 3]) == ev.pairwise_f1([0, 0, 0], [1, 2, 3]) == 0.0
    assert ev.pairwise_f1([0, 1, 2], [3, 4, 5]) == 1.0


def planted(classes=60, each=8, dim=16, spread=0.05, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(classes * each) % classes
    centres = torch.randn(classes, dim, generator=generator)
    return centres[labels] + spread * torch.randn(len(labels), dim, generator=generator), labels


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_planted_clusters_are_found(dtype):
    x, y = planted()
    assert ev.clustering(x.to(dtype), y, runs=3) == pytest.approx({"nmi": 1.0, "f1": 1.0, "ami": 1.0})


@pytest.mark.parametrize("scale", [1e-20, 1e20])
@pytest.mark.parametrize("offset", [0.0, 100.0])
def test_offset_and_scale_change_nothing(scale, offset):
    x, y = planted(spread=0.01)
    assert ev.clustering((x + offset) * scale, y, runs=1)["nmi"] == pytest.approx(1.0)


def test_cosine_clusters_directions():
    x, y = planted(classes=10)
    lengths = torch.rand(len(x), 1, generator=torch.Generator().manual_seed(3)) * 100 + 0.1
    assert ev.clustering(x * lengths, y, runs=2, metric="cosine")["nmi"] == pytest.approx(1.0)
    assert ev.clustering(x * lengths, y, runs=2)["nmi"] < 0.9
    with pytest.raises(ValueError, match="metric must be one of 'euclidean', 'cosine', got 'dot'"):
        ev.clustering(x, y, metric="dot")


def inertia(x, labels):
    return sum(float((x[labels == c] - x[labels == c].mean(0)).square().sum()) for c in labels.unique())


def test_clusters_are_as_tight_as_scikit_learns():
    x = torch.randn(600, 10, generator=torch.Generator().manual_seed(4))
    ours = np.mean([inertia(x, labels) for labels in ev.kmeans(x, 40, seeds=range(6))])
    theirs = np.mean([KMeans(40, n_init=1, random_state=seed).fit(x.numpy()).inertia_ for seed in range(6)])
    assert ours == pytest.approx(theirs, rel=0.01)


def test_every_point_is_with_its_nearest_mean():
    x = torch.randn(500, 6, generator=torch.Generator().manual_seed(5)).double()
    [labels] = ev.kmeans(x, 20)
    means = torch.stack([x[labels == c].mean(0) for c in range(20)])
    assert torch.equal(torch.cdist(x, means).argmin(1), labels)


def test_a_seed_gives_the_same_clusters_alone_and_among_others():
    x = torch.randint(-4, 5, (300, 4), generator=torch.Generator().manual_seed(6)).double()
    together = ev.kmeans(x, 60, seeds=(0, 1, 2))
    assert not torch.equal(together[0], together[1])
    for seed in range(3):
        assert torch.equal(ev.kmeans(x, 60, seeds=(seed,))[0], together[seed])


@pytest.mark.parametrize("clusters", [1, 2, 5, 9, 30])
def test_fewer_different_points_than_clusters(clusters):
    """Empty clusters cannot all find a point of their own: k-means ends, and copies stay together."""
    points = torch.randn(5, 3, generator=torch.Generator().manual_seed(7))
    which = torch.arange(30) % 5
    [labels] = ev.kmeans(points[which], clusters)
    for p in range(5):
        assert len(labels[which == p].unique()) == 1
    assert len(labels.unique()) == min(clusters, 5)


def test_as_many_clusters_as_points():
    x = torch.randn(40, 3, generator=torch.Generator().manual_seed(8))
    assert len(ev.kmeans(x, 40)[0].unique()) == 40
    assert ev.clustering(x, range(40), runs=1) == pytest.approx({"nmi": 1.0, "f1": 1.0, "ami": 1.0})


def test_empty_clusters_restart_at_the_farthest_points():
    points = torch.tensor([[0.0], [1.0], [10.0]])
    # Half of |x|² less the squared distance from the centre, here 9, 4 and 25.
    values = (points[:, 0].square() - torch.tensor([9.0, 4.0, 25.0])) / 2
    means = k_means._means(points, torch.tensor([2, 2, 2]), values, 3)
    assert means[:, 0].tolist() == pytest.approx([10.0, 0.0, 11 / 3])


def test_block_size_and_cached_tables_change_nothing(monkeypatch):
    x = torch.randint(-9, 10, (400, 6), generator=torch.Generator().manual_seed(9)).double()
    x[:60] = x[0]
    kept = ev.kmeans(x, 50, seeds=range(4))
    for name, limit in (("BLOCK_POINTS", 150), ("TABLE_ENTRIES", 7_000)):
        monkeypatch.setitem(getattr(k_means, name), "cpu", limit)
        assert torch.equal(ev.kmeans(x, 50, seeds=range(4)), kept)


def test_starts_are_drawn_by_squared_distance():
    """Points at distances 0, 1 and 3 from the first centre are drawn with chances 0 : 1 : 9."""
    points = torch.tensor([[0.0], [1.0], [3.0]])
    starts = plus_plus(points, 2, range(6000), draws=1)
    assert torch.bincount(starts[:, 0]).double().div(6000).tolist() == pytest.approx([1 / 3] * 3, abs=0.02)
    second = starts[starts[:, 0] == 0, 1]
    assert torch.bincount(second, minlength=3).double().div(len(second)).tolist() == pytest.approx(
        [0, 0.1, 0.9], abs=0.02
    )


def literal_greedy(x, clusters, seed):
    """Greedy k-means++ one centre at a time: the best of seven points, drawn by squared distance."""
    generator = torch.Generator().manual_seed(seed)
    nearest, chosen = torch.full((len(x),), torch.inf), []
    for _ in range(clusters):
        chances = nearest if chosen else torch.ones(len(x))
        drawn = torch.multinomial(chances, 7, replacement=True, generator=generator)
        left = torch.minimum(torch.cdist(x[drawn], x).square(), nearest)
        best = int(left.sum(1).argmin())
        nearest = left[best]
        chosen.append(int(drawn[best]))
    return chosen


@pytest.mark.parametrize("spread", [0.3, 5.0])
def test_starts_from_pools_are_as_good_as_from_single_draws(spread):
    x, _ = planted(classes=150, each=6, spread=spread)

    def left(chosen):
        return float(torch.cdist(x, x[chosen]).amin(1).square().sum())

    pooled = np.mean([left(chosen) for chosen in plus_plus(x, 150, range(8), draws=7)])
    single = np.mean([left(literal_greedy(x, 150, seed)) for seed in range(8)])
    assert pooled < 1.01 * single


def test_starts_are_different_points_even_if_a_few_hold_all_the_distance():
    """A pool holds each far point once: none is chosen twice, and none is left out."""
    generator = torch.Generator().manual_seed(10)
    x = torch.randn(500, 4, generator=generator)
    x[::10] *= 1000
    for chosen in plus_plus(x, 120, range(4), draws=6):
        assert len(chosen.unique()) == 120
        assert set(range(0, 500, 10)) <= set(chosen.tolist())


@pytest.mark.parametrize(("clusters", "count"), [(1, 1), (100, 5_924), (2_263, 60_502), (50, 10**6), (20, 10**8)])
def test_pools_give_every_centre_once_and_stay_small(clusters, count):
    made = list(pools(clusters, count, draws=7))
    assert [centre for start, size in made for centre in range(start, start + size)] == list(range(clusters))
    assert all(size == 1 or size * 7 * count <= POOL_ENTRIES for _, size in made)


def test_bad_input_raises_a_clear_error():
    x, y = planted(classes=3, each=2)
    with pytest.raises(ValueError, match="clusters must be at most the 6 points, got 7; ask for fewer"):
        ev.kmeans(x, 7)
    with pytest.raises(ValueError, match="iterations must be a positive integer, got 0"):
        ev.kmeans(x, 2, iterations=0)
    with pytest.raises(TypeError, match=r"seeds must be a sequence of numbers, got 3; give \(3,\)"):
        ev.kmeans(x, 2, seeds=3)
    with pytest.raises(ValueError, match="seeds must not be empty"):
        ev.kmeans(x, 2, seeds=())
    with pytest.raises(ValueError, match="runs must be a positive integer, got 0"):
        ev.clustering(x, y, runs=0)
    with pytest.raises(ValueError, match="clusters must have shape \\(2,\\)"):
        ev.nmi([0, 1], [0, 1, 2])
    with pytest.raises(ValueError, match="labels must not be empty"):
        ev.pairwise_f1([], [])
