"""Precision of every loss: narrow types, products that cancel, NaN."""

from copy import deepcopy
from math import exp, log1p

import pytest
import torch

from losses.batches import batch, value_and_gradient
from losses.cases import CASES
from tuplet import losses
from tuplet.rows import geometry as geo


class TestEuclidean:
    @pytest.mark.parametrize("d", [1e-4, 1e-3, 1e-2, 0.3, 1.0])
    @pytest.mark.parametrize("dim", [8, 512])
    def test_float32_distances_are_accurate_where_products_cancel(self, d, dim):
        generator = torch.Generator().manual_seed(dim)
        a = torch.nn.functional.normalize(torch.randn(dim, generator=generator, dtype=torch.float64), dim=0)
        step = torch.randn(dim, generator=generator, dtype=torch.float64)
        step -= (step @ a) * a
        b = torch.nn.functional.normalize(a + d * step / step.norm(), dim=0)
        pair = torch.stack([a, b]).float()
        truth = (pair[0].double() - pair[1].double()).norm()
        side = geo.side(pair, "euclidean")
        assert abs(geo.table(side, side, "euclidean")[0, 1].double() - truth) < 1e-6
        # Plain margin loss with one positive pair: the gradient of its distance.
        _, gradient = value_and_gradient(losses.MarginLoss(beta=0.0, mining=None), pair, torch.tensor([0, 0]))
        direction = (pair[0].double() - pair[1].double()) / truth
        ours = gradient[0].double() / gradient[0].double().norm()
        assert (ours - direction).norm() < 0.01

    @pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
    @pytest.mark.parametrize("scale", [1e-2, 1.0, 100.0])
    def test_identical_vectors_have_distance_and_gradient_zero(self, dtype, scale):
        generator = torch.Generator().manual_seed(0)
        x = (scale * torch.nn.functional.normalize(torch.randn(1, 64, generator=generator))).to(dtype).repeat(6, 1)
        side = geo.side(x, "euclidean")
        assert torch.equal(geo.table(side, side, "euclidean"), torch.zeros(6, 6, dtype=geo.table_dtype(dtype)))
        value, gradient = value_and_gradient(losses.ContrastiveLoss(), x, torch.tensor([0, 0, 0, 1, 1, 1]))
        assert value > 0
        assert torch.equal(gradient, torch.zeros_like(gradient))

    def test_float64_is_exact_to_its_own_rounding(self):
        x = torch.tensor([[1.0, 0.0], [1.0, 1e-12], [0.6, 0.8]], dtype=torch.float64)
        side = geo.side(x, "euclidean")
        table = geo.table(side, side, "euclidean")
        torch.testing.assert_close(table[0, 1].item(), 1e-12, rtol=1e-15, atol=0)
        torch.testing.assert_close(table[0, 2].item(), (0.4**2 + 0.8**2) ** 0.5, rtol=1e-15, atol=0)


@pytest.mark.parametrize("alpha", [1.0, 4.0])
def test_steep_slopes_of_nra_that_cancel_leave_no_rounding_errors(alpha):
    """The slope of a logarithm is 1/ε = 10,000 at an end of a row, and the rank of an end does not change at all."""
    x = torch.randn(12, 8, generator=torch.Generator().manual_seed(0))
    labels = torch.arange(12) % 4
    loss = losses.NRALoss(alpha=alpha)
    (_, narrow), (_, exact) = value_and_gradient(loss, x, labels), value_and_gradient(loss, x.double(), labels)
    assert (narrow - exact).abs().max() < 2e-6 * exact.abs().max()


def test_a_pair_of_nra_that_ties_with_the_end_of_its_row_has_no_steep_slope():
    """The copies 0 and 1, of different labels, are as far from 2; a slope of 1/(ε · spread) would push them apart."""
    x = torch.tensor([[0.0, 0.0], [0.0, 0.0], [1.0, 0.0], [0.4, 0.0]])
    _, gradient = value_and_gradient(losses.NRALoss(alpha=1.0), x, torch.tensor([0, 1, 1, 0]))
    assert gradient.abs().max() < 10


@pytest.mark.parametrize("seed", [1, 3, 5])
@pytest.mark.parametrize("active", [1e-3, 1e-4, 1e-5])
def test_short_vectors_that_pddm_makes_unit_leave_no_rounding_errors(seed, active):
    """A single unit of the ReLU stays (1, 0, …) wherever it moves: its slopes, of 1/active, must cancel."""
    torch.manual_seed(seed)
    narrow, labels = losses.PDDMLoss(4, alpha=2.0), torch.tensor([0, 0, 1])
    x = torch.nn.functional.normalize(torch.randn(3, 4))
    with torch.no_grad():
        before = narrow.difference(torch.nn.functional.normalize((x[0] - x[1]).abs(), dim=0))
        narrow.difference.bias += torch.tensor([active, -1.0, -1.0, -1.0]) - before
    exact = deepcopy(narrow).double()
    ours, truth = (
        torch.autograd.grad(loss(x.to(loss.mean.weight.dtype), labels), loss.parameters()) for loss in (narrow, exact)
    )
    largest = max(gradient.abs().max() for gradient in truth)
    assert max((a - b).abs().max() for a, b in zip(ours, truth, strict=True)) < 1e-6 * largest


@pytest.fixture
def matrix_units(monkeypatch):
    """Imitate a GPU's bf16 products on a CPU: they are exact, and summed in float32."""
    plain = geo.product
    monkeypatch.setattr(geo, "for_matrix_units", lambda vectors: vectors.dtype == torch.bfloat16)
    monkeypatch.setattr(
        geo, "product", lambda a, b: plain(a.to(geo.table_dtype(a.dtype)), b.to(geo.table_dtype(b.dtype)))
    )


class TestHalfProducts:
    @pytest.mark.parametrize("case", CASES, ids=str)
    def test_losses_equal_float64_on_the_same_rounded_inputs(self, case, matrix_units):
        x, labels = batch(case, dtype=torch.bfloat16)
        truth, true_gradient = value_and_gradient(case.make(), x.double(), labels)
        value, gradient = value_and_gradient(case.make().to(torch.float32), x, labels)
        torch.testing.assert_close(value.double(), truth, rtol=1e-4, atol=1e-5)
        error = (gradient.double() - true_gradient).norm() / true_gradient.norm().clamp_min(1e-12)
        assert error < 6e-3  # the weights are rounded to bf16 too

    @pytest.mark.parametrize("dim", [8, 512, 2048])
    @pytest.mark.parametrize("scale", [1e-2, 1.0, 100.0])
    def test_only_copies_have_distance_zero(self, dim, scale, matrix_units):
        generator = torch.Generator().manual_seed(dim)
        x = torch.nn.functional.normalize(torch.randn(6, dim, generator=generator))
        x[5] = x[4] + 0.05 * x[3]
        x = (scale * x).bfloat16()[[0, 1, 2, 0, 4, 5]]
        side = geo.half_side(x, "euclidean")
        table = geo.table(side, side, "euclidean")
        truth = torch.cdist(x.double(), x.double(), compute_mode="donot_use_mm_for_euclid_dist")
        assert torch.equal(table == 0, truth == 0)
        torch.testing.assert_close(table.double(), truth, rtol=1e-3, atol=0)
        _, gradient = value_and_gradient(losses.ContrastiveLoss(3 * scale), x[[0, 3]], torch.tensor([0, 1]))
        assert torch.equal(gradient, torch.zeros_like(gradient))

    def test_float32_queries_keep_what_bf16_would_round_away(self, matrix_units):
        x = torch.nn.functional.normalize(torch.randn(20, 512)).bfloat16()
        sums = x[:10].float() + x[10:]
        for geometry in ("dot", "euclidean"):
            table = geo.table(geo.half_side(sums, geometry), geo.half_side(x, geometry), geometry)
            exact = sums.double() @ x.double().T
            truth = exact if geometry == "dot" else torch.cdist(sums.double(), x.double())
            torch.testing.assert_close(table.double(), truth, rtol=0, atol=2e-6)


class TestPrecision:
    @pytest.mark.parametrize("case", CASES, ids=str)
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
    def test_narrow_types_equal_float64_on_the_same_rounded_inputs(self, case, dtype):
        x, labels = batch(case, dtype=dtype)
        loss = case.make().to(torch.float32)
        value, gradient = value_and_gradient(loss, x, labels)
        truth, true_gradient = value_and_gradient(case.make(), x.double(), labels)
        assert value.dtype == torch.float32
        assert gradient.dtype == dtype
        torch.testing.assert_close(value.double(), truth, rtol=2e-5, atol=1e-6)
        # The gradient is rounded once, to the type of the embeddings.
        error = (gradient.double() - true_gradient).norm() / true_gradient.norm().clamp_min(1e-12)
        assert error < {torch.float32: 1e-4, torch.bfloat16: 4e-3, torch.float16: 1e-3}[dtype]

    @pytest.mark.parametrize("case", CASES, ids=str)
    @pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
    def test_half_precision_does_not_overflow_at_norm_100(self, case, dtype):
        x, labels = batch(case)
        value, gradient = value_and_gradient(case.make().to(torch.float32), (100 * x).to(dtype), labels)
        assert value.isfinite()
        # A gradient may pass what float16 can hold (65,504); it is then the type of the embeddings that is too narrow.
        assert not gradient.isnan().any()

    @pytest.mark.parametrize("case", CASES, ids=str)
    @pytest.mark.parametrize("rows", [1, 24])
    def test_nan_embeddings_give_a_nan_loss(self, case, rows):
        """A comparison with NaN is false: a loss that drops such pairs would be 0 while nothing is learned."""
        x, labels = batch(case)
        x[:rows] = torch.nan
        assert case.make()(x, labels).isnan()

    @pytest.mark.parametrize("case", [case for case in CASES if case.labels == "any"], ids=str)
    @pytest.mark.parametrize("labels", [[0], [0, 1, 2], [0, 0, 0], [0, 0, 1]], ids=str)
    @pytest.mark.filterwarnings("ignore:Anomaly Detection")
    def test_missing_positives_or_negatives_make_no_nan_in_any_step(self, case, labels):
        """Anomaly detection would report it instead of the NaN of a model."""
        x, loss = batch(case)[0][: len(labels)].requires_grad_(), case.make()
        with torch.autograd.detect_anomaly():
            loss(x, torch.tensor(labels)).backward()
            loss(x, torch.tensor(labels), gallery=losses.MemoryBank(4, x.shape[1], x.dtype)).backward()

    @pytest.mark.parametrize("case", CASES, ids=str)
    def test_autocast_has_no_effect(self, case):
        x, labels = batch(case, dtype=torch.float32)
        loss = case.make().to(torch.float32)
        plain = value_and_gradient(loss, x, labels)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            inside = value_and_gradient(case.make().to(torch.float32), x, labels)
        assert torch.equal(plain[0], inside[0])
        assert torch.equal(plain[1], inside[1])

    @pytest.mark.parametrize("z", [19.0, 21.0, 30.0, 45.0])
    def test_softplus_is_exact_in_float64(self, z):
        """torch's softplus(z) is z from 20 on, which is 2e-9 off there."""
        x = torch.tensor([[1.0, 0.0]], dtype=torch.float64, requires_grad=True)
        gallery = torch.tensor([[0.0, 1.0], [z, 0.0]], dtype=torch.float64)
        for loss in (losses.SmoothTripletLoss(), losses.NPairAllLoss(), losses.NPairLoss("ovo"), losses.NCALoss()):
            value = loss(x, torch.tensor([0]), gallery=gallery, gallery_labels=torch.tensor([0, 1]))
            torch.testing.assert_close(value.item(), z + log1p(exp(-z)), rtol=1e-15, atol=0)
            (gradient,) = torch.autograd.grad(value, x)
            torch.testing.assert_close(gradient[0, 0].item(), z / (1 + exp(-z)), rtol=1e-15, atol=0)

    def test_classes_are_counted_exactly_under_any_default_type(self):
        """Bf16 holds no whole number between 1,000 and 1,004."""
        loss, x, labels = losses.ProxyAnchorLoss(1001, 4), torch.eye(4).repeat(251, 1)[:1001], torch.arange(1001)
        expected = loss(x, labels)
        torch.set_default_dtype(torch.bfloat16)
        try:
            assert loss(x, labels) == expected
        finally:
            torch.set_default_dtype(torch.float32)
