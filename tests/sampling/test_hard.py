"""Test hard negative class mining against a loop version of Sohn 2016, section 3.2.1."""

import numpy as np
import pytest
import torch

from tuplet import sampling
from tuplet.sampling.hard import class_violations

LABELS = np.repeat(np.arange(40), 6)


class Model:
    """An embedder that records its answers and changes from batch to batch, as a trained one does."""

    def __init__(self, seed=0):
        self.base = torch.randn(len(LABELS), 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
        self.answers = []

    def __call__(self, indices):
        vectors = self.base[indices].roll(len(self.answers), 1)
        self.answers.append((LABELS[indices], vectors.numpy()))
        return vectors


def violation_of(a, b):
    """Return by loops the most violated triplet with its anchor in a or b and its negative in the other."""
    if len(a) == 1:
        return float(a[0] @ b[0])
    worst = -np.inf
    for own, other in ((a, b), (b, a)):
        for i, anchor in enumerate(own):
            for j, positive in enumerate(own):
                for negative in other:
                    if i != j:
                        worst = max(worst, float(anchor @ negative) - float(anchor @ positive))
    return worst


@pytest.mark.parametrize("per_class", [1, 2, 3])
def test_each_added_class_has_the_most_violated_triplet(per_class):
    model = Model()
    sampler = sampling.HardClassSampler(LABELS, model, pairs=8, candidates=25, per_class=per_class, batches=4)
    for batch in sampler:
        chosen = LABELS[batch[::2]].tolist()
        classes, vectors = model.answers[-1]
        probes = {c: vectors[classes == c] for c in set(classes.tolist())}
        assert all(len(own) == per_class for own in probes.values())
        for size in range(1, 8):
            scores = {
                c: max(violation_of(probes[s], own) for s in chosen[:size])
                for c, own in probes.items()
                if c not in chosen[:size]
            }
            assert scores[chosen[size]] == pytest.approx(max(scores.values()), abs=1e-5)
    assert [len(set(classes.tolist())) for classes, _ in model.answers] == [25, 25, 24, 16]


@pytest.mark.parametrize("examples", [1, 2, 4])
def test_violations_equal_those_of_loops(examples):
    vectors = torch.randn(6, examples, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    table = class_violations(vectors)
    for a in range(6):
        for b in range(6):
            if a != b:
                assert table[a, b] == pytest.approx(violation_of(vectors[a].numpy(), vectors[b].numpy()), abs=1e-14)


def test_confused_classes_share_a_batch():
    """Ten clusters of four classes each: a batch of four is one cluster."""
    centres = torch.nn.functional.one_hot(torch.arange(10)).double()
    sampler = sampling.HardClassSampler(LABELS, lambda i: centres[LABELS[i] % 10], pairs=4, candidates=40)
    batches = [set((LABELS[batch] % 10).tolist()) for batch in sampler]
    assert np.mean([len(clusters) == 1 for clusters in batches]) > 0.8


def test_one_batch_is_mined_too():
    centres = torch.nn.functional.one_hot(torch.arange(10)).double()
    sampler = sampling.HardClassSampler(LABELS, lambda i: centres[LABELS[i] % 10], pairs=4, candidates=40, batches=1)
    (batch,) = sampler
    assert len(set((LABELS[batch] % 10).tolist())) == 1


def test_ties_are_broken_at_random():
    seen = set()
    for seed in range(60):
        sampler = sampling.HardClassSampler(LABELS, lambda i: torch.ones(len(i), 2), pairs=2, seed=seed, batches=1)
        seen |= set(LABELS[next(iter(sampler))].tolist())
    assert len(seen) > 35


def test_resuming_repeats_the_choices_of_the_model():
    run = sampling.HardClassSampler(LABELS, Model(), pairs=8, candidates=25, batches=6)
    whole = list(run)
    model = Model()
    first = sampling.HardClassSampler(LABELS, model, pairs=8, candidates=25, batches=6)
    started = [batch for _, batch in zip(range(3), first, strict=False)]
    second = sampling.HardClassSampler(LABELS, model, pairs=8, candidates=25, batches=6)
    second.load_state_dict(first.state_dict())
    assert second.state_dict() == first.state_dict()
    assert started + list(second) == whole
    assert len(model.answers) == 6


def test_vectors_of_the_wrong_shape_raise_an_error():
    sampler = sampling.HardClassSampler(LABELS, lambda i: torch.zeros(3, 2), pairs=2)
    with pytest.raises(ValueError, match=r"embed returned shape \(3, 2\) for 40 indices"):
        next(iter(sampler))


def test_vectors_that_are_not_finite_raise_an_error():
    sampler = sampling.HardClassSampler(LABELS, lambda i: torch.full((len(i), 2), torch.nan), pairs=2)
    with pytest.raises(ValueError, match="embed returned vectors that are not finite"):
        next(iter(sampler))
