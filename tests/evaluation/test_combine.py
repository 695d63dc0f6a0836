"""Concatenated and averaged embeddings against the literal definitions."""

import itertools

import pytest
import torch

from tuplet import evaluation as ev


def views(count=4, rows=9, dim=5):
    generator = torch.Generator().manual_seed(0)
    return [torch.randn(rows, dim, generator=generator, dtype=torch.float64) for _ in range(count)]


@pytest.mark.parametrize("metric", ["cosine", "dot"])
def test_averaged_views_give_the_mean_similarity_over_all_combinations(metric):
    flips = views()
    averaged = ev.average_views(flips, metric=metric)
    for i, j in itertools.product(range(9), repeat=2):
        combinations = []
        for u, v in itertools.product(flips, repeat=2):
            product = float(u[i] @ v[j])
            combinations.append(product / float(u[i].norm() * v[j].norm()) if metric == "cosine" else product)
        assert len(combinations) == 16
        assert float(averaged[i] @ averaged[j]) == pytest.approx(sum(combinations) / 16)
    scores = ev.nearest(averaged, k=1, metric="dot").scores[:, 0]
    assert scores.tolist() == pytest.approx((averaged @ averaged.T).fill_diagonal_(-torch.inf).amax(1).tolist())


def test_concatenated_levels_add_their_weighted_distances():
    low, middle, high = views(3)
    weights = [0.5, 1.0, 2.0]
    joined = ev.concatenate([low, middle[:, :2], high], weights)
    assert joined.shape == (9, 12)
    for i, j in itertools.combinations(range(9), 2):
        squared = [float((part[i] - part[j]).square().sum()) for part in (low, middle[:, :2], high)]
        assert float((joined[i] - joined[j]).square().sum()) == pytest.approx(
            sum(w * s for w, s in zip(weights, squared, strict=True))
        )
    assert torch.equal(ev.concatenate([low, high]), torch.cat([low, high], 1))


def test_half_precision_and_arrays_become_float32():
    joined = ev.concatenate([torch.ones(2, 1, dtype=torch.float16), torch.ones(2, 1).numpy()])
    assert joined.dtype == torch.float32


def test_bad_parts_raise_a_clear_error():
    cases = [
        (
            lambda: ev.concatenate([torch.eye(2), torch.eye(3)]),
            "one row for each example, got \\[2, 3\\] rows; embed",
        ),
        (lambda: ev.concatenate([torch.eye(2)], weights=[1.0, 2.0]), "weights must be 1 numbers from 0 up"),
        (lambda: ev.concatenate([torch.eye(2)], weights=[-1.0]), "weights must be 1 numbers from 0 up, got \\[-1.0\\]"),
        (
            lambda: ev.concatenate([torch.eye(2)] * 2, weights=[1.0, float("nan")]),
            "numbers from 0 up, got \\[1.0, nan\\]",
        ),
        (
            lambda: ev.average_views([torch.eye(2), torch.eye(2)[:, :1]]),
            "views must have the same dimension, got \\[2, 1\\]",
        ),
        (lambda: ev.average_views([torch.eye(2)], metric="euclidean"), "metric must be one of 'cosine', 'dot'"),
        (lambda: ev.concatenate([torch.eye(2)], weights=[float("inf")]), "weights must be 1 numbers from 0 up, got"),
        (lambda: ev.concatenate([]), "one row for each example, got \\[\\] rows"),
    ]
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            call()
