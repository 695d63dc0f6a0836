"""Test the oracles against numbers worked out by hand, and against each other where two equations agree."""

import math
from math import e, log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from losses import oracles_cosines as cosines
from losses import oracles_mining as mining
from losses import oracles_pairs as pairs
from losses import oracles_tuples as tuples
from losses.label_patterns import KINDS, embeddings, labels, paired_labels
from losses.oracle_rows import by_vector


def points(*rows):
    return torch.tensor(rows, dtype=torch.float64, requires_grad=True)


def ids(*values):
    return torch.tensor(values)


def line(query, *gallery):
    """Make one query of class 0 on a line, and a gallery of (position, label)."""
    places, classes = zip(*gallery, strict=True)
    options = {"gallery": points(*[[p] for p in places]), "gallery_labels": ids(*classes)}
    return points([query]), ids(0), options


def close(value, expected):
    assert value.item() == pytest.approx(expected, rel=1e-12, abs=1e-14)


# Distances 3 (the positive pair), 4 and 5.
TRIANGLE = points([0, 0], [3, 0], [0, 4]), ids(0, 0, 1)
# x0·x1 = log 2 (the positive pair), x0·x2 = log 3, x1·x2 = 0.
LOGS = points([1, 0], [log(2), 1], [log(3), -log(2) * log(3)]), ids(0, 0, 1)
# On a line, classes {0, 2} and {1, 3.5, −5}.
BEADS = points([0], [2], [1], [3.5], [-5]), ids(0, 0, 1, 1, 1)


def test_contrastive():
    # Positives 9 twice, negatives (4.5 − 4)² twice and nothing beyond the margin twice: six ordered pairs.
    close(pairs.contrastive(*TRIANGLE, margin=4.5), (9 + 9 + 0.25 + 0.25) / 6)


def test_cosine_contrastive():
    # λ = log 2. Row 0: log 3 − λ − log 2; row 1: 0 − log 2; row 2: log 3 − λ + 0, no positives.
    close(pairs.cosine_contrastive(*LOGS, threshold=log(2)), (2 * log(3 / 2) - 2 * log(2)) / 3)


def test_cosine_contrastive_mined():
    # Row 0 keeps its positive, row 2 its negative x0; no threshold is taken off.
    kept = (
        torch.tensor([[0, 1, 0], [0, 0, 0], [0, 0, 0]]).bool(),
        torch.tensor([[0, 0, 0], [0, 0, 0], [1, 0, 0]]).bool(),
    )
    close(pairs.cosine_contrastive(*LOGS, kept=kept), (log(3) - log(2)) / 3)


def test_binomial_deviance():
    # Rows: log 3/2 + log 4; log 3/2 + log 2; no positives, and the mean of log 4 and log 2.
    value = pairs.binomial_deviance(*LOGS, alpha=1, beta=1, threshold=0)
    close(value, (log(1.5) + log(4) + log(1.5) + log(2) + (log(4) + log(2)) / 2) / 3)


def test_raw():
    # β = 2 squares the negatives' e^s: rows log 3/2 + ½ log 10; log 3/2 + ½ log 2; ½ log(1 + 9 + 1).
    value = pairs.raw(*LOGS, alpha=1, beta=2, threshold=0)
    close(value, (2 * log(1.5) + (log(10) + log(2) + log(11)) / 2) / 3)


def test_raw_with_nothing_kept():
    nothing = torch.zeros(3, 3, dtype=torch.bool)
    close(pairs.raw(*LOGS, kept=(nothing, nothing)), 0)


def test_raw_has_the_weights_of_equations_15_and_16():
    x, y = embeddings(1, 4, 0, "unit").requires_grad_(), ids(0)
    gallery, gallery_labels = embeddings(6, 4, 1, "unit"), ids(0, 0, 1, 1, 2, 2)
    pairs.raw(x, y, gallery=gallery, gallery_labels=gallery_labels).backward()
    s = (gallery @ x[0]).tolist()
    expected = torch.zeros(4, dtype=torch.float64)
    for j in range(2):
        w = 1 / (sum(math.exp(2 * (s[j] - s[k])) for k in range(2)) + math.exp(2 * (s[j] - 0.5)))
        expected -= w * gallery[j]
    for j in range(2, 6):
        w = 1 / (sum(math.exp(-50 * (s[j] - s[k])) for k in range(2, 6)) + math.exp(-50 * (s[j] - 0.5)))
        expected += w * gallery[j]
    torch.testing.assert_close(x.grad[0], expected)


def test_generalized_lifted():
    # Margin 0: [log ½ + log 3]₊ = log 3/2 and [log ½ + 0]₊ = 0; x2 has no positive and does not count.
    close(pairs.generalized_lifted(*LOGS, margin=0.0), log(1.5) / 2)
    close(pairs.generalized_lifted(*LOGS, margin=1.0), (1 + log(1.5) + 1 - log(2)) / 2)


def test_lifted_structure():
    # log(e^{1−4} + e^{1−5}) + 3 = log(1 + 1/e), squared, over 2·1.
    close(pairs.lifted_structure(*TRIANGLE, margin=1.0), log(1 + 1 / e) ** 2 / 2)
    # In a gallery the member 3 away has the negative 7 away: log(e^{1−4} + e^{1−7}) + 3.
    x, y, options = line(0, (3, 0), (-4, 1))
    close(pairs.lifted_structure(x, y, **options), log(1 + e**-3) ** 2 / 2)


def test_nca():
    # −log 2/(2+3) and −log 2/(2+1); x2 has no positive and does not count.
    close(pairs.nca(*LOGS), (log(5 / 2) + log(3 / 2)) / 2)
    # Scale 2 squares every e^s: 4/(4+9) and 4/(4+1).
    close(pairs.nca(*LOGS, scale=2.0), (log(13 / 4) + log(5 / 4)) / 2)


def test_nra():
    # D from 1 to 5; D⁺ = 4, r = ¾, w = 1 − ½(½)² = 7/8, s⁺ = ⅛; D⁻ = 3, r = ½, w = ½, s⁻ = ½.
    x, y, options = line(0, (1, 0), (-4, 0), (3, 1), (-5, 1))
    close(pairs.nra(x, y, alpha=2, eps=0.125, **options), -log(1 / 8 + 1 / 8) - log(1 / 2 + 1 / 8))


def test_nra_with_all_at_one_distance_is_undefined():
    x, y, options = line(0, (2, 0), (-2, 1))
    close(pairs.nra(x, y, **options), 0)


def test_ranked_list():
    # α = 4, m = 1. P* = {5}: 5 − 3 = 2. N* = {3, 1} with weights 2¹ and 2³: (2·1 + 8·3)/10 = 2.6.
    x, y, options = line(0, (2, 0), (5, 0), (3, 1), (-1, 1), (6, 1))
    value = pairs.ranked_list(x, y, alpha=4, margin=1, temperature=log(2), **options)
    close(value, 4.6)
    # Constant weights: towards the positive at 5 (−1), away from 3 (+0.2), away from −1 (−0.8); the gallery stays.
    query, gallery = torch.autograd.grad(value, [x, options["gallery"]], materialize_grads=True)
    close(query[0, 0], -1.6)
    assert not gallery.any()
    value = pairs.ranked_list(x, y, alpha=4, margin=1, temperature=log(2), move_gallery=True, **options)
    torch.testing.assert_close(torch.autograd.grad(value, options["gallery"])[0], points([0], [1], [-0.2], [0.8], [0]))


def test_ranked_list_of_a_collapsed_batch():
    # Every d is 0: no positive is beyond α − m, every negative costs α, and no direction is known.
    x = embeddings(4, 3, 0, "collapsed").requires_grad_()
    value = pairs.ranked_list(x, ids(0, 0, 1, 1))
    close(value, 1.2)
    assert not torch.autograd.grad(value, x)[0].any()


def test_margin_loss():
    # β = 2, m = 1: positives 1 and 4; negatives 3 − d: 0, 2 and −3. Three are above zero.
    x, y, options = line(0, (2, 0), (5, 0), (3, 1), (-1, 1), (6, 1))
    beta = torch.tensor(2.0, dtype=torch.float64, requires_grad=True)
    value = pairs.margin_loss(x, y, beta=beta, margin=1, **options)
    close(value, (1 + 4 + 2) / 3)
    close(torch.autograd.grad(value, beta)[0], (-1 - 1 + 1) / 3)


def test_histogram():
    # Nodes −1, 0, 1. Positive 0.6: (0, .4, .6). Negatives 0 and 0.8: (0, 1, 0) and (0, .2, .8), mean (0, .6, .4).
    x = points([1, 0], [0.6, 0.8], [0, 1])
    close(pairs.histogram(x, ids(0, 0, 1), bins=3), 0.6 * 0.4 + 0.4 * 1)


def test_histogram_clamps():
    # A positive pair of 25 counts as 1, a negative one of −25 as −1: perfect order, whatever the gallery.
    x, y, options = line(5, (5, 0), (-5, 1))
    close(pairs.histogram(x, y, **options), 0)
    close(pairs.histogram(x, ids(1), **options), 1)


def test_proxy_nca():
    x, proxies = points([0, 0]), points([3, 0], [0, 4], [0, -1])
    close(pairs.proxy_nca(x, ids(0), proxies, squared_distance=False), 3 + log(e**-4 + e**-1))
    close(pairs.proxy_nca(x, ids(0), proxies), 9 + log(e**-16 + e**-1))


def test_softmax():
    # Scores log 2 and log 3.
    close(pairs.softmax(points([1]), ids(0), points([log(2)], [0]), row(0, log(3))[0]), log(5 / 2))


def test_softmax_is_cross_entropy():
    x, proxies, bias = embeddings(5, 3, 0), embeddings(4, 3, 1), embeddings(4, 1, 2)[:, 0]
    y = ids(3, 0, 0, 1, 2)
    close(pairs.softmax(x, y, proxies, bias), torch.nn.functional.cross_entropy(x @ proxies.T + bias, y).item())


def test_proxy_anchor():
    # s = log 2, log 3, −log 2. Class 0 pulls: log(1 + ½). Of three classes 1 and 2 push: log(1 + 3), log(1 + ½).
    x, proxies = points([log(2), log(3)]), points([2, 0], [0, 3], [-1, 0])
    close(pairs.proxy_anchor(x, ids(0), proxies, alpha=1, margin=0), log(1.5) + (log(4) + log(1.5)) / 3)
    # δ = log 2 doubles every exponential, of the pull and of the push.
    value = pairs.proxy_anchor(x, ids(0), proxies, alpha=1, margin=log(2))
    close(value, log(2) + (log(7) + log(2)) / 3)


def around(*members):
    """Make one query of class 0 at (2, 0), and a gallery of (vector, label)."""
    vectors, classes = zip(*members, strict=True)
    return points([2, 0]), ids(0), {"gallery": points(*vectors), "gallery_labels": ids(*classes)}


SIXTY_DEGREES = [1, 3**0.5]


def test_cosface():
    # Cosines 1 and 0; log 4 · (1 − ½) against 0.
    close(cosines.cosface(points([2, 0]), ids(0), points([3, 0], [0, 1]), log(4), 0.5), log(3 / 2))


def test_arcface():
    # 60° and 30° of margin make 90°: cosines 0 and 0.
    x, proxies = points([2, 0]), points(SIXTY_DEGREES, [0, 1])
    close(cosines.arcface(x, ids(0), proxies, 1, math.pi / 6), log(2))
    # 180° are beyond: −1 − (π/6)·½ against 0.
    proxies = points([-3, 0], [0, 1])
    close(cosines.arcface(x, ids(0), proxies, 1, math.pi / 6), log(1 + e ** (1 + math.pi / 12)))
    # Of two centres the nearest counts, in both classes.
    proxies = points([-3, 0], SIXTY_DEGREES, [0, 1], [-1, 0])
    close(cosines.arcface(x, ids(0), proxies, 1, math.pi / 6, centers=2), log(2))


def test_soft_triple():
    # Shares ¾ and ¼ of the cosines 1 and 0, the other class at 0: 2 log 2 · (¾ − ¼). Centres √2 and 2 apart.
    x, proxies = points([2, 0]), points([1, 0], [0, 1], [0, 1], [0, -5])
    value = cosines.soft_triple(x, ids(0), proxies, 2, 2 * log(2), 1 / log(3), 0.25, tau=0.2)
    close(value, log(3 / 2) + 0.2 * (2**0.5 + 2) / 2)


def test_supcon():
    # e^{s/τ} is 2 and 1 for the positives, ½ for the negative.
    x, y, options = around(([5, 0], 0), ([0, 1], 0), ([-1, 0], 1))
    close(cosines.supcon(x, y, 1 / log(2), **options), log(3.5) - log(2) / 2)


def test_circle():
    # The negative at 0.8: 1.2 · 0.4; the positive at 0: 1.4 · 0.6.
    x, y, options = around(([0, 1], 0), ([4, 3], 1))
    close(cosines.circle(x, y, 0.4, 10, **options), log(1 + e ** (4.8 + 8.4)))


def test_smooth_ap():
    # Positives at 1 and 0, the negative at 0.6, τ = 0.2.
    def ahead(z):
        return 1 / (1 + math.exp(-z))

    x, y, options = around(([1, 0], 0), ([0, 1], 0), ([3, 4], 1))
    first = (1 + ahead(-5)) / (1 + ahead(-5) + ahead(-2))
    second = (1 + ahead(5)) / (1 + ahead(5) + ahead(3))
    close(cosines.smooth_ap(x, y, 0.2, **options), 1 - (first + second) / 2)


def test_smooth_ap_tends_to_the_average_precision():
    # In order: a negative, a positive, a negative, a positive. Precisions ½ and ½.
    x, y, options = around(([9, 1], 1), ([9, 2], 0), ([9, 3], 1), ([9, 4], 0))
    close(cosines.smooth_ap(x, y, 1e-4, **options), 1 / 2)


def test_tuplet_margin():
    # 60° less 30° of slack: cos 30° = √¾, against a cosine of 0.
    x, y, options = around((SIXTY_DEGREES, 0), ([0, 1], 1))
    close(cosines.tuplet_margin(x, y, math.pi / 6, log(3) / 0.75**0.5, **options), log(4 / 3))


def test_supcon_and_tuplet_margin_are_npair_with_one_positive_each():
    x, y = embeddings(8, 4, 0, "unit"), ids(0, 1, 2, 3, 0, 1, 2, 3)
    npair = tuples.npair_all(x, y, 5.0).item()
    close(cosines.supcon(x, y, 1 / 5), npair)
    close(cosines.tuplet_margin(3 * x, y, 0.0, 5.0), npair)


def test_triplet_all():
    # 9 − 16 + 10 = 3 and 9 − 25 + 10 < 0, which counts as a triplet all the same.
    close(tuples.triplet(*TRIANGLE, margin=10), 3 / 2)


def test_triplet_semi_hard():
    # (a, p) → d_ap², d_an²: at 0: 4, 3.5²; at 2: 4, 7² (negatives 1, 1.5 and 7 away); at 1, whose negatives are both 1
    # away: 2.5², 1 and 36, 1; at 3.5: 2.5², 3.5² and 8.5², 3.5² (the farthest); at −5: 36, 49 and 8.5², 49.
    # With m = 1: 0, 0, 6.25, 36, 0, 61, 0, 24.25.
    close(tuples.triplet(*BEADS, margin=1, mining="semi_hard"), (6.25 + 36 + 61 + 24.25) / 8)


def test_triplet_hardest():
    # 4 − 1, 4 − 1, 36 − 1, 8.5² − 1.5², 8.5² − 25, each + 1.
    close(tuples.triplet(*BEADS, margin=1, mining="hardest"), (4 + 4 + 36 + 71 + 48.25) / 5)


def test_triplet_disjoint():
    # Rows (0, 2, 1): 4 − 1 + 1. Rows (3.5, 1, −5): 6.25 − 72.25 + 1 < 0.
    x = points([0], [2], [1], [3.5], [1], [-5])
    close(tuples.triplet(x, ids(0, 0, 1, 1, 1, 0), margin=1, mining="disjoint"), 4 / 2)


def test_smooth_triplet_and_npair_all():
    # One negative each: log(1 + 3/2) and log(1 + 1/2).
    close(tuples.smooth_triplet(*LOGS), (log(2.5) + log(1.5)) / 2)
    close(tuples.npair_all(*LOGS), (log(2.5) + log(1.5)) / 2)
    # Two negatives of e^s 2 and 3, a positive of 1: log 3 and log 4 apart, log 6 together.
    x, y, options = line(1, (0, 0), (log(2), 1), (log(3), 2))
    close(tuples.smooth_triplet(x, y, **options), (log(3) + log(4)) / 2)
    close(tuples.npair_all(x, y, **options), log(6))
    close(tuples.npair(x, y, **options), log(6))
    close(tuples.npair(x, y, variant="ovo", **options), log(3) + log(4))
    close(tuples.npair_all(x, y, scale=2.0, **options), log(1 + 4 + 9))


def test_npair():
    # Queries (1, 0) and (0, 1), their positives after them: e^{x·x⁺} = 2 and 4, e^{x·x⁻} = 3 and 1.
    x, y = points([1, 0], [0, 1], [log(2), 0], [log(3), log(4)]), ids(7, -3, 7, -3)
    forward, backward = (log(5 / 2) + log(5 / 4)) / 2, (log(3 / 2) + log(7 / 4)) / 2
    close(tuples.npair(x, y), forward)
    close(tuples.npair(x, y, symmetric=True), (forward + backward) / 2)
    norms = (1 + 1 + log(2) ** 2 + log(3) ** 2 + log(4) ** 2) / 4
    close(tuples.npair(x, y, norm_penalty=0.5), forward + 0.5 * norms)


def test_angular_hinge():
    # ‖a − p‖² = 4, the centre is (1, 0), ½ from n; tan² 45° = 1: 4 − 4·¼, for both orders.
    close(tuples.angular_hinge(points([0, 0], [2, 0], [1, 0.5]), ids(0, 0, 1)), 3)


def test_angular():
    # tan² 45° = 1, x_a·x_p = 1: f = 4·(x_a + x_p)·x_n − 4 = log 3 for both orders.
    x = points([1, 0], [1, 1], [(log(3) + 4) / 8, 0])
    close(tuples.angular(x, ids(0, 0, 1)), log(4))
    # tan² 60° = 3: f = 12·(x_a + x_p)·x_n − 8.
    close(tuples.angular(x, ids(0, 0, 1), alpha=60.0), log(1 + math.exp(3 * (log(3) + 4) - 8)))
    close(tuples.npair_angular(x, ids(0, 0, 1), weight=3.0), tuples.npair_all(x, ids(0, 0, 1)).item() + 3 * log(4))


def test_angular_is_the_hinge_without_the_norms():
    # On unit vectors Angular (6) is f plus 2 − 6 tan²α: the constants that (8) drops.
    a, p, n = embeddings(3, 4, 0, "unit")
    x, tan2 = torch.stack([a, p, n]), math.tan(math.radians(20)) ** 2
    f = 4 * tan2 * (a + p) @ n - 2 * (1 + tan2) * a @ p
    close(tuples.angular_hinge(x, ids(0, 0, 1), alpha=20.0), (f + 2 - 6 * tan2).item())


@given(paired_labels(), st.integers(0, 99))
def test_npair_losses_agree(two_each, seed):
    y = torch.tensor(two_each)
    firsts = [i for i, label in enumerate(two_each) if label not in two_each[:i]]
    seconds = [two_each.index(two_each[i], i + 1) for i in firsts]
    x = embeddings(len(y), 3, seed)
    options = {"gallery": x[seconds], "gallery_labels": y[seconds]}
    q, ql, classes = x[firsts], y[firsts], len(firsts)
    close(tuples.npair(x, y), tuples.npair_all(q, ql, **options).item())
    close(tuples.npair(x, y, variant="ovo"), (classes - 1) * tuples.smooth_triplet(q, ql, **options).item())
    close(tuples.npair(x, y, symmetric=True), tuples.npair(q, ql, symmetric=True, **options).item())
    close(tuples.npair_all(x, y), pairs.nca(x, y).item())
    if classes == 2:
        close(tuples.npair(x, y), tuples.smooth_triplet(q, ql, **options).item())


def test_binomial_and_raw_agree_with_one_pair_of_each_kind():
    x, y, options = line(0.3, (0.5, 0), (-0.4, 1))
    plain = {"alpha": 1.0, "beta": 1.0, "threshold": 0.2}
    close(pairs.raw(x, y, **plain, **options), pairs.binomial_deviance(x, y, **plain, **options).item())


def row(*values):
    return torch.tensor([values], dtype=torch.float64)


def mask(*values):
    return torch.tensor([values]).bool()


POSITIVE, NEGATIVE = mask(1, 1, 0, 0, 0), mask(0, 0, 1, 1, 1)


def test_valid_triplet():
    # Hardest positive 0.5: negatives above 0.4. Hardest negative 0.7: positives below 0.8.
    kept = mining.valid_triplet(row(0.9, 0.5, 0.45, 0.3, 0.7), POSITIVE, NEGATIVE)
    assert torch.equal(kept[0], mask(0, 1, 0, 0, 0))
    assert torch.equal(kept[1], mask(0, 0, 1, 0, 1))
    for positive, negative in [(POSITIVE, POSITIVE ^ POSITIVE), (NEGATIVE ^ NEGATIVE, NEGATIVE)]:
        kept = mining.valid_triplet(row(0.9, 0.5, 0.45, 0.3, 0.7), positive, negative)
        assert not kept[0].any()
        assert not kept[1].any()


def test_semi_hard():
    # The positive at 1 takes the negative at 2 and not the one at its own distance; the one at 4 the farthest, at 3.
    kept = mining.semi_hard(row(1, 4, 2, 1, 3), POSITIVE, NEGATIVE)
    assert torch.equal(kept[0], POSITIVE)
    assert torch.equal(kept[1], mask(0, 0, 1, 0, 1))


def test_non_trivial():
    # Both bounds, ¾ and 1¼, are themselves trivial.
    kept = mining.non_trivial(row(0.75, 0.76, 1.25, 1.24, 0), POSITIVE, NEGATIVE, alpha=1.25, margin=0.5)
    assert torch.equal(kept[0], mask(0, 1, 0, 0, 0))
    assert torch.equal(kept[1], mask(0, 0, 0, 1, 1))


def test_distance_weighted_probabilities():
    # In 3 dimensions q(d) = d: below the cutoff 1/0.5, then 1/1 and 1/1.25; 1.4 itself is far.
    negative = mask(0, 1, 1, 1, 1)
    table = mining.distance_weighted_probabilities(row(0.6, 0.25, 1, 1.25, 1.4), negative, dim=3)
    torch.testing.assert_close(table, row(0, 2, 1, 0.8, 0) / 3.8)
    # In 5 dimensions q(d) = d³(1 − d²/4): 1/0.75 at 1, 1/(½³·15/16) at ½.
    table = mining.distance_weighted_probabilities(row(0, 0.5, 1, 2, 2), negative, dim=5)
    torch.testing.assert_close(table, row(0, 128 / 15, 4 / 3, 0, 0) / (128 / 15 + 4 / 3))
    table = mining.distance_weighted_probabilities(row(0, 1.4, 1.5, 2, 3), negative, dim=3)
    torch.testing.assert_close(table, row(0, 0.25, 0.25, 0.25, 0.25))
    assert not mining.distance_weighted_probabilities(row(0, 1.0), mask(0, 0), dim=3).any()


def test_tables_of_pairs():
    x, y = points([0, 0], [3, 0], [0, 4]), ids(0, 0, 1)
    positive, negative = mining.pair_masks(x, y)
    assert positive.tolist() == [[False, True, False], [True, False, False], [False, False, False]]
    assert negative.tolist() == [[False, False, True], [False, False, True], [True, True, False]]
    assert mining.distance_table(x).tolist() == [[0, 3, 4], [3, 0, 5], [4, 5, 0]]
    assert mining.dot_table(x).tolist() == [[0, 0, 0], [0, 9, 0], [0, 0, 16]]
    torch.testing.assert_close(mining.as_distance(row(1.5, 1, 0.5, -1)), row(0, 0, 1, 2))
    positive, negative = mining.pair_masks(x[:1], y[:1], gallery=x, gallery_labels=y)
    assert (positive.tolist(), negative.tolist()) == ([[True, True, False]], [[False, False, True]])


def test_custom_comparison():
    # Labels as bit sets: the same if they share a bit. 1 and 3 do, 3 and 2 do, 1 and 2 do not.
    positive, negative = mining.pair_masks(points([0], [0], [0]), ids(1, 3, 2), same=lambda a, b: (a[:, None] & b) > 0)
    assert positive.tolist() == [[False, True, False], [True, False, True], [False, True, False]]
    assert negative.tolist() == [[False, False, True], [False, False, False], [True, False, False]]


def test_gradient_by_vector():
    x = points([1, 0], [0, 1], [1, 0])
    assert by_vector(x, points([1, 2], [3, 4], [5, 6])).tolist() == [[6, 8], [3, 4], [6, 8]]


ROW_LOSSES = [
    *[pairs.contrastive, pairs.cosine_contrastive, pairs.binomial_deviance, pairs.raw, pairs.generalized_lifted],
    *[pairs.lifted_structure, pairs.nca, pairs.nra, pairs.ranked_list, pairs.margin_loss, pairs.histogram],
    *[tuples.triplet, tuples.smooth_triplet, tuples.npair_all],
    *[tuples.angular_hinge, tuples.angular, tuples.npair_angular],
    *[cosines.supcon, cosines.circle, cosines.smooth_ap, cosines.tuplet_margin],
]


@pytest.mark.parametrize("loss", ROW_LOSSES)
@given(labels(largest=7), st.integers(0, 99), st.sampled_from(KINDS))
def test_value_and_gradient_are_finite(loss, classes, seed, kind):
    x = embeddings(len(classes), 3, seed, kind).requires_grad_()
    value = loss(x, torch.tensor(classes))
    (gradient,) = torch.autograd.grad(value, x)
    assert value.isfinite()
    assert gradient.isfinite().all()


@pytest.mark.parametrize("mining", ["semi_hard", "hardest"])
@given(labels(largest=7), st.integers(0, 99), st.sampled_from(KINDS))
def test_mined_triplets_are_finite(mining, classes, seed, kind):
    x = embeddings(len(classes), 3, seed, kind).requires_grad_()
    value = tuples.triplet(x, torch.tensor(classes), mining=mining)
    (gradient,) = torch.autograd.grad(value, x)
    assert value.isfinite()
    assert gradient.isfinite().all()


PUSHED_BY_NEGATIVES_ALONE = [
    pairs.contrastive,
    pairs.binomial_deviance,
    pairs.raw,
    pairs.ranked_list,
    pairs.margin_loss,
]


@pytest.mark.parametrize("loss", [loss for loss in ROW_LOSSES if loss not in PUSHED_BY_NEGATIVES_ALONE])
def test_a_batch_without_terms_gives_zero(loss):
    # All different, and −½ at most between any two: no positives, and no negative above the threshold.
    x = points([1, 0], [-0.5, 0.75**0.5], [-0.5, -(0.75**0.5)])
    value = loss(x, ids(0, 1, 2))
    assert value.item() == 0
    assert not torch.autograd.grad(value, x)[0].any()
