"""Tests of learning rates, gradient clipping, skipped steps and the average of the weights."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tuplet import losses, models
from tuplet.training.distributed import World
from tuplet.training.ema import ExponentialMovingAverage
from tuplet.training.optimizer import clip_gradient, lr_factor, make_optimizer, set_lr, skip_if_not_finite
from tuplet.training.settings import Settings


@given(st.integers(1, 50), st.integers(0, 20), st.integers(1, 10), st.sampled_from(["constant", "cosine", "step"]))
def test_the_learning_rate_follows_its_schedule(steps, warmup, every, schedule):
    decay = {"decay_every": every, "decay_factor": 0.5} if schedule == "step" else {}
    settings = Settings(steps=steps, warmup=warmup, schedule=schedule, **decay)
    for step in range(steps):
        expected = (step + 1) / warmup if step < warmup else 1.0
        if schedule == "cosine" and step >= warmup:
            expected *= 0.5 + 0.5 * math.cos(math.pi * (step - warmup) / (steps - warmup))
        if schedule == "step":
            expected *= 0.5 ** (step // every)
        assert lr_factor(settings, step) == pytest.approx(expected)


def test_the_first_decay_can_come_late():
    settings = Settings(steps=24, schedule="step", decay_start=16, decay_every=4, decay_factor=0.5)
    assert [lr_factor(settings, step) for step in range(24)] == [1.0] * 16 + [0.5] * 4 + [0.25] * 4


@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw"])
def test_new_layers_and_loss_have_their_own_learning_rates(kind):
    settings = Settings(optimizer=kind, lr=0.1, head_lr_scale=10.0, loss_lr_scale=50.0, weight_decay=0.2, warmup=4)
    embedder = models.create("mlp", features=4, hidden=[3], dim=2)
    optimizer = make_optimizer(settings, embedder, losses.MarginLoss(learn_beta=True))
    assert type(optimizer).__name__.lower() == kind
    assert set_lr(optimizer, settings, 1) == pytest.approx(0.05)
    groups = optimizer.param_groups
    assert [group["name"] for group in groups] == ["backbone", "backbone/flat", "heads", "heads/flat", "loss"]
    assert [group["lr"] for group in groups] == pytest.approx([0.05, 0.05, 0.5, 0.5, 2.5])
    assert [group["weight_decay"] for group in groups] == [0.2, 0, 0.2, 0, 0]


@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw"])
def test_head_steps_leave_the_backbone_unchanged(kind):
    torch.manual_seed(0)
    settings = Settings(optimizer=kind, lr=0.1, head_steps=3, weight_decay=0.1, schedule="constant")
    embedder = models.create("mlp", features=4, hidden=[3], dim=2)
    optimizer = make_optimizer(settings, embedder, losses.RAWLoss())
    for step in range(5):
        before = [p.clone() for p in embedder.backbone.parameters()]
        head = embedder.heads["H"].weight.clone()
        optimizer.zero_grad()
        embedder(torch.randn(5, 4)).pow(4).sum().backward()
        assert set_lr(optimizer, settings, step) == (0.0 if step < 3 else 0.1)
        optimizer.step()
        unchanged = all(map(torch.equal, before, embedder.backbone.parameters()))
        assert unchanged == (step < 3)
        assert not torch.equal(head, embedder.heads["H"].weight)


def test_head_steps_without_a_new_layer_raise_an_error():
    embedder = models.create("mlp", features=4, hidden=[3], dim=None)
    with pytest.raises(ValueError, match="head_steps is 5, but there is no new layer and the loss has no parameters"):
        make_optimizer(Settings(head_steps=5), embedder, losses.RAWLoss())
    make_optimizer(Settings(head_steps=5), embedder, losses.MarginLoss(learn_beta=True))


def test_nothing_to_train_raises_an_error():
    embedder = models.create("mlp", features=4, hidden=[3], dim=2).requires_grad_(False)
    with pytest.raises(ValueError, match="neither the model nor the loss has a parameter to train"):
        make_optimizer(Settings(), embedder, losses.RAWLoss())


@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw"])
def test_a_step_with_a_non_finite_number_leaves_the_weights_unchanged(kind):
    torch.manual_seed(0)
    settings = Settings(optimizer=kind, lr=0.1, weight_decay=0.1)
    networks = [models.create("mlp", features=4, hidden=[3], dim=2) for _ in range(2)]
    networks[1].load_state_dict(networks[0].state_dict())
    skipping, plain = (make_optimizer(settings, network, losses.RAWLoss()) for network in networks)
    for step in range(5):
        inputs = torch.randn(5, 4)
        for network, optimizer in zip(networks, (skipping, plain), strict=True):
            optimizer.zero_grad()
            network(inputs).pow(4).sum().backward()
            skip_if_not_finite(optimizer, torch.tensor([1.0, 2.0]))
        if step == 2:
            before = [p.clone() for p in networks[0].parameters()]
            kept = [p.grad.clone() for p in networks[0].parameters()]
            for p in networks[0].parameters():
                p.grad.fill_(torch.nan)
            skip_if_not_finite(skipping, torch.tensor([1.0, torch.nan]))
            skipping.step()
            assert all(map(torch.equal, before, networks[0].parameters()))
            skip_if_not_finite(skipping, torch.tensor([1.0]))
            for p, gradient in zip(networks[0].parameters(), kept, strict=True):
                p.grad.copy_(gradient)
        skipping.step()
        plain.step()
    assert all(map(torch.equal, *(network.parameters() for network in networks)))


@pytest.mark.parametrize("kind", ["sgd", "adam", "adamw"])
def test_a_skipped_first_step_leaves_no_trace(kind):
    torch.manual_seed(0)
    settings, inputs = Settings(optimizer=kind, lr=0.1), torch.randn(5, 4)
    networks = [models.create("mlp", features=4, hidden=[300], dim=2) for _ in range(2)]
    networks[1].load_state_dict(networks[0].state_dict())
    skipping, plain = (make_optimizer(settings, network, losses.RAWLoss()) for network in networks)
    # Freed memory, which uninitialised tensors would get, holds sevens.
    del [torch.full_like(p, 7.0) for p in networks[0].parameters() for _ in range(9)][:]
    for network, optimizer, outcomes in ((networks[0], skipping, (torch.nan, 1.0)), (networks[1], plain, (1.0,))):
        network(inputs).pow(4).sum().backward()
        for outcome in outcomes:
            skip_if_not_finite(optimizer, torch.tensor([outcome]))
            optimizer.step()
    assert all(map(torch.equal, *(network.parameters() for network in networks)))


@pytest.mark.parametrize("max_norm", [None, 0.5, 100.0])
def test_the_gradient_of_all_parameters_is_clipped_together(max_norm):
    embedder = models.create("mlp", features=4, hidden=[3], dim=2)
    optimizer = make_optimizer(Settings(), embedder, losses.RAWLoss())
    embedder(torch.randn(5, 4)).pow(4).sum().backward()
    gradients = torch.cat([p.grad.flatten() for p in embedder.parameters()]).clone()
    assert clip_gradient(optimizer, max_norm, World(0, 1, torch.device("cpu"))).item() == pytest.approx(
        gradients.norm().item()
    )
    after = torch.cat([p.grad.flatten() for p in embedder.parameters()])
    factor = 1.0 if max_norm is None else min(1.0, max_norm / gradients.norm().item())
    torch.testing.assert_close(after, gradients * factor, rtol=1e-4, atol=1e-7)


def test_the_ema_equals_a_plain_loop():
    embedder = models.create("mlp", features=3, hidden=[], dim=2)
    ema = ExponentialMovingAverage(embedder, 0.8)
    expected = embedder.heads["H"].weight.detach().clone()
    for step in range(30):
        with torch.no_grad():
            embedder.heads["H"].weight.add_(torch.randn(2, 3))
        decay = min(0.8, (1 + step) / (10 + step))
        expected = decay * expected + (1 - decay) * embedder.heads["H"].weight.detach()
        ema.update(step)
    torch.testing.assert_close(ema.embedder.heads["H"].weight, expected)
    assert not ema.embedder.training


def test_the_ema_copies_batchnorm_statistics():
    embedder = models.create(torch.nn.BatchNorm1d(3), dim=2, example=torch.zeros(1, 3))
    ema = ExponentialMovingAverage(embedder, 0.9)
    embedder(torch.randn(8, 3))
    ema.update(0)
    for ours, theirs in zip(ema.embedder.buffers(), embedder.buffers(), strict=True):
        assert torch.equal(ours, theirs)
