"""Fused programs on a GPU, where there is one: the same values as those of eager blocks in float64."""

import gc

import pytest
import torch

from losses.batches import value_and_gradient
from tuplet import losses, mining
from tuplet.rows import cuda_graphs, fused, paths

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
LOSSES = {
    "raw_vthm": lambda: losses.RAWLoss(mining=mining.ValidTriplet()),
    "binomial": losses.BinomialDevianceLoss,
    "generalized_lifted": losses.GeneralizedLiftedLoss,
    "cosine_contrastive": losses.CosineContrastiveLoss,
}


@pytest.fixture(autouse=True)
def programs(monkeypatch):
    """Run batches of any size as programs; return the cache of programs."""
    monkeypatch.setattr(fused, "LEAST_ROWS", 1)
    monkeypatch.setattr(fused, "_programs", type(fused._programs)())
    monkeypatch.setattr(fused, "_new", [])  # after many new ones in a row, the next would have to wait
    return fused._programs


def batch(n, dim, per_class):
    generator = torch.Generator().manual_seed(n)
    labels = torch.arange(n) // per_class
    centres = torch.randn(n, dim, generator=generator)[labels]
    x = torch.nn.functional.normalize(centres + 1.5 * torch.randn(n, dim, generator=generator)).bfloat16()
    order = torch.randperm(n, generator=generator)
    return x[order].cuda(), labels[order].cuda()


def reserved():
    """Return the GPU memory that is reserved and cannot be released."""
    gc.collect()
    torch.cuda.empty_cache()
    return torch.cuda.memory_reserved()


@pytest.mark.parametrize("name", LOSSES)
@pytest.mark.parametrize(("n", "dim", "per_class"), [(4224, 512, 4), (4301, 200, 7), (5000, 64, 900)])
def test_equal_float64_on_the_same_rounded_inputs(name, n, dim, per_class, programs):
    x, labels = batch(n, dim, per_class)
    value, gradient = value_and_gradient(LOSSES[name](), x, labels)
    assert len(programs) == 1
    assert None not in programs.values()
    truth, true_gradient = value_and_gradient(LOSSES[name](), x.double(), labels)
    torch.testing.assert_close(value.double(), truth, rtol=2e-5, atol=1e-6)
    assert (gradient.double() - true_gradient).norm() < 5e-3 * true_gradient.norm()


def test_results_are_reproducible():
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


class TestReplayed:
    """Batches that are too large for a graph of other kernels."""

    N = 4224

    def test_equals_launches(self, monkeypatch):
        x, labels = batch(self.N, 128, 4)
        loss = LOSSES["raw_vthm"]()
        inputs = [(x, labels), (x, labels), (x.flip(0).contiguous(), labels.flip(0)), (-x, labels.flip(0))]
        found = [value_and_gradient(loss, *given) for given in inputs]
        (graph,) = cuda_graphs._kept[loss].large.values()
        assert len(graph.programs) == 1
        monkeypatch.setattr(paths, "CAPTURED_PROGRAM_ROWS", 0)
        for (value, gradient), given in zip(found, inputs, strict=True):
            truth, true_gradient = value_and_gradient(LOSSES["raw_vthm"](), *given)
            assert torch.equal(value, truth)
            assert torch.equal(gradient, true_gradient)

    def test_an_earlier_value_keeps_its_gradient(self):
        x, labels = batch(self.N, 128, 4)
        loss = LOSSES["raw_vthm"]()
        inputs = [y.clone().requires_grad_() for y in (x, x, x.flip(0), -x)]
        truth = [value_and_gradient(LOSSES["raw_vthm"](), y, labels)[1] for y in inputs]
        values = [loss(y, labels) for y in inputs]
        for value, y, gradient in zip(values, inputs, truth, strict=True):
            assert torch.equal(torch.autograd.grad(value, y)[0], gradient)

    def test_never_waits(self):
        x, labels = batch(self.N, 128, 4)
        loss = LOSSES["raw_vthm"]()
        for _ in range(2):
            value_and_gradient(loss, x, labels)
        torch.cuda.set_sync_debug_mode("error")
        try:
            value_and_gradient(loss, x, labels)
        finally:
            torch.cuda.set_sync_debug_mode("default")

    @pytest.mark.parametrize("make", [losses.ContrastiveLoss, lambda: losses.RAWLoss(mining=mining.SemiHard())])
    def test_without_a_program_there_is_no_graph(self, make, monkeypatch):
        monkeypatch.setattr(paths, "COMPILED_ENTRIES", 1 << 62)  # would take ten seconds
        x, labels = batch(self.N, 128, 4)
        loss = make()
        values = [loss(x, labels, max_per_class=4) for _ in range(3)]
        assert list(cuda_graphs._kept[loss].large.values()) == [None]
        assert values[0] == values[1] == values[2]

    def test_the_memory_of_one_graph_is_kept(self):
        loss, kept = LOSSES["raw_vthm"](), []
        start = reserved()
        for n in (8192, 8320):
            for _ in range(3):
                value_and_gradient(loss, *batch(n, 128, 4))
            kept.append(reserved() - start)
        assert len(cuda_graphs._kept[loss].large) == 1
        weights = 2 * 8192**2
        assert weights < kept[0] < 2 * weights
        assert kept[1] < kept[0] + weights / 2
        del loss
        assert reserved() - start < weights
