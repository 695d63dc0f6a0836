"""Fused programs in Triton's interpreter: the same values as those of eager blocks in float64."""

import pytest
import torch

from losses.batches import value_and_gradient
from losses.cases import BY_NAME, DIM
from tuplet import losses, mining
from tuplet.rows import ExecutionError, execution, fused, masked_logsumexp, masked_max, masked_mean, masked_sum

triton = pytest.importorskip("triton", reason="the kernels are run by its interpreter")
if not triton.knobs.runtime.interpret:
    pytest.skip("a GPU runs these kernels itself: see test_fused_gpu.py", allow_module_level=True)

from tuplet.rows.fused import run  # noqa: E402  (Triton decides at import whether it interprets)

# Masked entries may be infinite in between, and the interpreter's numpy warns of them.
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning", "ignore:Converting a tensor:UserWarning")
LABELS = {
    "four": lambda n: torch.arange(n) // 4,
    "skewed": lambda n: (torch.rand(n, generator=torch.Generator().manual_seed(3)) ** 3 * 6).long() * 7 - 9,
    # The program sorts by sixteen bits of them.
    "colliding": lambda n: torch.arange(n) // 4 * 2**16 + torch.arange(n) // 4 % 2 - 2**40,
    "alone": lambda n: torch.arange(n),
    "one class": lambda n: torch.zeros(n, dtype=torch.int64),
}
LOSSES = {
    "raw_vthm": lambda: losses.RAWLoss(mining=mining.ValidTriplet()),
    "raw": losses.RAWLoss,
    "binomial": losses.BinomialDevianceLoss,
    "binomial_vthm": lambda: losses.BinomialDevianceLoss(mining=mining.ValidTriplet()),
    "generalized_lifted": losses.GeneralizedLiftedLoss,
    "cosine_contrastive": losses.CosineContrastiveLoss,
    "vthm_alone": lambda: losses.CosineContrastiveLoss(mining=mining.ValidTriplet()),
    "non_trivial": lambda: losses.RAWLoss(mining=mining.NonTrivial(1.2, 0.4)),
    "nca": lambda: losses.NCALoss(scale=8.0),
    "npair_all": lambda: losses.NPairAllLoss(scale=8.0),
}


@pytest.fixture
def ran(monkeypatch):
    """Use small tiles and panels for batches of any size; return the list of programs that were run."""
    programs = []

    def counted(program, *args):
        programs.append(program)
        return real(program, *args)

    real = run.run
    monkeypatch.setattr(run, "run", counted)
    monkeypatch.setattr(fused, "LEAST_ROWS", 1)
    for name, value in {"TILE": 16, "DEPTH": 16, "SIDE": 48, "ROWS": 16, "SLOTS": 2}.items():
        monkeypatch.setattr(run, name, value)
    monkeypatch.setattr(fused, "_programs", type(fused._programs)())
    monkeypatch.setattr(fused, "_new", [])
    return programs


def batch(n, labels="four", dim=24, copies=0):
    """Return clustered unit vectors, rounded to bf16, in random order; `copies` of them are equal."""
    generator = torch.Generator().manual_seed(n)
    labels = LABELS[labels](n)
    centres = torch.randn(n + 1, dim, generator=generator)[labels % (n + 1)]
    x = torch.nn.functional.normalize(centres + torch.randn(n, dim, generator=generator)).bfloat16()
    x[:copies] = x[n // 2]
    order = torch.randperm(n, generator=generator)
    return x[order], labels[order]


def check(loss, x, labels):
    value, gradient = value_and_gradient(loss, x, labels)
    truth, true_gradient = value_and_gradient(loss, x.double(), labels)
    torch.testing.assert_close(value.double(), truth, rtol=2e-5, atol=1e-6)
    assert gradient.dtype == torch.bfloat16
    # Weights are rounded to bf16, and so is the gradient.
    error = (gradient.double() - true_gradient).norm() / true_gradient.norm().clamp_min(1e-12)
    assert error < 8e-3


class TestValues:
    @pytest.mark.parametrize("name", LOSSES)
    @pytest.mark.parametrize("labels", LABELS)
    def test_equal_float64_on_the_same_rounded_inputs(self, name, labels, ran, soak):
        if not soak and labels != "skewed" and name not in ("raw_vthm", "binomial"):
            pytest.skip("the formula is tested with skewed classes")
        check(LOSSES[name](), *batch(53, labels))
        assert len(ran) == 1

    @pytest.mark.parametrize("n", [1, 2, 15, 16, 17, 48, 97, 144])
    def test_any_number_of_rows(self, n, ran):
        check(LOSSES["raw_vthm"](), *batch(n))
        assert len(ran) == 1

    @pytest.mark.parametrize("dim", [1, 16, 33])
    def test_any_number_of_dimensions(self, dim, ran):
        check(LOSSES["raw"](), *batch(40, dim=dim))
        assert len(ran) == 1

    @pytest.mark.parametrize("name", ["raw_vthm", "vthm_alone"])
    def test_ties(self, name, ran):
        check(LOSSES[name](), *batch(53, copies=20))
        assert len(ran) == 1

    @pytest.mark.parametrize("name", LOSSES)
    @pytest.mark.parametrize("rows", [1, 20])
    def test_nan_embeddings_give_a_nan_loss(self, name, rows, ran):
        x, labels = batch(20)
        x[:rows] = torch.nan
        assert LOSSES[name]()(x, labels).isnan()
        assert len(ran) == 1

    def test_nothing_overflows(self, ran):
        x, labels = batch(40)
        check(losses.RAWLoss(alpha=200.0, beta=5000.0), x, labels)

    @pytest.mark.parametrize(
        "rows",
        [
            lambda s, positive, negative: (s.sum(1), s.new_ones(len(s))),
            lambda s, positive, negative: (masked_sum(s, negative | positive), negative.sum(1)),
            lambda s, positive, negative: (masked_sum(s, positive), positive.any(1)),
            lambda s, positive, negative: ((s * negative).clamp(0.1, 0.3).sum(1), negative.all(1) | positive.any(1)),
            lambda s, positive, negative: (
                (torch.where(positive, masked_sum(s, negative)[:, None], 0) * masked_mean(s, positive)[:, None]).sum(1),
                positive.sum(1, keepdim=True).squeeze(1),
            ),
            lambda s, positive, negative: (
                torch.logsumexp(torch.where(negative, s.sigmoid(), 0.2), 1) * (positive.sum(1) > 1).float(),
                torch.where(masked_max(s.detach(), negative) > 0.5, 1, 2),
            ),
            lambda s, positive, negative: (masked_sum((2 - 2 * s).relu().sqrt().log1p(), negative), negative.sum(1)),
            lambda s, positive, negative: (masked_logsumexp(s.square() - 3 * s, positive), positive.any(1)),
            lambda s, positive, negative: (s.clone().mul_(2).relu_().sum(1), s.new_ones(len(s))),
        ],
        ids=[
            "no mask",
            "both masks",
            "positives",
            "clamped",
            "rows",
            "own sum of powers",
            "functions",
            "squares",
            "place",
        ],
    )
    def test_row_functions_of_a_user(self, rows, ran):
        class Own(losses.RowLoss):
            def rows(self, *args):
                return rows(*args)

        check(Own(), *batch(53))
        assert len(ran) == 1

    def test_value_without_gradient(self, ran):
        x, labels = batch(40)
        with torch.no_grad():
            value = LOSSES["raw"]()(x, labels)
        torch.testing.assert_close(value.double(), LOSSES["raw"]()(x.double(), labels), rtol=2e-5, atol=0)
        assert len(ran) == 1


class TestPinned:
    def test_a_program_runs(self, ran):
        with execution("fused"):
            value_and_gradient(LOSSES["raw_vthm"](), *batch(20))
        assert len(ran) == 1
        assert fused.kept_programs() == ran

    @pytest.mark.parametrize("name", ["raw_semi_hard", "contrastive", "nra", "proxy_nca"])
    def test_refuses_a_loss_without_a_program(self, name, ran):
        loss, (x, labels) = BY_NAME[name].make(), batch(16, dim=DIM)
        with execution("fused"), pytest.raises(ExecutionError, match="pinned to 'fused', but it needs"):
            loss(x, labels)
        assert loss(x, labels).isfinite()

    def test_refuses_a_row_function_that_cannot_be_traced(self, ran):
        class Sorted(losses.RowLoss):
            def rows(self, s, positive, negative):
                return s.sort(1).values[:, 0], s.new_ones(len(s))

        with execution("fused"), pytest.raises(ExecutionError, match="cannot be traced"):
            Sorted()(*batch(16))


class TestSettings:
    def test_a_program_is_kept(self, ran):
        x, labels = batch(20)
        loss = LOSSES["raw_vthm"]()
        for _ in range(3):
            loss(x, labels)
        LOSSES["raw_vthm"]()(x, labels)
        assert len(fused._programs) == 1
        assert ran[0] is ran[1] is ran[2] is ran[3]

    @pytest.mark.parametrize(
        "change",
        [
            lambda loss: setattr(loss, "alpha", 5.0),
            lambda loss: setattr(loss.mining, "epsilon", 0.4),
            lambda loss: setattr(loss, "mining", None),
            lambda loss: loss.mining.register_forward_hook(lambda rule, given, kept: (kept[0], given[0].negative)),
        ],
        ids=["setting", "setting of the rule", "no rule", "hook"],
    )
    def test_a_changed_setting_is_seen(self, change, ran):
        x, labels = batch(20)
        loss = LOSSES["raw_vthm"]()
        before = loss(x, labels)
        change(loss)
        assert loss(x, labels) != before
        check(loss, x, labels)
        assert len(ran) == 3

    def test_settings_that_change_at_every_call_are_not_traced(self, ran):
        x, labels = batch(20)
        loss = losses.RAWLoss()
        for n in range(fused.NEW_IN_A_ROW + 3):
            loss.alpha = 2.0 + n
            loss(x, labels)
        assert len(ran) == fused.NEW_IN_A_ROW
        loss(x, labels)
        assert len(ran) == fused.NEW_IN_A_ROW + 1


class TestRefused:
    """A loss without a program runs in blocks."""

    @pytest.mark.parametrize(
        "rows",
        [
            lambda s, positive, negative: (s.sort(1).values[:, 0], s.new_ones(len(s))),
            lambda s, positive, negative: (s.cumsum(1).sum(1), s.new_ones(len(s))),
            lambda s, positive, negative: (s.sum(1) / s.shape[1], s.new_ones(len(s))),
            lambda s, positive, negative: (s.mean(1), s.new_ones(len(s))),
            lambda s, positive, negative: (torch.where(negative, s, -9).max(1).values, s.new_ones(len(s))),
            lambda s, positive, negative: (s.sum(1) * float(s.max()), s.new_ones(len(s))),
            lambda s, positive, negative: ((s * OUTSIDE).sum(1), s.new_ones(len(s))),
            lambda s, positive, negative: (s.sum(1) * OUTSIDE.item(), s.new_ones(len(s))),
            lambda s, positive, negative: ((s * torch.rand_like(s)).sum(1), s.new_ones(len(s))),
            lambda s, positive, negative: ((s * s.sum(0)).sum(1), s.new_ones(len(s))),
            lambda s, positive, negative: (s.mul_(2).sum(1), s.new_ones(len(s))),
            lambda s, positive, negative: ((s * 3).long().sum(1) + s.sum(1), s.new_ones(len(s))),
        ],
        ids=[
            "sort",
            "running sum",
            "width",
            "mean",
            "picks",
            "value",
            "tensor",
            "number",
            "random",
            "columns",
            "place",
            "whole",
        ],
    )
    def test_functions(self, rows, ran):
        x, labels = batch(20)

        class Own(losses.RowLoss):
            def rows(self, *args):
                return rows(*args)

        Own()(x, labels)
        assert ran == []

    @pytest.mark.parametrize(
        "options",
        [{"block_rows": 5}, {"same": lambda a, b: a[:, None] == b}, {"gallery": 0}],
        ids=["given blocks", "own idea of same", "gallery"],
    )
    def test_calls(self, options, ran):
        x, labels = batch(20)
        if "gallery" in options:
            options = {"gallery": x, "gallery_labels": labels}
        losses.RAWLoss()(x, labels, **options)
        assert ran == []

    @pytest.mark.parametrize("name", ["nra", "raw_semi_hard", "ranked_list_moving", "contrastive"])
    def test_losses(self, name, ran):
        BY_NAME[name].make()(*batch(20))
        assert ran == []

    @pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
    def test_types(self, dtype, ran):
        x, labels = batch(20)
        losses.RAWLoss()(x.to(dtype), labels)
        assert ran == []


OUTSIDE = torch.tensor(2.0)
