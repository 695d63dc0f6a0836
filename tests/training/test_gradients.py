"""A batch in pieces has the gradient of the whole."""

import contextlib

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tuplet import losses
from tuplet.training.gradients import backward

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
def test_pieces_give_the_gradient_of_the_whole(piece_size, loss, seed):
    x = torch.randn(14, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    labels = torch.arange(14) // 3
    whole, pieces = network(), network()
    expected = loss(whole(x), labels)
    expected.backward()
    value, embeddings = backward(pieces, x, lambda v: loss(v, labels), piece_size=piece_size)
    torch.testing.assert_close(value, expected.detach(), rtol=1e-12, atol=1e-12)
    torch.testing.assert_close(embeddings, whole(x).detach(), rtol=1e-12, atol=1e-12)
    for ours, theirs in zip(gradients(pieces), gradients(whole), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
    assert not value.requires_grad
    assert not embeddings.requires_grad


def test_a_network_that_is_frozen_whole_leaves_the_learning_to_the_loss():
    x, labels = torch.randn(12, 5, dtype=torch.float64), torch.arange(12) // 3
    frozen, whole, pieces = network().requires_grad_(False), *(losses.SoftmaxLoss(4, 4).double() for _ in range(2))
    pieces.load_state_dict(whole.state_dict())
    backward(frozen, x, lambda v: whole(v, labels))
    backward(frozen, x, lambda v: pieces(v, labels), piece_size=5)
    torch.testing.assert_close(pieces.proxies.grad, whole.proxies.grad, rtol=1e-12, atol=1e-12)


def test_dropout_is_the_same_in_both_passes():
    """Against a loop that embeds the pieces with a graph, at the same random numbers, and differentiates one loss."""
    x, labels = torch.randn(12, 5, dtype=torch.float64), torch.arange(12) // 3
    loss = losses.RAWLoss()
    loop, pieces = network(0.5), network(0.5)
    torch.manual_seed(3)
    loss(torch.cat([loop(piece) for piece in x.split(5)]), labels).backward()
    after = torch.get_rng_state()
    torch.manual_seed(3)
    backward(pieces, x, lambda v: loss(v, labels), piece_size=5)
    for ours, theirs in zip(gradients(pieces), gradients(loop), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-12)
    assert torch.equal(torch.get_rng_state(), after)


@pytest.mark.parametrize("dropout", [0.0, 0.5])
def test_a_loss_that_draws_draws_anew_at_every_step(dropout):
    """From where a loop that embeds the pieces once would have it draw."""
    x, drawn = torch.randn(12, 5, dtype=torch.float64), []

    def drawing(v):
        drawn.append(torch.rand(1).item())
        return v.square().sum() * drawn[-1]

    net = network(dropout)
    torch.manual_seed(3)
    for _ in range(3):
        drawing(torch.cat([net(piece) for piece in x.split(5)]))
    torch.manual_seed(3)
    for _ in range(3):
        backward(net, x, drawing, piece_size=5)
    assert drawn[:3] == drawn[3:]
    assert len(set(drawn)) == 3


@pytest.mark.parametrize(("piece_size", "held"), [(None, 0), (12, 0), (5, 2), (3, 3)])
def test_all_pieces_but_the_last_are_held_back(piece_size, held):
    count = 0

    @contextlib.contextmanager
    def hold():
        nonlocal count
        count += 1
        yield

    x, labels = torch.randn(12, 5, dtype=torch.float64), torch.arange(12) // 3
    backward(network(), x, lambda v: losses.RAWLoss()(v, labels), piece_size=piece_size, hold=hold)
    assert count == held


@pytest.mark.parametrize("piece_size", [None, 5])
def test_what_is_back_propagated_is_scaled_and_the_value_is_not(piece_size):
    x, labels = torch.randn(12, 5, dtype=torch.float64), torch.arange(12) // 3
    plain, scaled = network(), network()
    one, _ = backward(plain, x, lambda v: losses.RAWLoss()(v, labels), piece_size=piece_size)
    two, _ = backward(scaled, x, lambda v: losses.RAWLoss()(v, labels), lambda v: 8 * v, piece_size)
    assert one == two
    for ours, theirs in zip(gradients(scaled), gradients(plain), strict=True):
        torch.testing.assert_close(ours, 8 * theirs)
