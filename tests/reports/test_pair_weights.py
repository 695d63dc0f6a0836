"""The pair weights of a report are the derivatives of the loss."""

import pytest
import torch

from report_runs import vectors_for
from tuplet.data import from_features
from tuplet.losses import LOSSES
from tuplet.losses.proxies import ProxyLoss
from tuplet.reports.pair_weights import MAX_PAIRS, pair_weights
from tuplet.reports.run import FinishedRun


def run_with(loss, options=None, labels=None):
    labels = torch.arange(48) // 4 if labels is None else labels
    data = from_features(torch.zeros(len(labels), 1), labels)
    about = {"data": "", "settings": {"loss": loss, "loss_options": options or {}}}
    rows = vectors_for(labels), labels, torch.arange(len(labels))
    return FinishedRun(None, about, [], {}, *rows, data, missing="", shown=None)


def test_weights_equal_the_equation():
    """Cosine contrastive: −1 for every positive pair, +1 for each negative pair above the threshold, over N queries."""
    run = run_with("cosine_contrastive", {"threshold": 0.2})
    found = pair_weights(run)
    unit = run.embeddings
    similarity = unit @ unit.T
    same = run.labels[:, None] == run.labels
    above = similarity[~same] > 0.2
    assert found.loss == "cosine_contrastive"
    assert found.positive.unweighted == 0
    assert all(weight == 1 for _, weight in found.positive.points)
    assert found.negative.unweighted == pytest.approx(1 - float(above.float().mean()))
    assert all(weight == (1 if s > 0.2 else 0) for s, weight in found.negative.points)


def test_pairs_without_weight_are_left_out_first():
    labels = torch.arange(400) // 4
    found = pair_weights(run_with("cosine_contrastive", {"threshold": 0.6}, labels))
    heavy = [weight for _, weight in found.negative.points if weight > 0]
    assert len(found.negative.points) == MAX_PAIRS
    assert len(heavy) == round((1 - found.negative.unweighted) * 120 * 116)


PAIR_BASED = [name for name, loss in LOSSES.items() if loss.weighs_pairs and not issubclass(loss, ProxyLoss)]


@pytest.mark.parametrize("loss", PAIR_BASED)
def test_every_pair_based_loss_has_weights(loss):
    found = pair_weights(run_with(loss))
    for pairs in (found.positive, found.negative):
        assert max(weight for _, weight in pairs.points) > 0.9 or pairs.unweighted == 1
        assert all(-1.001 <= s <= 1.001 and 0 <= weight <= 1.001 for s, weight in pairs.points)


@pytest.mark.parametrize("loss", ["pddm", "spectral_clustering"])
def test_a_loss_that_is_no_function_of_pairs_has_no_weights(loss):
    assert "no function of pairs alone" in pair_weights(run_with(loss))


def test_fewer_proxies_than_classes_have_no_weights():
    assert "pairs have no weights" in pair_weights(run_with("proxy_nca", {"proxies": 7}))


def test_classes_of_one_example_are_skipped_without_a_warning(recwarn):
    alone = torch.cat([torch.tensor([7]), torch.arange(24) // 4])
    found = pair_weights(run_with("cosine_contrastive", labels=alone))
    assert found.positive.unweighted == 0
    assert not recwarn


def test_disjoint_triplets_have_weights():
    found = pair_weights(run_with("triplet", {"mining": "disjoint"}))
    assert found.positive.unweighted > 0.5


@pytest.mark.parametrize(
    ("loss", "labels", "sentence"),
    [
        ("proxy_anchor", None, "one learned vector per class, so pairs have no weights"),
        ("MyLoss(a=1)", None, "a run keeps only the description of a loss object"),
        ("raw", torch.arange(9), "at least two test classes of two examples"),
        ("raw", torch.zeros(9, dtype=torch.int64), "at least two test classes of two examples"),
    ],
)
def test_missing_weights_are_explained(loss, labels, sentence):
    assert sentence in pair_weights(run_with(loss, labels=labels))
