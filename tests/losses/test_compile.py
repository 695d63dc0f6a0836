"""Every loss passes torch.compile(fullgraph=True) in a training step: no value is read, no shape depends on data."""

import pytest
import torch

from losses.batches import batch
from losses.cases import BY_NAME, CASES
from tuplet import losses


def step(loss, x, labels, scale, **options):
    return loss(torch.nn.functional.normalize(x * scale), labels, **options) * 2


# A graph takes a second to trace: one setting of each loss here, and every setting in the soak.
SETTINGS = ("_scaled", "_36", "_plain", "_coarse", "_straight", "_wide", "_detached")
# The triplet loss has all rules of mining; these two take the same triplets.
RULES = {f"{loss}_{rule}" for loss in ("triplet_ratio", "global") for rule in ("semi_hard", "disjoint", "non_trivial")}
VARIANTS = {case.name for case in CASES if case.name.endswith(SETTINGS)} | RULES
SEVERAL_BLOCKS = {"raw_vthm", "lifted_structure"}


@pytest.mark.parametrize("case", [case for case in CASES if case.compiles], ids=str)
def test_fullgraph(case, soak):
    if case.name in VARIANTS and not soak:
        pytest.skip("another setting of a loss that is tested here")
    block_rows = 10 if soak or case.name in SEVERAL_BLOCKS else None
    torch.compiler.reset()
    x, labels = batch(case)
    scale = torch.full((x.shape[1],), 1.5, dtype=x.dtype, requires_grad=True)
    loss = case.make()
    moving = [scale, *loss.parameters()]
    truth = step(loss, x, labels, scale, max_per_class=5, block_rows=block_rows)
    true_gradients = torch.autograd.grad(truth, moving)
    compiled = torch.compile(step, fullgraph=True, backend="aot_eager")
    value = compiled(loss, x, labels, scale, max_per_class=5, block_rows=block_rows)
    torch.testing.assert_close(value, truth)
    for ours, theirs in zip(torch.autograd.grad(value, moving), true_gradients, strict=True):
        torch.testing.assert_close(ours, theirs)


def test_fullgraph_with_a_memory_bank():
    torch.compiler.reset()
    x, labels = batch(BY_NAME["raw_vthm"], dtype=torch.float32)
    loss, bank, other = losses.MultiSimilarityLoss(), losses.MemoryBank(40, 4), losses.MemoryBank(40, 4)

    def remembering(x, bank):
        value = loss(x, labels, gallery=bank)
        bank.add(x, labels)
        return value

    compiled = torch.compile(remembering, fullgraph=True, backend="aot_eager")
    for shift in range(4):
        torch.testing.assert_close(compiled(x.roll(shift, 1), bank), remembering(x.roll(shift, 1), other))
    for ours, theirs in zip(bank.buffers(), other.buffers(), strict=True):
        assert torch.equal(ours, theirs)


def test_fullgraph_draws_anew_at_every_call():
    torch.compiler.reset()
    x, labels = batch(BY_NAME["margin"], n=48, dtype=torch.float32)
    compiled_loss, plain_loss = losses.MarginLoss(), losses.MarginLoss()
    compiled = torch.compile(lambda x: compiled_loss(x, labels, max_per_class=4), fullgraph=True, backend="aot_eager")
    values = [compiled(x).item() for _ in range(4)]
    assert values == pytest.approx([plain_loss(x, labels).item() for _ in range(4)])
    assert len(set(values)) > 1


def test_without_max_per_class_the_graph_breaks_and_the_error_says_what_to_give():
    torch.compiler.reset()
    x, labels = batch(BY_NAME["triplet_all"], dtype=torch.float32)
    loss = losses.TripletLoss()
    torch.testing.assert_close(torch.compile(loss, backend="aot_eager")(x, labels), loss(x, labels))
    torch.compiler.reset()
    with pytest.raises(torch._dynamo.exc.Unsupported, match="read from the labels; give max_per_class="):
        torch.compile(loss, fullgraph=True, backend="aot_eager")(x, labels)
