"""Tests of one step: micro-batches give the gradient of the whole batch."""

import contextlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tuplet import losses
from tuplet.training.step import backward

LOSSES = [
    losses.RAWLoss(),
    losses.NRALoss(),
    losses.RankedListLoss(),
    losses.AngularLoss(),
    losses.LiftedStructureLoss(),
    losses.HistogramLoss(),
]


def network(dropout=0.0):
    torch.manual_seed(1)
    layers = [torch.nn.Linear(5, 7), torch.nn.Tanh(), torch.nn.Dropout(dropout), torch.nn.Linear(7, 4)]
    return torch.nn.Sequential(*layers).double()


def gradients(net):
    return [parameter.grad.clone() for parameter in net.parameters()]


@given(st.integers(1, 20), st.sampled_from(LOSSES), st.integers(0, 5))
def test_micro_batches_give_the_gradient_of_the_whole_batch(micro_batch_size, loss, seed):
    x = torch.randn(14, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    labels = torch.arange(14) // 3
    whole, micro = network(), network()
    expected = loss(whole(x), labels)
    expected.backward()
    value, embeddings = backward(micro, x, lambda v: loss(v, labels), micro_batch_size=micro_batch_size)
    torch.testing.assert_close(value, expected.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(embeddings, whole(x).detach(), rtol=1e-12, atol=1e-12)
    for ours, theirs in zip(gradients(micro), gradients(whole), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
    assert not value.requires_grad
    assert not embeddings.requires_grad


def test_a_frozen_network_still_trains_the_parameters_of_the_loss():
    x, labels = torch.randn(12, 5, dtype=torch.float64), torch.arange(12) // 3
    frozen, whole, micro = network().requires_grad_(False), *(losses.SoftmaxLoss(4, 4).double() for _ in range(2))
    micro.load_state_dict(whole.state_dict())
    backward(frozen, x, lambda v: whole(v, labels))
    backward(frozen, x, lambda v: micro(v, labels), micro_batch_size=5)
    torch.testing.assert_close(micro.proxies.grad, whole.proxies.grad, rtol=1e-12, atol=1e-12)


def test_dropout_is_the_same_in_both_passes():
    """Compare with a loop that embeds the micro-batches once, with a graph and the same random numbers."""
    x, labels = torch.randn(12, 5, dtype=torch.float64), torch.arange(12) // 3
    loss = losses.RAWLoss()
    loop, micro = network(0.5), network(0.5)
    torch.manual_seed(3)
    loss(torch.cat([loop(part) for part in x.split(5)]), labels).backward()
    after = torch.get_rng_state()
    torch.manual_seed(3)
    backward(micro, x, lambda v: loss(v, labels), micro_batch_size=5)
    for ours, theirs in zip(gradients(micro), gradients(loop), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
    assert torch.equal(torch.get_rng_state(), after)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_random_loss_uses_new_random_numbers_in_every_step(dropout):
    """They are those of a loop that embeds the micro-batches once."""
    x, drawn = torch.randn(12, 5, dtype=torch.float64), []

    def random_loss(v):
        drawn.append(torch.rand(1).item())
        return v.square().sum() * drawn[-1]

    net = network(dropout)
    torch.manual_seed(3)
    for _ in range(3):
        random_loss(torch.cat([net(part) for part in x.split(5)]))
    torch.manual_seed(3)
    for _ in range(3):
        backward(net, x, random_loss, micro_batch_size=5)
    assert drawn[:3] == drawn[3:]
    assert len(set(drawn)) == 3


@pytest.mark.parametrize(("micro_batch_size", "expected"), [(None, 0), (12, 0), (5, 2), (3, 3)])
def test_gradients_are_exchanged_only_in_the_last_micro_batch(micro_batch_size, expected):
    count = 0

    @contextlib.contextmanager
    def no_sync():
        nonlocal count
        count += 1
        yield

    x, labels = torch.randn(12, 5, dtype=torch.float64), torch.arange(12) // 3
    backward(network(), x, lambda v: losses.RAWLoss()(v, labels), micro_batch_size=micro_batch_size, no_sync=no_sync)
    assert count == expected


@pytest.mark.parametrize("micro_batch_size", [None, 5])
def test_the_gradient_is_scaled_and_the_loss_is_not(micro_batch_size):
    x, labels = torch.randn(12, 5, dtype=torch.float64), torch.arange(12) // 3
    plain, scaled = network(), network()
    one, _ = backward(plain, x, lambda v: losses.RAWLoss()(v, labels), micro_batch_size=micro_batch_size)
    two, _ = backward(scaled, x, lambda v: losses.RAWLoss()(v, labels), lambda v: 8 * v, micro_batch_size)
    assert one == two
    for ours, theirs in zip(gradients(scaled), gradients(plain), strict=True):
        torch.testing.assert_close(ours, 8 * theirs)
