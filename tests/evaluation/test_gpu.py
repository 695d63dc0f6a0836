"""Results on a GPU equal those on a CPU, because exact scores do not depend on the device."""

import pytest
import torch

from tuplet import evaluation as ev
from tuplet.evaluation import scores

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
NAMES = ("recall_at_1", "recall_at_10", "mean_average_precision", "map_at_r", "r_precision", "mean_reciprocal_rank")


def clustered(count=1200, classes=100, dim=96, dtype=torch.float32):
    """Noisy classes with copies, so that there are many ties and near ties."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, classes, (count,), generator=generator)
    x = torch.randn(classes, dim, generator=generator)[labels] + 2 * torch.randn(count, dim, generator=generator)
    x[count // 2 : count // 2 + 300] = x[:300]
    return x.to(dtype), labels


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("metric", scores.METRICS)
def test_ranks_equal_those_of_the_cpu(metric, dtype):
    x, y = clustered(dtype=dtype)
    expected, positives = ev.per_query(x, y, metrics=NAMES, metric=metric)
    for source, labels, device in ((x.cuda(), y.cuda(), None), (x, y, "cuda")):
        values, found = ev.per_query(source, labels, metrics=NAMES, metric=metric, device=device)
        assert torch.equal(found, positives)
        for name in NAMES:
            torch.testing.assert_close(values[name], expected[name], rtol=1e-12, atol=1e-14)


def test_many_positives_are_ranked_by_sorting():
    x, y = clustered(classes=3)
    values, _ = ev.per_query(x.cuda(), y, metrics=NAMES)
    expected, _ = ev.per_query(x, y, metrics=NAMES)
    for name in NAMES:
        torch.testing.assert_close(values[name], expected[name], rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("metric", scores.METRICS)
def test_neighbours_equal_those_of_the_cpu_even_with_tf32_on(metric):
    x, _ = clustered()
    expected = ev.nearest(x, k=7, metric=metric)
    before = torch.backends.cuda.matmul.fp32_precision
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    try:
        found = ev.nearest(x.cuda(), k=7, metric=metric)
        assert torch.backends.cuda.matmul.fp32_precision == "tf32"
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
    assert torch.equal(found.indices.cpu(), expected.indices)
    assert torch.equal(found.scores.cpu(), expected.scores)


def test_draws_do_not_depend_on_the_device():
    x, y = clustered()
    assert ev.verification(x.cuda(), y.cuda()) == ev.verification(x, y)
    assert ev.recognition(x.cuda(), y.cuda(), k=5) == ev.recognition(x, y, k=5)


def test_planted_clusters_are_found_and_seeds_are_reproducible():
    generator = torch.Generator().manual_seed(1)
    y = torch.arange(4000) % 400
    x = (torch.randn(400, 32, generator=generator)[y] + 0.1 * torch.randn(4000, 32, generator=generator)).cuda()
    assert ev.clustering(x, y, runs=2) == pytest.approx({"nmi": 1.0, "f1": 1.0, "ami": 1.0}, abs=0.01)
    noise = torch.randn(2000, 16, generator=generator).cuda()
    assert torch.equal(ev.kmeans(noise, 50, seeds=(3,)), ev.kmeans(noise, 50, seeds=(3,)))


def test_re_ranked_results_equal_those_of_the_cpu():
    x, y = clustered()
    distinct = x + 1e-3 * torch.randn(x.shape, generator=torch.Generator().manual_seed(2))  # equal ones may swap
    expected, found = ev.rerank(distinct, k=50), ev.rerank(distinct.cuda(), k=50)
    torch.testing.assert_close(found.scores.cpu(), expected.scores, rtol=1e-9, atol=1e-12)
    split = {"gallery": distinct[400:], "gallery_labels": y[400:]}
    expected_metrics = ev.reranked_metrics(distinct[:400], y[:400], **split)
    assert ev.reranked_metrics(distinct[:400], y[:400], **split, device="cuda") == pytest.approx(expected_metrics)
