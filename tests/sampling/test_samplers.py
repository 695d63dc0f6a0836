"""Test batches, ranks and resuming of all samplers."""

import functools
import itertools
import warnings
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from sampling.makers import MAKERS, every_sampler, hard, labels_of, vectors_of
from tuplet import sampling
from tuplet.sampling.samplers import _can_give


@every_sampler
def test_an_epoch_is_n_over_batch_batches(make, batch_size):
    labels = labels_of([6] * 12)
    assert len(make(labels)) == len(list(make(labels))) == 72 // batch_size
    assert len(make(labels, batches=9)) == len(list(make(labels, batches=9))) == 9


@every_sampler
def test_fewer_examples_than_a_batch_still_give_one(make, batch_size):
    labels = labels_of([2] * 6 + [4])
    assert len(make(labels)) == len(list(make(labels))) == 1


@given(st.lists(st.integers(2, 9), min_size=6, max_size=20), st.integers(0, 5))
def test_npair_batches_hold_two_of_each_class(sizes, seed):
    labels = labels_of(sizes, seed=seed)
    for batch in sampling.NPairSampler(labels, pairs=6, seed=seed):
        assert len(set(batch)) == 12
        first, second = labels[batch[::2]], labels[batch[1::2]]
        assert (first == second).all()
        assert len(set(first)) == 6


@given(st.lists(st.integers(2, 9), min_size=4, max_size=20), st.integers(1, 7), st.integers(0, 5))
def test_class_balanced_repeats_only_in_classes_that_are_too_small(sizes, per_class, seed):
    labels = labels_of(sizes, seed=seed)
    for batch in sampling.ClassBalancedSampler(labels, classes=4, per_class=per_class, seed=seed):
        groups = np.array(labels[batch]).reshape(4, per_class)
        assert (groups == groups[:, :1]).all()
        assert len(set(groups[:, 0])) == 4
        counts = Counter(batch)
        for index, count in counts.items():
            size = sizes[labels[index]]
            assert count <= -(-per_class // size)
            assert count == 1 or size < per_class


def test_n_by_m_batches_keep_the_batch_and_trade_classes_for_examples():
    """Sohn 2016, section 4.4: N/2 classes with four examples instead of N with two."""
    labels = labels_of([12] * 30)
    for classes, per_class in ((12, 2), (6, 4), (3, 8)):
        for batch in sampling.ClassBalancedSampler(labels, classes, per_class):
            assert sorted(Counter(labels[batch]).values()) == [per_class] * classes


@given(st.lists(st.integers(2, 9), min_size=1, max_size=20), st.integers(1, 5), st.integers(2, 6), st.integers(0, 5))
def test_ngroup_batches_are_full_and_without_repeats(sizes, groups, per_group, seed):
    assume(sum(min(size, per_group) for size in sizes) >= groups * per_group)
    labels = labels_of(sizes, seed=seed)
    for batch in sampling.NGroupSampler(labels, groups, per_group, seed=seed):
        assert len(batch) == len(set(batch)) == groups * per_group
        counts = Counter(labels[batch])
        assert max(counts.values()) <= per_group
        if min(sizes) >= per_group:
            assert list(counts.values()) == [per_group] * groups
        lone = sum(count == 1 for count in counts.values())
        # A single example of a class only if no class could give one up: pairs in a batch of odd size.
        assert lone == 0 or (lone == 1 and max(counts.values()) <= 2 and len(batch) % 2)


@given(st.lists(st.integers(2, 9), min_size=2, max_size=12), st.integers(1, 12), st.integers(0, 5))
def test_triplets_are_disjoint_and_of_two_classes(sizes, triplets, seed):
    assume(_can_give(np.array(sizes), triplets))
    labels = labels_of(sizes, seed=seed)
    for batch in sampling.TripletSampler(labels, triplets, seed=seed):
        assert len(set(batch)) == 3 * triplets
        anchor, positive, negative = labels[batch].reshape(-1, 3).T
        assert (anchor == positive).all()
        assert (anchor != negative).all()


def test_the_number_of_possible_disjoint_triplets_is_exact(soak):
    @functools.cache
    def possible(free, triplets):
        if triplets == 0:
            return True
        for c, n in itertools.permutations(range(len(free)), 2):
            if free[c] >= 2 and free[n] >= 1:
                rest = list(free)
                rest[c] -= 2
                rest[n] -= 1
                if possible(tuple(sorted(rest)), triplets - 1):
                    return True
        return False

    for classes in range(1, 6 if soak else 5):
        for free in itertools.combinations_with_replacement(range(8 if soak else 6), classes):
            for triplets in range(8):
                assert _can_give(np.array(free), triplets) == possible(free, triplets), (free, triplets)


def test_a_dominant_class_does_not_starve_the_triplets():
    labels = labels_of([900] + [10] * 10)
    assert all(len(set(batch)) == 240 for batch in sampling.TripletSampler(labels, 80))


@every_sampler
def test_any_integers_in_any_container_give_the_same_batches(make, batch_size):
    labels = labels_of([4] * 12)
    plain = list(make(labels))
    assert list(make(labels.tolist())) == list(make(torch.tensor(labels))) == plain
    assert list(make(labels.astype(np.uint8))) == plain


@pytest.mark.parametrize("kind", [np.int64, np.uint64])
def test_indices_are_integers_for_every_type_of_labels(kind):
    labels = np.array([7, 7, 8, 8], dtype=kind)
    batch = next(iter(sampling.NPairSampler(labels, pairs=2)))
    assert sorted(batch) == [0, 1, 2, 3]
    assert {type(index) for index in batch} == {int}


@pytest.mark.parametrize(
    "labels",
    [
        labels_of([3, 3, 3], values=[-(2**62), 5, 2**62 + 1]),
        np.array([2**53, 2**53 + 1, 2**63 + 1] * 3, dtype=np.uint64),
    ],
    ids=["int64", "uint64"],
)
def test_labels_may_be_huge_and_negative(labels):
    for batch in sampling.NPairSampler(labels, pairs=3):
        assert len(set(labels[batch].tolist())) == 3


def test_several_labels_need_a_class_of_two_examples():
    with pytest.raises(ValueError, match="none of the 0 classes has two"):
        sampling.NPairSampler([[-1, -1], [-1, -1]], pairs=1)


@every_sampler
def test_classes_of_one_example_are_left_out_and_named_once(make, batch_size):
    labels = np.concatenate([labels_of([4] * 12), [77, 99]])
    with pytest.warns(UserWarning, match=r"leaves out 2 classes of one example: 77, 99$") as caught:
        sampler = make(labels)
    assert len(caught) == 1
    assert sampler.left_out == [77, 99]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert not {48, 49} & {index for _ in range(3) for batch in sampler for index in batch}


@every_sampler
@pytest.mark.parametrize("world_size", [2, 3])
def test_the_ranks_share_the_batch_of_one_process(make, batch_size, world_size):
    labels = labels_of([8] * 14)
    whole = list(make(labels))
    shares = [list(make(labels, rank=rank, world_size=world_size)) for rank in range(world_size)]
    assert [list(itertools.chain(*parts)) for parts in zip(*shares, strict=True)] == whole
    assert all(parts for share in shares for parts in share)


@every_sampler
def test_ranks_split_between_groups_never_inside(make, batch_size):
    labels = labels_of([8] * 14)
    for batch in make(labels, rank=1, world_size=2):
        anchors = labels[batch]
        if make is MAKERS["triplet"][0]:
            assert (anchors[::3] == anchors[1::3]).all()
        else:
            assert min(Counter(anchors).values()) >= 2


@every_sampler
@pytest.mark.parametrize("stop", [0, 1, 4, 7])
def test_a_resumed_run_draws_what_the_uninterrupted_one_does(make, batch_size, stop):
    labels = labels_of([5, 7, 9, 11, 6, 8, 10, 12, 13, 14])
    uninterrupted = make(labels, batches=7)
    epochs = [list(uninterrupted) for _ in range(3)]
    first = make(labels, batches=7)
    list(first)
    for _, _ in zip(range(stop), first, strict=False):
        pass
    second = make(labels, batches=7)
    second.load_state_dict(first.state_dict())
    if stop < 7:
        second.set_epoch(1)
    assert list(second) == epochs[1][stop:]
    assert list(second) == epochs[2]


@every_sampler
def test_epochs_differ_and_come_back(make, batch_size):
    sampler = make(labels_of([8] * 14))
    first, second = list(sampler), list(sampler)
    assert first != second
    sampler.set_epoch(0)
    assert list(sampler) == first
    assert list(sampler) == second


@every_sampler
def test_iterators_of_one_epoch_move_on_to_the_next_once(make, batch_size):
    sampler = make(labels_of([8] * 14))
    outer, inner = iter(sampler), iter(sampler)
    assert next(outer) == next(inner)
    assert list(inner) == list(outer)
    assert sampler.epoch == 1


@every_sampler
def test_an_old_iterator_does_not_change_the_epoch_that_was_set(make, batch_size):
    labels = labels_of([8] * 14)
    sampler, other = make(labels), make(labels)
    left = iter(sampler)
    started = [next(left)]
    sampler.set_epoch(5)
    assert started + list(left) == list(other)
    assert (sampler.epoch, sampler.state_dict()["batch"]) == (5, 0)


def test_reading_one_batch_does_not_advance_the_sampler():
    sampler = sampling.NPairSampler(labels_of([8] * 14), pairs=6)
    peek = next(iter(sampler))
    batches = list(sampler)
    assert batches[0] == peek
    assert len(batches) == len(sampler)


def test_a_data_loader_takes_the_batches():
    labels = torch.tensor(labels_of([6] * 8))
    sampler = sampling.NPairSampler(labels, pairs=4)
    loader = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(labels), batch_sampler=sampler, num_workers=2)
    batches = [batch for (batch,) in loader]
    assert len(batches) == len(loader) == 6
    assert all((batch[::2] == batch[1::2]).all() for batch in batches)


def test_a_data_loader_that_draws_ahead_is_resumed_by_what_it_delivered():
    """Its sampler may be in the next epoch already, so the caller counts epochs and batches."""
    labels = labels_of([6] * 8)
    whole, sampler = (sampling.NPairSampler(labels, pairs=4) for _ in range(2))
    first, second = list(whole), list(whole)
    loader = torch.utils.data.DataLoader(range(len(labels)), batch_sampler=sampler, num_workers=2)
    ahead = []
    for received, _ in enumerate(loader, 1):
        ahead.append(sampler.epoch)
        resumed = sampling.NPairSampler(labels, pairs=4)
        resumed.load_state_dict({**sampler.state_dict(), "epoch": 0, "batch": received})
        assert list(resumed) == first[received:]
        assert list(resumed) == second
    assert 1 in ahead[:-1]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: sampling.NPairSampler([0, 1, 2]), "none of the 3 classes has two"),
        (
            lambda: sampling.NPairSampler([0, 0, 1, 1], pairs=3),
            "needs 3 classes, but only 2 have .*; ask for fewer",
        ),
        (lambda: sampling.NPairSampler([0, 0], pairs=0), "pairs is 0; it must be at least 1"),
        (lambda: hard(np.array([0, 0]), 0), "pairs is 0; it must be at least 1"),
        (lambda: sampling.NGroupSampler([0, 0, 1, 1], groups=2, per_group=3), "give 4 examples; ask for fewer"),
        (lambda: sampling.TripletSampler([0] * 9 + [1, 1], triplets=3), "triplets is 3, but 2 classes"),
        (lambda: sampling.ClassBalancedSampler([[[0, 0]]], 1, 1), r"got list of shape \(1, 1, 2\)"),
        (lambda: sampling.ClassBalancedSampler([[0, 0]], 1, 1), "none of the 1 classes has two"),
        (lambda: sampling.NPairSampler([0, 0], pairs=1, rank=0), "rank is 0 and world_size is None"),
        (lambda: sampling.NPairSampler([0, 0], 1, rank=2, world_size=2), "rank is 2 and world_size is 2; .* 0 to 1"),
        (lambda: sampling.NPairSampler([0, 0], 1, rank=-1, world_size=2), "rank is -1; it must be at least 0"),
        (
            lambda: sampling.NPairSampler([0, 0], pairs=1, rank=0, world_size=0),
            "world_size is 0; it must be at least 1",
        ),
        (lambda: sampling.NPairSampler([0, 0], pairs=1, batches=0), "batches is 0"),
        (lambda: sampling.NPairSampler([0, 0], pairs=1, seed=-1), "seed is -1"),
        (lambda: list(sampling.NPairSampler([0, 0], pairs=1, rank=0, world_size=2)), "cannot be shared by 2 ranks"),
        (lambda: sampling.HardClassSampler([0, 0], None, pairs=5, candidates=4), "candidates is 4"),
        (lambda: sampling.NPairSampler([0, 0], 1).set_epoch(-1), "epoch is -1; it must be at least 0"),
        (
            lambda: sampling.NPairSampler([0] * 8, 1).load_state_dict({"epoch": 0, "batch": 5}),
            "the state is at batch 5, but an epoch has 4; use the same arguments",
        ),
    ],
)
def test_bad_arguments_raise_an_error(make, message):
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("number", [2.0, 2.5, "2", True], ids=repr)
@pytest.mark.parametrize("name", ["pairs", "batches", "seed", "rank", "world_size"])
def test_numbers_that_are_not_integers_are_refused(name, number):
    """Regression: a batch of 2.5 classes had 3."""
    numbers = {"pairs": 2, "batches": 3, "rank": 0, "world_size": 1, name: number}
    with pytest.raises(TypeError, match=f"{name} is {number!r}; it must be an integer of at least"):
        sampling.NPairSampler(labels_of([6] * 12), **numbers)


def test_an_option_that_does_not_exist_is_refused_by_the_sampler_itself():
    for kind in sampling.SAMPLERS.values():
        with pytest.raises(TypeError, match=f"^{kind.__name__} has no option 'batche'; did you mean 'batches'"):
            kind([0, 0, 1, 1], **({"embed": None} if kind.needs_embeddings else {}), batche=3)
    with pytest.raises(TypeError, match="NPairSampler has no option 'pair'; did you mean 'pairs'"):
        sampling.NPairSampler([0, 0, 1, 1], pair=2)
    with pytest.raises(TypeError, match="ClassBalancedSampler has no option 'batch_size'"):
        sampling.ClassBalancedSampler([0, 0, 1, 1], batch_size=4)


def test_labels_that_are_not_integers_are_refused():
    with pytest.raises(TypeError, match="labels must be integers, got float64"):
        sampling.NPairSampler([0.5, 0.5])


def test_a_class_that_starts_again_within_a_batch_does_not_repeat_in_it():
    """Regression: with classes of 7 and 5 the second triplet took the negative of the first again."""
    for seed in range(200):
        for batch in sampling.TripletSampler(labels_of([7, 5], seed=1), 2, seed=seed, batches=8):
            assert len(set(batch)) == 6


def test_every_exported_sampler_is_found_by_its_name():
    by_epoch = {"anchor_neighbor", "one_class", "smart_triplet"}
    assert set(sampling.SAMPLERS) >= {"class_balanced", "hard_class", "ngroup", "npair", "triplet", *by_epoch}
    exported = {getattr(sampling, name) for name in sampling.__all__ if name.endswith("Sampler")}
    assert {*sampling.SAMPLERS.values(), sampling.ClassSampler} == exported
    assert all(sampler.name == name for name, sampler in sampling.SAMPLERS.items())


@pytest.mark.parametrize("kind", sampling.SAMPLERS.values())
def test_a_sampler_makes_the_batches_that_it_states(kind):
    labels = labels_of([8] * 14)
    inputs = {"embed": vectors_of(labels)} if kind.needs_embeddings else {}
    for batch in kind.of_size(labels, 24, per_class=4, seed=1, **inputs):
        assert len(batch) == 24
        groups = labels[batch].reshape(-1, kind.group_size or 4)
        if kind.batch == "one_class":
            assert (groups[0] == groups[0, 0]).all()
            assert (groups[1:] != groups[0, 0]).all()
        elif kind.batch == "triplets":
            assert (groups[:, 0] == groups[:, 1]).all()
            assert (groups[:, 0] != groups[:, 2]).all()
        else:
            assert (groups == groups[:, :1]).all()
            assert len(set(groups[:, 0])) == len(groups)
