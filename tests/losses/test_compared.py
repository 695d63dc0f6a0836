"""Test what holds for single losses of the systems that the papers compare with."""

import itertools

import pytest
import torch
from torch.nn.functional import normalize

from losses import label_patterns as patterns
from losses import oracles_compared as oc
from losses.batches import value_and_gradient
from tuplet import losses

LABELS = torch.arange(12) // 3


def test_spectral_clustering_sees_only_the_span():
    x, mix = patterns.embeddings(12, 4, 0), patterns.embeddings(4, 4, 1)
    loss = losses.SpectralClusteringLoss()
    torch.testing.assert_close(loss(x @ mix, LABELS), loss(x, LABELS))
    indicators = torch.eye(4, dtype=torch.float64)[LABELS]
    torch.testing.assert_close(loss(indicators, LABELS).item(), 0.0)


def test_spectral_clustering_refuses_fewer_examples_than_dimensions():
    with pytest.raises(ValueError, match="got 12 vectors of dimension 12"):
        losses.SpectralClusteringLoss()(patterns.embeddings(12, 12, 0), LABELS)


WHOLE = [losses.SpectralClusteringLoss(), losses.FacilityLocationLoss(), losses.PDDMLoss(4).double()]


@pytest.mark.parametrize("loss", WHOLE)
def test_losses_of_a_whole_batch_take_no_gallery(loss):
    x = patterns.embeddings(12, 4, 0)
    with pytest.raises(ValueError, match="takes no gallery"):
        loss(x, LABELS, gallery=x, gallery_labels=LABELS)


@pytest.mark.parametrize("loss", WHOLE[:2])
def test_losses_of_a_clustering_take_no_comparison(loss):
    with pytest.raises(ValueError, match="one class for each example"):
        loss(patterns.embeddings(12, 4, 0), LABELS, same=lambda a, b: a[:, None] == b)


@pytest.mark.parametrize("loss", [WHOLE[0], WHOLE[2], losses.SumLoss([(losses.TripletLoss(), 1.0)])])
def test_losses_that_are_no_function_of_pairs_have_no_weights(loss):
    with pytest.raises(TypeError, match="has no weights"):
        loss.weights(patterns.embeddings(12, 4, 0), LABELS)


@pytest.mark.parametrize("seed", range(5))
def test_facility_location_is_at_most_the_exhaustive_maximum(seed):
    x, labels, gamma = patterns.embeddings(7, 3, seed), torch.tensor([0, 0, 1, 1, 1, 2, 2]), 2.0
    table = torch.cdist(x, x).tolist()
    best = max(oc.facility_score(table, labels.tolist(), list(S), gamma) for S in itertools.combinations(range(7), 3))
    true = 0.0
    for c in range(3):
        members = (labels == c).nonzero()[:, 0].tolist()
        true -= min(sum(table[i][j] for i in members) for j in members)
    value = losses.FacilityLocationLoss(gamma=gamma)(x, labels).item()
    assert value <= max(best - true, 0) + 1e-9
    assert value >= 0.5 * (best - true)


def test_facility_location_of_well_separated_or_single_classes_is_zero():
    x = 100 * torch.eye(4, dtype=torch.float64)[LABELS] + 0.01 * patterns.embeddings(12, 4, 0)
    for labels in (LABELS, torch.zeros(12, dtype=torch.int64), torch.arange(12)):
        value, gradient = value_and_gradient(losses.FacilityLocationLoss(gamma=0.5), x, labels)
        assert value == 0
        assert not gradient.any()


def test_facility_location_gives_the_same_in_any_order():
    x, order = patterns.embeddings(12, 4, 0), torch.randperm(12, generator=torch.Generator().manual_seed(0))
    loss = losses.FacilityLocationLoss(gamma=2.0)
    torch.testing.assert_close(loss(x[order], LABELS[order]), loss(x, LABELS))


def test_gamma_falls_with_the_epochs_and_is_saved():
    x, loss = patterns.embeddings(12, 4, 0), losses.FacilityLocationLoss(gamma=8.0, decay=0.5)
    loss.end_epoch(), loss.end_epoch()
    torch.testing.assert_close(loss(x, LABELS), losses.FacilityLocationLoss(gamma=2.0)(x, LABELS))
    again = losses.FacilityLocationLoss(gamma=8.0, decay=0.5)
    again.load_state_dict(loss.state_dict())
    assert torch.equal(again(x, LABELS), loss(x, LABELS))


def test_pddm_scores_are_symmetric_and_those_of_the_equation():
    loss, x = losses.PDDMLoss(4).double(), patterns.embeddings(6, 4, 0)
    torch.testing.assert_close(loss.score(x[:, None], x), loss.score(x[None], x[:, None]))
    torch.testing.assert_close(loss.score(x[0], x[1]), oc.pddm_score(loss, x[0], x[1]))
    assert loss.score(x, x).isfinite().all()


def test_a_detached_pddm_moves_embeddings_by_distances_alone():
    torch.manual_seed(0)
    loss, x = losses.PDDMLoss(4, weight=0.0, detach=True).double(), normalize(patterns.embeddings(12, 4, 0))
    value, gradient = value_and_gradient(loss, x, LABELS)
    assert value > 0
    assert not gradient.any()


def test_hinge_on_products_of_unit_vectors_is_half_a_triplet_loss_without_margin():
    x = patterns.embeddings(12, 4, 0, "unit")
    hinge = losses.SmoothTripletLoss(hinge=True)
    torch.testing.assert_close(2 * hinge(x, LABELS), losses.TripletLoss(margin=0.0)(x, LABELS))
    assert hinge.normalize is True


def test_generalized_lifted_needs_a_scale_on_unit_vectors():
    """Without one all negatives weigh about the same and the hinge never closes, whatever the vectors."""
    plain, scaled = losses.GeneralizedLiftedLoss(), losses.GeneralizedLiftedLoss(scale=16.0)
    assert (plain.normalize, scaled.normalize) == ("eval", None)
    separated = torch.eye(4, dtype=torch.float64)[LABELS]
    assert plain(separated, LABELS) > 2
    assert scaled(separated, LABELS) == 0
    x, negative = patterns.embeddings(12, 4, 0, "unit"), LABELS[:, None] != LABELS
    for loss, most in ((plain, 2), (scaled, 32)):
        w = loss.weights(x, LABELS)[0][negative[0]]
        assert (w.max() / w.min()).log() <= most
    assert (w.max() / w.min()).log() > 2


def test_fewer_proxies_than_classes_check_their_number():
    with pytest.raises(ValueError, match="proxies is 6"):
        losses.ProxyNCALoss(5, 4, proxies=6)
    loss = losses.ProxyNCALoss(5, 4, proxies=2)
    assert loss.proxies.shape == (2, 4)
    with pytest.raises(ValueError, match="classes 0 to 4, got label 5"):
        loss(torch.eye(4), torch.tensor([0, 0, 5, 5]))


def test_a_sum_states_what_its_parts_need():
    loss = losses.SumLoss([(losses.SoftmaxLoss(4, 4), 1.0), (losses.NPairLoss(), 0.5)])
    assert (loss.batch, loss.takes_gallery, loss.normalize) == ("pairs", False, "eval")
    assert losses.SumLoss([(losses.TripletLoss(), 1.0), (losses.RAWLoss(), 1.0)]).normalize is True
    with pytest.raises(ValueError, match="different batches, pairs and triplets"):
        losses.SumLoss([(losses.NPairLoss(), 1.0), (losses.TripletLoss(mining="disjoint"), 1.0)])
    with pytest.raises(TypeError, match="give pairs of a loss and its weight"):
        losses.SumLoss([])
