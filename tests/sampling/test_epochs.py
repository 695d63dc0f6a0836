"""Test the samplers that embed the training set once an epoch, against loops over all pairs."""

import io

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from losses import oracles_compared
from sampling.makers import EPOCH_MAKERS, labels_of, spread_vectors
from tuplet import losses, sampling
from tuplet.sampling.class_tree import class_moments, class_tree
from tuplet.sampling.smart import LEAST, MOST, next_kappa

LABELS = labels_of([8] * 9 + [1])


class Model:
    """An embedder that changes from call to call, as a trained one does, and counts its calls."""

    def __init__(self, labels=LABELS):
        self.embed, self.calls = spread_vectors(labels), 0

    def __call__(self, indices):
        self.calls += 1
        return self.embed(indices).roll(self.calls, 1)


@pytest.mark.filterwarnings("ignore:.*leaves out")
@pytest.mark.parametrize(("make", "batch_size"), EPOCH_MAKERS.values(), ids=EPOCH_MAKERS)
class TestEverySampler:
    def test_it_embeds_once_an_epoch(self, make, batch_size):
        model = Model()
        sampler = make(LABELS, model)
        epochs = [list(sampler) for _ in range(2)]
        assert model.calls == 2
        assert epochs[0] != epochs[1]
        assert {len(batch) for epoch in epochs for batch in epoch} == {batch_size}
        single = int(np.flatnonzero(LABELS == 9)[0])
        assert not any(single in batch for epoch in epochs for batch in epoch)

    @pytest.mark.parametrize("drawn", [0, 2, 6])
    def test_it_resumes_exactly(self, make, batch_size, drawn):
        """In the middle of an epoch the plan comes from the state, since the model has changed."""

        def run(sampler, count):
            batches = []
            while len(batches) < count:
                for batch in sampler:
                    batches.append(batch)
                    sampler.report(torch.arange(4) % 2 == 0)
                    if len(batches) == count:
                        break
            return batches

        whole = run(make(LABELS, Model()), 20)
        model = Model()
        first = make(LABELS, model)
        started = run(first, drawn)
        second = make(LABELS, model)
        second.load_state_dict(torch.load(saved(first.state_dict()), weights_only=True))
        assert started + run(second, 20 - drawn) == whole

    def test_a_state_at_the_end_of_an_epoch_plans_the_next_one(self, make, batch_size):
        """Training counts the steps itself: it names the next epoch before the sampler has reached it."""
        sampler, model = make(LABELS, Model()), Model()
        whole = [batch for _ in range(2) for batch in sampler]
        first = make(LABELS, model)
        started = [batch for batch, _ in zip(first, range(len(first)), strict=False)]
        second = make(LABELS, model)
        second.load_state_dict({**first.state_dict(), "epoch": 1, "batch": 0})
        assert started + list(second) == whole

    def test_wrong_vectors_raise_an_error(self, make, batch_size):
        for vectors, message in (
            (torch.zeros(3, 2), "embed returned shape"),
            (torch.full((72, 2), torch.nan), "not fin"),
        ):
            with pytest.raises(ValueError, match=message):
                next(iter(make(LABELS, lambda indices, vectors=vectors: vectors)))


def saved(state):
    torch.save(state, file := io.BytesIO())
    file.seek(0)
    return file


@given(st.integers(0, 10**6), st.lists(st.integers(1, 4), min_size=1, max_size=7), st.integers(1, 9))
def test_the_tree_equals_that_of_loops_over_all_pairs(seed, sizes, levels):
    labels = torch.tensor(labels_of(sizes, [3 * k - 5 for k in range(len(sizes))], seed))
    generator = torch.Generator().manual_seed(seed)
    x = torch.nn.functional.normalize(torch.randn(len(labels), 3, generator=generator, dtype=torch.float64))
    classes, numbers = labels.unique(return_inverse=True)
    tree = class_tree(classes, class_moments(x, numbers, len(classes)), levels)
    thresholds, spread, joined = oracles_compared.class_tree(x, labels, levels)
    assert tree.thresholds.tolist() == pytest.approx(thresholds)
    assert tree.spreads.tolist() == pytest.approx([spread[c] for c in classes.tolist()], abs=1e-12)
    for level, groups in enumerate(joined):
        nodes = dict(zip(classes.tolist(), tree.nodes[:, level].tolist(), strict=True))
        assert all((nodes[a] == nodes[b]) == (b in groups[a]) for a in nodes for b in nodes)


def test_opposite_poles_join_at_the_last_level():
    x = torch.tensor([[1.0, 0.0], [-1.0, 0.0]], dtype=torch.float64)
    tree = class_tree(torch.tensor([0, 1]), class_moments(x, torch.tensor([0, 1]), 2), levels=4)
    assert (tree.nodes[0] == tree.nodes[1]).tolist() == [False, False, False, False, True]


def test_an_anchor_comes_with_the_classes_nearest_to_it():
    labels, vectors = labels_of([5] * 12), spread_vectors(labels_of([5] * 12))
    sampler = sampling.AnchorNeighborSampler(labels, vectors, anchors=2, neighbors=3, per_class=2)
    x = vectors(range(len(labels))).double()
    apart = {
        (a, b): torch.cdist(x[labels == a], x[labels == b]).square().mean().item() for a in range(12) for b in range(12)
    }
    for batch in sampler:
        classes = labels[batch].reshape(-1, 2)[:, 0].tolist()
        for start in (0, 3):
            anchor, chosen, taken = classes[start], classes[start + 1 : start + 3], classes[: start + 1]
            free = sorted((c for c in range(12) if c not in taken), key=lambda c: apart[anchor, c])
            assert chosen == free[:2]


def test_labels_beyond_int64_give_the_margins_of_small_ones():
    labels = labels_of([5] * 8)
    huge = np.array([3, 2**63 - 1, 2**63, 2**64 - 1, 7, 2**63 + 5, 1, 0], dtype=np.uint64)[labels]
    vectors = spread_vectors(labels)
    x, values = vectors(range(40)), []
    for own in (labels, huge):
        sampler, loss = sampling.AnchorNeighborSampler(own, vectors, 2, 3, 2), losses.HierarchicalTripletLoss()
        next(iter(sampler))
        loss.set_tree(sampler.tree)
        values.append(loss(x, torch.from_numpy(own)))
    torch.testing.assert_close(*values)


def test_a_neighborhood_that_does_not_divide_the_batch_is_refused():
    with pytest.raises(ValueError, match="24 is no multiple of 4 neighbors with 4 examples each; choose 16"):
        sampling.AnchorNeighborSampler.of_size(LABELS, 24, 4, embed=None, neighbors=4)
    assert sampling.AnchorNeighborSampler.of_size(labels_of([4] * 9), 24, 4, embed=None).neighbors == 3


def literal_smart(anchor, x, labels, kappa):
    """Return the first negative and its positive as the paper's text has it: walk the neighbours from near to far."""
    apart = ((x - x[anchor]) ** 2).sum(1)
    order = [j for j in apart.argsort().tolist() if j != anchor]
    bound, negatives, remembered = None, [], {}
    for j in order:
        same = labels[j] == labels[anchor]
        if bound is None:
            bound = kappa * apart[j] if same else None
        elif apart[j] >= bound:
            if same:
                remembered[j] = list(negatives)
            else:
                negatives.append(j)
    if not negatives:
        return None, None
    return negatives[0], next((p for p, seen in remembered.items() if negatives[0] in seen), None)


def test_mined_triplets_are_those_of_the_paper():
    labels = labels_of([6] * 8)
    vectors = spread_vectors(labels)
    sampler = sampling.SmartTripletSampler(labels, lambda i: vectors(i).double(), triplets=6, neighbors=47, mined=1.0)
    sampler.history, sampler._kappa = [(0.5, 2.0), (0.5, 1.5)], 1.5
    x, found = vectors(range(48)).double(), 0
    triplets = torch.tensor(list(sampler)).view(-1, 3).tolist()
    for a, p, n in triplets:
        assert labels[a] == labels[p] != labels[n]
        assert a != p
        negative, positive = literal_smart(a, x, labels, 1.5)
        if negative is not None:
            assert n == negative
            assert positive in (None, p)
            found += positive is not None
    assert found > 5


def test_first_epochs_are_mostly_random_and_an_anchor_comes_once_an_epoch():
    labels = labels_of([10] * 30)
    sampler = sampling.SmartTripletSampler(labels, spread_vectors(labels), triplets=10)
    triplets = torch.tensor(list(sampler)).view(-1, 3)
    assert len(set(triplets[:, 0].tolist())) == len(triplets) == 100
    assert sampler.state_dict()["plan"]["mined"].sum() == 2


@given(st.lists(st.tuples(st.floats(0, 1), st.floats(1, 64)), max_size=5), st.floats(0.1, 0.9))
def test_kappa_stays_in_its_limits(history, target):
    assert LEAST <= next_kappa(history, target) <= MOST


def test_kappa_follows_the_line_through_shares_and_kappas():
    assert next_kappa([(0.9, 2.0), (0.5, 10.0), (0.1, 18.0)], 0.7) == pytest.approx(6.0)
    assert next_kappa([(0.5, 3.0), (0.5, 7.0)], 0.9) == 7.0


def test_reports_steer_kappa():
    """A world in which larger κ means fewer active triplets: κ settles where the share is the target."""
    labels = labels_of([8] * 20)
    sampler = sampling.SmartTripletSampler(labels, spread_vectors(labels), triplets=10, batches=5, target=0.5)
    for _ in range(6):
        for number, _ in enumerate(sampler):
            mined = sampler.state_dict()["plan"]["mined"][number]
            share = 1.0 - sampler._kappa / 20
            sampler.report(torch.rand(10, generator=torch.Generator().manual_seed(number)) < share)
            assert mined.shape == (10,)
    assert len(sampler.history) == 5
    assert sampler._kappa == pytest.approx(10, abs=3)


def test_a_class_meets_the_negatives_nearest_to_any_of_its_examples():
    labels = labels_of([6] * 8)
    vectors = spread_vectors(labels)
    x = vectors(range(48))
    for batch in sampling.OneClassSampler(labels, vectors, per_class=3, negatives=5):
        own, others = batch[:3], batch[3:]
        assert len(set(labels[own])) == 1
        apart = torch.cdist(x[own], x).amin(0)
        free = [j for j in apart.argsort().tolist() if labels[j] != labels[own[0]]]
        assert set(others) == set(free[:5])
