"""A parameter that a row function reads from its loss would get no gradient: that is an error."""

import pytest
import torch

from losses.batches import batch, value_and_gradient
from losses.cases import BY_NAME, CASES
from tuplet import losses, mining
from tuplet.rows import execution, masked_sum, paths


class Scaled(losses.RowLoss):
    """Reads its parameter in `rows`, where it gets no gradient."""

    def __init__(self, how="mean"):
        super().__init__()
        self.weight, self.how = torch.nn.Parameter(torch.tensor(2.0, dtype=torch.float64)), how

    def value(self, view):
        if self.how == "mean":
            return view.mean(self.rows)
        if self.how == "closure":
            return view.mean(lambda s, positive, negative: self.rows(s, positive, negative))
        if self.how == "table":
            return view.with_table().mean(self.rows)
        return getattr(view, self.how)(lambda *block: self.rows(*block)[0]).sum()

    def rows(self, s, positive, negative):
        return masked_sum(self.weight * s, positive), positive.sum(1)


class Passed(Scaled):
    """The same with its parameter as an input."""

    def value(self, view):
        return view.mean(self.scaled, shared=[self.weight])

    def scaled(self, s, positive, negative, weight):
        return masked_sum(weight * s, positive), positive.sum(1)


@pytest.mark.parametrize("how", ["mean", "closure", "table", "each", "sum"])
@pytest.mark.parametrize("moves", [True, False], ids=["embeddings move", "embeddings are constant"])
def test_a_parameter_that_rows_reads_is_refused(how, moves):
    x, labels = batch(BY_NAME["raw"])
    with pytest.raises(
        RuntimeError, match=r"reads the parameter weight .* no gradient; pass it .*shared=\[self\.weight"
    ):
        Scaled(how)(x.requires_grad_(moves), labels)


def test_the_sentence_names_the_method():
    with pytest.raises(RuntimeError, match=r"^Scaled\.rows reads"):
        Scaled()(*batch(BY_NAME["raw"]))


def test_it_is_refused_where_a_rule_names_the_pairs(monkeypatch):
    monkeypatch.setattr(paths, "NAMED_FACTOR", 1)
    loss = Scaled()
    loss.mining = mining.SemiHard()
    with pytest.raises(RuntimeError, match="reads the parameter weight"):
        loss(*batch(BY_NAME["raw"]))


def test_it_is_refused_in_compiled_blocks(monkeypatch):
    torch.compiler.reset()
    compile_ = torch.compile
    monkeypatch.setattr(torch, "compile", lambda function: compile_(function, backend="eager"))
    x, labels = batch(BY_NAME["raw"])
    with execution("compiled"), pytest.raises(RuntimeError, match="reads the parameter weight"):
        Scaled()(x.requires_grad_(), labels)


def test_without_gradients_nothing_is_lost_and_nothing_raised():
    x, labels = batch(BY_NAME["raw"])
    with torch.no_grad():
        expected = Passed()(x, labels)
        for how in ("mean", "closure", "table"):
            assert torch.equal(Scaled(how)(x, labels), expected)
    assert torch.equal(Scaled().requires_grad_(False)(x, labels), expected)


def test_a_parameter_that_is_an_input_gets_its_gradient():
    x, labels = batch(BY_NAME["raw"])
    loss = Passed()
    value = loss(x, labels)
    value.backward()
    torch.testing.assert_close(loss.weight.grad, value.detach() / 2)


@pytest.mark.parametrize("case", [case for case in CASES if any(True for _ in case.make().parameters())], ids=str)
def test_losses_that_learn_are_not_refused(case):
    x, labels = batch(case)
    loss = case.make()
    value_and_gradient(loss, x, labels)
    value = loss(x, labels)
    value.backward()
    gradients = [p.grad for p in loss.parameters()]
    # PDDM's last biases cancel in a difference of scores: their gradient is zero, but it is there.
    assert all(gradient is not None for gradient in gradients)
    assert any(gradient.any() for gradient in gradients)
    with torch.no_grad():
        assert torch.equal(loss(x, labels), value)
