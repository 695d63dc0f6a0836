"""The weights that a report draws are the derivatives of the loss of the run."""

import pytest
import torch

from report_runs import vectors_for
from tuplet.data import from_features
from tuplet.reports.run import Run
from tuplet.reports.weighing import MAX_PAIRS, weighing
from tuplet.training import LOSSES


def run_with(loss, options=None, labels=None):
    labels = torch.arange(48) // 4 if labels is None else labels
    data = from_features(torch.zeros(len(labels), 1), labels)
    about = {"data": "", "settings": {"loss": loss, "loss_options": options or {}}}
    return Run(None, about, [], {}, vectors_for(labels), labels, torch.arange(len(labels)), data)


def test_weights_are_those_of_the_equation():
    """Cosine contrastive: −1 for every positive pair, +1 for negative ones above the threshold, over N queries."""
    run = run_with("cosine_contrastive", {"threshold": 0.2})
    found = weighing(run)
    unit = run.embeddings
    similarity = unit @ unit.T
    same = run.labels[:, None] == run.labels
    above = similarity[~same] > 0.2
    assert found.loss == "cosine_contrastive"
    assert found.positive.idle == 0
    assert all(weight == 1 for _, weight in found.positive.points)
    assert found.negative.idle == pytest.approx(1 - float(above.float().mean()))
    assert all(weight == (1 if s > 0.2 else 0) for s, weight in found.negative.points)


def test_of_many_pairs_those_without_weight_are_left_out_first():
    labels = torch.arange(400) // 4
    found = weighing(run_with("cosine_contrastive", {"threshold": 0.6}, labels))
    heavy = [weight for _, weight in found.negative.points if weight > 0]
    assert len(found.negative.points) == MAX_PAIRS
    assert len(heavy) == round((1 - found.negative.idle) * 120 * 116)


@pytest.mark.parametrize("loss", sorted(set(LOSSES) - {"proxy_nca", "proxy_anchor", "softmax"}))
def test_every_pair_based_loss_can_be_drawn(loss):
    found = weighing(run_with(loss))
    for pairs in (found.positive, found.negative):
        assert max(weight for _, weight in pairs.points) > 0.9 or pairs.idle == 1
        assert all(-1.001 <= s <= 1.001 and 0 <= weight <= 1.001 for s, weight in pairs.points)


def test_classes_of_one_example_are_passed_over_without_a_word(recwarn):
    alone = torch.cat([torch.tensor([7]), torch.arange(24) // 4])
    found = weighing(run_with("cosine_contrastive", labels=alone))
    assert found.positive.idle == 0
    assert not recwarn


def test_triplets_in_threes_can_be_drawn():
    found = weighing(run_with("triplet", {"mining": "disjoint"}))
    assert found.positive.idle > 0.5


@pytest.mark.parametrize(
    ("loss", "labels", "sentence"),
    [
        ("proxy_anchor", None, "one learned vector a class, so it weighs no pairs"),
        ("MyLoss(a=1)", None, "the loss was made by hand"),
        ("raw", torch.arange(9), "at least two test classes of two examples"),
        ("raw", torch.zeros(9, dtype=torch.int64), "at least two test classes of two examples"),
    ],
)
def test_where_there_are_no_weights_a_sentence_says_so(loss, labels, sentence):
    assert sentence in weighing(run_with(loss, labels=labels))
