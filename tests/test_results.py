"""docs/results.md is what its command makes of the runs, and the runs are what the protocol says."""

import doctest
import json
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest

import tuplet
from commands import typed
from training_tools import pictures
from tuplet.training.objective import make_loss
from tuplet.training.settings import Settings

ROOT = Path(__file__).parents[1]
CHOICE = {
    "shared": {"rate": 1e-3, "pooling": "mean", "frozen_to": None, "augment.area": [0.25, 1.0]},
    "own": {"free": {"rate": 5e-4}},
}


@pytest.fixture
def bench(monkeypatch):
    """The benchmark's modules, which import each other by their bare names; `glyphs` is tiny."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    methods = import_module("methods")
    small = {"model": "convnet", "model_options": {"size": 12, "channels": 3}, "dim": 4, "batch_size": 120}
    small |= {"resize": 12, "stored_size": 12}
    monkeypatch.setitem(methods.BENCHES, "glyphs", methods.Bench("tiny", "glyphs", small, short=2, levels="H"))
    monkeypatch.setattr(import_module("runs").Runner, "_data", lambda self, dataset: pictures(classes=184, each=8))
    return import_module


def test_page_is_current(bench):
    page = bench("results_page")
    assert page.PAGE.read_text() == page.render(page.read()), "run make results"


def test_examples_of_the_benchmarks_run(bench):
    for name in ("choosing", "results_page"):
        assert doctest.testmod(bench(name)).attempted
        assert not doctest.testmod(bench(name)).failed


class Chosen:
    """Stands for a runner whose search is done: it knows what was chosen and runs nothing."""

    def __init__(self, folder):
        self.out = folder
        for dataset in ("cub200", "cars196", "glyphs"):
            best = {"shared": {"method": "nra", **CHOICE["shared"], "steps": 4}}
            (folder / f"chosen_{dataset}.json").write_text(json.dumps(CHOICE))
            (folder / f"best_{dataset}.json").write_text(json.dumps(best))


def jobs(protocols, dataset, folder):
    return [job for name in "123456" for job in protocols.stage(name, dataset, Chosen(folder))]


@pytest.mark.parametrize("dataset", ["cub200", "cars196", "glyphs"])
def test_every_run_has_a_file_of_its_own_and_options_that_exist(bench, dataset, tmp_path):
    protocols = bench("protocols")
    planned = jobs(protocols, dataset, tmp_path)
    assert len({job.name for job in planned}) == len(planned)
    for job in planned:
        settings = Settings(**job.options)
        if job.kind != "curve":
            assert settings.test_on == "test"
            assert settings.evaluate_every == settings.steps  # measured once, at the end
        make_loss(settings.loss, settings.loss_options, classes=5, dim=4)
    trial = Settings(**protocols.trial(dataset, "raw_vthm", CHOICE["shared"]).options)
    assert trial.test_on == "validation"
    assert trial.validation > 0


def test_the_command_of_a_run_says_what_was_run(bench, monkeypatch, tmp_path):
    protocols = bench("protocols")
    said = []

    def note(data, out, recipe, resume, **settings):
        said.append(settings)
        raise ValueError("enough")

    monkeypatch.setattr(tuplet, "train", note)
    monkeypatch.setattr("tuplet.data.open", lambda path: path)
    planned = [*jobs(protocols, "cub200", tmp_path)[::5], protocols.trial("cub200", "nra", CHOICE["shared"])]
    for job in planned:
        typed(*shlex.split(job.command)[1:], cwd=tmp_path)
    assert said == [bench("runs").as_json(job.options) for job in planned]


def test_a_search_goes_on_where_it_stopped_and_is_not_repeated(bench, tmp_path, monkeypatch):
    protocols, page = bench("protocols"), bench("results_page")
    short = bench("runs").Runner(tmp_path, limit=6.0, device="cpu")
    monkeypatch.setattr(short, "expected", lambda job: 0.0 if len(list(tmp_path.glob("search_*"))) < 3 else 100.0)
    assert not protocols.search("glyphs", short)["complete"]
    assert len(list(tmp_path.glob("search_*"))) == 3

    runner = bench("runs").Runner(tmp_path, limit=float("inf"), device="cpu")
    ran = []
    monkeypatch.setattr(runner, "_run", lambda job, data, run=runner._run: ran.append(job.name) or run(job, data))
    chosen = protocols.search("glyphs", runner)
    assert chosen["complete"]
    assert set(chosen["own"]) == set(bench("choosing").FAMILIES)
    assert len(ran) == len(set(ran)) == len(chosen["trials"]) - 3

    runner.measure([*protocols.stage("1", "glyphs", runner), *protocols.stage("4", "glyphs", runner)[-6:]])
    before = len(ran)
    runner.measure(protocols.stage("1", "glyphs", runner))
    assert len(ran) == before
    monkeypatch.setattr(page, "MEASURED", ("glyphs",))
    text = page.render(page.read(tmp_path))
    assert "| RAW+VTHM | " in text
    assert "as far as the search has come" not in text
    assert "60 × 2" in text
    assert "tuplet train glyphs --out runs/row_glyphs_nra_0" in text


def test_a_run_that_diverges_is_a_result(bench, tmp_path, monkeypatch):
    protocols, page = bench("protocols"), bench("results_page")
    runner = bench("runs").Runner(tmp_path, limit=float("inf"), device="cpu")
    job = protocols.row("glyphs", "npair", 0, {"shared": {**CHOICE["shared"], "rate": 1e30}, "own": {}})
    assert "error" in runner.attempt(job)
    monkeypatch.setattr(page, "MEASURED", ("glyphs",))
    assert "| N-pair-mc † | diverged |" in page.render(page.read(tmp_path))


def test_other_options_are_another_run(bench, tmp_path):
    protocols = bench("protocols")
    runner = bench("runs").Runner(tmp_path, limit=float("inf"), device="cpu")
    assert runner.reached(protocols.row("glyphs", "npair", 0, CHOICE))
    assert runner.measured(protocols.row("glyphs", "npair", 0, CHOICE)) is not None
    other = {**CHOICE, "own": {"free": {"rate": 1e-3}}}
    assert runner.measured(protocols.row("glyphs", "npair", 0, other)) is None


def test_processes_share_the_jobs_of_a_folder(bench, tmp_path):
    protocols, runs = bench("protocols"), bench("runs")
    script = f"""
import sys, time; from pathlib import Path
sys.path.insert(0, {str(Path(protocols.__file__).parent)!r})
import protocols, runs
runner = runs.Runner(Path({str(tmp_path)!r}), float("inf"), "cpu")
runner._data = lambda dataset: None
runner._run = lambda job, data: time.sleep(0.2) or {{"options": job.options, "kind": "", "error": "", "method": ""}}
runner.measure(protocols.row("glyphs", "npair", seed, {CHOICE!r}) for seed in range(4))
"""
    others = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(2)]
    told = [other.communicate()[0] for other in others]
    assert [other.returncode for other in others] == [0, 0]
    assert sum(text.count("\n") for text in told) == 4
    assert {path.name for path in tmp_path.iterdir()} == {f"row_glyphs_npair_{seed}.json" for seed in range(4)}
    runner = runs.Runner(tmp_path, float("inf"), "cpu")
    lock = tmp_path / ".row_glyphs_npair_4.lock"
    with runs._alone(lock):
        assert not runner.reached(protocols.row("glyphs", "npair", 4, CHOICE))
    with pytest.raises(KeyboardInterrupt), runs._alone(lock):
        raise KeyboardInterrupt
    assert not lock.exists()


def test_figures_are_drawn_from_the_runs(bench, tmp_path, monkeypatch):
    figures = bench("figures")
    for name in ("RESULTS", "IMAGES"):
        monkeypatch.setattr(figures, name, tmp_path)
    monkeypatch.setattr(figures, "_SHARED", {**figures._SHARED, "steps": 2, "batch_size": 24, "per_class": 3})
    monkeypatch.setattr(figures.data, "open", lambda source: pictures(classes=20, each=8, size=28))
    figures.train_maps(tmp_path)
    results = bench("results_page").read(tmp_path)
    assert len(results) == 4
    assert len(results["map_nra"]["points"]) == len(results["map_nra"]["labels"]) == 80
    curve = {"curve": [[10, 1.0], [20, 0.5]], "evaluations": [[10, 0.3], [20, 0.4]]}
    results |= {f"curve_cub200_{method}": {**curve, "method": method} for method in ("npair", "npair_ovo")}
    results |= {f"row_cub200_{m}_0": {"nearest": [[0, 1, 9, 3, 4, 5]] * 8} for m in ("npair", "npair_angular")}
    monkeypatch.setenv("TUPLET_DATA", str(tmp_path))
    for draw in (figures.draw_maps, figures.draw_curves, figures.draw_nearest):
        draw(results)
    drawn = {path.name for path in tmp_path.glob("results_*")}
    assert drawn == {"results_maps.png", "results_curves_cub200.png", "results_nearest_cub200.jpg"}
