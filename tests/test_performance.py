"""docs/performance.md is what its benchmark made of its figures, and the benchmark measures what it says."""

import json
import os
import weakref
from importlib import import_module
from pathlib import Path

import pytest
import torch

from troubled_jobs import broken, clock, dying, fine, slow_start, stuck, where
from tuplet.rows.engine import COMPILED_ENTRIES

ROOT = Path(__file__).parents[1]
METHOD = "multi-similarity (RAW, valid triplets)"


@pytest.fixture
def bench(monkeypatch):
    """The benchmark's modules, which import each other by their bare names."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return import_module


def phase(rows, began="10:00", ended="10:01", versions="2"):
    """What is saved of one."""
    made = {"machine": "machine", "versions": {"torch": versions}}
    return made | {"began": began, "ended": ended, "seconds": 3.0, "rows": rows}


def row_of(steps, **row):
    for found in filter(None, steps):
        row |= found[1]
    return row


def test_page_is_current(bench):
    page = bench("performance_page")
    figures = json.loads(page.RESULTS.read_text())
    text = (ROOT / "docs" / "performance.md").read_text()
    for key, part in page.sections(figures).items():
        assert f"<!-- {key} -->\n{part.rstrip()}\n<!-- end of {key} -->" in text, "run benchmarks/performance_page.py"
    chart = bench("performance_chart")
    assert chart.digest(figures) in chart.CHART.read_text(), "run benchmarks/performance_page.py"


def test_figures_become_a_page(bench, tmp_path):
    """Every kind of figure, measured at tiny sizes on the CPU, stands in its place."""
    jobs, page, losses = bench("performance_jobs"), bench("performance_page"), bench("performance").INDEX
    half, precise = {"size": 24, "dtype": "bfloat16"}, bench("performance_accuracy").accuracy
    rows = [
        row_of(jobs.floor([(24, torch.bfloat16), (180, torch.float32)], "cpu")),
        row_of(jobs.one_loss(losses[METHOD], [(24, torch.bfloat16, True)], "cpu"), loss=METHOD, **half),
        row_of(precise([losses[METHOD]], 64, "cpu"), loss=METHOD, size=64),
        row_of(precise([losses["triplet, hardest"]], 64, "cpu"), loss="triplet, hardest", size=64),
        row_of(jobs.training_step("convnet", 8, 28, "cpu")),
        row_of(jobs.first_calls((8, 12), torch.float32, "cpu")),
        {"host": {"ms": 0.15, "row_ms": 0.125, "free_ms": 0.23, "core_ms": [0.22, 0.13, 0.17], "quickest": [1]}},
    ]
    figures = {"large": phase(rows)}
    found = page.sections(figures)
    ours, peer = rows[1]["ours"], rows[1]["peer"]
    floor = rows[0]["floor"][0]["ms"]
    cells = [
        page.number(ours["ms"]),
        page.number(ours["row_ms"]),
        page.times(ours["ms"], floor),
        page.number(peer["ms"]),
    ]
    assert f"| 24 | {' | '.join(cells)} |" in found["performance sizes"]
    errors = [row["accuracy"]["bfloat16"]["error"] for row in rows[2:4]]
    assert all(1e-4 < error < 5e-3 for error in errors)
    assert all(f"{error:.1e}" in found["performance accuracy"] for error in errors)
    assert "| error of the gradient, float32 vectors | 1e-4 |" in found["performance targets"]
    least = (
        "The least that autograd takes here: 0.15 and 0.125 ms; waited for on one core after another: 0.13 to 0.22 ms"
    )
    assert least in found["performance targets"]
    assert "| 2 of 20, from 8 to 12 |" in found["performance first calls"]
    rows[5]["cut_short"] = "was stopped after 60 s"
    assert "from 8 to 12; the next was stopped after 60 s |" in page.sections(figures)["performance first calls"]
    chart = bench("performance_chart")
    chart.chart(figures, tmp_path / "chart.svg")
    assert chart.digest(figures) in (tmp_path / "chart.svg").read_text()


@pytest.mark.parametrize("fails", [False, True])
def test_a_peer_that_was_measured_holds_nothing(bench, fails):
    """Its memory would be missing for the next one, which would then seem to run out of it."""
    jobs, taken = bench("performance_jobs"), []

    class Peer:
        def peer_bytes(self, size):
            return 0.0

        def peer_step(self, size, device, dtype):
            batch = torch.zeros(size)

            def step():
                table = batch[:, None] + batch
                taken.append(weakref.ref(table))
                if fails and size > 16:
                    raise RuntimeError("not enough")

            taken.append(weakref.ref(batch))
            return step

    steps = jobs.beside(Peer(), 64, torch.float32, "cpu")
    assert next(steps) == {"left_out": "not done in time"}
    assert next(steps)["left_out"] == ("fails" if fails else None)
    assert not [x for x in taken if x() is not None]


def test_jobs_take_turns_and_keep_what_they_found(bench):
    turns = bench("performance_turns")
    troubled = [
        turns.Job(function, (), ({}, {"job": function.__name__}), turn_s=1) for function in (stuck, broken, dying)
    ]
    well = [turns.Job(fine, (name,), ({}, {})) for name in "ab"]
    rows = [dict(row) for row in turns.in_turn([*well, *troubled], ready_s=60)]
    assert rows == [
        *({"first": "a"}, {"first": "b"}, {"found": 1}, {"second": "a"}, {"second": "b"}),
        *({"found": 1, "cut_short": "was stopped after 1 s"}, {"job": "stuck", "failed": "was stopped after 1 s"}),
        *({"failed": "ValueError: no such thing"}, {"job": "broken", "failed": "ValueError: no such thing"}),
        *({"failed": "its process ended with code 3"}, {"job": "dying", "failed": "its process ended with code 3"}),
    ]


def test_jobs_in_one_process_take_the_same_turns(bench):
    turns = bench("performance_turns")
    job = turns.one_process([turns.Job(fine, (name,), ({}, {"of": name})) for name in "ab"] + [turns.Job(clock, ())])
    first_a, first_b, clocked, *second = (dict(row) for row in turns.in_turn([job], ready_s=60))
    assert [first_a, first_b] == [{"first": "a"}, {"first": "b"}]
    assert clocked["process"] != os.getpid()
    assert second == [{"of": "a", "second": "a"}, {"of": "b", "second": "b"}]


class TestPhases:
    def test_plans(self, bench):
        """Every loss is measured at N = 180, alone as long as nothing is compiled; a ratio's floor with its loss."""
        performance, jobs = bench("performance"), bench("performance_jobs")
        found = {}
        for phase in performance.PHASES:
            plan = performance.plan(phase, "cpu")
            found[phase] = [
                (row["loss"], row["size"], row["dtype"]) for job in plan for row in job.rows if "dtype" in row
            ]
            (floors,) = (job.arguments[0] for job in plan if job.function is jobs.floor)
            assert {(size, dtype) for _, size, dtype in found[phase]} <= {(n, jobs.name(kind)) for n, kind in floors}
            compiled = [size**2 >= COMPILED_ENTRIES for _, size, _ in found[phase]]
            assert any(compiled) == all(compiled) == (phase == "large")
        assert {loss for loss, *look in found["small"] if look == [180, "float32"]} == set(performance.INDEX)
        everything = found["small"] + found["large"]
        assert len(set(everything)) == len(everything)

    @pytest.fixture
    def run(self, bench, monkeypatch, tmp_path):
        """Phases of two jobs each that tell the time; what is saved afterwards."""
        performance, common, turns = bench("performance"), bench("common"), bench("performance_turns")
        monkeypatch.setattr(common, "ROOT", tmp_path)
        written = []
        monkeypatch.setattr(performance.performance_page, "write", written.append)
        rows = {"small": {"size": 180, "dtype": "float32"}, "large": {"size": 4096, "dtype": "bfloat16"}}

        def plan(phase, device):
            return [turns.Job(clock, (), ({"loss": name, **rows[phase]},)) for name in "ab"]

        monkeypatch.setattr(performance, "plan", plan)

        def run(*arguments):
            performance.run(*arguments, device="cpu")
            return common.load("losses_cpu"), written

        return run

    def test_small_batches_are_alone(self, run):
        found, written = run()
        small, large = (found[phase]["rows"] for phase in ("small", "large"))
        assert small[0]["process"] == small[1]["process"]
        assert large[0]["process"] != large[1]["process"]
        assert max(row["measured"] for row in small) < min(row["began"] for row in large)
        assert written == [found]
        assert found["small"]["began"] == found["large"]["began"]

    @pytest.mark.parametrize(("again", "other"), [("small", "large"), ("large", "small")])
    def test_one_is_measured_again_and_the_other_kept(self, run, again, other):
        before, _ = run()
        after, written = run([again])
        assert after[other] == before[other]
        times = [[(row["loss"], row["measured"]) for row in found[again]["rows"]] for found in (before, after)]
        assert [name for name, _ in times[1]] == ["a", "b"]
        assert not set(times[0]) & set(times[1])
        assert written[-1] == after

    def test_a_sample_leaves_everything_as_it_was(self, run):
        before, _ = run(["small"])
        after, written = run(["small"], 2)
        assert after == before
        assert len(written) == 1


class TestPageOfTwoPhases:
    def figures(self, **small):
        """A loss at 180 and at 4,096, each with its floor and its host, the larger one measured first."""

        def rows(n, dtype, ms):
            row = {"loss": METHOD, "size": n, "dtype": dtype, "ours": {"ms": ms, "row_ms": ms, "mib": 1, "first_s": 1}}
            floor = {"size": n, "dtype": dtype, "ms": 0.1, "tflops": 1}
            return [row, {"floor": [floor]}, {"host": {"ms": ms / 2, "row_ms": ms / 4, "free_ms": ms}}]

        large = phase(rows(4096, "bfloat16", 0.7))
        return {"large": large, "small": phase(rows(180, "float32", 0.3), **small)}

    def test_rows_of_both(self, bench):
        page = bench("performance_page").sections(self.figures())
        assert f"| {METHOD} | 0.3 | 0.3 | 3× |" in page["performance losses"]
        assert f"| {METHOD} | 0.7 | 0.7 | 7× |" in page["performance losses"]
        least = "(The least that autograd takes here: 0.15 and 0.075 ms; free to move between cores: 0.3 ms)"
        assert least in page["performance targets"]

    def test_heading(self, bench):
        def heading(**small):
            return bench("performance_page").sections(self.figures(**small))["performance machine"]

        one_run = "One machine; torch 2; d = 512. The last figure came after 3 s."
        assert heading() == one_run
        later = {"began": "11:00", "ended": "11:01"}
        ends = "which ended at 11:01; that of all others ended at 10:01."
        assert heading(**later) == f"{one_run} Small batches are from another run, {ends}"
        other = "(One machine; torch 3)"
        assert heading(**later, versions="3") == f"{one_run} Small batches are from another run {other}, {ends}"


def test_jobs_that_are_late_are_named(bench):
    turns = bench("performance_turns")
    (row,) = turns.in_turn([turns.Job(slow_start, ())], ready_s=0.5)
    assert row == {"failed": "was not ready after 0.5 s"}
    rows = list(turns.in_turn([turns.Job(fine, ("a",), ({}, {}))], ready_s=60, until=0))
    assert rows == [{"failed": "was not reached: the time for all of them was up"}] * 2


def test_short_steps_are_timed_often(bench):
    jobs, calls = bench("performance_jobs"), []
    assert jobs.median_ms(lambda: calls.append(1), "cpu") < 1
    assert len(calls) == jobs.MOST
    calls.clear()
    found = jobs.both_ms(lambda: calls.append(1), "cpu")
    assert found.keys() == {"ms", "row_ms"}
    assert len(calls) == jobs.MOST + jobs.ROWS * jobs.IN_A_ROW


def test_a_figure_of_several_rounds_is_their_median(bench, monkeypatch):
    jobs, times = bench("performance_jobs"), iter([3.0, 1.0, 2.0])
    monkeypatch.setattr(jobs, "both_ms", lambda run, device: {"ms": next(times)})
    monkeypatch.setattr(jobs.Case, "peer", lambda self, classes: ())
    said = list(jobs.one_loss(0, [(8, torch.float32, False)], "cpu", 3))
    assert [found is None for found in said] == [True, False] * 3
    assert [found[1]["ours"]["ms"] for found in said[1::2]] == [3.0, 2.0, 2.0]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processes cannot be held to cores here")
class TestCores:
    def test_all_threads_of_a_process_are_held_in_its_turn(self, bench):
        turns, cores = bench("performance_turns"), [min(os.sched_getaffinity(0))]
        (row,) = turns.in_turn([turns.Job(where, ())], ready_s=60, cores=cores)
        assert len(row["cores"]) > 1
        assert all(held == cores for held in row["cores"])

    def test_a_process_that_has_ended_is_left_alone(self, bench):
        bench("performance_cores").hold(2**22 + 1, [0])  # beyond the largest that Linux gives

    def test_the_quickest_are_found_and_used(self, bench, monkeypatch):
        cores, before = bench("performance_cores"), os.sched_getaffinity(0)
        taken = iter([3.0, 1.0, 2.0] + [4.0] * len(before))
        try:
            found = cores.measured(lambda: next(taken))
            assert list(found) == sorted(before)
            assert os.sched_getaffinity(0) == set(cores.quickest(found))
            assert found[cores.quickest(found)[0]] == min(found.values())
        finally:
            cores.hold(os.getpid(), before)

    def test_the_benchmark_says_which(self, bench):
        before = os.sched_getaffinity(0)
        try:
            *_, (_, found) = bench("performance_jobs").host("cpu", 2)
            row = found["host"]
        finally:
            bench("performance_cores").hold(os.getpid(), before)
        assert len(row["core_ms"]) == len(before)
        assert set(row["quickest"]) <= before
        assert row["row_ms"] > 0


def test_without_cores_nothing_is_held(bench, monkeypatch):
    monkeypatch.delattr(os, "sched_setaffinity", raising=False)
    cores, jobs = bench("performance_cores"), bench("performance_jobs")
    assert cores.available() == []
    cores.hold(os.getpid(), [])
    assert row_of(jobs.host("cpu"))["host"].keys() == {"ms", "row_ms", "free_ms"}
