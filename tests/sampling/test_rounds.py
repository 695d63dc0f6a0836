"""Test the order of classes and examples, and the share of the data that an epoch covers."""

from collections import Counter, defaultdict

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sampling.makers import MAKERS, every_sampler, hard, labels_of
from tuplet import sampling
from tuplet.sampling.rounds import Rounds


@every_sampler
def test_examples_of_a_class_do_not_repeat_until_all_were_used(make, batch_size):
    labels = labels_of([5, 7, 9, 11, 6, 8, 10, 12, 13, 14])
    drawn = defaultdict(list)
    for batch in make(labels, batches=30):
        for index in batch:
            drawn[labels[index]].append(index)
    for c, indices in drawn.items():
        size = (labels == c).sum()
        for start in range(0, len(indices), size):
            turn = indices[start : start + size]
            assert len(set(turn)) == len(turn)


@pytest.mark.parametrize("name", ["npair", "balanced", "ngroup", "hard"])
def test_classes_come_in_rounds(name):
    make, _ = MAKERS[name]
    labels = labels_of([60] * 10)
    order = [c for batch in make(labels) for c in dict.fromkeys(labels[batch].tolist())]
    for length in range(1, len(order)):
        seen = Counter(order[:length])
        # Within a batch a class whose turn has come may have to wait for the next one.
        assert max(seen.values()) - min(seen[c] for c in range(10)) <= 2
    for turn in range(0, len(order) - 29, 30):
        assert set(order[turn : turn + 30]) == set(range(10))


@every_sampler
@given(sizes=st.lists(st.integers(12, 36), min_size=16, max_size=40), seed=st.integers(0, 3))
def test_an_epoch_touches_four_fifths_where_sizes_differ_threefold(make, batch_size, sizes, seed):
    assert coverage(make(labels_of(sizes), seed=seed)) >= 0.8


@st.composite
def shapes(draw):
    """Draw class sizes that differ at most threefold, and batches of at most half of the classes, which fill them."""
    least = draw(st.integers(2, 16))
    sizes = draw(st.lists(st.integers(least, 3 * least) | st.sampled_from([least, 3 * least]), min_size=2, max_size=30))
    return sizes, draw(st.integers(1, len(sizes) // 2)), draw(st.integers(2, least))


def most_examples(sizes, classes, per_class, batches):
    """Return how many examples an epoch can touch at most: choose the turns of classes that bring most new ones."""
    turns = [min(per_class, n - t * per_class) for n in sizes for t in range(batches) if n > t * per_class]
    return sum(sorted(turns)[-classes * batches :])


@given(shape=shapes(), seed=st.integers(0, 3))
@example(shape=([7, 7, 5, 5, 6], 2, 4), seed=1)
@example(shape=([10, 20, 23, 20], 2, 8), seed=1)
@example(shape=([8, 8, 8, 24, 8, 8, 8], 3, 5), seed=1)
def test_an_epoch_of_batches_of_half_the_classes_touches_four_fifths_or_as_many_as_it_can(shape, seed):
    """An epoch of two or three batches may hold fewer than four fifths of the examples."""
    sizes, classes, per_class = shape
    labels = labels_of(sizes)
    for sampler, group in (
        (sampling.NPairSampler(labels, classes, seed), 2),
        (hard(labels, classes, seed=seed), 2),
        (sampling.ClassBalancedSampler(labels, classes, per_class, seed), per_class),
        (sampling.NGroupSampler(labels, classes, per_class, seed), per_class),
    ):
        most = most_examples(sizes, classes, group, len(sampler)) / sum(sizes)
        assert coverage(sampler) >= min(0.8, most)
    if classes > 1:
        # Its triplets are of two classes each.
        sampler = sampling.TripletSampler(labels, classes // 2, seed)
        assert coverage(sampler) >= min(0.8, 3 * (classes // 2) * len(sampler) / sum(sizes))


@every_sampler
@pytest.mark.parametrize("small", [5, 10, 15])
def test_coverage_holds_where_half_the_classes_are_three_times_as_large(make, batch_size, small):
    assert coverage(make(labels_of([10] * small + [30] * (20 - small)))) >= 0.8


@pytest.mark.parametrize(
    ("make", "sizes", "most"),
    [
        # A class smaller than `per_class` is used up by one turn: it must not stay in the rounds for what it repeats.
        (lambda labels, seed: sampling.ClassBalancedSampler(labels, 2, 5, seed), [9, 9, 3, 9, 9, 3], 34),
        # A class whose last turn waits while the next round begins is not given another turn in it.
        (lambda labels, seed: hard(labels, 7, seed=seed), [6] * 8 + [2] * 2, 42),
        (lambda labels, seed: hard(labels, 4, seed=seed), [36] * 6 + [12] * 7, 296),
        # A class that all others together barely match must be in every triplet.
        (lambda labels, seed: sampling.TripletSampler(labels, 3, seed), [6, 6, 18], 27),
        (lambda labels, seed: sampling.TripletSampler(labels, 2, seed), [11, 33, 11], 54),
    ],
    ids=["balanced", "hard", "hard with large classes", "triplet", "triplet of an odd class"],
)
def test_an_epoch_of_few_classes_touches_as_many_examples_as_its_batches_can_hold(make, sizes, most):
    labels = labels_of(sizes)
    assert [len({i for batch in make(labels, seed) for i in batch}) for seed in range(20)] == [most] * 20


@pytest.mark.parametrize(
    ("make", "sizes"),
    [
        (lambda labels: sampling.NPairSampler(labels, 3, batches=50), [2] * 4),
        (lambda labels: hard(labels, 3, batches=50), [2] * 4),
        (lambda labels: sampling.NGroupSampler(labels, 5, 6, batches=50), [4] * 11),
    ],
    ids=["npair", "hard", "ngroup"],
)
def test_over_many_rounds_of_equal_classes_all_examples_come_about_as_often(make, sizes):
    """Regression: in n-groups some examples came 50 times and others 26 times."""
    counts = Counter(index for batch in make(labels_of(sizes)) for index in batch)
    assert len(counts) == sum(sizes)
    assert max(counts.values()) - min(counts.values()) <= 2


def coverage(sampler):
    touched = {index for batch in sampler for index in batch}
    return len(touched) / sum(len(own) for own in sampler.members)


def test_coverage_where_mperclass_touched_63_percent():
    """pytorch-metric-learning's MPerClassSampler touched 2,519 of 4,000 images in an epoch."""
    from pytorch_metric_learning.samplers import MPerClassSampler

    labels = np.repeat(np.arange(100), 40)
    theirs = list(MPerClassSampler(labels, m=5, batch_size=120, length_before_new_iter=4000))
    assert len(set(theirs)) < 0.7 * 4000
    ours = sampling.ClassBalancedSampler(labels, classes=24, per_class=5)
    assert len({index for batch in ours for index in batch}) >= 0.98 * 4000


def test_turns_of_a_class_that_is_always_busy_do_not_pile_up():
    """Regression: a class that did not fit into triplets kept 6,000 turns after 2,000 batches."""
    rounds = Rounds([np.arange(2), np.arange(2, 4)], visit=2, batches=100, rng=np.random.default_rng(0))
    for _ in range(100):
        rounds.take(rounds.next_class(busy=[0]), 2)
    assert Counter(rounds.queue)[0] <= 2


def test_a_small_class_repeats_all_its_examples_alike():
    """Regression: one of three examples came three times among five, the others once."""
    for batch in sampling.ClassBalancedSampler([0, 0, 0, 1, 1, 1], classes=2, per_class=5, batches=200):
        assert set(Counter(batch).values()) == {1, 2}
