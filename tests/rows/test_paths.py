"""The execution path: which one is chosen, and how one is pinned."""

import os
import subprocess
import sys

import pytest
import torch

from losses.batches import batch, value_and_gradient
from losses.cases import BY_NAME
from tuplet import losses, mining
from tuplet.rows import ExecutionError, View, execution, paths


def run_python(code, **environment):
    """Run a script in a process of its own; return what it prints."""
    done = subprocess.run(
        [sys.executable, "-c", code], env={**os.environ, **environment}, capture_output=True, text=True, timeout=240
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


@pytest.fixture
def chosen(monkeypatch):
    """Record the path of every reduction of rows."""
    found, choose = [], paths.choose

    def recorded(work):
        path = choose(work)
        if work.stage == "rows":
            found.append(path)
        return path

    monkeypatch.setattr(paths, "choose", recorded)
    return found


class TestPinned:
    @pytest.mark.parametrize(
        ("path", "name"),
        [
            ("eager", "raw"),
            ("eager", "angular"),
            ("eager", "raw_semi_hard"),
            ("table", "raw"),
            ("table", "contrastive"),
            ("table", "raw_semi_hard"),
            ("named", "raw_semi_hard"),
            ("named", "margin"),
        ],
    )
    def test_values_and_gradients_are_the_same(self, path, name, chosen):
        x, labels = batch(BY_NAME[name])
        loss = losses.MarginLoss() if name == "margin" else BY_NAME[name].make()
        again = losses.MarginLoss() if name == "margin" else loss
        truth = value_and_gradient(loss, x, labels)
        chosen.clear()
        with execution(path):
            torch.testing.assert_close(value_and_gradient(again, x, labels), truth)
        assert set(chosen) == {path}

    def test_compiled_on_a_cpu(self, chosen, monkeypatch):
        torch.compiler.reset()
        x, labels = batch(BY_NAME["contrastive"], dtype=torch.float32)
        with execution("compiled"):
            ours = value_and_gradient(losses.ContrastiveLoss(), x, labels)
        assert chosen == ["compiled"]
        torch.testing.assert_close(ours, value_and_gradient(losses.ContrastiveLoss(), x, labels))

    @pytest.mark.parametrize(
        ("path", "loss", "options", "words"),
        [
            ("cuda_graph", losses.RAWLoss(), {}, "embeddings are on cpu, and CUDA graphs need"),
            (
                "fused",
                losses.RAWLoss(),
                {},
                "bf16 vectors on a recent GPU, 8,192 or more: these are 24 of torch.float64 on cpu",
            ),
            ("named", losses.RAWLoss(), {}, "no mining rule names its pairs"),
            ("named", losses.RAWLoss(mining=mining.ValidTriplet()), {}, "no mining rule names its pairs"),
            ("table", losses.RAWLoss(), {"gallery": True}, "gallery is not the batch itself"),
        ],
    )
    def test_an_impossible_path_raises(self, path, loss, options, words):
        x, labels = batch(BY_NAME["raw"])
        if options:
            options = {"gallery": x, "gallery_labels": labels}
        with execution(path), pytest.raises(ExecutionError, match=f"pinned to '{path}', but .*{words}.*; pin another"):
            loss(x, labels, **options)
        loss(x, labels, **options)

    def test_an_unknown_path_raises(self):
        with pytest.raises(ValueError, match="no execution path 'egar'; did you mean 'eager'"), execution("egar"):
            pass

    def test_pins_are_nested(self, chosen):
        x, labels = batch(BY_NAME["raw"])
        with execution("table"):
            with execution("eager"):
                losses.RAWLoss()(x, labels)
            losses.RAWLoss()(x, labels)
        losses.RAWLoss()(x, labels)
        assert chosen == ["eager", "table", "eager"]

    def test_weights_are_those_of_the_table_whatever_is_pinned(self):
        x, labels = batch(BY_NAME["raw"])
        truth = losses.RAWLoss().weights(x, labels)
        with execution("eager"):
            assert torch.equal(losses.RAWLoss().weights(x, labels), truth)

    @pytest.mark.parametrize(("pinned", "expected"), [("table", "table"), ("egar", "did you mean 'eager'")])
    def test_environment_variable(self, pinned, expected):
        code = """
import torch
from tuplet import losses
from tuplet.rows import engine
real = engine._reduce_table
engine._reduce_table = lambda *args: print("table") or real(*args)
try:
    losses.RAWLoss()(torch.eye(4), torch.tensor([0, 0, 1, 1]))
except ValueError as error:
    print(error)
"""
        assert expected in run_python(code, TUPLET_EXECUTION=pinned)


class TestChosen:
    def test_a_batch_on_a_cpu_runs_eagerly(self, chosen):
        losses.RAWLoss()(*batch(BY_NAME["raw"]))
        assert chosen == ["eager"]

    def test_several_sums_over_a_small_batch_share_its_table(self, chosen):
        losses.LiftedStructureLoss()(*batch(BY_NAME["raw"]))
        assert chosen == ["table", "table"]

    def test_a_large_batch_has_no_whole_table(self, monkeypatch):
        view = View("dot", *batch(BY_NAME["raw"]))
        assert view.with_table().table is not None
        monkeypatch.setitem(paths.TABLE_BYTES, "cpu", 8 * view.size)
        assert view.with_table() is view

    @pytest.mark.parametrize(("columns", "path"), [(128, "eager"), (129, "named")])
    def test_named_pairs_are_computed_alone_in_long_rows(self, columns, path, chosen):
        """One positive for each query."""
        x = torch.randn(columns, 4)
        loss = losses.RAWLoss(mining=mining.SemiHard())
        loss(x[:2], torch.arange(2), gallery=x, gallery_labels=torch.arange(columns))
        assert chosen == [path]

    def test_every_path_has_a_row_in_the_table_of_the_docs(self):
        page = (os.path.dirname(__file__), "..", "..", "docs", "engine.md")
        with open(os.path.join(*page), encoding="utf-8") as file:
            text = file.read()
        for path in paths.get_args(paths.Path):
            assert f"| `{path}` |" in text


def test_eight_frames_lie_between_the_call_of_a_loss_and_its_rows():
    depths = []

    class Own(losses.RowLoss):
        def rows(self, s, positive, negative):
            depth, frame = 0, sys._getframe(1)
            while frame.f_code is not here:
                depth, frame = depth + 1, frame.f_back
            depths.append(depth)
            return s.sum(1), positive.sum(1)

    here = sys._getframe().f_code
    x, labels = batch(BY_NAME["raw"])
    Own()(x, labels)
    Own()(x.requires_grad_(), labels, block_rows=10)
    loss = Own()
    loss.mining = mining.ValidTriplet()
    loss(x, labels)
    assert max(depths) <= 8


def test_rows_work_without_the_fused_compiler():
    """Nothing may need the package, not even where it would be chosen."""
    code = """
import sys
sys.modules["tuplet.rows.fused"] = None
import torch
from tuplet import losses
from tuplet.rows import execution, ExecutionError
x = torch.randn(16, 4, requires_grad=True)
losses.RAWLoss()(x, torch.arange(16) // 4).backward()
print(x.grad.norm() > 0)
try:
    with execution("fused"):
        losses.RAWLoss()(x, torch.arange(16) // 4)
except ExecutionError as error:
    print(error)
"""
    assert run_python(code).splitlines() == [
        "tensor(True)",
        "execution is pinned to 'fused', but the package tuplet.rows.fused is not installed; pin another path, or none",
    ]
