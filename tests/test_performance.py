"""docs/performance.md is what its benchmark made of its figures, and the benchmark measures what it says."""

import json
import os
from importlib import import_module
from pathlib import Path

import pytest
import torch

from troubled_jobs import broken, dying, fine, slow_start, stuck, where

ROOT = Path(__file__).parents[1]
METHOD = "multi-similarity (RAW, valid triplets)"


@pytest.fixture
def bench(monkeypatch):
    """The benchmark's modules, which import each other by their bare names."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    return import_module


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
    assert page.digest(figures) in page.CHART.read_text(), "run benchmarks/performance_page.py"


def test_figures_become_a_page(bench, tmp_path):
    """Every kind of figure, measured at tiny sizes on the CPU, stands in its place."""
    jobs, page, losses = bench("performance_jobs"), bench("performance_page"), bench("performance").INDEX
    half = {"size": 24, "dtype": "bfloat16"}
    rows = [
        row_of(jobs.floor([(24, torch.bfloat16), (180, torch.float32)], "cpu")),
        row_of(jobs.one_loss(losses[METHOD], [(24, torch.bfloat16, True)], "cpu"), loss=METHOD, **half),
        row_of(jobs.accuracy([losses[METHOD]], 64, "cpu"), loss=METHOD, size=64),
        row_of(jobs.accuracy([losses["triplet, hardest"]], 64, "cpu"), loss="triplet, hardest", size=64),
        row_of(jobs.training_step("convnet", 8, 28, "cpu")),
        row_of(jobs.first_calls((8, 12), torch.float32, "cpu")),
        {"host": {"ms": 0.15, "row_ms": 0.125, "core_ms": [0.22, 0.13, 0.17], "quickest": [1, 2]}},
    ]
    figures = {"machine": "a machine", "versions": {"torch": "2"}, "rows": rows, "seconds": 3.0}
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
    page.chart(figures, tmp_path / "chart.svg")
    assert page.digest(figures) in (tmp_path / "chart.svg").read_text()


def test_jobs_take_turns_and_keep_what_they_found(bench):
    turns = bench("performance_turns")
    troubled = [turns.Job(function, (), ({}, {"job": function.__name__})) for function in (stuck, broken, dying)]
    well = [turns.Job(fine, (name,), ({}, {})) for name in "ab"]
    rows = [dict(row) for row in turns.in_turn([*well, *troubled], ready_s=60, turn_s=1)]
    assert rows == [
        *({"first": "a"}, {"first": "b"}, {"found": 1}, {"second": "a"}, {"second": "b"}),
        {"job": "stuck", "failed": "was stopped after 1 s"},
        *({"failed": "ValueError: no such thing"}, {"job": "broken", "failed": "ValueError: no such thing"}),
        *({"failed": "its process ended with code 3"}, {"job": "dying", "failed": "its process ended with code 3"}),
    ]


def test_jobs_that_are_late_are_named(bench):
    turns = bench("performance_turns")
    (row,) = turns.in_turn([turns.Job(slow_start, ())], ready_s=0.5, turn_s=1)
    assert row == {"failed": "was not ready after 0.5 s"}
    rows = list(turns.in_turn([turns.Job(fine, ("a",), ({}, {}))], ready_s=60, turn_s=1, until=0))
    assert rows == [{"failed": "was not reached: the time for all of them was up"}] * 2


def test_short_steps_are_timed_often(bench):
    jobs, calls = bench("performance_jobs"), []
    assert jobs.median_ms(lambda: calls.append(1), "cpu") < 1
    assert len(calls) == jobs.MOST
    calls.clear()
    found = jobs.both_ms(lambda: calls.append(1), "cpu")
    assert found.keys() == {"ms", "row_ms"}
    assert len(calls) == jobs.MOST + jobs.ROWS * jobs.IN_A_ROW


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="processes cannot be held to cores here")
class TestCores:
    def test_all_threads_of_a_process_are_held_in_its_turn(self, bench):
        turns, cores = bench("performance_turns"), [min(os.sched_getaffinity(0))]
        (row,) = turns.in_turn([turns.Job(where, ())], ready_s=60, turn_s=5, cores=cores)
        assert len(row["cores"]) > 1
        assert all(held == cores for held in row["cores"])

    def test_a_process_that_has_ended_is_left_alone(self, bench):
        bench("performance_cores").hold(2**22 + 1, [0])  # beyond the largest that Linux gives

    def test_the_quickest_are_found_and_used(self, bench, monkeypatch):
        cores, before = bench("performance_cores"), os.sched_getaffinity(0)
        taken = iter([3.0, 1.0, 2.0] + [4.0] * len(before))
        monkeypatch.setattr(cores, "QUICK", 1)
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
            row = row_of(bench("performance_jobs").host("cpu"))["host"]
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
    assert row_of(jobs.host("cpu"))["host"].keys() == {"ms", "row_ms"}
