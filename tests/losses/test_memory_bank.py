"""The memory bank: its rows, its mask of filled rows, and exact reloading."""

import io

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from losses.batches import batch, value_and_gradient
from losses.cases import CASES, DIM
from tuplet import losses


@given(size=st.integers(1, 12), batches=st.lists(st.integers(0, 15), max_size=6))
def test_holds_the_last_rows(size, batches):
    bank, everything, labels = losses.MemoryBank(size, 3), torch.zeros(0, 3), torch.zeros(0, dtype=torch.int64)
    for k, n in enumerate(batches):
        x, y = torch.randn(n, 3, generator=torch.Generator().manual_seed(k)), torch.arange(n) + 100 * k
        bank.add(x, y)
        everything, labels = torch.cat([everything, x]), torch.cat([labels, y])
    assert bank.filled == min(size, len(labels))
    assert bank.position == len(labels) % size
    assert sorted(bank.labels[bank.valid()].tolist()) == sorted(labels[-size:].tolist())
    for row, label in zip(bank.vectors[bank.valid()], bank.labels[bank.valid()], strict=True):
        assert torch.equal(row, everything[labels == label][0])


@pytest.mark.parametrize("loss", [losses.MultiSimilarityLoss(), losses.TripletLoss(), losses.AngularLoss(),
                                  losses.LiftedStructureLoss(), losses.MarginLoss(mining=None)])  # fmt: skip
def test_rows_that_were_never_filled_do_not_count(loss):
    """Empty rows have label 0: a partly filled bank must equal a gallery of its filled rows."""
    x, y = torch.randn(20, 4), torch.arange(20) // 4
    bank = losses.MemoryBank(50, 4)
    assert loss(x, y, gallery=bank) == 0
    bank.add(x.flip(0), y.flip(0))
    truth = loss(x, y, gallery=x.flip(0), gallery_labels=y.flip(0))
    torch.testing.assert_close(loss(x, y, gallery=bank), truth)
    torch.testing.assert_close(loss(x, y, gallery=bank, max_per_class=4), truth)


def test_rows_that_were_never_filled_are_no_queries_when_roles_are_swapped():
    loss = losses.NPairLoss(symmetric=True, norm_penalty=0.1)
    x, g, y = torch.randn(6, 4), torch.randn(3, 4), torch.arange(6)
    bank = losses.MemoryBank(6, 4)
    assert losses.NPairLoss(symmetric=True)(x, y, gallery=bank) == 0
    bank.add(g, y[2:5])
    torch.testing.assert_close(loss(x, y, gallery=bank), loss(x, y, gallery=g, gallery_labels=y[2:5]))


def test_a_reloaded_bank_continues_exactly():
    bank = losses.MemoryBank(7, 2)
    batches = [(torch.randn(3, 2), torch.arange(3) + 3 * k) for k in range(6)]
    for x, y in batches[:3]:
        bank.add(x, y)
    file = io.BytesIO()
    torch.save(bank.state_dict(), file)
    file.seek(0)
    again = losses.MemoryBank(7, 2)
    again.load_state_dict(torch.load(file))
    for x, y in batches[3:]:
        bank.add(x, y)
        again.add(x, y)
    for ours, theirs in zip(bank.buffers(), again.buffers(), strict=True):
        assert torch.equal(ours, theirs)


@pytest.mark.parametrize("case", [case for case in CASES if case.labels == "any"], ids=str)
@pytest.mark.parametrize("size", [9, 700])
def test_a_batch_may_be_added_before_the_backward_pass(case, size):
    """The bank is written to between both passes, and the gradient must be that of the forward pass."""
    (x, y), bank = batch(case, dtype=torch.float32), losses.MemoryBank(size, DIM)
    bank.add(*batch(case, dtype=torch.float32, seed=1))
    _, gradient = value_and_gradient(case.make(), x, y, gallery=bank)
    value = case.make()(x.requires_grad_(), y, gallery=bank)
    bank.add(x, y)
    assert torch.equal(torch.autograd.grad(value, x)[0], gradient)


def test_no_gradient_flows_into_the_bank():
    x, y = torch.randn(8, 4, requires_grad=True), torch.arange(8) // 2
    bank = losses.MemoryBank(8, 4)
    bank.add(x, y)
    losses.RAWLoss()(x, y, gallery=bank).backward()
    assert not bank.vectors.requires_grad
    assert x.grad.norm() > 0


def test_half_precision_queries_with_a_float32_bank():
    x, y = torch.randn(8, 4), torch.arange(8) // 2
    bank = losses.MemoryBank(8, 4)
    bank.add(x, y)
    half = losses.RAWLoss()(x.bfloat16(), y, gallery=bank)
    torch.testing.assert_close(half, losses.RAWLoss()(x.bfloat16().float(), y, gallery=bank))


def test_an_impossible_size_raises():
    with pytest.raises(ValueError, match="size is 0; it must be at least 1"):
        losses.MemoryBank(0, 4)
    with pytest.raises(TypeError, match=r"dim is 4\.0; it must be an integer"):
        losses.MemoryBank(8, 4.0)
