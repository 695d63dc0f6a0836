"""CUDA graphs without a GPU: a stand-in captures and launches, and so shows which graphs are captured and kept."""

import types

import numpy as np
import pytest
import torch

from losses.batches import assert_earlier_values_keep_their_gradients, batch
from losses.cases import BY_NAME
from tuplet import losses
from tuplet.rows import ExecutionError, checks, cuda_graphs, execution, paths

FAKE = paths._TABLE[0]._replace(pays=lambda work: True, prevented=lambda work: None)


@pytest.fixture
def captured(monkeypatch):
    """Make every call a replay, of a graph that runs the loss again; return the list of captured graphs."""
    graphs = []

    def capture(run, inputs, learned, small):
        graph = cuda_graphs._Graph(inputs, learned)
        graph.step(run)
        value, gradients = graph.value, graph.gradients

        def launch():
            with torch.enable_grad():
                graph.step(run)
            for place, x in zip((value, *gradients), (graph.value, *graph.gradients), strict=True):
                place.copy_(x)
            graph.value, graph.gradients = value, gradients

        graph.launch = launch
        graphs.append(graph)
        return graph

    monkeypatch.setattr(cuda_graphs, "_capture", capture)
    monkeypatch.setattr(paths, "_TABLE", (FAKE, *paths._TABLE[1:]))
    # On a CPU label values are checked at each call, which no graph could do.
    monkeypatch.setattr(checks, "reads_values", lambda tensor, asked=False: False)
    return graphs


class Configured(losses.RowLoss):
    """A loss whose settings are nested, and changed in place."""

    def __init__(self):
        super().__init__()
        self.steps = {"later": [0]}
        self.config = types.SimpleNamespace(margin=1.0)
        self.array = np.ones(2)

    def rows(self, s, positive, negative):
        return (s * self.config.margin).sum(1) * float(self.array[0]), positive.any(1)


def launched(loss, x, labels):
    """Return value and gradients without a graph."""
    with execution("eager"):
        return everything(loss, x, labels)


def everything(loss, x, labels):
    x = x.detach().requires_grad_()
    value = loss(x, labels)
    return value.detach(), *torch.autograd.grad(value, [x, *loss.parameters()])


class TestReplays:
    @pytest.mark.parametrize("name", ["raw", "raw_vthm", "margin", "softmax", "proxy_anchor", "histogram"])
    def test_equal_launches(self, name, captured):
        case = BY_NAME[name]
        loss = case.make().double()
        for seed in range(3):
            x, labels = batch(case, seed=seed)
            for ours, truth in zip(everything(loss, x, labels), launched(loss, x, labels), strict=True):
                assert torch.equal(ours, truth)
        assert len(captured) == 1

    def test_parameters_that_learn_are_followed(self, captured):
        x, labels = batch(BY_NAME["proxy_anchor"], dtype=torch.float32)
        loss = BY_NAME["proxy_anchor"].make().float()
        optimizer = torch.optim.SGD(loss.parameters(), 0.1)
        values = []
        for _ in range(3):
            optimizer.zero_grad()
            value = loss(x, labels)
            value.backward()
            optimizer.step()
            values.append(value.item())
        assert sorted(set(values), reverse=True) == values
        assert len(captured) == 1

    def test_an_earlier_value_keeps_its_gradient(self, captured):
        assert_earlier_values_keep_their_gradients(*batch(BY_NAME["raw"]))

    def test_requires_grad_is_part_of_the_key(self, captured):
        x, labels = batch(BY_NAME["raw"])
        loss = losses.RAWLoss()
        assert not loss(x, labels).requires_grad
        assert loss(x.requires_grad_(), labels).requires_grad
        with torch.no_grad():
            assert not loss(x, labels).requires_grad
        assert [len(graph.places) for graph in captured] == [0, 1, 0]

    def test_a_changed_setting_is_captured_anew(self, captured):
        """The stand-in runs the loss with its settings of now, where a graph would repeat what it captured."""
        x, labels = batch(BY_NAME["raw"])
        loss = losses.RAWLoss()
        for threshold in (0.5, 0.9, 0.5):
            loss.threshold = threshold
            loss(x, labels)
        assert len(captured) == 2

    def test_numbers_count_by_value(self, captured):
        """A number that is gone may leave its place in memory to the next one."""
        x, labels = batch(BY_NAME["raw"])
        loss = losses.RAWLoss()
        for threshold in np.linspace(0.2, 0.8, 6, dtype=np.float32):
            loss.threshold = threshold
            loss(x, labels)
        assert len(captured) == 6

    def test_everything_that_a_loss_holds_is_part_of_the_key(self, captured):
        x, labels = batch(BY_NAME["raw"])
        loss = Configured()
        changes = (
            lambda: loss.steps["later"].append(1),
            lambda: setattr(loss.config, "margin", 2.0),
            lambda: loss.array.__setitem__(0, 3.0),
        )
        values = [loss(x, labels)]
        for n, change in enumerate(changes):
            assert len(captured) == n + 1
            change()
            values.append(loss(x, labels))
            assert torch.equal(values[-1], loss(x, labels))
        assert len(captured) == 4
        assert values[0] == values[1]
        assert values[1] != values[2]
        assert values[2] != values[3]

    def test_hidden_state_is_not_captured(self, captured):
        x, labels = batch(BY_NAME["raw"])
        loss = losses.RAWLoss()
        loss.generator = torch.Generator()
        assert torch.equal(loss(x, labels), losses.RAWLoss()(x, labels))
        assert len(captured) == 1

    def test_the_default_type_is_part_of_the_key(self, captured):
        x, labels = batch(BY_NAME["raw"])
        loss = losses.RAWLoss()
        loss(x, labels)
        torch.set_default_dtype(torch.float64)
        try:
            loss(x, labels)
        finally:
            torch.set_default_dtype(torch.float32)
        assert len(captured) == 2

    def test_a_second_derivative_raises_a_clear_error(self, captured):
        x, labels = batch(BY_NAME["raw"])
        x.requires_grad_()
        (gradient,) = torch.autograd.grad(losses.RAWLoss()(x, labels), x, create_graph=True)
        with pytest.raises(RuntimeError, match="differentiated twice"):
            gradient.sum().backward()


class TestDevices:
    """A graph would take a tensor on another device for a constant, so there is none."""

    @pytest.mark.parametrize("hold", ["buffer", "parameter", "plain tensor"])
    def test_tensors_of_a_loss_must_be_on_the_device_of_the_inputs(self, hold, captured):
        x, labels = batch(BY_NAME["raw"])
        loss = losses.RAWLoss()
        there = torch.zeros(2, device="meta")
        if hold == "buffer":
            loss.register_buffer("held", there)
        else:
            loss.held = torch.nn.Parameter(there) if hold == "parameter" else there
        assert loss(x, labels).isfinite()
        assert captured == []
        with execution("cuda_graph"), pytest.raises(ExecutionError, match="a tensor is on meta, and not on cpu"):
            loss(x, labels)


class TestKept:
    def found(self, kept, keys, small):
        """Return for each key in turn whether its graph was captured (new), kept (old) or missing (none)."""
        new = []

        def capture():
            new.append(1)
            return object()

        found = []
        for key in keys:
            before = len(new)
            graph = kept.find(key, small, capture)
            found.append("none" if graph is None else "old" if len(new) == before else "new")
        return " ".join(found)

    def test_small_graphs_are_captured_at_once(self):
        kept = cuda_graphs._Kept()
        assert self.found(kept, "aabab", small=True) == "new old new old old"

    def test_the_least_recently_used_small_graph_is_dropped(self):
        kept = cuda_graphs._Kept()
        self.found(kept, "abcdefgh", small=True)
        assert self.found(kept, "aiab", small=True) == "old new old new"
        assert len(kept.small) == cuda_graphs.SMALL_KEPT

    def test_a_large_graph_must_be_asked_for_twice_in_a_row(self):
        assert self.found(cuda_graphs._Kept(), "aaa", small=False) == "none new old"
        assert self.found(cuda_graphs._Kept(), "ababab", small=False) == " ".join(["none"] * 6)

    def test_a_large_graph_stays_while_other_keys_come_once(self):
        kept = cuda_graphs._Kept()
        self.found(kept, "aa", small=False)
        assert self.found(kept, "ababab", small=False) == "old none old none old none"

    def test_one_large_graph_is_kept(self):
        kept = cuda_graphs._Kept()
        self.found(kept, "aa", small=False)
        assert self.found(kept, "bbbaa", small=False) == "none new old none new"
        assert len(kept.large) == cuda_graphs.LARGE_KEPT

    def test_a_failed_capture_is_not_repeated(self):
        kept = cuda_graphs._Kept()
        asked = []
        for _ in range(3):
            assert kept.find("a", True, lambda: asked.append(1)) is None
        assert len(asked) == 1
