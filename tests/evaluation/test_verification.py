"""Verification, LFW folds, error rates, identification and recognition against literal loops."""

import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import evaluation_oracles as oracle
from tuplet import evaluation as ev
from tuplet.evaluation.pairs import threshold_at_far
from tuplet.evaluation.positives import ClassMembers
from tuplet.evaluation.vrf import _draw_negatives, _draw_positive


def noise(count, classes, dim=6, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, dim, generator=generator), torch.randint(0, classes, (count,), generator=generator)


@pytest.mark.parametrize("metric", ["euclidean", "cosine", "dot"])
def test_vrf_equals_the_literal_loop(metric):
    x, y = noise(120, 15)
    _, code = y.unique(return_inverse=True)
    queries = torch.tensor([i for i in range(120) if (y == y[i]).sum() > 1])
    positives = _draw_positive(queries, ClassMembers(code, code, own=True), 3)[:, 0]
    negatives = _draw_negatives(queries, code, 4, 3)
    wins = 0
    for q, p, ns in zip(queries.tolist(), positives.tolist(), negatives.tolist(), strict=True):
        assert y[q] == y[p]
        assert q != p
        assert len({int(y[n]) for n in ns} - {int(y[q])}) == 4
        values = [oracle.score(x[q].tolist(), x[j].tolist(), metric) for j in (p, *ns)]
        wins += all(values[0] > value for value in values[1:])
    result = ev.verification(x, y, negatives=4, seed=3, metric=metric)
    assert result == {"vrf": wins / len(queries), "trials": len(queries)}


def test_vrf_of_noise_is_one_in_n_plus_one():
    x, y = noise(4000, 40)
    assert ev.verification(x, y, negatives=1)["vrf"] == pytest.approx(1 / 2, abs=0.03)
    assert ev.verification(x, y, negatives=9)["vrf"] == pytest.approx(1 / 10, abs=0.02)


def test_vrf_of_a_collapsed_model_is_0():
    assert ev.verification(torch.full((20, 3), 0.7), torch.arange(20) % 5, negatives=4)["vrf"] == 0.0


def test_draws_are_uniform_and_depend_on_the_position_alone():
    fours = torch.arange(12_000) // 4
    rows = torch.arange(12_000)
    steps = (_draw_positive(rows, ClassMembers(fours, fours, own=True), 0)[:, 0] - rows) % 4
    assert torch.bincount(steps).double().div(12_000).tolist() == pytest.approx([0, 1 / 3, 1 / 3, 1 / 3], abs=0.02)
    code = torch.tensor([0] * 6000 + [1] * 2 + [2] * 3 + [3])
    negatives = _draw_negatives(torch.arange(6000), code, 2, 0)
    by_class = torch.bincount(code[negatives].flatten(), minlength=4).double() / 12_000
    assert by_class.tolist() == pytest.approx([0, 1 / 3, 1 / 3, 1 / 3], abs=0.02)
    of_class_2 = torch.bincount(negatives[code[negatives] == 2] - 6002).double()
    assert (of_class_2 / of_class_2.sum()).tolist() == pytest.approx([1 / 3] * 3, abs=0.03)
    some = torch.arange(100, 109)
    assert torch.equal(negatives[100:109], _draw_negatives(some, code, 2, 0))


def test_vrf_leaves_out_singletons_and_explains_what_it_needs():
    x, y = torch.eye(3), [0, 0, 1]
    assert ev.verification(x, y, negatives=1)["trials"] == 2
    with pytest.raises(ValueError, match="got negatives=71 for 2 classes; give at most 1"):
        ev.verification(x, y)
    with pytest.raises(ValueError, match="verification needs negatives of another class, but there is only one class"):
        ev.verification(x, [7, 7, 7])
    with pytest.raises(ValueError, match="verification needs a class with two examples, but all 3 classes have one"):
        ev.verification(x, [0, 1, 2], negatives=1)


def literal_accuracy(scores, same, fold):
    """Try every threshold that can matter on the other folds, and take the middle one of the best."""
    result = []
    for f in sorted(set(fold)):
        others = [(s, t) for s, t, g in zip(scores, same, fold, strict=True) if g != f]
        levels = sorted({s for s, _ in others})
        cuts = [levels[0] - 1, *[(a + b) / 2 for a, b in itertools.pairwise(levels)], levels[-1] + 1]
        right = [sum((s > cut) == t for s, t in others) for cut in cuts]
        best = [cut for cut, n in zip(cuts, right, strict=True) if n == max(right)]
        cut = best[(len(best) - 1) // 2]
        here = [(s > cut) == t for s, t, g in zip(scores, same, fold, strict=True) if g == f]
        result.append((cut, sum(here) / len(here)))
    return result


@given(
    pairs=st.lists(
        st.tuples(st.sampled_from([0.0, 0.1, 0.2, 0.5, 0.9]), st.booleans()), min_size=4, max_size=30
    ).filter(lambda pairs: len({same for _, same in pairs}) == 2),
    folds=st.integers(2, 4),
)
def test_pair_verification_equals_the_literal_loop(pairs, folds):
    scores, same = zip(*pairs, strict=True)
    fold = [i * folds // len(pairs) for i in range(len(pairs))]
    expected = literal_accuracy(scores, same, fold)
    accuracy = [a for _, a in expected]
    for given_folds in (folds, fold):
        result = ev.pair_verification(scores, same, folds=given_folds)
        assert result["thresholds"] == pytest.approx([cut for cut, _ in expected])
        assert result["accuracy"] == pytest.approx(np.mean(accuracy))
        assert result["stderr"] == pytest.approx(np.std(accuracy, ddof=1) / folds**0.5)


@given(
    pairs=st.lists(st.tuples(st.integers(0, 6), st.booleans()), min_size=2, max_size=30).filter(
        lambda pairs: len({same for _, same in pairs}) == 2
    ),
    far=st.sampled_from([0.0, 0.01, 0.1, 0.25, 0.5, 0.99, 1.0]),
)
def test_error_rates_equal_counts(pairs, far):
    scores, same = zip(*pairs, strict=True)
    genuine = [s for s, t in pairs if t]
    impostors = [s for s, t in pairs if not t]
    curve = ev.roc(scores, same)
    assert curve["thresholds"] == sorted(set(scores), reverse=True)
    for t, f, r in zip(curve["thresholds"], curve["far"], curve["tar"], strict=True):
        assert f == pytest.approx(sum(s >= t for s in impostors) / len(impostors))
        assert r == pytest.approx(sum(s >= t for s in genuine) / len(genuine))
    # The best that any threshold gives without accepting too many impostors.
    allowed = [t for t in {*scores, 7} if sum(s >= t for s in impostors) <= far * len(impostors) + 1e-9]
    assert ev.tar_at_far(scores, same, far) == max(sum(s >= t for s in genuine) / len(genuine) for t in allowed)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64])
def test_scores_and_same_may_be_tensors_of_any_dtype(dtype):
    scores, same = torch.tensor([0.5, 0.25, 0.75, 0.125], dtype=dtype, requires_grad=True), torch.tensor([1, 0, 1, 1])
    assert ev.roc(scores, same) == ev.roc([0.5, 0.25, 0.75, 0.125], [True, False, True, True])


def test_far_is_not_rounded_down():
    assert threshold_at_far(np.arange(100.0), 0.29) == 70.0


def literal_identification(probes, labels, gallery, known, far):
    best, right, genuine = [], [], []
    for probe, label in zip(probes.tolist(), labels.tolist(), strict=True):
        values = [
            (oracle.score(probe, m, "euclidean"), k == label)
            for m, k in zip(gallery.tolist(), known.tolist(), strict=True)
        ]
        top = max(value for value, _ in values)
        best.append(top)
        right.append(all(mate for value, mate in values if value == top))
        genuine.append(label in known.tolist())
    impostors = sorted(b for b, g in zip(best, genuine, strict=True) if not g)
    rank1 = np.mean([r for r, g in zip(right, genuine, strict=True) if g])
    rates = [
        np.mean([r and b > threshold for b, r, g in zip(best, right, genuine, strict=True) if g])
        for threshold in {*best, -np.inf}
        if sum(b > threshold for b in impostors) <= far * len(impostors) + 1e-9
    ]
    return rank1, max(rates)


@given(seed=st.integers(0, 2**32), far=st.sampled_from([0.0, 0.1, 0.5, 1.0]), grid=st.booleans())
def test_identification_equals_the_literal_loop(seed, far, grid):
    rng = np.random.default_rng(seed)
    draw = (lambda n: rng.integers(-2, 3, (n, 2)).astype(float)) if grid else lambda n: rng.normal(size=(n, 2))
    probes, gallery = torch.from_numpy(draw(12)), torch.from_numpy(draw(6))
    labels, known = torch.from_numpy(rng.integers(0, 6, 12)), torch.from_numpy(rng.integers(0, 3, 6))
    labels[0], labels[1] = known[0], 99
    rank1, rate = literal_identification(probes, labels, gallery, known, far)
    result = ev.identification(probes, labels, gallery, known, far=far)
    assert result["rank1"] == pytest.approx(rank1)
    assert result["dir_at_far"] == pytest.approx(rate)


def test_identification_without_impostors_or_without_genuine_probes():
    assert ev.identification([[0.0]], [1], [[0.1], [5.0]], [1, 2]) == {"rank1": 1.0, "dir_at_far": None}
    with pytest.raises(ValueError, match="identification needs a probe whose label is in the gallery, got none of 1"):
        ev.identification([[0.0]], [3], [[0.1], [5.0]], [1, 2])
    with pytest.raises(ValueError, match="far must be a share between 0 and 1, got 5"):
        ev.identification([[0.0], [9.0]], [1, 7], [[0.1], [5.0]], [1, 2], far=5)


@given(seed=st.integers(0, 2**32), far=st.sampled_from([0.0, 0.3, 1.0]))
def test_closed_and_open_set_exchange_the_first_and_the_other_images(seed, far):
    rng = np.random.default_rng(seed)
    people = rng.permutation(np.repeat(np.arange(8) * 7, [1, 1, 1, 2, 2, 3, 1, 4]))  # in any order
    vectors = torch.from_numpy(rng.normal(size=(len(people), 2)))
    first = [i for i, person in enumerate(people) if person not in people[:i]]
    others = [i for i in range(len(people)) if i not in first]
    labels = torch.from_numpy(people)
    parts = (vectors[others], labels[others]), (vectors[first], labels[first])
    found = ev.closed_and_open_set(vectors, people, far=far)
    nearest = [first[int((vectors[first] - vector).norm(dim=1).argmin())] for vector in vectors[others]]
    assert found["rank1"] == pytest.approx((people[nearest] == people[others]).mean())
    assert found["dir_at_far"] == pytest.approx(literal_identification(*parts[1], *parts[0], far)[1])
    assert (found["known_people"], found["unknown_people"], found["probes"]) == (4, 4, 7)
    with pytest.raises(ValueError, match="none of 8 labels occurs twice, so nobody can be identified"):
        ev.closed_and_open_set(vectors[first], people[first])


def literal_recognition(queries, labels, gallery, known, k):
    wins = 0
    for i, (query, label) in enumerate(zip(queries.tolist(), labels.tolist(), strict=True)):
        members = queries if gallery is None else gallery
        classes = labels if gallery is None else known
        scored = [
            (-oracle.score(query, m, "euclidean"), bool(c == label), j, int(c))
            for j, (m, c) in enumerate(zip(members.tolist(), classes.tolist(), strict=True))
            if not (gallery is None and i == j)
        ]
        votes = [c for *_, c in sorted(scored)[:k]]
        wins += all(votes.count(label) > votes.count(other) for other in {*votes, None} - {label})
    return wins / len(queries)


@given(seed=st.integers(0, 2**32), k=st.integers(1, 9), own=st.booleans())
def test_recognition_equals_the_literal_loop(seed, k, own):
    rng = np.random.default_rng(seed)
    queries, gallery = (torch.from_numpy(rng.integers(-2, 3, (n, 2)).astype(np.float32)) for n in (8, 12))
    labels, known = torch.from_numpy(rng.integers(0, 3, 8)), torch.from_numpy(rng.integers(0, 3, 12))
    options = {} if own else {"gallery": gallery, "gallery_labels": known}
    expected = literal_recognition(queries, labels, None if own else gallery, known, k)
    assert ev.recognition(queries, labels, k, **options) == pytest.approx(expected)


def test_recognition_of_one_example_alone_is_a_miss():
    assert ev.recognition([[1.0]], [0]) == 0.0


def test_bad_pairs_raise_a_clear_error():
    cases = [
        (
            lambda: ev.pair_verification([0.1, 0.2], [True, True], folds=2),
            "same must hold both true and false, got 2 true of 2; give pairs of both kinds",
        ),
        (
            lambda: ev.pair_verification([0.1, 0.2], [True], folds=2),
            "lists of one length, got \\(2,\\) and \\(1,\\); give both of a pair",
        ),
        (
            lambda: ev.pair_verification([0.1, 0.2], [True, False], folds=1),
            "folds must be between 2 and the 2 pairs, got 1; give another number",
        ),
        (
            lambda: ev.pair_verification([0.1, 0.2, 0.3], [True, False, True], folds=2.5),
            "folds must be a positive integer, got 2.5",
        ),
        (lambda: ev.pair_verification([0.1, 0.2], [True, False], folds=[4, 4]), "folds must name at least 2 folds"),
        (lambda: ev.roc([0.1, 0.2], [1, -1]), "same must be true or false, but pair 1 has -1"),
        (lambda: ev.roc([0.1, 0.2], ["0", "1"]), "same must be true or false, but pair 0 has '0'"),
        (lambda: ev.tar_at_far([0.1, 0.2, 0.3], [True, False, float("nan")]), "but pair 2 has nan"),
        (lambda: ev.tar_at_far([0.1, float("nan")], [True, False]), "scores must be finite, but pair 1 has nan"),
        (lambda: ev.pair_scores(torch.eye(2), torch.eye(3)[:, :2]), "second must have as many rows as first, 2, got 3"),
    ]
    for call, message in cases:
        with pytest.raises(ValueError, match=message):
            call()
