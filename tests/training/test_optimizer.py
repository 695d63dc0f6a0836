"""Rates over time and by part, and gradients that are shortened."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tuplet import losses, models
from tuplet.training.average import Average
from tuplet.training.optimizer import leave_out_if_not_finite, make_optimizer, rate_factor, set_rate, shorten
from tuplet.training.settings import Settings


@given(st.integers(1, 50), st.integers(0, 20), st.integers(1, 10), st.sampled_from(["constant", "cosine", "step"]))
def test_the_rate_follows_its_schedule(steps, warmup, every, schedule):
    falls = {"decay_every": every, "decay_factor": 0.5} if schedule == "step" else {}
    settings = Settings(steps=steps, warmup=warmup, schedule=schedule, **falls)
    for step in range(steps):
        expected = (step + 1) / warmup if step < warmup else 1.0
        if schedule == "cosine" and step >= warmup:
            expected *= 0.5 + 0.5 * math.cos(math.pi * (step - warmup) / (steps - warmup))
        if schedule == "step":
            expected *= 0.5 ** (step // every)
        assert rate_factor(settings, step) == pytest.approx(expected)


@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw"])
def test_the_new_layers_and_the_loss_have_rates_of_their_own(kind):
    settings = Settings(optimizer=kind, rate=0.1, head_rate=10.0, loss_rate=50.0, weight_decay=0.2, warmup=4)
    embedder = models.create("mlp", features=4, hidden=[3], dim=2)
    optimizer = make_optimizer(settings, embedder, losses.MarginLoss(learn_beta=True))
    assert type(optimizer).__name__.lower() == kind
    assert set_rate(optimizer, settings, 1) == pytest.approx(0.05)
    groups = optimizer.param_groups
    assert [group["name"] for group in groups] == ["backbone", "backbone/flat", "heads", "heads/flat", "loss"]
    assert [group["lr"] for group in groups] == pytest.approx([0.05, 0.05, 0.5, 0.5, 2.5])
    assert [group["weight_decay"] for group in groups] == [0.2, 0, 0.2, 0, 0]


@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw"])
def test_the_backbone_stays_as_it_is_in_the_first_head_steps(kind):
    torch.manual_seed(0)
    settings = Settings(optimizer=kind, rate=0.1, head_steps=3, weight_decay=0.1, schedule="constant")
    embedder = models.create("mlp", features=4, hidden=[3], dim=2)
    optimizer = make_optimizer(settings, embedder, losses.RAWLoss())
    for step in range(5):
        before = [p.clone() for p in embedder.backbone.parameters()]
        head = embedder.heads["H"].weight.clone()
        optimizer.zero_grad()
        embedder(torch.randn(5, 4)).pow(4).sum().backward()
        assert set_rate(optimizer, settings, step) == (0.0 if step < 3 else 0.1)
        optimizer.step()
        stays = all(map(torch.equal, before, embedder.backbone.parameters()))
        assert stays == (step < 3)
        assert not torch.equal(head, embedder.heads["H"].weight)


def test_head_steps_without_a_head_are_refused():
    embedder = models.create("mlp", features=4, hidden=[3], dim=None)
    with pytest.raises(ValueError, match="head_steps is 5 and there is no new layer, nor anything"):
        make_optimizer(Settings(head_steps=5), embedder, losses.RAWLoss())
    make_optimizer(Settings(head_steps=5), embedder, losses.MarginLoss(learn_beta=True))


def test_nothing_to_learn_is_refused():
    embedder = models.create("mlp", features=4, hidden=[3], dim=2).requires_grad_(False)
    with pytest.raises(ValueError, match="nothing in the model or the loss can learn"):
        make_optimizer(Settings(), embedder, losses.RAWLoss())


@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw"])
def test_a_step_with_a_number_that_is_not_finite_leaves_the_weights_as_they_are(kind):
    torch.manual_seed(0)
    settings = Settings(optimizer=kind, rate=0.1, weight_decay=0.1)
    networks = [models.create("mlp", features=4, hidden=[3], dim=2) for _ in range(2)]
    networks[1].load_state_dict(networks[0].state_dict())
    spoilt, plain = (make_optimizer(settings, network, losses.RAWLoss()) for network in networks)
    for step in range(5):
        inputs = torch.randn(5, 4)
        for network, optimizer in zip(networks, (spoilt, plain), strict=True):
            optimizer.zero_grad()
            network(inputs).pow(4).sum().backward()
            leave_out_if_not_finite(optimizer, torch.tensor([1.0, 2.0]))
        if step == 2:
            before = [p.clone() for p in networks[0].parameters()]
            kept = [p.grad.clone() for p in networks[0].parameters()]
            for p in networks[0].parameters():
                p.grad.fill_(torch.nan)
            leave_out_if_not_finite(spoilt, torch.tensor([1.0, torch.nan]))
            spoilt.step()
            assert all(map(torch.equal, before, networks[0].parameters()))
            leave_out_if_not_finite(spoilt, torch.tensor([1.0]))
            for p, gradient in zip(networks[0].parameters(), kept, strict=True):
                p.grad.copy_(gradient)
        spoilt.step()
        plain.step()
    assert all(map(torch.equal, *(network.parameters() for network in networks)))


@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw"])
def test_a_first_step_that_is_left_out_leaves_no_trace(kind):
    torch.manual_seed(0)
    settings, inputs = Settings(optimizer=kind, rate=0.1), torch.randn(5, 4)
    networks = [models.create("mlp", features=4, hidden=[300], dim=2) for _ in range(2)]
    networks[1].load_state_dict(networks[0].state_dict())
    spoilt, plain = (make_optimizer(settings, network, losses.RAWLoss()) for network in networks)
    # Memory that is handed out without being filled holds what was there before.
    del [torch.full_like(p, 7.0) for p in networks[0].parameters() for _ in range(9)][:]
    for network, optimizer, outcomes in ((networks[0], spoilt, (torch.nan, 1.0)), (networks[1], plain, (1.0,))):
        network(inputs).pow(4).sum().backward()
        for outcome in outcomes:
            leave_out_if_not_finite(optimizer, torch.tensor([outcome]))
            optimizer.step()
    assert all(map(torch.equal, *(network.parameters() for network in networks)))


@pytest.mark.parametrize("longest", [None, 0.5, 100.0])
def test_the_gradient_is_shortened_as_a_whole(longest):
    embedder = models.create("mlp", features=4, hidden=[3], dim=2)
    optimizer = make_optimizer(Settings(), embedder, losses.RAWLoss())
    embedder(torch.randn(5, 4)).pow(4).sum().backward()
    gradients = torch.cat([p.grad.flatten() for p in embedder.parameters()]).clone()
    assert shorten(optimizer, longest).item() == pytest.approx(gradients.norm().item())
    after = torch.cat([p.grad.flatten() for p in embedder.parameters()])
    factor = 1.0 if longest is None else min(1.0, longest / gradients.norm().item())
    torch.testing.assert_close(after, gradients * factor, rtol=1e-4, atol=1e-7)


def test_the_average_of_the_weights_is_that_of_a_loop():
    embedder = models.create("mlp", features=3, hidden=[], dim=2)
    average = Average(embedder, 0.8)
    expected = embedder.heads["H"].weight.detach().clone()
    for step in range(30):
        with torch.no_grad():
            embedder.heads["H"].weight.add_(torch.randn(2, 3))
        decay = min(0.8, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * embedder.heads["H"].weight.detach()
        average.update(step)
    torch.testing.assert_close(average.embedder.heads["H"].weight, expected)
    assert not average.embedder.training


def test_the_average_copies_the_statistics_of_batchnorm():
    embedder = models.create(torch.nn.BatchNorm1d(3), dim=2, example=torch.zeros(1, 3))
    average = Average(embedder, 0.9)
    embedder(torch.randn(8, 3))
    average.update(0)
    for ours, theirs in zip(average.embedder.buffers(), embedder.buffers(), strict=True):
        assert torch.equal(ours, theirs)
