"""The map keeps neighbours together, is deterministic, and accepts any vectors."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from report_runs import vectors_for
from tuplet.evaluation import recall_at_k
from tuplet.reports.map import SHOWN, ZOOMS, zooms
from tuplet.reports.projection import layout, principal_components, sample


def test_neighbours_stay_neighbours():
    labels = torch.arange(300) // 15
    vectors = vectors_for(labels, dim=16, noise=0.3)
    full, plane = (recall_at_k(x, labels, ks=(1,))[1] for x in (vectors, layout(vectors)))
    principal = recall_at_k(principal_components(vectors.double(), 2), labels, ks=(1,))[1]
    assert full > 0.99
    assert plane > 0.95
    assert principal < 0.8, "principal components alone would be enough"


def test_the_same_vectors_give_the_same_map():
    vectors = vectors_for(torch.arange(60) // 6)
    assert torch.equal(layout(vectors), layout(vectors.clone()))


@pytest.mark.parametrize(
    "vectors",
    [
        torch.ones(1, 4),
        torch.eye(2),
        torch.eye(3),
        torch.arange(5.0)[:, None],
        torch.ones(40, 3),
        torch.cat([torch.ones(20, 3), torch.zeros(20, 3)]),
        1e-8 * torch.eye(12),
        1e6 * torch.eye(12),
    ],
    ids=["one", "two", "three", "one dimension", "all alike", "two places", "tiny", "huge"],
)
def test_any_vectors_have_a_map(vectors):
    places = layout(vectors)
    assert places.shape == (len(vectors), 2)
    assert bool(((places >= 0) & (places <= 1)).all())


def test_principal_components_equal_the_singular_value_decomposition():
    x = torch.randn(30, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    u, s, _ = torch.linalg.svd(x - x.mean(0), full_matrices=False)
    torch.testing.assert_close(principal_components(x, 4).abs(), (u * s)[:, :4].abs())


@given(st.lists(st.integers(0, 6), min_size=1, max_size=60), st.integers(1, 40))
def test_a_sample_is_even_over_classes(labels, count):
    rows = sample(torch.tensor(labels), count).tolist()
    assert rows == sorted(set(rows))
    assert len(rows) == min(count, len(labels))
    taken = {label: sum(labels[row] == label for row in rows) for label in set(labels)}
    most = max(taken.values())
    for label, times in taken.items():
        assert times in (most, most - 1) or times == labels.count(label)


@given(st.lists(st.tuples(st.floats(0, 200), st.floats(0, 200)), min_size=1, max_size=40))
def test_images_never_cover_one_another(points):
    places = torch.tensor(points)
    first = torch.tensor(zooms(places))
    assert first[0] == 1
    for zoom in ZOOMS:
        shown = places[first <= zoom]
        gaps = (shown[:, None] - shown).abs().amax(2).fill_diagonal_(torch.inf)
        assert float(gaps.min()) * zoom >= SHOWN
        for hidden in places[first > zoom]:
            assert float((shown - hidden).abs().amax(1).min()) * zoom < SHOWN, "an image is hidden although it fits"
