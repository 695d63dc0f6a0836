"""Test the losses of cosines against pytorch-metric-learning: where both agree, and where the peer is wrong."""

from math import degrees, exp, log

import pytest
import torch
from pytorch_metric_learning import losses as peer
from pytorch_metric_learning import regularizers

from losses.label_patterns import embeddings
from tuplet import losses

CLASSES, DIM = 5, 4
X, Y = 3 * embeddings(15, DIM, 0), torch.arange(15) % CLASSES


def points(*rows, dtype=torch.float64):
    return torch.tensor(rows, dtype=dtype)


def ids(*values):
    return torch.tensor(values)


def gradients(loss, x, labels, *parameters):
    x = x.clone().requires_grad_()
    return torch.autograd.grad(loss(x, labels), [x, *parameters])


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (losses.SupConLoss(), peer.SupConLoss()),
        (losses.SupConLoss(0.5), peer.SupConLoss(0.5)),
        (losses.CircleLoss(), peer.CircleLoss()),
        (losses.CircleLoss(0.25, 7.0), peer.CircleLoss(0.25, 7)),
        (losses.TupletMarginLoss(), peer.TupletMarginLoss(degrees(0.1))),
        (losses.TupletMarginLoss(0.4, 9.0), peer.TupletMarginLoss(degrees(0.4), 9)),
    ],
    ids=str,
)
def test_losses_of_pairs_agree(ours, theirs):
    torch.testing.assert_close(ours(X, Y), theirs(X, Y), rtol=1e-6, atol=0)
    torch.testing.assert_close(gradients(ours, X, Y), gradients(theirs, X, Y), rtol=1e-6, atol=1e-9)


def sub_centers(classes, dim, **options):
    return peer.SubCenterArcFaceLoss(num_classes=classes, embedding_size=dim, sub_centers=3, **options)


def sparse(classes, dim):
    """Make the peer's regulariser with twice the weight of ours: it divides by the number of ordered pairs."""
    together = regularizers.SparseCentersRegularizer(classes, 10)
    return peer.SoftTripleLoss(classes, dim, weight_regularizer=together, weight_reg_weight=0.4)


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        (losses.CosFaceLoss(CLASSES, DIM), peer.CosFaceLoss(CLASSES, DIM)),
        (losses.ArcFaceLoss(CLASSES, DIM), peer.ArcFaceLoss(CLASSES, DIM, degrees(0.5))),
        (losses.ArcFaceLoss(CLASSES, DIM, 8.0, 1.5), peer.ArcFaceLoss(CLASSES, DIM, degrees(1.5), 8)),
        (losses.ArcFaceLoss(CLASSES, DIM, centers=3), sub_centers(CLASSES, DIM, margin=degrees(0.5))),
        (losses.SoftTripleLoss(CLASSES, DIM, tau=0.0), peer.SoftTripleLoss(CLASSES, DIM)),
        (losses.SoftTripleLoss(CLASSES, DIM), sparse(CLASSES, DIM)),
    ],
    ids=lambda loss: type(loss).__name__,
)
def test_losses_of_classes_agree(ours, theirs):
    ours = ours.double()
    ours.proxies.data = embeddings(len(ours.proxies), DIM, 1)
    weights = theirs.fc if isinstance(theirs, peer.SoftTripleLoss) else theirs.W
    weights.data = ours.proxies.detach().T.clone()
    torch.testing.assert_close(ours(X, Y), theirs(X, Y), rtol=1e-6, atol=0)
    on_x, on_proxies = gradients(ours, X, Y, ours.proxies)
    their_x, on_weights = gradients(theirs, X, Y, weights)
    torch.testing.assert_close(on_x, their_x, rtol=1e-6, atol=1e-9)
    torch.testing.assert_close(on_proxies, on_weights.T, rtol=1e-6, atol=1e-9)


def test_smooth_ap_looks_at_the_labels():
    x, y = points([1, 0], [0.9, 0.1], [0.8, 0.2], [0, 1], [0.1, 0.9], [0.2, 0.8]), ids(0, 0, 0, 1, 1, 1)
    assert losses.SmoothAPLoss()(x, y) < 1e-3
    assert losses.SmoothAPLoss()(x, ids(0, 1, 0, 1, 0, 1)) > 0.3
    # The peer cuts the batch into as many groups as a class has examples, whatever the labels are.
    assert peer.SmoothAPLoss()(x, y) == peer.SmoothAPLoss()(x, ids(0, 1, 0, 1, 0, 1))


def test_circle_counts_its_easy_queries():
    # Queries of the first class have their positive on the spot, those of the second opposite; negatives are at 0.
    x, y = points([1, 0, 0], [1, 0, 0], [0, 1, 0], [0, -1, 0]), ids(0, 0, 1, 1)
    scale = 400.0
    easy = log(1 + 2 * exp(-0.16 * scale) * exp(-0.16 * scale))
    hard = log(2) - 0.16 * scale + 2.4 * 1.6 * scale
    assert losses.CircleLoss(0.4, scale)(x, y).item() == pytest.approx((easy + hard) / 2, rel=1e-9)
    # The peer takes the mean of the terms above zero, and e^{−128} is zero in float32.
    assert peer.CircleLoss(0.4, scale)(x.float(), y).item() == pytest.approx(hard, rel=1e-5)


def test_supcon_without_negatives():
    # One class alone: positives at 1 and 0 from the first, at 1 and 0 from the second, at 0 and 0 from the third.
    x, y = points([1, 0], [1, 0], [0, 1]), ids(0, 0, 0)
    expected = (2 * (log(exp(10) + 1) - 5) + log(2)) / 3
    assert losses.SupConLoss()(x, y).item() == pytest.approx(expected)
    assert peer.SupConLoss()(x, y).item() == 0


def test_tuplet_margin_of_copies():
    x, y = points([1, 0], [1, 0], [0.6, 0.8], [0, 1], dtype=torch.float32), ids(0, 0, 1, 1)
    (ours,), (theirs,) = gradients(losses.TupletMarginLoss(), x, y), gradients(peer.TupletMarginLoss(), x, y)
    assert ours.isfinite().all()
    assert not theirs.isfinite().all()
