"""Known errors of other libraries that this one avoids, and agreement with them elsewhere."""

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score

from tuplet import evaluation as ev


def clustered(count=400, classes=20, dim=24, seed=0):
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, classes, (count,), generator=generator)
    centres = torch.randn(classes, dim, generator=generator)
    return centres[labels] + torch.randn(count, dim, generator=generator), labels


def test_pml_accuracy_calculator_turns_labels_into_float32():
    """Labels above 2²⁴ that differ by one become equal there; here they stay different."""
    x = torch.tensor([[0.0], [1.0], [10.0], [11.0]])
    for base in (2**24, 2**53, 2**62):
        assert ev.recall_at_k(x, [base, base + 1, base, base + 1], ks=(1,)) == {1: 0.0}
        assert ev.recall_at_k(x, [base, base, base + 1, base + 1], ks=(1,)) == {1: 1.0}


def test_pml_accuracy_calculator_has_no_recall_beyond_one_and_no_f1():
    x, y = clustered()
    recall = ev.recall_at_k(x, y, ks=(1, 10, 100, 1000))
    assert 0 < recall[1] < recall[10] < recall[100] <= recall[1000] == 1.0
    assert 0 < ev.clustering(x, y, runs=1)["f1"] < 1


def test_oml_map_at_k_divides_by_the_hits_found():
    """One of ten positives is found, at rank 1: the value is 0.1, not 1."""
    gallery = torch.cat([torch.tensor([1.0]), torch.full((20,), 2.0), torch.full((9,), 3.0)])[:, None]
    labels = torch.tensor([7] + [0] * 20 + [7] * 9)
    assert ev.map_at_r(torch.zeros(1, 1), [7], gallery=gallery, gallery_labels=labels) == pytest.approx(0.1)


def test_revisiting_dml_recall_drops_the_first_of_the_list_blindly():
    """A query with copies need not come first in its own list, and must be left out all the same."""
    x = torch.tensor([[0.0], [0.0], [5.0], [5.0]])
    assert ev.recall_at_k(x, [1, 2, 1, 2], ks=(1,)) == {1: 0.0}
    assert ev.recall_at_k(x, [1, 1, 2, 2], ks=(1,)) == {1: 1.0}
    # The first query has two copies of another class before its positive, wherever it stands among the copies.
    x = torch.tensor([[0.0]] * 3 + [[9.0]])
    assert ev.recall_at_k(x, [1, 2, 2, 1], ks=(1, 2), ties="optimistic") == {1: 0.75, 2: 0.75}


def test_torchmetrics_average_precision_ignores_relevant_items_with_negative_scores():
    queries, gallery = torch.tensor([[1.0]]), torch.tensor([[-1.0], [-2.0], [-3.0]])
    labels = {"gallery": gallery, "gallery_labels": [5, 0, 5], "metric": "dot"}
    assert ev.mean_average_precision(queries, [5], **labels) == pytest.approx((1 + 2 / 3) / 2)


def test_average_precision_equals_scikit_learn_without_ties():
    x, y = clustered()
    values, _ = ev.per_query(x, y, metrics=("mean_average_precision",))
    distances = torch.cdist(x.double(), x.double()).numpy()
    for i in range(len(x)):
        others = np.arange(len(x)) != i
        expected = average_precision_score((y.numpy() == int(y[i]))[others], -distances[i][others])
        assert values["mean_average_precision"][i] == pytest.approx(expected)


@pytest.mark.filterwarnings("ignore")
def test_agrees_with_pml_without_ties():
    """To 1e-5, because its float32 distances swap some near neighbours."""
    calculator = pytest.importorskip("pytorch_metric_learning.utils.accuracy_calculator").AccuracyCalculator(
        include=("precision_at_1", "mean_average_precision", "mean_average_precision_at_r", "r_precision"),
        device=torch.device("cpu"),
    )
    x, y = clustered()
    theirs = calculator.get_accuracy(x, y)
    assert ev.recall_at_k(x, y, ks=(1,))[1] == pytest.approx(theirs["precision_at_1"], abs=1e-5)
    assert ev.mean_average_precision(x, y) == pytest.approx(theirs["mean_average_precision"], abs=1e-5)
    assert ev.map_at_r(x, y) == pytest.approx(theirs["mean_average_precision_at_r"], abs=1e-5)
    assert ev.r_precision(x, y) == pytest.approx(theirs["r_precision"], abs=1e-5)
    g, gl = clustered(seed=1)
    theirs = calculator.get_accuracy(x, y, g, gl)
    options = {"gallery": g, "gallery_labels": gl}
    assert ev.recall_at_k(x, y, ks=(1,), **options)[1] == pytest.approx(theirs["precision_at_1"], abs=1e-5)
    assert ev.map_at_r(x, y, **options) == pytest.approx(theirs["mean_average_precision_at_r"], abs=1e-5)
