"""Each loss against the literal float64 version of its equation: value and gradient."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from losses import label_patterns as patterns
from losses.cases import CASES, CLASSES, DIM
from losses.oracle_rows import by_vector
from tuplet import losses


def label_strategy(case):
    if case.labels == "pairs":
        return patterns.paired_labels()
    if case.labels == "classes":
        return patterns.class_labels(CLASSES)
    if case.labels == "triplets":
        return st.integers(1, 4).map(lambda n: [2 * t + (k == 2) for t in range(n) for k in range(3)])
    return patterns.labels(smallest=1)


def gradients(value, inputs):
    return torch.autograd.grad(value, inputs, materialize_grads=True)


def assert_same(case, x, ours, theirs):
    (value, grads), (true_value, true_grads) = ours, theirs
    assert value.dtype == torch.float64
    torch.testing.assert_close(value, true_value, rtol=1e-9, atol=1e-11)
    for k, (grad, true_grad) in enumerate(zip(grads, true_grads, strict=True)):
        if case.picks and k < len(x):
            grad, true_grad = by_vector(x[k], grad), by_vector(x[k], true_grad)
        scale = 1 + true_grad.abs().max().item()
        torch.testing.assert_close(grad, true_grad, rtol=1e-7, atol=1e-9 * scale)


@pytest.mark.parametrize("case", CASES, ids=str)
@given(data=st.data())
def test_batch(case, data):
    labels = torch.tensor(data.draw(label_strategy(case)))
    kind = data.draw(st.sampled_from(case.kinds))
    x = patterns.embeddings(len(labels), DIM, data.draw(st.integers(0, 10**6)), kind).requires_grad_()
    block_rows = data.draw(st.one_of(st.none(), st.integers(1, len(labels))))
    loss = case.make()
    inputs = [x, *loss.parameters()]
    value = loss(x, labels, block_rows=block_rows, check_finite=True)
    truth = case.truth(loss, x, labels)
    assert_same(case, [x], (value, gradients(value, inputs)), (truth, gradients(truth, inputs)))


@pytest.mark.parametrize("case", [case for case in CASES if case.gallery], ids=str)
@given(data=st.data())
def test_gallery(case, data):
    """Any gallery: nothing is excluded from the rows, and the gallery moves too (but for the ranked list's)."""
    if case.labels == "pairs":
        ids = data.draw(patterns.paired_labels())
        labels = torch.tensor(list(dict.fromkeys(ids)))
        gallery_labels = labels.flip(0)
    else:
        labels = torch.tensor(data.draw(patterns.labels(1, 7)))
        gallery_labels = torch.tensor(data.draw(patterns.labels(1, 9)))
    seed, kind = data.draw(st.integers(0, 10**6)), data.draw(st.sampled_from(case.kinds))
    both = patterns.embeddings(len(labels) + len(gallery_labels), DIM, seed, kind)
    x = both[: len(labels)].clone().requires_grad_()
    g = both[len(labels) :].clone().requires_grad_()
    look = {"gallery": g, "gallery_labels": gallery_labels}
    loss = case.make()
    value = loss(x, labels, block_rows=data.draw(st.integers(1, len(labels))), **look)
    truth = case.truth(loss, x, labels, **look)
    inputs = [x, g, *loss.parameters()]
    assert_same(case, [x, g], (value, gradients(value, inputs)), (truth, gradients(truth, inputs)))


@pytest.mark.parametrize("case", [case for case in CASES if case.labels == "any"], ids=str)
@given(data=st.data())
def test_custom_comparison(case, data):
    """Multi-label sets: two examples are alike when they share a label; `same` need not be transitive."""
    n = data.draw(st.integers(2, 9))
    sets = torch.tensor(data.draw(st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=n, max_size=n)))

    def share_one(a, b):
        return (a[:, None] & b).any(-1)

    x = patterns.embeddings(n, DIM, data.draw(st.integers(0, 10**6)), "free").requires_grad_()
    loss = case.make()
    value = loss(x, sets, same=share_one, block_rows=data.draw(st.integers(1, n)))
    truth = case.truth(loss, x, sets, same=share_one)
    assert_same(case, [x], (value, gradients(value, [x])), (truth, gradients(truth, [x])))


def test_custom_comparison_of_triplets_in_turn():
    x, sets = patterns.embeddings(6, DIM, 0), torch.eye(3, dtype=torch.bool)[[0, 0, 1, 2, 2, 0]]
    value = losses.TripletLoss(mining="disjoint")(x, sets, same=lambda a, b: (a[:, None] & b).any(-1))
    torch.testing.assert_close(value, losses.TripletLoss(mining="disjoint")(x, torch.tensor([0, 0, 1, 2, 2, 0])))


def test_custom_comparison_with_proxies():
    """Several classes an example: of a proxy, the positives are the examples that have its class."""
    has = torch.tensor([[1, 1, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 0]]).bool()
    x = patterns.embeddings(5, DIM, 0)
    loss = losses.ProxyAnchorLoss(3, DIM).double()
    s = torch.nn.functional.normalize(loss.proxies) @ x.T
    pull, push = (-32 * (s - 0.1)).exp(), (32 * (s + 0.1)).exp()
    truth = (pull * has.T).sum(1).log1p().sum() / 2 + (push * ~has.T).sum(1).log1p().mean()
    look = {"same": lambda classes, has: has.T[classes], "block_rows": 2}
    value = loss(x, has, **look)
    torch.testing.assert_close(value, truth)
    torch.testing.assert_close(*(torch.autograd.grad(v, loss.proxies)[0] for v in (value, truth)))
    torch.testing.assert_close(loss(x, torch.zeros_like(has), **look), push.sum(1).log1p().mean())


@pytest.mark.parametrize("make", [losses.ProxyNCALoss, losses.SoftmaxLoss, losses.ProxyAnchorLoss])
def test_proxies_begin_at_about_unit_length(make):
    lengths = make(50, 400).proxies.norm(dim=1)
    assert ((lengths > 0.8) & (lengths < 1.2)).all()


@pytest.mark.parametrize("make", [losses.ProxyNCALoss, losses.SoftmaxLoss])
def test_one_proxy_alone_moves_nothing(make):
    """There is no other class to tell it from."""
    loss, x = make(1, DIM).double(), patterns.embeddings(3, DIM, 0).requires_grad_()
    value = loss(x, torch.zeros(3, dtype=torch.int64))
    assert value == 0
    assert not any(gradient.any() for gradient in gradients(value, [x, *loss.parameters()]))
