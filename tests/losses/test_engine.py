"""Promises of the engine to every loss: blocks of any size, no wasted work, first derivatives only."""

import functools
import gc
from math import log

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from losses import label_patterns as patterns
from losses.batches import LargestTensor, batch, value_and_gradient
from losses.cases import BY_NAME, CASES, DIM
from tuplet import losses, mining
from tuplet.rows import View, blocks, default_block_rows, execution, masked_sum, paths
from tuplet.rows.masks import block_positives, equal_labels
from tuplet.rows.members import members_by_label, members_by_mask
from tuplet.rows.paths import TABLE_BYTES
from tuplet.rows.tables import table_columns


class TestBlocks:
    def test_size_is_a_function_of_shapes_types_and_the_kind_of_device(self):
        cpu, gpu = torch.device("cpu"), torch.device("cuda")
        assert default_block_rows(10**6, 10**6, torch.float32, cpu) == TABLE_BYTES["cpu"] // (4 * 10**6)
        assert default_block_rows(10**6, 10**6, torch.bfloat16, gpu) == TABLE_BYTES["cuda"] // (4 * 10**6)
        assert default_block_rows(10**6, 10**6, torch.float64, cpu) == TABLE_BYTES["cpu"] // (8 * 10**6)
        assert default_block_rows(5, 10**9, torch.float32, cpu) == 1
        assert default_block_rows(5, 7, torch.float32, cpu) == 5

    @pytest.mark.parametrize("case", CASES, ids=str)
    def test_every_block_size_agrees(self, case):
        x, labels = batch(case, n=12)
        whole = value_and_gradient(case.make(), x, labels)
        for block_rows in range(1, 13):
            value, gradient = value_and_gradient(case.make(), x, labels, block_rows=block_rows)
            torch.testing.assert_close(value, whole[0], rtol=1e-12, atol=1e-14)
            torch.testing.assert_close(gradient, whole[1], rtol=1e-10, atol=1e-13)

    @pytest.mark.parametrize("case", [case for case in CASES if not case.whole], ids=str)
    def test_tables_are_never_wider_than_a_block(self, case):
        """With small blocks, neither forward nor backward creates a tensor of N×N entries."""
        x, labels = batch(case, n=120, dim=DIM)
        with LargestTensor() as seen:
            value_and_gradient(case.make(), x, labels, block_rows=4)
        assert 0 < seen.numbers < 120**2 / 4

    @pytest.mark.parametrize("loss", [losses.AngularLoss(), losses.NPairAngularLoss()], ids=str)
    def test_tables_of_positive_pairs_stay_within_the_budget(self, loss, monkeypatch):
        """The table of the batch is small, but it has five times as many positive pairs as queries."""
        x, labels = batch(BY_NAME["angular"])
        expected = value_and_gradient(loss, x, labels % 2)
        budget = 8 * x.shape[0] * (x.shape[0] + 1)
        monkeypatch.setitem(TABLE_BYTES, "cpu", budget)
        with LargestTensor() as seen:
            torch.testing.assert_close(value_and_gradient(loss, x, labels % 2), expected)
        assert seen.numbers <= budget // 8

    @pytest.mark.parametrize("geometry", ["dot", "euclidean"])
    @given(block_rows=st.integers(1, 9), seed=st.integers(0, 10**6))
    def test_selected_columns_are_those_of_the_table(self, geometry, block_rows, seed):
        generator = torch.Generator().manual_seed(seed)
        x, y = (torch.randn(n, 4, dtype=torch.float64, generator=generator).requires_grad_() for n in (7, 5))
        columns, weights = torch.randint(5, (7, 3), generator=generator), torch.randn(7, 3, generator=generator)
        few = table_columns(x, y, columns, geometry, block_rows)
        every = x @ y.T if geometry == "dot" else torch.cdist(x, y)
        torch.testing.assert_close(few, every.gather(1, columns))
        ours, theirs = (torch.autograd.grad((v * weights).sum(), (x, y)) for v in (few, every.gather(1, columns)))
        torch.testing.assert_close(ours, theirs)

    def test_selected_distances_of_near_copies_have_an_exact_gradient(self):
        """In float32, at 1e-5 of their length, both gradients point along the difference."""
        x = torch.randn(1, 64, generator=torch.Generator().manual_seed(0))
        y = x + 1e-5 * torch.randn(3, 64, generator=torch.Generator().manual_seed(1))
        x.requires_grad_(), y.requires_grad_()
        distances = table_columns(x, y, torch.tensor([[0, 1, 2]]), "euclidean", 1)
        on_x, on_y = torch.autograd.grad(distances.sum(), (x, y))
        direction = torch.nn.functional.normalize(x.detach().double() - y.detach().double())
        torch.testing.assert_close(on_y.double(), -direction, rtol=0, atol=1e-6)
        torch.testing.assert_close(on_x[0].double(), direction.sum(0), rtol=0, atol=1e-6)

    def test_each_row_function_is_compiled_separately(self, monkeypatch, soak):
        """The compiler gives up after eight variants of a function, and a process may use more losses."""
        torch.compiler.reset()
        monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
        monkeypatch.setattr(blocks, "_compiled_step", functools.cache(blocks._compiled_step.__wrapped__))
        several = list({type(case.make()): case for case in CASES if case.labels == "any"}.values())
        assert len(several) > 12
        with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True), execution("compiled"):
            for case in several if soak else several[:12]:
                x, labels = batch(case, n=12)
                loss = case.make()
                torch.testing.assert_close(value_and_gradient(loss, x, labels)[0], case.truth(loss, x, labels).detach())

    def test_losses_that_inherit_their_rows_are_compiled_separately(self):
        cosface, arcface = losses.CosFaceLoss(3, 2), losses.ArcFaceLoss(3, 2)
        assert cosface.rows.__code__ is arcface.rows.__code__
        assert blocks._kind(cosface.rows) != blocks._kind(arcface.rows)
        assert blocks._kind(cosface.rows) == blocks._kind(losses.CosFaceLoss(5, 2).rows)


class TestDerivatives:
    @pytest.mark.parametrize("case", CASES, ids=str)
    def test_a_second_derivative_raises_a_clear_error(self, case):
        if not case.rows:
            pytest.skip("its gradient is that of plain torch, and so a true second derivative")
        x, labels = batch(case)
        x.requires_grad_()
        (gradient,) = torch.autograd.grad(case.make()(x, labels), x, create_graph=True)
        with pytest.raises(RuntimeError, match="differentiated twice"):
            torch.autograd.grad(gradient.sum(), x)

    @pytest.mark.parametrize("case", CASES, ids=str)
    def test_without_requires_grad_nothing_is_differentiated(self, case, monkeypatch):
        x, labels = batch(case)

        def forbidden(*args, **kwargs):
            raise AssertionError("gradient work")

        expected = case.make()(x, labels)
        monkeypatch.setattr(torch.autograd, "grad", forbidden)
        with torch.no_grad():
            assert torch.equal(case.make()(x.requires_grad_(), labels), expected)
        assert torch.equal(case.make().requires_grad_(False)(x.detach(), labels), expected)

    @given(st.integers(0, 1000))
    def test_gradients_are_scaled_by_the_cotangent(self, seed):
        case = BY_NAME["raw_vthm"]
        x, labels = batch(case, seed=seed)
        x.requires_grad_()
        (once,) = torch.autograd.grad(case.make()(x, labels), x)
        (thrice,) = torch.autograd.grad(3 * case.make()(x, labels) + 1, x)
        torch.testing.assert_close(thrice, 3 * once)

    def test_rows_that_use_no_pair_have_zero_gradient(self):
        view = View("dot", x := torch.eye(4, requires_grad=True), torch.tensor([0, 0, 1, 1]), block_rows=3)
        value = view.mean(lambda s, positive, negative: (positive.sum(1), negative.any(1)))
        (gradient,) = torch.autograd.grad(value, x)
        assert value == 1
        assert not gradient.any()

    @pytest.mark.parametrize("case", [case for case in CASES if list(case.make().parameters())], ids=str)
    def test_tensors_in_place_of_parameters_get_their_gradient(self, case):
        """For example those of `functional_call`, or those that torch's parametrisations compute."""
        (x, labels), loss = batch(case), case.make()
        stand_ins = {name: 1 * p for name, p in loss.named_parameters()}
        value = torch.func.functional_call(loss, stand_ins, (x, labels))
        ours, theirs = (torch.autograd.grad(v, list(loss.parameters())) for v in (value, loss(x, labels)))
        torch.testing.assert_close(ours, theirs)

    def test_lifted_leaves_out_pairs_without_negatives(self):
        """The first two are the same as all; of the other pairs each has one end with one negative, at 4."""
        x, labels = torch.tensor([[0.0], [1.0], [2.0], [6.0]], dtype=torch.float64), torch.arange(4)
        alike = labels[:, None] // 2 != labels // 2
        alike[:2, :2] = True
        value = losses.LiftedStructureLoss(margin=4.0)(x, labels, same=lambda a, b: alike[a][:, b])
        # J̃ = log e^{4 − 4} + d
        assert value.item() == pytest.approx((2**2 + 6**2 + 1**2 + 5**2) / 8)

    def test_nra_has_zero_gradient_at_ties(self):
        """Negative and positive are equally near, at the lower end of the row, where the transfer function is flat."""
        gallery = torch.tensor([[1.0, 0.0], [0.0, 1.0], [3.0, 0.0]], dtype=torch.float64, requires_grad=True)
        query = torch.zeros(1, 2, dtype=torch.float64)
        value = losses.NRALoss()(query, torch.tensor([0]), gallery=gallery, gallery_labels=torch.tensor([0, 1, 1]))
        assert torch.autograd.grad(value, gallery)[0].norm() == 0

    @pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
    def test_nra_keeps_its_epsilon_where_the_farthest_is_a_positive(self, dtype):
        x, labels = torch.tensor([[0.0], [3.0], [1.0], [2.0]], dtype=dtype), torch.tensor([0, 0, 1, 1])
        # The first two: −2 log ε. The others: both pairs at the lower end, −log(1 + ε) − log ε.
        truth = -1.5 * log(1e-4) - 0.5 * log(1 + 1e-4)
        assert losses.NRALoss(eps=1e-4)(x, labels).item() == pytest.approx(truth, rel=2e-7)

    def test_flat_nra_has_finite_gradients_at_the_ends_of_the_row(self):
        x, labels = batch(BY_NAME["nra"])
        _, gradient = value_and_gradient(losses.NRALoss(alpha=0.5), x, labels)
        assert gradient.isfinite().all()
        assert gradient.norm() > 0


WEIGHING = [case for case in CASES if case.make().weighs_pairs]


class TestWeights:
    """Theorem 3.1: the surrogate Σ w_ij·v_ij, with w held constant, has the loss's gradient."""

    @pytest.mark.parametrize("case", WEIGHING, ids=str)
    @given(seed=st.integers(0, 10**6))
    def test_surrogate_has_the_gradient_of_the_loss(self, case, seed):
        x, labels = batch(case, n=12, seed=seed, unit=seed % 2 == 0)
        loss = case.make()
        if case.name == "npair_symmetric":
            loss.norm_penalty = 0.0
        w = loss.weights(x, labels)
        _, truth = value_and_gradient(loss, x, labels)
        x = x.requires_grad_()
        there = loss.proxies if loss.proxies is not None else x if loss.moves_gallery else x.detach()
        here = x
        if "dynamic" in case.name:
            there = there[torch.cdist(x, there).argmin(1)]
        if case.name == "proxy_anchor":
            here, there = torch.nn.functional.normalize(there), x
        if case.unit:
            here, there = torch.nn.functional.normalize(here), torch.nn.functional.normalize(there)
        assert w.shape == (len(here), len(there))
        if loss.geometry == "dot":
            v = here @ there.T
        else:
            square = (here[:, None] - there).square().sum(-1)
            v = torch.where(square > 0, torch.where(square > 0, square, 1).sqrt(), 0)
        (surrogate,) = torch.autograd.grad((w * v).sum(), x, materialize_grads=True)
        torch.testing.assert_close(surrogate, truth, rtol=1e-8, atol=1e-10)

    @pytest.mark.parametrize("case", WEIGHING, ids=str)
    def test_weights_work_under_no_grad(self, case):
        x, labels = batch(case, n=12)
        expected = case.make().weights(x, labels)
        for off in (torch.no_grad(), torch.inference_mode()):
            with off:
                assert torch.equal(case.make().weights(x.clone(), labels.clone()), expected)

    def test_weights_of_raw_are_those_of_the_paper(self):
        case = BY_NAME["raw"]
        x, labels = batch(case, n=8)
        w = losses.RAWLoss().weights(x, labels)
        s = x @ x.T
        for i in range(8):
            P = [j for j in range(8) if j != i and labels[j] == labels[i]]
            N = [j for j in range(8) if labels[j] != labels[i]]
            for j in P:
                expected = (
                    -1 / (sum(torch.exp(2 * (s[i, j] - s[i, k])) for k in P) + torch.exp(2 * (s[i, j] - 0.5))) / 8
                )
                torch.testing.assert_close(w[i, j], expected)
            for j in N:
                total = sum(torch.exp(-50 * (s[i, j] - s[i, k])) for k in N) + torch.exp(-50 * (s[i, j] - 0.5))
                torch.testing.assert_close(w[i, j], 1 / total / 8)
        assert torch.equal(w.diagonal(), torch.zeros(8, dtype=torch.float64))

    @pytest.mark.parametrize("name", ["contrastive", "lifted_structure", "angular", "angular_hinge", "histogram"])
    def test_both_orders_of_a_positive_pair_have_equal_weights(self, name):
        x, labels = batch(BY_NAME[name])
        w = BY_NAME[name].make().weights(x, labels) * labels.eq(labels[:, None])
        assert w.any()
        torch.testing.assert_close(w, w.T)

    def test_symmetric_npair_has_weights_of_its_own_in_each_direction(self):
        x, labels = torch.randn(8, 3, dtype=torch.float64), torch.arange(4).repeat_interleave(2)
        swapped = torch.arange(8) ^ 1
        there = losses.NPairLoss().weights(x, labels)
        back = losses.NPairLoss().weights(x[swapped], labels)[swapped][:, swapped]
        torch.testing.assert_close(losses.NPairLoss(symmetric=True).weights(x, labels), (there + back) / 2)

    @pytest.mark.parametrize("case", [case for case in CASES if case.labels == "any"], ids=str)
    def test_with_a_gallery_the_surrogate_has_the_gradient_of_the_queries(self, case):
        """Similarities among gallery members are constants there."""
        x, labels = batch(case)
        loss, x, gallery = case.make(), x[::4].requires_grad_(), x[::3]
        look = {"gallery": gallery, "gallery_labels": labels[::3]}
        w = loss.weights(x, labels[::4], **look)
        assert w.shape == (6, 8)
        with torch.inference_mode():
            assert torch.equal(loss.weights(x, labels[::4], gallery=gallery + 0, gallery_labels=labels[::3]), w)
        here = torch.nn.functional.normalize(x) if case.unit else x
        v = here @ gallery.T if loss.geometry == "dot" else torch.linalg.vector_norm(x[:, None] - gallery, dim=-1)
        (surrogate,) = torch.autograd.grad((w * v).sum(), x)
        _, truth = value_and_gradient(loss, x, labels[::4], **look)
        torch.testing.assert_close(surrogate, truth, rtol=1e-8, atol=1e-10)


class TestView:
    @pytest.mark.parametrize("look", [lambda view: view, View.with_table], ids=["in blocks", "cached table"])
    def test_a_query_gets_no_gradient_from_its_own_entry(self, look):
        x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
        view = look(View("dot", x, torch.arange(5)))
        value = view.mean(lambda s, positive, negative: (s.sum(1), s.new_ones(s.shape[0])))
        (gradient,) = torch.autograd.grad(value, x)
        w = (1 - torch.eye(5, dtype=torch.float64)) / 5
        torch.testing.assert_close(gradient, 2 * w @ x.detach())

    def test_counts_may_be_weights_of_queries(self):
        """The sum of the counts may be below 1."""
        view, weight = View("dot", torch.randn(6, 3), torch.arange(6) // 2), torch.rand(6)

        def rows(s, positive, negative, weight):
            return weight * masked_sum(s, positive), weight

        means = [view.mean(rows, own=(scale * weight,)) for scale in (1e-3, 1e3)]
        torch.testing.assert_close(*means)

    def test_counts_are_constants_on_every_path(self, monkeypatch):
        """In blocks, on the whole table, and where a rule names the pairs."""

        class Softly(losses.RowLoss):
            def rows(self, s, positive, negative):
                return masked_sum(s.square(), positive), masked_sum(s.sigmoid(), negative)

        x, labels = batch(BY_NAME["raw"])
        x.requires_grad_()
        loss = Softly()
        (surrogate,) = torch.autograd.grad((loss.weights(x, labels) * (x @ x.T)).sum(), x)
        torch.testing.assert_close(value_and_gradient(loss, x, labels, block_rows=5)[1], surrogate)
        loss.mining = mining.SemiHard()
        marked = value_and_gradient(loss, x, labels)
        monkeypatch.setattr(paths, "NAMED_FACTOR", 1)
        torch.testing.assert_close(value_and_gradient(loss, x, labels), marked)

    def test_max_per_class_does_not_change_the_value(self):
        for name in ("triplet_all", "triplet_semi_hard", "smooth_triplet", "npair_all", "angular", "angular_hinge"):
            case = BY_NAME[name]
            x, labels = batch(case)
            plain = value_and_gradient(case.make(), x, labels)
            for given_size in (4, 7, 100):
                value, gradient = value_and_gradient(case.make(), x, labels, max_per_class=given_size)
                torch.testing.assert_close(value, plain[0])
                torch.testing.assert_close(gradient, plain[1])

    @given(data=st.data())
    def test_members_by_label_are_those_by_mask(self, data):
        labels = torch.tensor(data.draw(patterns.labels()))
        member = data.draw(st.booleans())
        others = labels if member else torch.tensor(data.draw(patterns.labels()))
        valid = None if member else torch.arange(len(others)) < data.draw(st.integers(0, len(others)))
        most = data.draw(st.none() | st.integers(len(others), len(others) + 2))
        masks = block_positives(equal_labels, labels, others, valid, member, 0)
        by_label = members_by_label(labels, others, valid, member, most)
        for rows in (1, 2, len(labels)):
            by_mask = members_by_mask(lambda rows=rows: masks.split(rows), member, most)
            sets = [[row[there].tolist() for row, there in zip(*found, strict=True)] for found in (by_label, by_mask)]
            assert sets[0] == sets[1] == [row.nonzero()[:, 0].tolist() for row in masks]

    @pytest.mark.parametrize("reduce", ["total", "each", "sum"])
    def test_the_number_of_tensors_does_not_grow_with_the_number_of_blocks(self, reduce):
        """Small tensors between large tables would cut a host's memory into pieces too small for the next table."""
        held = []

        def rows(s, positive, negative):
            held.append(sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects()))
            return {"total": (s.sum(1), positive.sum(1)), "each": s.sum(1), "sum": s.sum(0)}[reduce]

        x = torch.randn(24, 3, requires_grad=True)
        gc.freeze()  # leaves out the objects of other tests, of which there may be a million
        try:
            value = getattr(View("dot", x, torch.arange(24) // 2, block_rows=2), reduce)(rows)
            value[0].backward() if reduce == "total" else value.sum().backward()
        finally:
            gc.unfreeze()
        assert len(held) == (12 if reduce == "total" else 24)
        assert held[11] == held[2]

    @pytest.mark.parametrize("loss", [losses.RAWLoss(), losses.NPairAngularLoss(), losses.TripletLoss()], ids=str)
    def test_the_result_of_a_custom_comparison_is_not_modified(self, loss):
        labels = torch.arange(6) // 2
        held = labels[:, None] == labels
        loss(torch.randn(6, 4), labels, same=lambda a, b: held)
        assert held.equal(labels[:, None] == labels)

    def test_several_labels_are_compared_with_one(self):
        """Regression: a gallery with one label for each was one column, so a row was all positive or all negative."""
        x, sets = torch.eye(4), torch.tensor([[0, 5], [0, -1], [1, -1], [1, 5]])
        bank = losses.MemoryBank(4, 4)
        bank.add(x.flip(0), torch.tensor([0, 5, 1, -1]))
        # x_i·g_j is 1 where i + j = 3, and the bank's members have the labels 0, 5, 1 and none.
        positive = torch.tensor([[1, 1, 0, 0], [1, 0, 0, 0], [0, 0, 1, 0], [0, 1, 1, 0]], dtype=torch.bool)
        s = x.flip(1)
        expected = (torch.where(positive, 0, (s - 0.5).relu()) - torch.where(positive, s, 0)).sum(1).mean()
        torch.testing.assert_close(losses.CosineContrastiveLoss()(x, sets, gallery=bank, same="any"), expected)
        assert torch.equal(losses.RAWLoss()(x, sets[:, 0], same="any"), losses.RAWLoss()(x, sets[:, 0]))

    def test_a_proxy_anchor_loss_takes_several_labels(self):
        x, sets = torch.eye(3), torch.tensor([[0, 1], [1, -1], [1, 2]])
        loss = losses.ProxyAnchorLoss(num_classes=4, dim=3, alpha=2.0, margin=0.1)
        s = torch.nn.functional.normalize(loss.proxies.detach())
        pull = push = 0.0
        for c in range(4):
            positive = (sets == c).any(1)
            pull += log(1 + (-2 * (s[c, positive] - 0.1)).exp().sum())
            push += log(1 + (2 * (s[c, ~positive] + 0.1)).exp().sum())
        assert loss(x, sets, same="any").item() == pytest.approx(pull / 3 + push / 4)

    @pytest.mark.filterwarnings("error::UserWarning")
    def test_labels_need_not_be_contiguous(self):
        """Nor need the result of a comparison; torch would warn once per process."""
        x, labels = batch(BY_NAME["angular"])
        column = torch.stack([labels, labels], 1)[:, 0]
        torch.set_warn_always(True)
        try:
            for loss in (losses.TripletLoss(), losses.AngularLoss(), losses.RAWLoss(mining=mining.SemiHard())):
                assert torch.equal(loss(x, column), loss(x, labels))
                look = {"gallery": x, "gallery_labels": labels}
                ours = loss(x, column, same=lambda a, b: (b[:, None] == a).T, **look)
                torch.testing.assert_close(ours, loss(x, labels, **look))
        finally:
            torch.set_warn_always(False)

    def test_max_per_class_may_be_given_to_the_constructor(self):
        x, labels = batch(BY_NAME["angular"])
        for make in (
            losses.TripletLoss,
            losses.SmoothTripletLoss,
            losses.NPairAllLoss,
            losses.AngularLoss,
            losses.AngularHingeLoss,
            losses.NPairAngularLoss,
        ):
            torch.testing.assert_close(make(max_per_class=4)(x, labels), make()(x, labels))

    @pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.uint16, torch.int16, torch.uint32, torch.int32])
    def test_labels_of_different_integer_types_are_compared(self, dtype):
        x, labels = batch(BY_NAME["raw"])
        for loss in (losses.RAWLoss(), losses.TripletLoss(), losses.AngularLoss()):
            wide = loss(x, labels, gallery=x, gallery_labels=labels + 2**40 * (labels > 2))
            mixed = loss(x, labels.to(dtype), gallery=x, gallery_labels=labels + 2**40 * (labels > 2))
            assert torch.equal(wide, mixed)

    def test_labels_beyond_int64_stay_different(self):
        x, ids = torch.eye(4), [2**64 - 1, 2**64 - 1, 2**63, 2**63 - 1]
        expected = losses.NCALoss()(x, torch.tensor([0, 0, 1, 2]))
        assert torch.equal(losses.NCALoss()(x, torch.tensor(ids, dtype=torch.uint64)), expected)
