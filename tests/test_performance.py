"""docs/performance.md is generated from the stored figures, and the GPU benchmark measures what the page says."""

import json
import os
import weakref
from importlib import import_module
from pathlib import Path

import pytest
import torch

from scheduler_jobs import clock, exits, hangs, raises, slow_start, thread_cores, works
from tuplet.losses import LOSSES
from tuplet.rows.paths import COMPILED_ENTRIES

ROOT = Path(__file__).parents[1]
METHOD = "multi-similarity (RAW, valid triplets)"


@pytest.fixture
def bench(monkeypatch):
    """Import modules of the benchmarks by their bare names."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return import_module


def phase(rows, began="10:00", ended="10:01", versions="2"):
    """Return the stored figures of a phase."""
    made = {"machine": "machine", "versions": {"torch": versions}}
    return made | {"began": began, "ended": ended, "seconds": 3.0, "rows": rows}


def row_of(steps, **row):
    for found in filter(None, steps):
        row |= found[1]
    return row


def test_every_loss_is_measured(bench):
    peers = bench("loss_peers")
    measured = {type(part) for case in (*peers.CASES, *peers.SYSTEMS) for part in case.ours(2).modules()}
    assert set(LOSSES.values()) <= measured


def test_every_loss_takes_the_first_batch_of_the_cpu_benchmark(bench):
    peers = bench("loss_peers")
    for case in (*peers.CASES, *peers.SYSTEMS):
        case.our_step(peers.WARM_UP, "cpu")()


def test_page_is_current(bench):
    page = bench("performance_page")
    figures = json.loads(page.RESULTS.read_text())
    text = (ROOT / "docs" / "performance.md").read_text()
    for key, part in page.sections(figures).items():
        assert f"<!-- {key} -->\n{part.rstrip()}\n<!-- end of {key} -->" in text, "run benchmarks/performance_page.py"
    chart = bench("performance_chart")
    assert chart.digest(figures) in chart.CHART.read_text(), "run benchmarks/performance_page.py"


def test_figures_become_a_page(bench, tmp_path):
    """Measure every kind of figure at tiny sizes on the CPU and find it on the page."""
    jobs, page, losses = bench("gpu_measurements"), bench("performance_page"), bench("gpu_benchmark").INDEX
    half, precise = {"size": 24, "dtype": "bfloat16"}, bench("gpu_gradient_error").gradient_errors
    rows = [
        row_of(jobs.products([(24, torch.bfloat16), (180, torch.float32)], "cpu")),
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
    minimal = (
        "A minimal autograd step takes 0.15 ms, 0.125 queued; 0.13 to 0.22 ms over all cores; 0.23 ms if it is not"
    )
    assert minimal in found["performance targets"]
    assert "| 2 of 20, from 8 to 12 |" in found["performance first calls"]
    rows[5]["cut_short"] = "was stopped after 60 s"
    assert "from 8 to 12; the next was stopped after 60 s |" in page.sections(figures)["performance first calls"]
    chart = bench("performance_chart")
    chart.chart(figures, tmp_path / "chart.svg")
    assert chart.digest(figures) in (tmp_path / "chart.svg").read_text()


@pytest.mark.parametrize("fails", [False, True])
def test_a_measured_peer_keeps_no_memory(bench, fails):
    """Memory that it kept would be missing for the next peer."""
    jobs, taken = bench("gpu_measurements"), []

    class Peer:
        def peer_step(self, size, device, dtype):
            batch = torch.zeros(size)

            def step():
                table = batch[:, None] + batch
                taken.append(weakref.ref(table))
                if fails and size > 16:
                    raise RuntimeError("not enough")

            taken.append(weakref.ref(batch))
            return step

    steps = jobs.measure_peer(Peer(), 64, torch.float32, "cpu")
    assert next(steps) == {"left_out": "not done in time"}
    assert next(steps)["left_out"] == ("fails" if fails else None)
    assert not [x for x in taken if x() is not None]


def test_jobs_alternate_and_keep_what_they_found(bench):
    scheduler = bench("gpu_scheduler")
    failing = [
        scheduler.Job(function, (), ({}, {"job": function.__name__}), step_seconds=seconds)
        for function, seconds in ((hangs, 3), (raises, 60), (exits, 60))
    ]
    working = [scheduler.Job(works, (name,), ({}, {})) for name in "ab"]
    rows = [dict(row) for row in scheduler.run_in_turns([*working, *failing], ready_seconds=60)]
    assert rows == [
        *({"first": "a"}, {"first": "b"}, {"found": 1}, {"second": "a"}, {"second": "b"}),
        *({"found": 1, "cut_short": "was stopped after 3 s"}, {"job": "hangs", "failed": "was stopped after 3 s"}),
        *({"failed": "ValueError: no such thing"}, {"job": "raises", "failed": "ValueError: no such thing"}),
        *({"failed": "its process ended with code 3"}, {"job": "exits", "failed": "its process ended with code 3"}),
    ]


def test_jobs_in_one_process_alternate_likewise(bench):
    scheduler = bench("gpu_scheduler")
    several = [scheduler.Job(works, (name,), ({}, {"of": name})) for name in "ab"]
    job = scheduler.one_process([*several, scheduler.Job(clock, ())])
    first_a, first_b, clocked, *second = (dict(row) for row in scheduler.run_in_turns([job], ready_seconds=60))
    assert [first_a, first_b] == [{"first": "a"}, {"first": "b"}]
    assert clocked["process"] != os.getpid()
    assert second == [{"of": "a", "second": "a"}, {"of": "b", "second": "b"}]


class TestPhases:
    def test_plans(self, bench):
        """Small batches are never compiled and large ones always; every size has its matrix products."""
        benchmark, jobs = bench("gpu_benchmark"), bench("gpu_measurements")
        found = {}
        for phase in benchmark.PHASES:
            plan = benchmark.plan(phase, "cpu")
            found[phase] = [
                (row["loss"], row["size"], row["dtype"]) for job in plan for row in job.rows if "dtype" in row
            ]
            (sizes,) = (job.arguments[0] for job in plan if job.function is jobs.products)
            assert {(size, dtype) for _, size, dtype in found[phase]} <= {
                (n, jobs.dtype_name(kind)) for n, kind in sizes
            }
            compiled = [size**2 >= COMPILED_ENTRIES for _, size, _ in found[phase]]
            assert any(compiled) == all(compiled) == (phase == "large")
        assert {loss for loss, *setting in found["small"] if setting == [180, "float32"]} == set(benchmark.INDEX)
        everything = found["small"] + found["large"]
        assert len(set(everything)) == len(everything)

    @pytest.fixture
    def run(self, bench, monkeypatch, tmp_path):
        """Run phases of two jobs each that report the time; return the stored figures."""
        benchmark, common, scheduler = bench("gpu_benchmark"), bench("common"), bench("gpu_scheduler")
        monkeypatch.setattr(common, "ROOT", tmp_path)
        written = []
        monkeypatch.setattr(benchmark.performance_page, "write", written.append)
        rows = {"small": {"size": 180, "dtype": "float32"}, "large": {"size": 4096, "dtype": "bfloat16"}}

        def plan(phase, device):
            return [scheduler.Job(clock, (), ({"loss": name, **rows[phase]},)) for name in "ab"]

        monkeypatch.setattr(benchmark, "plan", plan)

        def run(*arguments):
            benchmark.run(*arguments, device="cpu")
            return common.load("losses_cpu"), written

        return run

    def test_small_batches_share_one_process(self, run):
        found, written = run()
        small, large = (found[phase]["rows"] for phase in ("small", "large"))
        assert small[0]["process"] == small[1]["process"]
        assert large[0]["process"] != large[1]["process"]
        assert max(row["measured"] for row in small) < min(row["began"] for row in large)
        assert written == [found]
        assert found["small"]["began"] == found["large"]["began"]

    @pytest.mark.parametrize(("again", "other"), [("small", "large"), ("large", "small")])
    def test_one_phase_is_measured_again_and_the_other_kept(self, run, again, other):
        before, _ = run()
        after, written = run([again])
        assert after[other] == before[other]
        times = [[(row["loss"], row["measured"]) for row in found[again]["rows"]] for found in (before, after)]
        assert [name for name, _ in times[1]] == ["a", "b"]
        assert not set(times[0]) & set(times[1])
        assert written[-1] == after

    def test_a_sample_writes_nothing(self, run):
        before, _ = run(["small"])
        after, written = run(["small"], 2)
        assert after == before
        assert len(written) == 1


class TestPageOfTwoPhases:
    def figures(self, **small):
        """Return figures of a loss at 180 and at 4,096, with products and minimal steps, the larger one first."""

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
        minimal = "(A minimal autograd step takes 0.15 ms, 0.075 queued; 0.3 ms if it is not pinned to a core)"
        assert minimal in page["performance targets"]

    def test_a_run_beside_the_stored_one(self, bench):
        stored, run = self.figures(), self.figures()
        run["small"]["rows"][0]["ours"] |= {"ms": 0.6, "row_ms": 0.45}
        del run["large"]
        lines = bench("performance_page").beside_stored(run, stored).splitlines()
        assert lines[2:] == [f"| {METHOD} | 180 | float32 | 0.6 | 0.3 | 0.45 | 0.3 | 2× |"]

    def test_heading(self, bench):
        def heading(**small):
            return bench("performance_page").sections(self.figures(**small))["performance machine"]

        one_run = "One machine; torch 2; d = 512. The run took 3 s."
        assert heading() == one_run
        later = {"began": "11:00", "ended": "11:01"}
        ends = "which ended at 11:01; the run of all others ended at 10:01."
        assert heading(**later) == f"{one_run} Small batches (N ≤ 512) are from another run, {ends}"
        other = "(One machine; torch 3)"
        assert (
            heading(**later, versions="3") == f"{one_run} Small batches (N ≤ 512) are from another run {other}, {ends}"
        )


def test_late_jobs_have_a_reason(bench):
    scheduler = bench("gpu_scheduler")
    (row,) = scheduler.run_in_turns([scheduler.Job(slow_start, ())], ready_seconds=0.5)
    assert row == {"failed": "was not ready after 0.5 s"}
    rows = list(scheduler.run_in_turns([scheduler.Job(works, ("a",), ({}, {}))], ready_seconds=60, until=0))
    assert rows == [{"failed": "was not measured: the time limit was reached"}] * 2


def test_short_steps_are_repeated_often(bench, monkeypatch):
    timing, calls = bench("gpu_timing"), []
    monkeypatch.setattr(timing, "seconds", lambda run, device: run() or 1e-5)  # as nothing takes longer there
    assert timing.median_ms(lambda: calls.append(1), "cpu") == pytest.approx(0.01)
    assert len(calls) == timing.MOST
    calls.clear()
    found = timing.both_ms(lambda: calls.append(1), "cpu")
    assert found.keys() == {"ms", "row_ms"}
    assert len(calls) == timing.MOST + timing.QUEUES * timing.QUEUED


def test_a_figure_of_several_rounds_is_their_median(bench, monkeypatch):
    jobs, times = bench("gpu_measurements"), iter([3.0, 1.0, 2.0])
    monkeypatch.setattr(jobs, "both_ms", lambda run, device: {"ms": next(times)})
    monkeypatch.setattr(jobs.Case, "peer", lambda self, classes: ())
    messages = list(jobs.one_loss(0, [(8, torch.float32, False)], "cpu", 3))
    assert [message is None for message in messages] == [True, False] * 3
    assert [message[1]["ours"]["ms"] for message in messages[1::2]] == [3.0, 2.0, 2.0]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="this system cannot pin processes to cores")
class TestCores:
    def test_all_threads_of_a_process_are_pinned_during_its_steps(self, bench):
        scheduler, cores = bench("gpu_scheduler"), [min(os.sched_getaffinity(0))]
        (row,) = scheduler.run_in_turns([scheduler.Job(thread_cores, ())], ready_seconds=60, cores=cores)
        assert len(row["cores"]) > 1
        assert all(pinned == cores for pinned in row["cores"])

    def test_a_process_that_has_ended_is_ignored(self, bench):
        bench("cpu_affinity").pin(2**22 + 1, [0])  # beyond the largest process id of Linux

    def test_the_fastest_core_is_found_and_used(self, bench, monkeypatch):
        cores, before = bench("cpu_affinity"), os.sched_getaffinity(0)
        taken = iter([3.0, 1.0, 2.0] + [4.0] * len(before))
        try:
            found = cores.measure_cores(lambda: next(taken))
            assert list(found) == sorted(before)
            assert os.sched_getaffinity(0) == set(cores.fastest(found))
            assert found[cores.fastest(found)[0]] == min(found.values())
        finally:
            cores.pin(os.getpid(), before)

    def test_the_benchmark_reports_the_core(self, bench):
        before = os.sched_getaffinity(0)
        try:
            *_, (_, found) = bench("gpu_measurements").minimal_steps("cpu", 2)
            row = found["host"]
        finally:
            bench("cpu_affinity").pin(os.getpid(), before)
        assert len(row["core_ms"]) == len(before)
        assert set(row["quickest"]) <= before
        assert row["row_ms"] > 0
