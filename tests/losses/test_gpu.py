"""Losses on a GPU, where there is one: eager, compiled, and replayed as CUDA graphs."""

import types

import numpy as np
import pytest
import torch

from losses.batches import assert_earlier_values_keep_their_gradients, batch, value_and_gradient
from losses.cases import BY_NAME, CASES
from tuplet import losses
from tuplet.rows import cuda_graphs, execution, paths

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU here")
TOLERANCES = {torch.float64: 1e-9, torch.float32: 2e-4, torch.bfloat16: 6e-3}


@pytest.fixture
def plainly(monkeypatch):
    """Capture no graphs."""
    monkeypatch.setattr(paths, "CAPTURED_TABLE_BYTES", 0)


def graphs_of(loss):
    """Return the graphs of a loss; None stands for one that could not be captured."""
    kept = cuda_graphs._kept.get(loss)
    return [*kept.small.values(), *kept.large.values()] if kept else []


def check(case, dtype, **options):
    x, labels = batch(case, n=48, dtype=dtype)
    loss = case.make().to("cuda", torch.float64 if dtype == torch.float64 else torch.float32)
    truth, true_gradient = value_and_gradient(case.make(), x.double(), labels)
    for _ in range(3):
        value, gradient = value_and_gradient(loss, x.cuda(), labels.cuda(), **options)
        torch.testing.assert_close(value.cpu().double(), truth, rtol=max(TOLERANCES[dtype], 2e-5), atol=1e-6)
        error = (gradient.cpu().double() - true_gradient).norm() / true_gradient.norm().clamp_min(1e-12)
        assert error < TOLERANCES[dtype]


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_replayed_equals_cpu(case, dtype):
    check(case, dtype, max_per_class=12)


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("dtype", TOLERANCES, ids=str)
def test_launched_equals_cpu(case, dtype, plainly):
    check(case, dtype)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_compiled_equals_cpu(case, plainly, monkeypatch):
    torch.compiler.reset()
    monkeypatch.setattr(paths, "COMPILED_ENTRIES", 1)
    check(case, torch.float32, max_per_class=12)


def gpu_batch(n=64):
    x, labels = batch(BY_NAME["raw"], n, dtype=torch.float32)
    return x.cuda(), labels.cuda()


def test_a_replay_never_waits_for_the_device():
    x, labels = gpu_batch()
    loss = losses.MarginLoss().cuda()
    for _ in range(2):
        torch.cuda.set_sync_debug_mode("error" if graphs_of(loss) else "default")
        x = x.detach().requires_grad_()
        loss(x, labels, max_per_class=4).backward()
    torch.cuda.set_sync_debug_mode("default")
    assert graphs_of(loss) != [None]


def test_a_changed_setting_is_seen():
    x, labels = gpu_batch()
    loss = losses.RAWLoss()
    before = value_and_gradient(loss, x, labels)
    loss.threshold = 0.9
    after = value_and_gradient(loss, x, labels)
    fresh = value_and_gradient(losses.RAWLoss(threshold=0.9), x, labels)
    assert before[0] != after[0]
    assert torch.equal(after[1], fresh[1])


def test_nested_settings_and_arrays_changed_in_place_are_seen():
    class Configured(losses.RowLoss):
        def __init__(self):
            super().__init__()
            self.config, self.array = types.SimpleNamespace(scale=1.0), np.ones(2)

        def rows(self, s, positive, negative):
            return (s * positive).sum(1) * self.config.scale * float(self.array[0]), positive.any(1)

    (x, labels), loss = gpu_batch(), Configured()
    values = [loss(x, labels).item()]
    loss.config.scale = 2.0
    values.append(loss(x, labels).item())
    loss.array[0] = 2.0
    values.append(loss(x, labels).item())
    assert values == pytest.approx([values[0], 2 * values[0], 4 * values[0]])
    assert len(graphs_of(loss)) == 3
    assert None not in graphs_of(loss)


@pytest.mark.parametrize("path", ["eager", "table", "compiled", "cuda_graph"])
def test_pinned_paths_agree(path):
    torch.compiler.reset()
    x, labels = gpu_batch()
    truth = value_and_gradient(losses.RAWLoss(), x.double(), labels)
    with execution(path):
        value, gradient = value_and_gradient(losses.RAWLoss(), x, labels)
    torch.testing.assert_close(value.double(), truth[0], rtol=2e-5, atol=1e-6)
    torch.testing.assert_close(gradient.double(), truth[1], rtol=1e-3, atol=1e-5)


def test_a_parameter_that_rows_reads_is_refused():
    class Scaled(losses.RowLoss):
        def __init__(self):
            super().__init__()
            self.scale = torch.nn.Parameter(torch.tensor(2.0))

        def rows(self, s, positive, negative):
            return (self.scale * s * positive).sum(1), positive.sum(1)

    x, labels = gpu_batch()
    for path in ("eager", "compiled", "cuda_graph"):
        with execution(path), pytest.raises(RuntimeError, match="reads the parameter scale"):
            Scaled().cuda()(x.requires_grad_(), labels)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_replays_draw_anew_as_launches_do(device, monkeypatch):
    """A graph would take the number of calls, and β, for constants where they are on the CPU: then there is none."""
    x, labels = gpu_batch()
    one, other = (losses.MarginLoss(learn_beta=True).to(device) for _ in range(2))

    def steps(loss):
        optimizer = torch.optim.SGD(loss.parameters(), 0.1)
        for _ in range(4):
            optimizer.zero_grad()
            value = loss(x, labels, max_per_class=4)
            value.backward()
            optimizer.step()
            yield value.item()

    replayed = list(steps(one))
    assert len(graphs_of(one)) == (device == "cuda")
    assert None not in graphs_of(one)
    monkeypatch.setattr(paths, "CAPTURED_TABLE_BYTES", 0)
    assert replayed == list(steps(other))
    assert graphs_of(other) == []
    assert one.beta == other.beta
    assert len(set(replayed)) == 4


def test_a_loss_that_reads_labels_runs_without_a_graph():
    x, labels = gpu_batch()
    loss = losses.TripletLoss()
    assert loss(x, labels) == loss(x, labels, max_per_class=4)
    assert [graph is None for graph in graphs_of(loss)] == [True, False]


def test_learned_parameters_move_and_are_followed():
    x, labels = gpu_batch()
    loss = losses.ProxyAnchorLoss(16, 4).cuda()
    optimizer = torch.optim.SGD(loss.parameters(), 0.1)
    values = []
    for _ in range(5):
        optimizer.zero_grad()
        value = loss(x, labels)
        value.backward()
        optimizer.step()
        values.append(value.item())
    assert sorted(values, reverse=True) == values
    assert len(set(values)) == 5


def test_an_earlier_value_keeps_its_gradient():
    assert_earlier_values_keep_their_gradients(*gpu_batch())


def test_copies_in_bf16_have_no_gradient():
    x = torch.nn.functional.normalize(torch.randn(1, 512, device="cuda")).bfloat16().repeat(8, 1)
    value, gradient = value_and_gradient(losses.ContrastiveLoss(3.0), x, torch.arange(8, device="cuda") // 4)
    assert value > 0
    assert torch.equal(gradient, torch.zeros_like(gradient))


def test_a_second_derivative_raises_a_clear_error():
    x, labels = gpu_batch()
    x.requires_grad_()
    (gradient,) = torch.autograd.grad(losses.RAWLoss()(x, labels), x, create_graph=True)
    with pytest.raises(RuntimeError, match="differentiated twice"):
        gradient.sum().backward()
