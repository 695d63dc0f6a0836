"""What graphs are captured and kept, and how they are fed, without a GPU: a stand-in captures and launches."""

import numpy as np
import pytest
import torch

from losses.batches import assert_earlier_values_keep_their_gradients, batch
from losses.cases import BY_NAME
from tuplet import losses
from tuplet.losses import base
from tuplet.rows import checks, replay


@pytest.fixture
def captured(monkeypatch):
    """Every call is a replay, of a graph that runs the loss again; gives the graphs that were captured."""
    graphs = []

    def capture(loss, run, inputs, learned, small):
        graph = replay._Graph(inputs, learned)
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

    monkeypatch.setattr(replay, "_capture", capture)
    monkeypatch.setattr(base, "replayable", lambda queries, columns: True)
    # On a CPU label values are checked at each call, which no graph could do.
    monkeypatch.setattr(checks, "reads_values", lambda tensor, asked: False)
    return graphs


def launched(loss, x, labels, monkeypatch):
    """Value and gradients without a graph."""
    with monkeypatch.context() as patch:
        patch.setattr(base, "replayable", lambda queries, columns: False)
        return everything(loss, x, labels)


def everything(loss, x, labels):
    x = x.detach().requires_grad_()
    value = loss(x, labels)
    return value.detach(), *torch.autograd.grad(value, [x, *loss.parameters()])


class TestReplays:
    @pytest.mark.parametrize("name", ["raw", "raw_vthm", "margin", "softmax", "proxy_anchor", "histogram"])
    def test_equal_launches(self, name, captured, monkeypatch):
        case = BY_NAME[name]
        loss = case.make().double()
        for seed in range(3):
            x, labels = batch(case, seed=seed)
            for ours, truth in zip(everything(loss, x, labels), launched(loss, x, labels, monkeypatch), strict=True):
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

    def test_what_moves_is_part_of_the_key(self, captured):
        x, labels = batch(BY_NAME["raw"])
        loss = losses.RAWLoss()
        assert not loss(x, labels).requires_grad
        assert loss(x.requires_grad_(), labels).requires_grad
        with torch.no_grad():
            assert not loss(x, labels).requires_grad
        assert [len(graph.places) for graph in captured] == [0, 1, 0]

    def test_a_changed_setting_is_seen(self, captured):
        """Each has a graph of its own: the stand-in runs the loss as it is now, where a graph would repeat itself."""
        x, labels = batch(BY_NAME["raw"])
        loss = losses.RAWLoss()
        for threshold in (0.5, 0.9, 0.5):
            loss.threshold = threshold
            loss(x, labels)
        assert len(captured) == 2

    def test_settings_count_by_what_they_say(self, captured):
        """Of a number that is gone the next may take the place in memory, and a list changes within itself."""
        x, labels = batch(BY_NAME["raw"])
        loss = losses.RAWLoss()
        for threshold in np.linspace(0.2, 0.8, 6, dtype=np.float32):
            loss.threshold = threshold
            loss(x, labels)
        assert len(captured) == 6
        loss.steps = {"later": [1, 2]}
        loss(x, labels)
        loss.steps["later"][0] = 3
        loss(x, labels)
        assert len(captured) == 8

    def test_a_second_derivative_gets_a_sentence(self, captured):
        x, labels = batch(BY_NAME["raw"])
        x.requires_grad_()
        (gradient,) = torch.autograd.grad(losses.RAWLoss()(x, labels), x, create_graph=True)
        with pytest.raises(RuntimeError, match="differentiated twice"):
            gradient.sum().backward()


class TestDevices:
    """What lies elsewhere than the inputs, a graph would take for a constant."""

    def test_a_loss_that_holds_nothing_goes_anywhere(self):
        assert replay._together(losses.RAWLoss(), [torch.empty(4, 2, device="meta")])

    @pytest.mark.parametrize(
        "loss", [losses.MarginLoss(), losses.MarginLoss(learn_beta=True, mining=None)], ids=["buffer", "parameter"]
    )
    def test_what_a_loss_holds_must_be_with_the_inputs(self, loss):
        here, there = torch.empty(4, 2), torch.empty(4, 2, device="meta")
        assert replay._together(loss, [here])
        assert not replay._together(loss, [there])
        assert not replay._together(loss, [here, there])
        assert replay._together(loss.to("meta"), [there])

    def test_a_plain_tensor_counts(self):
        loss = losses.RAWLoss()
        loss.alpha = torch.tensor(2.0)
        assert not replay._together(loss, [torch.empty(4, 2, device="meta")])

    def test_nothing_is_captured_then(self):
        """Said before anything is asked of a GPU."""
        inputs = [torch.empty(4, 2, device="meta")]
        assert replay._capture(losses.MarginLoss(), lambda inputs: inputs[0].sum(), inputs, [], True) is None


class TestKept:
    def found(self, kept, keys, small):
        """For each key in turn whether it was captured (new), kept (old) or runs as it is (none)."""
        new = []

        def capture():
            new.append(1)
            return object()

        said = []
        for key in keys:
            before = len(new)
            graph = kept.find(key, small, capture)
            said.append("none" if graph is None else "old" if len(new) == before else "new")
        return " ".join(said)

    def test_small_graphs_are_captured_at_once(self):
        kept = replay._Kept()
        assert self.found(kept, "aabab", small=True) == "new old new old old"

    def test_the_small_one_that_was_used_longest_ago_goes(self):
        kept = replay._Kept()
        self.found(kept, "abcdefgh", small=True)
        assert self.found(kept, "aiab", small=True) == "old new old new"
        assert len(kept.small) == replay.SMALL_KEPT

    def test_a_large_one_must_be_asked_for_twice_in_a_row(self):
        assert self.found(replay._Kept(), "aaa", small=False) == "none new old"
        assert self.found(replay._Kept(), "ababab", small=False) == " ".join(["none"] * 6)

    def test_a_large_one_stays_while_others_pass(self):
        kept = replay._Kept()
        self.found(kept, "aa", small=False)
        assert self.found(kept, "ababab", small=False) == "old none old none old none"

    def test_of_large_ones_one_is_kept(self):
        kept = replay._Kept()
        self.found(kept, "aa", small=False)
        assert self.found(kept, "bbbaa", small=False) == "none new old none new"
        assert len(kept.large) == replay.LARGE_KEPT

    def test_what_cannot_be_captured_is_remembered(self):
        kept = replay._Kept()
        asked = []
        for _ in range(3):
            assert kept.find("a", True, lambda: asked.append(1)) is None
        assert len(asked) == 1
