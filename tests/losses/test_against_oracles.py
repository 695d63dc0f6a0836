"""Test value and gradient of each loss against its oracle, the equation in loops and float64."""

import inspect
from functools import partial

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from losses import label_patterns as patterns
from losses.cases import CASES, CLASSES, DIM, PROXY_LOSSES
from losses.oracle_rows import by_vector
from tuplet import losses, mining


def label_strategy(case):
    if case.labels == "pairs":
        return patterns.paired_labels()
    if case.labels == "classes":
        return patterns.class_labels(CLASSES)
    if case.labels == "triplets":
        return st.integers(1, 4).map(lambda n: [2 * t + (k == 2) for t in range(n) for k in range(3)])
    return patterns.labels(smallest=DIM + 1 if case.labels == "many" else 1)


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
    """With a gallery nothing is excluded from the rows; it gets gradients (but not in the ranked list loss)."""
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
    options = {"gallery": g, "gallery_labels": gallery_labels}
    loss = case.make()
    value = loss(x, labels, block_rows=data.draw(st.integers(1, len(labels))), **options)
    truth = case.truth(loss, x, labels, **options)
    inputs = [x, g, *loss.parameters()]
    assert_same(case, [x, g], (value, gradients(value, inputs)), (truth, gradients(truth, inputs)))


@pytest.mark.parametrize("case", [case for case in CASES if case.labels in ("any", "same")], ids=str)
@given(data=st.data())
def test_custom_comparison(case, data):
    """Multi-label sets: two examples are the same if they share a label; `same` need not be transitive."""
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
    """With several classes per example, the positives of a proxy are the examples of its class."""
    has = torch.tensor([[1, 1, 0], [1, 0, 0], [0, 1, 0], [1, 1, 0], [0, 0, 0]]).bool()
    x = patterns.embeddings(5, DIM, 0)
    loss = losses.ProxyAnchorLoss(3, DIM).double()
    s = torch.nn.functional.normalize(loss.proxies) @ x.T
    pull, push = (-32 * (s - 0.1)).exp(), (32 * (s + 0.1)).exp()
    truth = (pull * has.T).sum(1).log1p().sum() / 2 + (push * ~has.T).sum(1).log1p().mean()
    options = {"same": lambda classes, has: has.T[classes], "block_rows": 2}
    value = loss(x, has, **options)
    torch.testing.assert_close(value, truth)
    torch.testing.assert_close(*(torch.autograd.grad(v, loss.proxies)[0] for v in (value, truth)))
    torch.testing.assert_close(loss(x, torch.zeros_like(has), **options), push.sum(1).log1p().mean())


@pytest.mark.parametrize("make", PROXY_LOSSES)
def test_proxies_start_with_about_unit_length(make):
    lengths = make(50, 400).proxies.norm(dim=1)
    assert ((lengths > 0.8) & (lengths < 1.2)).all()


SOFT_TRIPLE = partial(losses.SoftTripleLoss, tau=0.0)
SINGLE = [losses.ProxyNCALoss, losses.SoftmaxLoss, losses.CosFaceLoss, losses.ArcFaceLoss, SOFT_TRIPLE]


@pytest.mark.parametrize("make", SINGLE)
def test_a_single_class_gives_no_gradient(make):
    """There is no other class to push away."""
    loss, x = make(1, DIM).double(), patterns.embeddings(3, DIM, 0).requires_grad_()
    value = loss(x, torch.zeros(3, dtype=torch.int64))
    assert value == 0
    assert not any(gradient.any() for gradient in gradients(value, [x, *loss.parameters()]))


@pytest.mark.parametrize("name", ["supcon", "circle", "smooth_ap", "tuplet_margin"])
def test_cosines_do_not_depend_on_lengths(name):
    """A vector of zeros, which has no direction, has a finite gradient."""
    x, labels = patterns.embeddings(12, DIM, 0), torch.arange(12) // 3
    lengths = torch.linspace(0.1, 50, 12, dtype=torch.float64)[:, None]
    loss = losses.LOSSES[name]()
    torch.testing.assert_close(loss(x * lengths, labels), loss(x, labels))
    gallery = {"gallery": x[:5], "gallery_labels": labels[:5]}
    longer = {"gallery": x[:5] * lengths[:5], "gallery_labels": labels[:5]}
    torch.testing.assert_close(loss(x * lengths, labels, **longer), loss(x, labels, **gallery))
    x[2] = 0
    value = loss(x.requires_grad_(), labels)
    assert gradients(value, [x])[0].abs().max() < 1000


@pytest.mark.parametrize("make", [losses.ArcFaceLoss, losses.SoftTripleLoss])
def test_the_centers_of_a_class_follow_each_other(make):
    """A query at one centre of its class is at home, wherever the other centres are."""
    loss = make(2, DIM, centers=3).double()
    loss.proxies.data = patterns.embeddings(6, DIM, 0)
    x = loss.proxies.detach()
    own, other = (loss(x, torch.tensor(labels)) for labels in ([0, 0, 0, 1, 1, 1], [1, 1, 1, 0, 0, 0]))
    assert own < other / 5


def test_centers_that_joined_stay_together():
    """The distance of copies has a zero gradient, not a NaN."""
    loss = losses.SoftTripleLoss(2, DIM, centers=3).double()
    loss.proxies.data = patterns.embeddings(2, DIM, 0).repeat_interleave(3, 0)
    (gradient,) = gradients(loss(patterns.embeddings(4, DIM, 1), torch.tensor([0, 0, 1, 1])), [loss.proxies])
    for one, two, three in gradient.view(2, 3, DIM):
        torch.testing.assert_close(one, two)
        torch.testing.assert_close(one, three)
    assert gradient.isfinite().all()


def test_every_exported_loss_has_an_oracle():
    assert {type(case.make()) for case in CASES} == set(losses.LOSSES.values())


MINED = [make for make in losses.LOSSES.values() if "mining" in inspect.signature(make).parameters]


@pytest.mark.parametrize("make", MINED)
@pytest.mark.parametrize("name", ["distance_weighted", "semi_hard", "valid_triplet"])
def test_a_mining_rule_by_its_name_is_the_rule_with_its_defaults(make, name):
    x, labels = patterns.embeddings(12, DIM, 0, "unit"), torch.arange(12) // 3
    by_name, by_object = make(mining=name), make(mining=mining.MINING[name]())
    assert type(by_name.mining) is type(by_object.mining)
    assert torch.equal(by_name(x, labels), by_object(x, labels))


@pytest.mark.parametrize("make", MINED)
def test_a_loss_with_mining_takes_every_rule(make):
    x, labels = patterns.embeddings(12, DIM, 0, "unit"), torch.arange(12) // 3
    for rule in (mining.ValidTriplet(), mining.SemiHard(), mining.DistanceWeighted(), mining.NonTrivial(1.2, 0.4)):
        loss = make(mining=rule)
        assert loss.mining is rule
        assert loss(x, labels).isfinite()


def test_without_mining_all_triplets_count():
    x, labels = patterns.embeddings(12, DIM, 0, "unit"), torch.arange(12) // 3
    assert losses.TripletLoss(mining=None)(x, labels) == losses.TripletLoss(mining="all")(x, labels)


def test_a_loss_states_its_batch_and_gallery_by_its_options():
    assert (losses.TripletLoss().batch, losses.TripletLoss().takes_gallery) == ("classes", True)
    disjoint = losses.TripletLoss(mining="disjoint")
    assert (disjoint.batch, disjoint.takes_gallery) == ("triplets", False)
    assert (losses.NPairLoss().batch, losses.NPairLoss().takes_gallery) == ("pairs", False)


@pytest.mark.parametrize("loss", losses.LOSSES.values())
def test_the_first_argument_of_rows_is_named_after_the_geometry(loss):
    names = list(inspect.signature(loss.rows).parameters)
    if loss.rows is not losses.RowLoss.rows:
        assert names[1] == ("d" if loss.geometry == "euclidean" else "s")
