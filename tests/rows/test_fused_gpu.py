"""Row functions as programs on a GPU, where there is one: the same numbers as the engine's in float64."""

import pytest
import torch

from losses.test_engine import value_and_gradient
from tuplet import losses, mining
from tuplet.rows import fused

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
LOSSES = {
    "raw_vthm": lambda: losses.RAWLoss(mining=mining.ValidTriplet()),
    "binomial": losses.BinomialDevianceLoss,
    "generalized_lifted": losses.GeneralizedLiftedLoss,
    "cosine_contrastive": losses.CosineContrastiveLoss,
}


@pytest.fixture(autouse=True)
def programs(monkeypatch):
    """Batches of any size as programs; gives the programs that there are."""
    monkeypatch.setattr(fused, "LEAST_ROWS", 1)
    monkeypatch.setattr(fused, "_programs", type(fused._programs)())
    return fused._programs


def batch(n, dim, per_class):
    generator = torch.Generator().manual_seed(n)
    labels = torch.arange(n) // per_class
    centres = torch.randn(n, dim, generator=generator)[labels]
    x = torch.nn.functional.normalize(centres + 1.5 * torch.randn(n, dim, generator=generator)).bfloat16()
    order = torch.randperm(n, generator=generator)
    return x[order].cuda(), labels[order].cuda()


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize(("n", "dim", "per_class"), [(4224, 512, 4), (4301, 200, 7), (5000, 64, 900)])
def test_equal_float64_on_the_same_rounded_inputs(name, n, dim, per_class, programs):
    x, labels = batch(n, dim, per_class)
    value, gradient = value_and_gradient(LOSSES[name](), x, labels)
    assert list(programs.values()) != [None]
    truth, true_gradient = value_and_gradient(LOSSES[name](), x.double(), labels)
    torch.testing.assert_close(value.double(), truth, rtol=2e-5, atol=1e-6)
    assert (gradient.double() - true_gradient).norm() < 5e-3 * true_gradient.norm()


def test_the_same_twice():
    x, labels = batch(4224, 128, 4)
    once, again = (value_and_gradient(LOSSES["raw_vthm"](), x, labels) for _ in range(2))
    assert torch.equal(once[0], again[0])
    assert torch.equal(once[1], again[1])


def test_several_panels(monkeypatch):
    from tuplet.rows.fused import run

    x, labels = batch(4301, 128, 300)
    whole = value_and_gradient(LOSSES["raw_vthm"](), x, labels)
    monkeypatch.setattr(run, "SIDE", 1024)
    parts = value_and_gradient(LOSSES["raw_vthm"](), x, labels)
    torch.testing.assert_close(parts[0], whole[0], rtol=1e-6, atol=0)
    torch.testing.assert_close(parts[1], whole[1], rtol=2e-2, atol=1e-6)
