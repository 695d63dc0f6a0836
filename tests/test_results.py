"""The pages of results are generated from the stored runs, and the stored runs follow the protocol."""

import doctest
import json
import math
import random
import shlex
import subprocess
import sys
from importlib import import_module
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

import tuplet
from commands import typed
from training_tools import image_set
from tuplet.training import RECIPES
from tuplet.training.objective import make_loss
from tuplet.training.settings import Settings

ROOT = Path(__file__).parents[1]
CHOICE = {
    "shared": {"lr": 1e-3, "pooling": "mean", "freeze_to": None, "augment.area": [0.25, 1.0]},
    "per_family": {"free": {"lr": 5e-4}},
}


@pytest.fixture
def bench(monkeypatch):
    """Import modules of the benchmarks by their bare names; the dataset `glyphs` is made tiny."""
    monkeypatch.syspath_prepend(ROOT / "benchmarks")
    methods = import_module("methods")
    small = {"model": "convnet", "model_options": {"size": 12, "channels": 3}, "dim": 4, "batch_size": 120}
    small |= {"resize": 12, "stored_size": 12}
    tiny = methods.Benchmark("tiny", "glyphs", small, trial_steps=2, levels="H")
    monkeypatch.setitem(methods.DATASETS, "glyphs", tiny)
    monkeypatch.setattr(import_module("runs").Runner, "load_data", lambda self, *job: image_set(classes=184, each=8))
    return import_module


@pytest.fixture
def planned_runs(bench):
    return bench("planned_runs")


def test_pages_are_current(bench):
    page = bench("results_page")
    for name, text in page.render(bench("results_data").read(), page.planned()).items():
        assert (page.DOCS / name).read_text() == text, "run make results"


def test_every_stored_run_has_the_options_of_the_protocol(bench):
    as_json, results = bench("runs").as_json, bench("results_data").read()
    planned = {job.name: as_json(job.options) for job in bench("results_page").planned()}
    stored = {
        name: run["options"] for name, run in results.items() if name.startswith(("row_", "ablation_", "transfer_"))
    }
    assert len(stored) > 250
    for name, options in stored.items():
        assert options == planned[name], name


def test_doctests_of_the_benchmarks(bench):
    for name in ("hyperparameter_search", "planned_runs", "results_data", "common"):
        assert doctest.testmod(bench(name)).attempted
        assert not doctest.testmod(bench(name)).failed


class ChosenOptions:
    """Replace a runner whose search is complete: it knows the chosen options and runs nothing."""

    def __init__(self, folder):
        self.out = folder
        for dataset in ("cub200", "cars196", "glyphs"):
            best = {"shared": {"method": "nra", **CHOICE["shared"], "steps": 4}}
            (folder / f"chosen_{dataset}.json").write_text(json.dumps(CHOICE))
            for name in ("best", "vit", "lite"):
                (folder / f"{name}_{dataset}.json").write_text(json.dumps(best))
            (folder / f"systems_{dataset}.json").write_text(json.dumps({"per_family": {"htl": {"lr": 2e-3}}}))


def planned_jobs(bench, dataset, folder):
    protocols, planned_runs = bench("protocols"), bench("planned_runs")
    stages = [name for name in protocols.STAGES if name not in protocols.SEARCHES]
    return [job for name in stages for job in planned_runs.stage(name, dataset, ChosenOptions(folder))]


@pytest.mark.parametrize("dataset", ["cub200", "cars196", "glyphs"])
def test_every_run_has_its_own_file_and_valid_options(bench, planned_runs, dataset, tmp_path):
    planned = planned_jobs(bench, dataset, tmp_path)
    assert len({job.name for job in planned}) == len(planned)
    for job in planned:
        settings = Settings(**job.options)
        assert settings.test_on == "test"
        assert settings.evaluate_every == settings.steps  # measured once, at the end
        make_loss(settings.loss, settings.loss_options, classes=5, dim=4, widths=(2, 2))
    trial = Settings(**planned_runs.trial(dataset, "raw_vthm", CHOICE["shared"]).options)
    assert trial.test_on == "validation"
    assert trial.validation > 0


def test_selected_runs_follow_the_order_of_the_patterns(bench, planned_runs, tmp_path):
    patterns = ["row_*_64_0", "ablation_*_nra_limit_[01]", "row_*"]
    found = planned_runs.select(planned_jobs(bench, "cub200", tmp_path), patterns)
    names = [job.name for job in found]
    sixty_four = ["row_cub200_npair_64_0", "row_cub200_nra_64_0"]
    assert [name for name in names[:4] if name in sixty_four] == sixty_four
    assert names[4:6] == ["ablation_cub200_nra_limit_0", "ablation_cub200_nra_limit_1"]
    assert len(set(names)) == len(names)
    assert all(name.startswith("row_") for name in names[6:])


@pytest.fixture
def parsed_options(monkeypatch, tmp_path):
    """Parse a command with the command line and return the keywords that it passes to `tuplet.train`."""
    passed = []

    def record(data, out, recipe, resume, callbacks, **settings):
        passed.append(settings)
        raise ValueError("not trained in this test")

    monkeypatch.setattr(tuplet, "train", record)
    monkeypatch.setattr("tuplet.data.open", lambda path: path)

    def parse(command):
        passed.clear()
        done = typed(*shlex.split(command)[1:], cwd=tmp_path)
        assert passed, f"{command}: {done.output}"
        return passed[0]

    return parse


def test_command_of_a_job_has_its_options(bench, planned_runs, parsed_options, tmp_path):
    as_json, trial = bench("runs").as_json, planned_runs.trial("cub200", "nra", CHOICE["shared"])
    for job in [*planned_jobs(bench, "cub200", tmp_path)[::5], trial]:
        assert parsed_options(job.command()) == as_json(job.options)


def test_every_stored_command_has_the_stored_options(bench, parsed_options, soak):
    """A user can type the command of any stored run and gets the same options."""
    stored = {
        result["command"]: result["options"] for result in bench("results_data").read().values() if "command" in result
    }
    assert len(stored) > 500
    for command, options in list(stored.items())[:: 1 if soak else 5]:
        assert parsed_options(command) == options, command


@pytest.mark.parametrize("dataset", ["cub200", "cars196"])
@pytest.mark.parametrize(("recipe", "row"), [("best_resnet50", "best"), ("best_vit", "vit")])
def test_best_recipes_are_those_of_the_tables(bench, planned_runs, recipe, row, dataset):
    """A recipe leaves open what the tables fix: batch size, weights, stored images, seed, and when to evaluate."""
    measured = json.loads((bench("runs").RESULTS / f"row_{dataset}_{row}_0.json").read_text())["options"]
    options = {**RECIPES[recipe], **RECIPES[recipe]["on"].get(dataset, {})}
    open_options = {"on", "batch_size", "weights", "stored_size", "seed", "flip_test", "validation"}
    for name in {*measured, *options} - open_options - {"evaluate_every", "checkpoint_every"}:
        default = planned_runs.DEFAULTS[name]
        assert options.get(name, default) == measured.get(name, default), name


def pretend(job, data):
    """Return a result without training: random metrics that depend on the options alone."""
    options = json.loads(json.dumps(job.options))
    draw = random.Random(json.dumps([job.method, options]))
    names = (*(f"recall_at_{k}" for k in (1, 2, 4, 8)), "map_at_r", "nmi", "f1")
    metrics = {name: draw.random() for name in names} | {"flip_test": {"recall_at_1": draw.random()}}
    about = {"kind": job.kind, "dataset": job.dataset, "method": job.method, **job.facts, "command": job.command()}
    speed = {"training_seconds": 1.0, "examples_per_second": 1}
    return {**about, "options": options, "device": "none", "versions": {}, "metrics": metrics, **speed}


class TestSearch:
    @pytest.mark.parametrize("dataset", ["cub200", "cars196"])
    def test_stored_choices_follow_from_the_stored_trials(self, bench, dataset, tmp_path, monkeypatch):
        """Repeat the searches from trials.csv alone: no trial is missing, and the choices are the same."""
        protocols, runs = bench("protocols"), bench("runs")
        runner = runs.Runner(tmp_path, limit=float("inf"), device="cpu")
        monkeypatch.setattr(runner, "_run", None)
        searches = {"chosen": protocols.search, "best": protocols.search_best, "vit": protocols.search_vit}
        searches |= {"lite": protocols.search_lite, "systems": protocols.search_systems}
        for name, search in searches.items():
            path = runs.RESULTS / f"{name}_{dataset}.json"
            stored = json.loads(path.read_text())
            found = search(dataset, runner)
            assert {**found, "trials": set(found["trials"])} == {**stored, "trials": set(stored["trials"])}

    def test_a_search_continues_where_it_stopped(self, bench, planned_runs, tmp_path, monkeypatch):
        protocols, page, trials = bench("protocols"), bench("results_page"), bench("trials")
        stopping = bench("runs").Runner(tmp_path, limit=90.0, device="cpu")
        monkeypatch.setattr(stopping, "_run", pretend)
        monkeypatch.setattr(stopping, "elapsed", lambda: 0.0 if len(trials.read(tmp_path)) < 3 else 100.0)
        assert not protocols.search("glyphs", stopping)["complete"]
        assert len(trials.read(tmp_path)) == 3

        runner = bench("runs").Runner(tmp_path, limit=float("inf"), device="cpu")
        ran = []
        monkeypatch.setattr(runner, "_run", lambda job, data: ran.append(job) or pretend(job, data))
        chosen = protocols.search("glyphs", runner)
        assert chosen["complete"]
        assert set(chosen["per_family"]) == set(bench("hyperparameter_space").FAMILIES)
        assert len(ran) == len(chosen["trials"]) - 3
        assert [trial["trial"] for trial in trials.read(tmp_path)][:2] == [f"trial_glyphs_raw_vthm_{n}" for n in (1, 2)]
        assert set(chosen["trials"]) == {trial["trial"] for trial in trials.read(tmp_path)}

        runner.measure([*planned_runs.stage("1", "glyphs", runner), *planned_runs.stage("4", "glyphs", runner)[-3:]])
        before = len(ran)
        runner.measure(planned_runs.stage("1", "glyphs", runner))
        assert len(ran) == before
        monkeypatch.setattr(page, "MEASURED", ("glyphs",))
        text = "".join(page.render(bench("results_data").read(tmp_path)).values())
        assert "| RAW+VTHM | " in text
        assert "The search is not complete" not in text
        assert "60 × 2" in text
        assert "tuplet train glyphs --out runs/row_glyphs_raw_vthm_0" in text


def test_a_run_that_diverges_is_a_result(bench, planned_runs, tmp_path, monkeypatch):
    page = bench("results_page")
    runner = bench("runs").Runner(tmp_path, limit=float("inf"), device="cpu")
    diverging = {**CHOICE["shared"], "lr": 1e30}
    job = planned_runs.row("glyphs", "npair", 0, {"shared": diverging, "per_family": {}})
    assert "error" in runner.attempt(job)
    trial = runner.attempt(planned_runs.trial("glyphs", "npair", diverging))
    assert "step" in trial["error"]
    assert "metrics" not in trial
    monkeypatch.setattr(page, "MEASURED", ("glyphs",))
    pages = page.render(bench("results_data").read(tmp_path))
    assert "| N-pair-mc | diverged |" in pages["results.md"]
    assert "| N-pair-mc | diverged |" in pages["results_details.md"]


def test_other_options_are_another_run(bench, planned_runs, tmp_path):
    runner = bench("runs").Runner(tmp_path, limit=float("inf"), device="cpu")
    assert runner.reached(planned_runs.row("glyphs", "npair", 0, CHOICE))
    assert runner.measured(planned_runs.row("glyphs", "npair", 0, CHOICE)) is not None
    other = {**CHOICE, "per_family": {"free": {"lr": 1e-3}}}
    assert runner.measured(planned_runs.row("glyphs", "npair", 0, other)) is None


class TestSeveralProcesses:
    SCRIPT = """
import sys, time
from pathlib import Path
sys.path.insert(0, {benchmarks!r})
import runs
from planned_runs import row, trial
facts = {{"kind": "", "error": "diverged", "versions": {{}}}}
def run(job, data):
    time.sleep(0.2)
    return {{**facts, "dataset": job.dataset, "method": job.method, "options": runs.as_json(job.options)}}
def measure(folder, jobs):
    runner = runs.Runner(Path({out!r}, folder), float("inf"), "cpu")
    runner.load_data, runner._run = (lambda dataset, options: None), run
    runner.measure(jobs)
measure("rows", (row("glyphs", "npair", seed, {choice!r}) for seed in range(4)))
measure("trials", (trial("glyphs", "npair", {{**{choice!r}["shared"], "seed": seed}}) for seed in range(6)))
"""

    def test_they_share_the_rows_and_append_to_one_file_of_trials(self, bench, tmp_path):
        benchmarks = str(Path(bench("runs").__file__).parent)
        script = self.SCRIPT.format(benchmarks=benchmarks, out=str(tmp_path), choice=CHOICE)
        others = [subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) for _ in range(2)]
        output = [other.communicate()[0] for other in others]
        assert [other.returncode for other in others] == [0, 0]
        assert sum(text.count("\n") for text in output) == 4 + 6
        files = {path.name for path in (tmp_path / "rows").iterdir()} - {".locks"}
        assert files == {f"row_glyphs_npair_{seed}.json" for seed in range(4)}
        found = bench("trials").read(tmp_path / "trials")
        assert [trial["trial"] for trial in found] == [f"trial_glyphs_npair_{n}" for n in range(1, 7)]
        assert all(f"--out runs/{trial['trial']} " in trial["command"] for trial in found)
        assert {int(trial["seed"]) for trial in found} == set(range(6))

    def test_workers_of_one_command(self, bench, tmp_path):
        shared = {**CHOICE["shared"], "steps": 2}
        (tmp_path / "chosen_glyphs.json").write_text(json.dumps({"shared": shared, "per_family": {}}))
        script = bench("runs").RESULTS.parent / "protocols.py"
        words = [sys.executable, script, "--workers", "2", "--out", tmp_path, "--device", "cpu", "--dataset", "glyphs"]
        words += ["--stage", "1", "3", "--only", "row_glyphs_nca_0"]
        done = subprocess.run([*words, "row_glyphs_npair_0"], capture_output=True, text=True, timeout=300)
        assert done.returncode == 0, done.stderr
        logs = "".join(path.read_text() for path in sorted(tmp_path.glob("worker_*.log")))
        assert logs.count("row_glyphs_npair_0: R@1") == logs.count("row_glyphs_nca_0: R@1") == 1
        names = {path.stem for path in tmp_path.glob("row_*")}
        assert names == {"row_glyphs_npair_0", "row_glyphs_nca_0"}
        done = subprocess.run([*words, "row_glyphs_nopair_0"], capture_output=True, text=True, timeout=300)
        assert done.returncode == 1
        assert "worker_*.log say why" in done.stderr
        assert "--only row_glyphs_nopair_0 fits no run of these stages" in (tmp_path / "worker_1.log").read_text()

    def test_a_job_that_another_process_runs_is_left_to_it(self, bench, planned_runs, tmp_path):
        runs = bench("runs")
        runner, job = runs.Runner(tmp_path, float("inf"), "cpu"), planned_runs.row("glyphs", "npair", 4, CHOICE)
        held = bench("trials").lock_file(tmp_path / job.lock_name)
        with runs.lock(held):
            assert not runner.reached(job)
        with pytest.raises(KeyboardInterrupt), runs.lock(held):
            raise KeyboardInterrupt
        with runs.lock(held, busy="still held"):
            pass


def test_remeasured_rows_stand_beside_the_stored_ones(bench, tmp_path):
    remeasure, page = bench("remeasure"), bench("results_page")
    planned = remeasure.jobs(["cub200", "cars196"])
    assert len(planned) == 12
    for job in planned:
        Settings(**job.options)
    for row in ("npair", "best"):
        old = remeasure.stored("cub200", row)
        old["metrics"]["recall_at_1"] += 0.002
        (tmp_path / f"row_cub200_{row}_0.json").write_text(json.dumps(old))
    text = remeasure.compare(tmp_path, ["cub200"])
    assert "| cub200 | NRA | not measured |" in text
    assert "+0.20 |" in text
    assert "R@1 of 2 rows: mean difference +0.20, mean absolute difference 0.20 points." in text
    results = {**bench("results_data").read(), "remeasured": json.loads((tmp_path / "remeasured.json").read_text())}
    assert "2 rows were measured again with seed 0" in page.render(results)["results_details.md"]


def test_figures_are_drawn_from_the_runs(bench, tmp_path, monkeypatch):
    figures, made = bench("figures"), bench("figure_runs")
    monkeypatch.setattr(figures, "IMAGES", tmp_path)
    monkeypatch.setattr(made, "RESULTS", tmp_path)
    monkeypatch.setattr(made, "_SHARED", {**made._SHARED, "steps": 2, "batch_size": 24, "per_class": 3})
    monkeypatch.setattr(made, "_CURVE", {**made._CURVE, "steps": 4, "evaluate_every": 2, "batch_size": 8})
    monkeypatch.setattr(figures.data, "open", lambda source: image_set(classes=20, each=8, size=28))
    made.train_maps(tmp_path)
    made.train_curves(tmp_path)
    vectors = {"embeddings": torch.randn(80, 60), "indices": torch.arange(80, 160)}
    save_file(vectors, tmp_path / "row_cub200_best_0.safetensors")
    made.arrange(tmp_path, "cub200")
    results = bench("results_data").read(tmp_path)
    assert len(results) == 4 + 3 + 1
    assert len(results["map_nra"]["points"]) == len(results["map_nra"]["labels"]) == 80
    assert [step for step, _, _ in results["curve_omniglot_npair"]["points"]] == [2, 4]
    cells = results["tsne_cub200"]["cells"]
    assert {index for *_, index in cells} <= set(range(80, 160))
    assert len({tuple(cell[:2]) for cell in cells}) == len(cells) > 10
    results |= {f"row_cub200_{m}_0": {"nearest": [[0, 1, 9, 3, 4, 5]] * 2} for m in ("npair", "npair_angular")}
    monkeypatch.setenv("TUPLET_DATA", str(tmp_path))
    results |= {f"nra_{n}": {"ablation": "nra_alpha", "dataset": "cub200", "value": f"{n}",
                             "metrics": {"recall_at_1": 0.1 * n}} for n in (1, 2)}  # fmt: skip
    monkeypatch.setattr(figures, "read", lambda: results)
    figures.main()
    drawn = {path.stem.removeprefix("results_") for path in tmp_path.glob("results_*")}
    assert drawn == {"maps", "curves", "nearest_cub200", "tsne_cub200", "rank_transfer", "weights"}


def test_curves_measure_pairs_of_vectors_as_they_are(bench):
    """The loss of two vectors of each class, and the share of first vectors whose second is the nearest."""
    x = torch.tensor([[2.0, 0.0], [0.0, 1.0], [1.0, 0.0], [3.0, 1.0]])  # the second of class 5 looks like class 3
    loss, accuracy = bench("figure_runs")._pair_metrics(x, torch.tensor([3, 5, 3, 5]))
    terms = [math.log(1 + math.exp(2.0 * 3.0 - 2.0 * 1.0)), math.log(1 + math.exp(0.0 - 1.0))]
    assert loss == pytest.approx(sum(terms) / 2)
    assert accuracy == 0.5


def test_weights_of_pairs_are_those_of_similarities(bench):
    """Of a loss of distances too: ∂L/∂s = ∂L/∂d · ∂d/∂s."""
    similarities = torch.linspace(-0.5, 0.9, 8)
    positives, negatives = bench("figures").pair_weights(tuplet.losses.ContrastiveLoss(margin=1.0), similarities)
    count = 17 * 16
    distances = (2 - 2 * similarities.double()).sqrt()
    torch.testing.assert_close(positives, torch.full((8,), 2 / count, dtype=torch.float64))  # d² = 2 − 2s
    torch.testing.assert_close(negatives, 2 * (1 - distances).relu() / distances / count)
