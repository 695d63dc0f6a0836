"""Exact scores are correct to the last bit; tables are correct within their error bound."""

import math

import pytest
import torch

from tuplet.evaluation import scores
from tuplet.evaluation.vectors import Vectors


def pairs(count=2000, dim=3):
    """Pairs of vectors of small integers: all sums are exact, and only the square root rounds."""
    generator = torch.Generator().manual_seed(0)
    return torch.randint(-1000, 1000, (2, count, dim), generator=generator).double()


def test_distances_are_rounded_correctly():
    a, b = pairs()
    expected = [-math.sqrt(square) for square in (a - b).square().sum(1).tolist()]
    assert scores.similarity(scores.exact_scores(a, b, "euclidean"), "euclidean").tolist() == expected


def test_cosines_are_rounded_correctly():
    a, b = pairs()
    sums = zip(*((x * y).sum(1).tolist() for x, y in ((a, b), (a, a), (b, b))), strict=True)
    expected = [product / (math.sqrt(aa) * math.sqrt(bb)) for product, aa, bb in sums]
    assert scores.exact_scores(a, b, "cosine").tolist() == expected


@pytest.mark.parametrize("metric", scores.METRICS)
def test_copies_tie_at_any_position(metric):
    """Also in the tail of a tensor, which a CPU computes with other instructions."""
    for a, b in zip(*pairs(50, 7), strict=True):
        alone = scores.exact_scores(a[None], b[None], metric)
        for length in range(1, 20):
            assert (scores.exact_scores(a.repeat(length, 1), b.repeat(length, 1), metric) == alone).all()


def test_a_square_root_depends_only_on_the_number():
    x = torch.rand(3000, generator=torch.Generator().manual_seed(1), dtype=torch.float64) * 1000
    x[:3] = torch.tensor([0.0, 5e-324, 1.7976931348623157e308], dtype=torch.float64)
    expected = torch.tensor([math.sqrt(value) for value in x.tolist()], dtype=torch.float64)
    assert torch.equal(scores.square_root(x), expected)
    assert torch.equal(scores.square_root(x[1::3]), expected[1::3])
    assert torch.equal(scores.square_root(x.view(-1, 30).T), expected.view(-1, 30).T)
    assert scores.square_root(x[:0]).shape == (0,)


@pytest.mark.parametrize("count", [1, 2, 8, 9])
@pytest.mark.parametrize("metric", scores.METRICS)
def test_a_table_is_within_the_error_bound_for_any_number_of_queries(metric, count):
    generator = torch.Generator().manual_seed(3)
    queries, gallery = torch.randn(count, 40, generator=generator), torch.randn(300, 40, generator=generator)
    pairs = scores.ScoreTables(Vectors(queries), Vectors(gallery), metric, torch.float32)
    table = pairs.table(pairs.query_block(slice(None)), slice(None))
    assert table.shape == (count, 300)
    assert table.is_contiguous()
    rows, columns = torch.arange(count).repeat_interleave(300), torch.arange(300).repeat(count)
    wrong = table.double() - pairs.exact(rows, columns).view(count, 300) / (2 if metric == "euclidean" else 1)
    assert ((wrong - wrong[:, :1]).abs() <= pairs.error_bound(torch.arange(count))).all()


@pytest.mark.parametrize("scale", [1e-30, 1e-18, 1.0, 1e15])
@pytest.mark.parametrize("metric", scores.METRICS)
def test_compare_has_the_sign_of_the_difference_of_exact_scores(metric, scale):
    """For copies, near copies that differ in the last bit, zeros and others."""
    generator = torch.Generator().manual_seed(2)
    x = torch.randn(300, 40, generator=generator)
    x[100:200] = x[:100]
    x[200:299] = x[:99] * (1 + torch.randint(-2, 3, (99, 1), generator=generator) * 2.0**-23)
    x[299] = 0
    vectors = Vectors(x * scale)
    pairs = scores.ScoreTables(vectors, vectors, metric, torch.float32)
    rows, members = torch.randint(0, 300, (2, 20_000), generator=generator)
    for others in ((members + 100) % 300, torch.randint(0, 300, (20_000,), generator=generator)):
        difference = pairs.compare(rows, members, others)
        exact = pairs.exact(rows, members) - pairs.exact(rows, others)
        assert torch.equal(difference.sign(), exact.sign())
        assert {-1, 0, 1} == set(difference.sign().tolist())
