"""Every command on real files: its output, the files it writes and its exit code."""

import json
import os
import pty
import re
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import tuplet as package
from commands import SMALL, environment, succeeded, tuplet, typed
from report_runs import draw_folder
from tuplet import evaluation, models
from tuplet.cli import COMMANDS
from tuplet.cli.losses import START, summarize
from tuplet.losses import LOSSES
from tuplet.models.architectures import ARCHITECTURES
from tuplet.models.networks.vision_transformer import VisionTransformer
from tuplet.training import describe_options

NAMES = ("ant", "bee", "cat", "dog", "elk", "fox", "gnu", "hen")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with images and a run on them."""
    folder = tmp_path_factory.mktemp("commands")
    draw_folder(folder / "photos", NAMES)
    output = succeeded(tuplet("train", "photos/", "--out", "run", *SMALL, cwd=folder))
    assert re.search(r"^Recall@1 +[\d.]+ %  \d+ of 24 queries", output, re.MULTILINE)
    assert "report: run/report.html" in output
    assert "search: tuplet index run photos/ -o run.index" in output
    return folder


def test_training_writes_a_run_and_a_report(folder):
    for name in ("run.json", "evaluation.json", "vectors.safetensors", "best/model.safetensors", "report.html"):
        assert (folder / "run" / name).is_file()
    settings = json.loads((folder / "run" / "run.json").read_text())["settings"]
    assert settings["batch_size"] == 16, "four training classes of four"
    assert settings["model_options"] == {"size": 32, "channels": 3}


def test_a_finished_run_is_not_trained_again(folder):
    before = (folder / "run" / "events.jsonl").read_text()
    succeeded(typed("train", "photos/", "--out", "run", *SMALL, cwd=folder))
    assert (folder / "run" / "events.jsonl").read_text() == before


def test_the_command_to_index_names_the_model_of_all_classes(folder):
    output = succeeded(typed("train", "photos/", "--out", "whole", *SMALL, "--final", "true", cwd=folder))
    assert "model:  whole/final/best" in output
    assert "search: tuplet index whole/final photos/ -o whole.index" in output
    succeeded(typed("index", "whole/final", "photos/", "-o", "whole.index", cwd=folder))


def test_evaluating_a_run_gives_its_exact_metrics(folder):
    found = json.loads(succeeded(tuplet("evaluate", "run", "--json", cwd=folder)))
    kept = json.loads((folder / "run" / "evaluation.json").read_text())
    assert found == {name: kept[name] for name in found}


def test_evaluating_other_data_with_intervals(folder, tmp_path):
    draw_folder(tmp_path / "others", ("one", "two", "three"))
    words = ("evaluate", folder / "run/best", "others", "--on", "all", "--metric", "cosine", "--bootstrap", "50")
    table = succeeded(typed(*words, cwd=tmp_path))
    assert "18 queries" in table
    assert re.search(r"^Recall@1 +[\d.]+ % +[\d.]+ % to [\d.]+ %", table, re.MULTILINE)
    found = json.loads(succeeded(typed(*words, "--json", cwd=tmp_path)))
    assert (found["queries"], found["metric"], found["bootstrap"]) == (18, "cosine", 50)


def test_evaluating_other_data_says_that_half_of_the_classes_are_measured(folder, tmp_path):
    draw_folder(tmp_path / "others", ("one", "two", "three", "four"))
    done = typed("evaluate", folder / "run/best", "others", cwd=tmp_path)
    assert done.stderr == "tuplet: measured 2 of 4 classes, those of the test split; --on all measures all\n"
    assert typed("evaluate", folder / "run/best", "others", "--on", "all", cwd=tmp_path).stderr == ""


def test_evaluating_with_re_ranked_results(folder):
    table = succeeded(typed("evaluate", "run", "--rerank", cwd=folder))
    assert re.search(r"^Recall@1, re-ranked +[\d.]+ %", table, re.MULTILINE)
    assert re.search(r"^MAP@R, re-ranked +[\d.]+ %", table, re.MULTILINE)
    found = json.loads(succeeded(typed("evaluate", "run", "--rerank", "--json", cwd=folder)))
    vectors = load_file(folder / "run" / "vectors.safetensors")
    expected = evaluation.reranked_metrics(vectors["embeddings"], vectors["labels"])
    assert found["reranked"] == pytest.approx(expected)


def test_all_formats_contain_the_same_embeddings(folder):
    done = typed("embed", "run", "photos/bee", "--out", "v/w.npy", cwd=folder)
    assert done.stderr == "tuplet: the folder v did not exist and was created\n"
    for ending in ("npy", "npz", "safetensors", "parquet"):
        done = typed("embed", "run", "photos/bee", "photos/ant/0.png", "--out", f"v/v.{ending}", cwd=folder)
        assert (done.exit_code, done.output) == (0, f"v/v.{ending}: 7 vectors of 8 numbers\n")
    paths = [*(f"photos/bee/{i}.png" for i in range(6)), "photos/ant/0.png"]
    vectors = package.load(folder / "run/best").embed([folder / path for path in paths]).numpy()
    np.testing.assert_array_equal(np.load(folder / "v/v.npy"), vectors)
    assert (folder / "v/v.txt").read_text().splitlines() == paths
    with np.load(folder / "v/v.npz") as archive:
        np.testing.assert_array_equal(archive["embeddings"], vectors)
        assert archive["paths"].tolist() == paths
    assert (folder / "v/v.safetensors").stat().st_mode == (folder / "v/v.npy").stat().st_mode
    with safe_open(folder / "v/v.safetensors", "np") as file:
        np.testing.assert_array_equal(file.get_tensor("embeddings"), vectors)
        assert file.metadata()["paths"].splitlines() == paths
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(folder / "v/v.parquet").to_pydict()
    assert table["path"] == paths
    np.testing.assert_array_equal(np.array(table["embedding"], np.float32), vectors)


@pytest.mark.parametrize("ending", ["npy", "npz", "safetensors"])
def test_embeddings_can_be_trained_on(folder, ending):
    """Vectors and class names come back as they were."""
    file = f"all_classes.{ending}"
    assert typed("embed", "run", "photos", "--out", file, cwd=folder).exit_code == 0
    opened, photos = package.data.open(folder / file), package.data.open(folder / "photos")
    assert opened.class_names == photos.class_names
    assert opened.labels.tolist() == photos.labels.tolist()
    assert "vectors: 8 numbers each\n" in succeeded(typed("data", file, cwd=folder))
    done = typed("train", file, "--out", f"on_{ending}", "--steps", "2", cwd=folder)
    assert done.exit_code == 0, done.output
    assert "before training: the feature vectors" in done.output


def test_embedding_finds_the_same_images_as_training(folder):
    images = folder / "all"
    draw_folder(images, NAMES[:1])
    (images / "ant/._0.png").write_bytes(b"what another system leaves")
    (images / "ant/more.png").mkdir()
    (images / "bee").symlink_to(folder / "photos/bee")
    done = typed("embed", "run", "all", "--out", "all.npy", cwd=folder)
    assert (done.exit_code, done.output) == (0, "all.npy: 12 vectors of 8 numbers\n")
    assert (folder / "all.txt").read_text().splitlines()[::6] == ["all/ant/0.png", "all/bee/0.png"]


def test_tables_without_labels_can_be_embedded(folder):
    (folder / "shop.csv").write_text("path,price\nphotos/ant/0.png,3\nphotos/bee/0.png,4\n")
    done = typed("embed", "run", "shop.csv", "--out", "shop.npz", cwd=folder)
    assert (done.exit_code, done.stdout) == (0, "shop.npz: 2 vectors of 8 numbers\n")
    with np.load(folder / "shop.npz") as archive:
        assert set(archive) == {"embeddings", "paths"}


def test_embedding_can_skip_unreadable_images(folder):
    draw_folder(folder / "cut", NAMES[:1])
    (folder / "cut/ant/2.png").write_bytes(b"cut")
    done = typed("embed", "run", "cut", "--out", "cut.npy", cwd=folder)
    assert (done.exit_code, done.stderr.split("; ")[-1]) == (1, "replace it or leave it out with --unreadable skip\n")
    done = typed("embed", "run", "cut", "--out", "cut.npy", "--unreadable", "skip", cwd=folder)
    assert (done.exit_code, done.stdout) == (0, "cut.npy: 5 vectors of 8 numbers, 1 unreadable\n")
    assert "image cut/ant/2.png cannot be read" in done.stderr
    paths = [f"cut/ant/{i}.png" for i in (0, 1, 3, 4, 5)]
    assert (folder / "cut.txt").read_text().splitlines() == paths
    vectors = package.load(folder / "run/best").embed([folder / path for path in paths]).numpy()
    np.testing.assert_array_equal(np.load(folder / "cut.npy"), vectors)
    for path in paths:
        (folder / path).unlink()
    done = typed("embed", "run", "cut", "--out", "none.npy", "--unreadable", "skip", cwd=folder)
    assert done.exit_code == 1
    assert "none of the 1 images can be read, first: image cut/ant/2.png cannot be read" in done.stderr


def test_evaluation_can_skip_unreadable_images(folder):
    draw_folder(folder / "torn", NAMES[:2])
    (folder / "torn/ant/2.png").write_bytes(b"cut")
    done = typed("evaluate", "run", "torn", "--on", "all", cwd=folder)
    assert (done.exit_code, done.stderr.split("; ")[-1]) == (1, "replace it or leave it out with --unreadable skip\n")
    done = typed("evaluate", "run", "torn", "--on", "all", "--unreadable", "skip", "--json", cwd=folder)
    assert json.loads(done.stdout)["queries"] == 11
    assert "1 of 12 images were skipped" in done.stderr


def test_the_report_can_be_written_again_and_after_a_move(folder, tmp_path):
    path = folder / "run/report.html"
    first = path.read_text()
    assert "data:image" in first
    path.unlink()
    assert succeeded(typed("report", folder / "run", cwd=tmp_path)) == f"{path}\n"
    assert path.read_text() == first
    moved = folder.rename(folder.with_name("moved"))
    try:
        again = typed("report", moved / "run", cwd=tmp_path)
        assert succeeded(again)
        assert "tuplet: warning: the report is written with the class names and thumbnails that the run has kept" in (
            again.stderr
        )
        assert (moved / "run/report.html").read_text().count("data:image") == first.count("data:image")
        assert succeeded(typed("report", moved / "run", moved / "photos", cwd=tmp_path))
        assert "data:image" in (moved / "run/report.html").read_text()
    finally:
        moved.rename(folder)


def test_training_on_tables_and_features(folder, tmp_path):
    rows = [f"{folder}/photos/{name}/{i}.png,{name}" for name in NAMES for i in range(6)]
    (tmp_path / "birds.csv").write_text("\n".join(["path,label", *rows]) + "\n")
    succeeded(typed("train", "birds.csv", *SMALL, "--loss", "triplet", cwd=tmp_path))
    assert (tmp_path / "runs/birds/report.html").is_file()
    labels = np.arange(60) // 6
    features = np.random.default_rng(0).normal(size=(60, 12)) + 3 * np.eye(12)[labels]
    np.savez(tmp_path / "f.npz", features=features, labels=labels)
    words = ("train", "f.npz", "--loss", "proxy_anchor", "--loss-options", "alpha=16,margin=0.2", "--steps", "3")
    succeeded(typed(*words, "--dim", "4", "--out", "f", cwd=tmp_path))
    about = json.loads((tmp_path / "f/run.json").read_text())
    assert about["settings"]["loss_options"] == {"alpha": 16, "margin": 0.2}
    assert about["settings"]["model"] == "mlp"


def test_python_and_the_command_train_the_same_model(folder, tmp_path):
    options = {"model": "convnet", "model_options": {"size": 32, "channels": 3}, "dim": 8, "steps": 4, "device": "cpu"}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    run = package.train(folder / "photos", tmp_path / "run", **options)
    torch.set_num_threads(threads)
    assert run.embedder.fingerprint() == package.load(folder / "run/best").fingerprint()


def test_compare_prints_means_and_standard_deviations(folder):
    words = ("compare", "photos", "triplet", "raw_vthm", "--seeds", "2", "--out", "compared", *SMALL)
    output = succeeded(typed(*words, cwd=folder))
    found = json.loads((folder / "compared/comparison.json").read_text())
    assert typed("report", found["rows"][1]["runs"][1]["folder"], cwd=folder).exit_code == 0
    untrained = found["rows"][0]["mean"]["recall_at_1"]
    assert re.search(rf"^untrained +here +{100 * untrained:.2f} %", output, re.MULTILINE)
    assert "data:image" in (folder / "compared/triplet/seed_1/report.html").read_text()
    page = (folder / "compared/comparison.html").read_text()
    assert 'href="triplet/seed_1/report.html"' not in page  # written before that report
    assert typed(*words, cwd=folder).exit_code == 0
    page = (folder / "compared/comparison.html").read_text()
    assert '<a href="triplet/seed_1/report.html">seed\xa01</a> ' not in page.split("seed\xa00")[0]
    assert 'href="triplet/seed_1/report.html"' in page
    assert page.count("<circle") == 8  # four runs in the chart of a wide window and in that of a phone
    for row in found["rows"][1:]:
        recalls = [run["metrics"]["recall_at_1"] for run in row["runs"]]
        mean = sum(recalls) / 2
        std = abs(recalls[0] - recalls[1]) / 2**0.5
        assert re.search(rf"^{row['loss']} +here, 2 seeds +{100 * mean:.2f} ± {100 * std:.2f} %", output, re.MULTILINE)


def test_data_describes_a_dataset(folder):
    output = succeeded(typed("data", "photos", cwd=folder))
    assert "all          48        8         6       6        6" in output
    assert "train        24        4" in output
    assert "ant (6), bee (6)" in output
    assert "all 48 images can be read" in output
    rows = [f"photos/{name}/{i}.png,{name},{'train' if i % 2 else 'test'}" for name in NAMES for i in range(6)]
    (folder / "mixed.csv").write_text("\n".join(["path,label,split", *rows]))
    assert "8 of the 8 test classes are trained on too" in typed("data", "mixed.csv", "--no-check", cwd=folder).output


def test_data_names_classes_with_a_single_example(folder):
    rows = [f"photos/{name}/{i}.png,{name}" for name in NAMES for i in range(1 if name == "bee" else 6)]
    (folder / "single.csv").write_text("\n".join(["path,label", *rows]))
    output = typed("data", "single.csv", "--no-check", cwd=folder).output
    assert "a single example, which has no positive and cannot be trained on: 1 (bee)\n" in output


def test_data_counts_exact_copies(folder):
    """A copy is always retrieved first, which flatters a result."""
    shutil.copytree(folder / "photos", folder / "copied")
    assert "exact copies" not in succeeded(typed("data", "copied", cwd=folder))
    shutil.copy(folder / "copied/ant/1.png", folder / "copied/ant/again.png")
    shutil.copy(folder / "copied/ant/1.png", folder / "copied/bee/again.png")
    output = succeeded(typed("data", "copied", cwd=folder))
    worst = "such as copied/bee/again.png of copied/ant/1.png"
    assert f"images that are exact copies of others: 2, 1 of them in another class, {worst}" in output


def test_losses_says_where_to_start(folder):
    start, table, last = succeeded(typed("losses", cwd=folder)).strip().split("\n\n")
    assert [line.split()[0] for line in start.splitlines()[1:]] == list(START)
    # The pages give the same advice.
    advice = (Path(__file__).parents[2] / "docs/losses.md").read_text().split("## Choosing a loss")[1].split("##")[0]
    assert all(f"`{LOSSES[name].__name__}`" in advice for name in START)
    rows = [re.split("  +", line) for line in table.splitlines()[1:]]
    assert [row[0] for row in rows] == list(LOSSES)
    assert all(len(row) == 4 and re.fullmatch(r"[\w -]+ (19|20)\d\d", row[3]) for row in rows)
    assert ["npair", "N-pair loss", "two of each class", "Sohn 2016"] in rows
    assert "tuplet losses NAME explains one" in last
    assert max(map(len, table.splitlines())) <= 110


def test_every_loss_has_equation_inputs_and_paper():
    for name, loss in LOSSES.items():
        assert [len(part) > 5 for part in summarize(loss)] == [True] * 3, name


def test_losses_explains_one(folder):
    one = succeeded(typed("losses", "ranked_list", cwd=folder))
    assert "RankedListLoss(alpha=1.2, margin=0.4, temperature=10.0" in one
    assert "w = e^{T(α − d)}" in one
    margin = typed("losses", "margin", cwd=folder).output
    assert "MarginLoss(beta=1.2, margin=0.2, learn_beta=False, mining='distance_weighted')" in margin


def test_help_lists_every_command_and_every_option(tmp_path):
    overview = succeeded(tuplet("--help", cwd=tmp_path))
    for name in COMMANDS:
        assert re.search(rf"^  {name} ", overview, re.MULTILINE)
        page = typed(name, "--help", cwd=tmp_path).output
        assert re.search(rf"Examples?:\n +.*tuplet {name}", page), f"{name} has no example"
    page = typed("train", "--help", cwd=tmp_path).output
    for option in describe_options():
        assert f"--{option.name.replace('_', '-')} " in page
    assert "None" not in page  # the user types none


def test_help_of_train_groups_the_options(tmp_path):
    """Each option of training is under one of eight titles, with the flags that only the command has."""
    page = typed("train", "--help", cwd=tmp_path).output
    titles = [title for title in re.findall(r"^(\w+):$", page, re.MULTILINE) if title not in ("Arguments", "Options")]
    assert titles == ["Data", "Model", "Loss", "Batches", "Optimizer", "Schedule", "Evaluation", "Run"]
    groups = dict(re.findall(r"^(\w+):\n((?:  .*\n)+)", page, re.MULTILINE))
    flags = {title: re.findall(r"^  (--[\w-]+)", groups[title], re.MULTILINE) for title in titles}
    listed = [name for names in flags.values() for name in names]
    own = ["--boxes", "--columns", "--log", "--pattern", "--resume"]
    assert sorted(listed) == sorted([*own, *(f"--{o.name.replace('_', '-')}" for o in describe_options())])
    assert flags["Loss"] == ["--loss", "--loss-options", "--same"]
    assert "--lr" in flags["Optimizer"]


HELP = """
import sys, tuplet.cli as cli
for name in ("", *cli.COMMANDS):
    sys.argv = ["tuplet", *name.split(), "--help"]
    try: cli.main()
    except SystemExit: pass
    assert not {"torch", "numpy", "PIL"} & {*sys.modules}, name
"""


def test_help_does_not_import_torch():
    done = subprocess.run([sys.executable, "-c", HELP], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("Usage: ") == 1 + len(COMMANDS)


def test_version(tmp_path):
    assert succeeded(tuplet("--version", cwd=tmp_path)) == f"tuplet {package.__version__}\n"


def test_output_is_plain_text_without_a_terminal(folder):
    output = tuplet("evaluate", "run", cwd=folder)
    assert not re.search(r"[\x1b│─┃━]", output.stdout + output.stderr)
    assert output.stderr == ""


def test_training_prints_its_progress(folder):
    done = typed("train", "photos", "--out", "progress", *SMALL, "--evaluate-every", "2", cwd=folder)
    succeeded(done)
    few, before, *reached, last = [line for line in done.stderr.splitlines() if "interval" not in line]
    assert few == "tuplet: 4 training classes are too few to hold some out: 4 images of them select the checkpoint"
    assert re.fullmatch(
        r"tuplet: before training: Recall@1 [\d.]+ % on the validation split \(convnet with random weights\)", before
    )
    assert re.search(
        r"^Recall@1 before training [\d.]+ % → after [\d.]+ %: .* points \(95 % interval", done.stdout, re.MULTILINE
    )
    assert [re.match(r"tuplet: step (\d) of 4 after \d+ s: .*Recall@1 ", line)[1] for line in reached] == ["2", "4"]
    assert re.fullmatch(r"tuplet: testing the embedder of step [24] on 24 examples", last)


def test_lines_have_no_trailing_spaces(folder):
    for words in (("data", "photos", "--no-check"), ("evaluate", "run")):
        lines = succeeded(typed(*words, cwd=folder)).splitlines()
        assert [line for line in lines if line != line.rstrip()] == []


def test_a_terminal_shows_a_progress_bar(folder):
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "tuplet", "data", "photos"]
    env = {**environment(), "TERM": "xterm"}
    process = subprocess.Popen(command, cwd=folder, stdout=follower, stderr=follower, env=env)
    os.close(follower)
    shown = b""
    try:
        while chunk := os.read(leader, 65536):
            shown += chunk
    except OSError:
        pass  # the terminal closes with its last process
    assert process.wait(timeout=60) == 0
    assert b"reading images" in shown
    assert b"\x1b[" in shown


def test_metrics_match_the_saved_vectors(folder):
    vectors = load_file(folder / "run/vectors.safetensors")
    recall = evaluation.recall_at_k(vectors["embeddings"], vectors["labels"], ks=(1,))[1]
    assert json.loads((folder / "run/evaluation.json").read_text())["recall_at_1"] == recall


def test_a_models_name_or_weights_work_without_training(folder, tmp_path, monkeypatch):
    monkeypatch.setitem(
        ARCHITECTURES, "tiny_vit", lambda size=28: VisionTransformer(patch=14, width=16, depth=4, heads=2, size=size)
    )
    monkeypatch.setenv("TUPLET_WEIGHTS", str(tmp_path))
    torch.manual_seed(0)
    file = tmp_path / "tiny_vit.safetensors"
    save_file(ARCHITECTURES["tiny_vit"]().state_dict(), file)
    photos = sorted((folder / "photos" / "ant").iterdir())
    with pytest.warns(UserWarning, match="preprocessing"):
        expected = models.pretrained(file).embed(photos).numpy()
    for model in ("tiny_vit", file):
        done = typed("embed", model, photos[0].parent, "--out", tmp_path / "v.npz", "--device", "cpu", cwd=tmp_path)
        assert done.exit_code == 0, done.output
        np.testing.assert_allclose(np.load(tmp_path / "v.npz")["embeddings"], expected, atol=1e-6)
    done = typed("evaluate", "tiny_vit", "photos", "--on", "all", "--json", "--device", "cpu", cwd=folder)
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout)["queries"] == 48
    assert f"tuplet: tiny_vit has the weights {file}; for others give their file in place of the name" in done.stderr
    done = typed("index", "tiny_vit", "photos", "-o", tmp_path / "i.index", "--device", "cpu", cwd=folder)
    assert "48 images added" in done.stdout
    found = typed("search", tmp_path / "i.index", photos[0], "--device", "cpu", cwd=folder)
    assert f"1.0000  ant    {photos[0]}" in found.stdout


def test_data_ignores_a_stray_image(folder, tmp_path):
    shutil.copytree(folder / "photos", tmp_path / "photos")
    shutil.copy(folder / "photos/ant/1.png", tmp_path / "photos/stray.png")
    (tmp_path / "photos/ant/empty.png").touch()
    done = typed("data", "photos", cwd=tmp_path)
    assert done.returncode == 1
    assert "tuplet: warning: 1 image, stray.png, is ignored: in photos but in no class folder" in done.stderr
    assert "photos/ant/empty.png cannot be read: it is empty" in done.stdout


def test_tables_with_other_columns(folder, tmp_path):
    rows = [f"{folder}/photos/{name}/{i}.png,{name}" for name in NAMES for i in range(6)]
    (tmp_path / "birds.csv").write_text("\n".join(["file,species", *rows]) + "\n")
    other = ("--columns", "path=file,label=species")
    assert "ant (6), bee (6)" in typed("data", "birds.csv", "--no-check", *other, cwd=tmp_path).output
    done = typed("train", "birds.csv", *other, *SMALL, cwd=tmp_path)
    assert done.exit_code == 0, done.output
    # The run knows the names of its columns.
    assert typed("evaluate", "runs/birds", cwd=tmp_path).exit_code == 0
    assert typed("evaluate", "runs/birds", "birds.csv", *other, cwd=tmp_path).exit_code == 0
    assert "data:image" in (tmp_path / "runs/birds/report.html").read_text()
    assert typed("report", "runs/birds", cwd=tmp_path).exit_code == 0
    wrong = typed("evaluate", "runs/birds", "birds.csv", cwd=tmp_path)
    assert "rename one, or give --columns path=file" in wrong.stderr
    wrong = typed("data", "birds.csv", "--columns", "file", cwd=tmp_path)
    assert "--columns is 'file'; write role=name,role=name: 'file' has no =" in wrong.output


@pytest.mark.parametrize("command", ["train", "tune"])
def test_the_flag_recipe_takes_precedence_over_a_file(tmp_path, command, monkeypatch):
    """`--config` with a recipe, and another one as a flag."""
    called = {}
    monkeypatch.setattr("tuplet.train", lambda *_, **options: called.update(options) or sys.exit(0), raising=False)
    monkeypatch.setattr("tuplet.training.tune", lambda *_, **options: called.update(options) or sys.exit(0))
    draw_folder(tmp_path / "photos", ("ant", "bee"))
    (tmp_path / "run.json").write_text('{"recipe": "npair", "dim": 8}')
    assert (
        typed(command, "photos", "--config", "run.json", "--recipe", "nra", "--seed", "3", cwd=tmp_path).exit_code == 0
    )
    assert (called["recipe"], called["dim"], called["seed"]) == ("nra", 8, 3)
