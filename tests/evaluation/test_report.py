"""`evaluate`: plain data, the same numbers as the single metrics, and meaningful intervals."""

import json

import numpy as np
import pytest
import torch

from tuplet import evaluation as ev


def clustered(count=300, classes=80, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (count,), generator=generator)
    return torch.randn(classes, 16, generator=generator)[labels] + torch.randn(count, 16, generator=generator), labels


@pytest.mark.filterwarnings("ignore:.*queries have no positive")
def test_the_report_is_plain_data_with_the_numbers_of_its_parts():
    x, y = clustered()
    report = ev.evaluate(x, y, ks=(1, 10), runs=2, bootstrap=50)
    assert json.loads(json.dumps(report)) == report
    assert report["recall_at_10"] == ev.recall_at_k(x, y, ks=(10,))[10]
    for name in ("mean_average_precision", "map_at_r", "r_precision", "mean_reciprocal_rank"):
        assert report[name] == pytest.approx(getattr(ev, name)(x, y), rel=1e-12)
    assert {name: report[name] for name in ("nmi", "f1", "ami")} == ev.clustering(x, y, runs=2)
    assert report["vrf_at_71"] == ev.verification(x, y)["vrf"]
    assert report["queries"] == report["gallery"] == 300
    assert report["without_positive"] == sum(int((y == label).sum()) == 1 for label in y)
    assert set(report["intervals"]) == {
        *("recall_at_1", "recall_at_10", "mean_average_precision", "map_at_r", "r_precision", "mean_reciprocal_rank")
    }


def test_numpy_numbers_become_plain_numbers():
    x, y = clustered(classes=5)
    plain = ev.evaluate(x, y, ks=(1, 2), runs=2, bootstrap=10, seed=3)
    runs, bootstrap, seed = np.array([2, 10, 3])
    report = ev.evaluate(x, y, ks=np.array([1, 2]), runs=runs, bootstrap=bootstrap, seed=seed)
    assert json.loads(json.dumps(report)) == plain


@pytest.mark.parametrize("seed", [None, 0.5, True, "a", 2**63])
def test_a_seed_must_be_an_integer(seed):
    x, y = clustered(classes=5)
    message = "seed must be an integer that fits into int64, got "
    for call in (ev.evaluate, ev.clustering, ev.verification):
        with pytest.raises(ValueError, match=message):
            call(x, y, seed=seed)
    with pytest.raises(ValueError, match="each seed in seeds must be an integer that fits into int64, got "):
        ev.kmeans(x, 5, seeds=(0, seed))


@pytest.mark.parametrize("metric", ["cosine", "dot"])
def test_other_metrics_and_galleries(metric):
    (x, y), (g, gl) = clustered(classes=10), clustered(classes=10, seed=1)
    report = ev.evaluate(x, y, gallery=g, gallery_labels=gl, metric=metric, runs=1)
    options = {"gallery": g, "gallery_labels": gl, "metric": metric}
    assert report["map_at_r"] == ev.map_at_r(x, y, **options)
    assert report["nmi"] == ev.clustering(x, y, runs=1, metric="cosine" if metric == "cosine" else "euclidean")["nmi"]
    assert "vrf_at_1" not in report


def test_runs_0_skips_clustering_and_few_classes_skip_vrf():
    x, y = clustered(classes=5)
    report = ev.evaluate(x, y, runs=0)
    assert "nmi" not in report
    assert "vrf_at_1" in report
    assert "vrf_at_71" not in report


def test_intervals_have_the_width_of_the_binomial():
    x, y = clustered(count=1000, classes=20)
    report = ev.evaluate(x, y, ks=(1,), runs=0, bootstrap=400)
    low, high = report["intervals"]["recall_at_1"]
    p = report["recall_at_1"]
    assert low < p < high
    assert high - low == pytest.approx(2 * 1.96 * (p * (1 - p) / 1000) ** 0.5, rel=0.15)
    assert ev.evaluate(x, y, ks=(1,), runs=0, bootstrap=400) == report
    assert ev.evaluate(x, y, ks=(1,), runs=0, bootstrap=400, seed=1)["intervals"] != report["intervals"]


def test_list_metrics_resample_the_queries_that_have_a_positive():
    x = torch.tensor([[0.0], [1.0]] + [[10.0 + i] for i in range(50)])
    report = ev.evaluate(x, [0, 0, *range(1, 51)], ks=(1,), runs=0, bootstrap=100)
    assert report["without_positive"] == 50
    assert report["mean_average_precision"] == 1.0
    # One resample in eight has neither of the two queries with a positive; it is drawn again.
    assert report["intervals"]["mean_average_precision"] == [1.0, 1.0]
    low, high = report["intervals"]["recall_at_1"]
    assert 0 < low < high < 0.1


def test_no_positives_raise_a_clear_error():
    with pytest.raises(ValueError, match="none of the 3 queries shares its label"):
        ev.evaluate(torch.eye(3), [0, 1, 2], runs=0)


def test_a_gallery_of_other_classes_raises_a_clear_error():
    with pytest.raises(ValueError, match=r"the gallery other than itself .*; give .* a gallery of their classes"):
        ev.evaluate(torch.eye(3), [0, 1, 2], gallery=torch.eye(3), gallery_labels=[3, 4, 5], runs=0)
