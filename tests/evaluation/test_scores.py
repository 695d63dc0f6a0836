"""Exact scores to the last bit: what other devices compute too."""

import math

import pytest
import torch

from tuplet.evaluation import scores


def pairs(count=2000, dim=3):
    """Pairs of vectors of few digits, so that all sums are exact and a root alone can round otherwise."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(-1000, 1000, (2, count, dim), generator=generator).double()


def test_distances_are_rounded_correctly():
    a, b = pairs()
    expected = [-math.sqrt(square) for square in (a - b).square().sum(1).tolist()]
    assert scores.similarity(scores.direct(a, b, "euclidean"), "euclidean").tolist() == expected


def test_cosines_are_rounded_correctly():
    a, b = pairs()
    sums = zip(*((x * y).sum(1).tolist() for x, y in ((a, b), (a, a), (b, b))), strict=True)
    expected = [product / (math.sqrt(aa) * math.sqrt(bb)) for product, aa, bb in sums]
    assert scores.direct(a, b, "cosine").tolist() == expected


@pytest.mark.parametrize("metric", scores.METRICS)
def test_copies_tie_wherever_they_stand(metric):
    """In the body and in the tail of a tensor of any length, which a CPU computes with other instructions."""
    for a, b in zip(*pairs(50, 7), strict=True):
        alone = scores.direct(a[None], b[None], metric)
        for length in range(1, 20):
            assert (scores.direct(a.repeat(length, 1), b.repeat(length, 1), metric) == alone).all()


def test_a_root_depends_on_the_number_alone():
    x = torch.rand(3000, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 1000
    x[:3] = torch.tensor([0.0, 5e-324, 1.7976931348623157e308], dtype=torch.float64)
    expected = torch.tensor([math.sqrt(value) for value in x.tolist()], dtype=torch.float64)
    assert torch.equal(scores.root(x), expected)
    assert torch.equal(scores.root(x[1::3]), expected[1::3])
    assert torch.equal(scores.root(x.view(-1, 30).T), expected.view(-1, 30).T)
    assert scores.root(x[:0]).shape == (0,)
