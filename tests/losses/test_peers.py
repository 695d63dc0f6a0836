"""Test cases where other libraries are wrong: their value, and the right one worked out by hand."""

from math import e, exp, log

import pytest
import torch
from pytorch_metric_learning import distances, miners
from pytorch_metric_learning import losses as peer

from losses import oracles_tuples
from losses.batches import LargestTensor
from tuplet import losses, mining

AS_GIVEN = distances.LpDistance(normalize_embeddings=False)


def points(*rows, dtype=torch.float64):
    return torch.tensor(rows, dtype=dtype)


def ids(*values):
    return torch.tensor(values)


def close(value, expected):
    assert value.item() == pytest.approx(expected, rel=1e-12, abs=1e-14)


def softplus(z):
    return log(1 + exp(z))


def gradient(loss, x, labels, *options):
    x = x.clone().requires_grad_()
    loss(x, labels, *options).backward()
    return x.grad


def largest_tensor(loss, x, labels, *miner):
    with LargestTensor() as seen:
        gradient(loss, x, labels, *(mine(x, labels) for mine in miner))
    return seen.numbers


def test_angular_treats_all_vectors_alike():
    # α = 45°: f = 4·(x_a + x_p)·x_n − 4·x_a·x_p = 4·1.2 − 4 = 0.8; twice the length, four times f.
    x, y = points([1, 0], [1, 0], [0.6, 0.8]), ids(0, 0, 1)
    close(losses.AngularLoss(45)(x, y), softplus(0.8))
    close(losses.AngularLoss(45)(2 * x, y), softplus(3.2))
    # The peer makes x_a and x_p unit and leaves x_n as it is: 4·1.2·2 − 4.
    assert peer.AngularLoss(45)(2 * x, y).item() == pytest.approx(softplus(5.6), rel=1e-5)


def test_npair_uses_every_pair():
    x, y = torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64), ids(0, 0, 0, 1, 1, 1)
    moved = gradient(losses.NPairAllLoss(), x, y).abs().sum(1) > 0
    assert moved.all()
    close(losses.NPairAllLoss()(x, y), oracles_tuples.npair_all(x, y).item())
    with pytest.raises(ValueError, match="exactly two examples of each class, but class 0 has 3"):
        losses.NPairLoss()(x, y)
    # The peer takes a class's first pair and leaves the third example where it is.
    assert (gradient(peer.NPairsLoss(), x, y).abs().sum(1) > 0).tolist() == [True, True, False, True, True, False]


def test_npair_can_fall_to_zero():
    x, y = torch.eye(3, dtype=torch.float64).repeat_interleave(2, 0), ids(0, 0, 1, 1, 2, 2)
    close(losses.NPairLoss()(x, y), log(1 + 2 / e))
    close(losses.NPairLoss()(6 * x, y), log(1 + 2 * exp(-36)))
    close(losses.NPairLoss(scale=36.0)(x, y), log(1 + 2 * exp(-36)))
    # The peer makes the vectors unit and has no scale: a perfect embedding stays at log(1 + 2/e).
    assert peer.NPairsLoss()(6 * x, y).item() == pytest.approx(log(1 + 2 / e))


def test_ranked_list_weights_are_constants():
    # Negatives at 0.25 and 0.5 on two axes, T = 4 log 2: weights 2 and 1, so shares ⅔ and ⅓, whose sum is 1.
    loss = losses.RankedListLoss(alpha=1.0, margin=0.4, temperature=4 * log(2))
    x, gallery = points([0, 0]).requires_grad_(), points([0.25, 0], [0, 0.5])
    value = loss(x, ids(0), gallery=gallery, gallery_labels=ids(1, 1))
    close(value, 2 / 3 * 0.75 + 1 / 3 * 0.5)
    torch.testing.assert_close(torch.autograd.grad(value, x)[0], points([2 / 3, 1 / 3]))
    # The peer differentiates the shares too: of its row (0.25, 0.5), both slopes would be −⅔ and −⅓ of a half.
    table = points([0, 0.25, 0.5], [0.25, 0, 9], [0.5, 9, 0]).requires_grad_()
    theirs = peer.RankedListLoss(margin=0.4, Tn=4 * log(2), alpha=1.0)
    del theirs.distance
    theirs.distance = lambda *_: table
    (slopes,) = torch.autograd.grad(theirs(torch.zeros(3, 2, dtype=torch.float64), ids(0, 1, 2)), table)
    assert (slopes[0, 1:] * 3 * 2).tolist() != pytest.approx([-2 / 3, -1 / 3], rel=0.1)


def test_ranked_list_of_a_collapsed_batch():
    # Positives are near enough; every negative is at 0 and short of α.
    x, y = points([1, 0], [1, 0], [1, 0], [1, 0]), ids(0, 0, 1, 1)
    close(losses.RankedListLoss(alpha=1.2)(x, y), 1.2)
    assert peer.RankedListLoss(margin=0.4, Tn=0, alpha=1.2, distance=AS_GIVEN)(x, y).item() == 0


def test_ranked_list_adds_no_constant_to_the_weights():
    x, y = points([0, 0], [0.5, 0]), ids(0, 1)
    close(losses.RankedListLoss(alpha=1.2)(x, y), 0.7)
    # The peer adds 1e-5 for each of the N entries of a row to the sum of weights; it takes half of each side.
    theirs = 2 * peer.RankedListLoss(margin=0.4, Tn=0, alpha=1.2, distance=AS_GIVEN)(x, y).item()
    assert theirs == pytest.approx(0.7 / (1 + 2e-5), rel=1e-9)


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")
def test_histogram_with_a_duplicate():
    # Positive pairs at 1 and 0, negative ones at 1, 1, 0 and 0: ½·½ + ½·1.
    x, y = points([1, 0], [1, 0], [1, 0], [0, 1]), ids(0, 0, 1, 1)
    close(losses.HistogramLoss()(x, y), 0.75)
    long = x * (1 + 1e-7)
    assert losses.HistogramLoss()(long.float(), y).item() == pytest.approx(0.75, rel=1e-5)
    with pytest.raises((IndexError, RuntimeError), match="out of bounds"):
        peer.HistogramLoss(n_bins=150)(x, y)


N = 24
TRIPLETS_AND_WORSE = [
    (losses.HistogramLoss(11), (peer.HistogramLoss(n_bins=20),), N**3),
    (losses.TripletLoss(), (peer.TripletMarginLoss(),), N**3),
    (
        losses.TripletLoss(mining="semi_hard"),
        (peer.TripletMarginLoss(), miners.TripletMarginMiner(type_of_triplets="semihard")),
        N**3,
    ),
    (losses.MarginLoss(mining=None), (peer.MarginLoss(),), N**3),
    # Three positives each: 3N positive pairs by N(N − 4) negative pairs.
    (losses.LiftedStructureLoss(), (peer.LiftedStructureLoss(),), 3 * N * N * (N - 4)),
    (losses.NPairAllLoss(), (peer.NTXentLoss(),), 3 * N * N * (N - 4)),
]


@pytest.mark.filterwarnings("ignore:Using a non-tuple sequence")
@pytest.mark.parametrize(("ours", "theirs", "at_least"), TRIPLETS_AND_WORSE, ids=lambda v: type(v).__name__)
def test_no_table_larger_than_that_of_all_pairs(ours, theirs, at_least):
    x = torch.randn(N, 5, generator=torch.Generator().manual_seed(0))
    y = torch.arange(N) // 4
    assert largest_tensor(ours, x, y) <= N * N
    assert largest_tensor(*theirs[:1], x, y, *theirs[1:]) >= at_least


def test_nca_counts_its_hardest_queries():
    z = 100.0
    # Each query has its positive opposite, a negative on top of it and one opposite: log[(2e^{−z} + e^{z}) / e^{−z}].
    x, y = points([1, 0], [-1, 0], [1, 0], [-1, 0], dtype=torch.float32), ids(0, 0, 1, 1)
    assert losses.NCALoss(scale=z)(x, y).item() == pytest.approx(log(2 + exp(2 * z)))
    assert gradient(losses.NCALoss(scale=z), x, y).isfinite().all()
    assert peer.NCALoss(softmax_scale=z)(x, y).isnan()
    # Two easy queries, two impossible ones (the first has a negative on top of it) and one without positives.
    x, y = points([1, 0], [1, 0], [0, 1], [0, -1], [0, 1], dtype=torch.float32), ids(0, 0, 1, 1, 2)
    terms = [log(1 + 3 * exp(-z))] * 2 + [log(1 + 2 * exp(z) + exp(2 * z)), log(2 + 2 * exp(z))]
    assert losses.NCALoss(scale=z)(x, y).item() == pytest.approx(sum(terms) / 4)
    assert peer.NCALoss(softmax_scale=z)(x, y).item() == pytest.approx(0, abs=1e-6)  # the easy ones alone


@pytest.mark.parametrize(("own", "expected", "theirs"), [((0, 1), 0.0, log(2)), ((1, 0), -2.0, log(1 + exp(-2)))])
def test_proxy_nca_leaves_the_positive_out_of_the_denominator(own, expected, theirs):
    # The other proxy at d² = 2; the own at d² = 2, or on the spot.
    x, y, proxies = points([1, 0]), ids(0), points(own, [0, -1])
    loss, other = losses.ProxyNCALoss(2, 2).double(), peer.ProxyNCALoss(2, 2)
    loss.proxies.data, other.proxies.data = proxies, proxies
    close(loss(x, y), expected)
    assert other(x, y).item() == pytest.approx(theirs)


def test_one_mined_positive_and_one_mined_negative():
    # s = 0.6 with the positive, 0.8 with the negative: both are valid at ε = 0.1, and there is nothing else.
    q, p, n = points([1, 0]), points([0.6, 0.8]), points([0.8, 0.6])
    loss = losses.RAWLoss(alpha=2, beta=10, threshold=0.5, mining=mining.ValidTriplet(0.1))
    value = loss(q, ids(0), gallery=torch.cat([p, n]), gallery_labels=ids(0, 1))
    close(value, softplus(-0.2) / 2 + softplus(3) / 10)
    pairs = ids(0), ids(1), ids(0), ids(2)
    assert peer.MultiSimilarityLoss(2, 10, 0.5)(torch.cat([q, p, n]), ids(0, 0, 1), pairs).item() == 0


def test_memory_continues_where_it_was_saved():
    bank, again = losses.MemoryBank(4, 1), losses.MemoryBank(4, 1)
    bank.add(points([1], [2], [3]), ids(1, 2, 3))
    again.load_state_dict(bank.state_dict())
    for each in (bank, again):
        each.add(points([4], [5]), ids(4, 5))
        assert each.vectors.flatten().tolist() == [5, 2, 3, 4]
        assert each.labels.tolist() == [5, 2, 3, 4]
    theirs, reloaded = (peer.CrossBatchMemory(peer.ContrastiveLoss(), 1, memory_size=4) for _ in range(2))
    theirs(points([1], [2], [3]), ids(1, 2, 3))
    reloaded.load_state_dict(theirs.state_dict())
    assert (theirs.queue_idx, reloaded.queue_idx) == (3, 0)


def test_smooth_triplet_does_not_overflow():
    # x_a·x_n − x_a·x_p of (0, 1) is 500 + 500, of (1, 0) −250,000 + 500: the terms are 1000 and 0.
    x, y = points([1, 0], [-500, 0], [500, 0], dtype=torch.float32), ids(0, 0, 1)
    assert losses.SmoothTripletLoss()(x, y).item() == 500
    assert gradient(losses.SmoothTripletLoss(), x, y).isfinite().all()
    assert torch.tensor(1000.0).exp().log1p().isinf()  # as the formula stands


def test_semi_hard_treats_each_anchor_by_itself():
    # On a line, classes {0, 2} and {1, 3.5, −5}; (anchor, positive → negative) and d_ap² − d_an² + 50:
    terms = [
        4 - 12.25,  # 0, 2 → 3.5
        4 - 49,  # 2, 0 → −5
        6.25 - 1,  # 1, 3.5 → none is farther: 0 or 2, both at 1
        36 - 1,  # 1, −5 → the same
        6.25 - 12.25,  # 3.5, 1 → 0
        72.25 - 12.25,  # 3.5, −5 → none is farther: 0
        36 - 49,  # −5, 1 → 2
        72.25 - 49,  # −5, 3.5 → none is farther: 2
    ]
    x, y = points([0], [2], [1], [3.5], [-5]), ids(0, 0, 1, 1, 1)
    close(losses.TripletLoss(margin=50, mining="semi_hard")(x, y), 50 + sum(terms) / 8)
