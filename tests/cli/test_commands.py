"""Every command on real files, as a process of its own: what it prints, writes and returns."""

import json
import os
import pty
import re
import shutil
import subprocess
import sys

import numpy as np
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file

import tuplet as package
from commands import SMALL, environment, succeeded, tuplet, typed
from report_runs import draw_folder
from tuplet import evaluation
from tuplet.cli import COMMANDS
from tuplet.training import LOSSES, describe_options

NAMES = ("ant", "bee", "cat", "dog", "elk", "fox", "gnu", "hen")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A folder of pictures, and a run on it."""
    place = tmp_path_factory.mktemp("commands")
    draw_folder(place / "photos", NAMES)
    said = succeeded(tuplet("train", "photos/", "--out", "run", *SMALL, cwd=place))
    assert re.search(r"^Recall@1 +[\d.]+ %  \d+ of 24 queries", said, re.MULTILINE)
    assert "report: run/report.html" in said
    return place


def test_training_leaves_a_run_and_a_report(place):
    for name in ("run.json", "evaluation.json", "vectors.safetensors", "best/model.safetensors", "report.html"):
        assert (place / "run" / name).is_file()
    settings = json.loads((place / "run" / "run.json").read_text())["settings"]
    assert settings["batch_size"] == 16, "four training classes of four"
    assert settings["model_options"] == {"size": 32, "channels": 3}


def test_the_same_command_again_gives_the_same_result_at_once(place):
    before = (place / "run" / "events.jsonl").read_text()
    succeeded(tuplet("train", "photos/", "--out", "run", *SMALL, cwd=place))
    assert (place / "run" / "events.jsonl").read_text() == before


def test_evaluating_a_run_again_gives_its_numbers_to_the_digit(place):
    found = json.loads(succeeded(tuplet("evaluate", "run", "--json", cwd=place)))
    kept = json.loads((place / "run" / "evaluation.json").read_text())
    assert found == {name: kept[name] for name in found}


def test_evaluating_on_other_data_and_with_intervals(place, tmp_path):
    draw_folder(tmp_path / "others", ("one", "two", "three"))
    words = ("evaluate", place / "run/best", "others", "--on", "all", "--metric", "cosine", "--bootstrap", "50")
    table = succeeded(tuplet(*words, cwd=tmp_path))
    assert "18 queries" in table
    assert re.search(r"^Recall@1 +[\d.]+ % +[\d.]+ % to [\d.]+ %", table, re.MULTILINE)
    found = json.loads(succeeded(tuplet(*words, "--json", cwd=tmp_path)))
    assert (found["queries"], found["metric"], found["bootstrap"]) == (18, "cosine", 50)


def test_embedding_writes_every_format_alike(place):
    for ending in ("npy", "npz", "safetensors", "parquet"):
        done = typed("embed", "run", "photos/bee", "photos/ant/0.png", "--out", f"v/v.{ending}", cwd=place)
        assert (done.exit_code, done.output) == (0, f"v/v.{ending}: 7 vectors of 8 numbers\n")
    paths = [*(f"photos/bee/{i}.png" for i in range(6)), "photos/ant/0.png"]
    vectors = package.load(place / "run/best").embed([place / path for path in paths]).numpy()
    np.testing.assert_array_equal(np.load(place / "v/v.npy"), vectors)
    assert (place / "v/v.txt").read_text().splitlines() == paths
    with np.load(place / "v/v.npz") as archive:
        np.testing.assert_array_equal(archive["embeddings"], vectors)
        assert archive["paths"].tolist() == paths
    assert (place / "v/v.safetensors").stat().st_mode == (place / "v/v.npy").stat().st_mode
    with safe_open(place / "v/v.safetensors", "np") as file:
        np.testing.assert_array_equal(file.get_tensor("embeddings"), vectors)
        assert file.metadata()["paths"].splitlines() == paths
    parquet = pytest.importorskip("pyarrow.parquet")
    table = parquet.read_table(place / "v/v.parquet").to_pydict()
    assert table["path"] == paths
    np.testing.assert_array_equal(np.array(table["embedding"], np.float32), vectors)


def test_embedding_finds_the_pictures_that_training_finds(place):
    folder = place / "all"
    draw_folder(folder, NAMES[:1])
    (folder / "ant/._0.png").write_bytes(b"what another system leaves")
    (folder / "ant/more.png").mkdir()
    (folder / "bee").symlink_to(place / "photos/bee")
    done = typed("embed", "run", "all", "--out", "all.npy", cwd=place)
    assert (done.exit_code, done.output) == (0, "all.npy: 12 vectors of 8 numbers\n")
    assert (place / "all.txt").read_text().splitlines()[::6] == ["all/ant/0.png", "all/bee/0.png"]


def test_embedding_may_skip_what_cannot_be_read(place):
    draw_folder(place / "cut", NAMES[:1])
    (place / "cut/ant/2.png").write_bytes(b"cut")
    done = typed("embed", "run", "cut", "--out", "cut.npy", cwd=place)
    assert (done.exit_code, done.stderr.split("; ")[-1]) == (1, "replace it or leave it out with --unreadable skip\n")
    done = typed("embed", "run", "cut", "--out", "cut.npy", "--unreadable", "skip", cwd=place)
    assert (done.exit_code, done.stdout) == (0, "cut.npy: 5 vectors of 8 numbers, 1 unreadable\n")
    assert "image cut/ant/2.png cannot be read" in done.stderr
    paths = [f"cut/ant/{i}.png" for i in (0, 1, 3, 4, 5)]
    assert (place / "cut.txt").read_text().splitlines() == paths
    vectors = package.load(place / "run/best").embed([place / path for path in paths]).numpy()
    np.testing.assert_array_equal(np.load(place / "cut.npy"), vectors)
    for path in paths:
        (place / path).unlink()
    done = typed("embed", "run", "cut", "--out", "none.npy", "--unreadable", "skip", cwd=place)
    assert done.exit_code == 1
    assert "none of the 1 pictures can be read, first: image cut/ant/2.png cannot be read" in done.stderr


def test_the_report_is_written_again_from_anywhere(place, tmp_path):
    path = place / "run/report.html"
    first = path.read_text()
    assert "data:image" in first
    path.unlink()
    assert succeeded(tuplet("report", place / "run", cwd=tmp_path)) == f"{path}\n"
    assert path.read_text() == first
    moved = place.rename(place.with_name("moved"))
    try:
        assert succeeded(tuplet("report", moved / "run", cwd=tmp_path))
        assert "data:image" not in (moved / "run/report.html").read_text()
        assert succeeded(tuplet("report", moved / "run", moved / "photos", cwd=tmp_path))
        assert "data:image" in (moved / "run/report.html").read_text()
    finally:
        moved.rename(place)


def test_tables_and_features_are_trained_on_too(place, tmp_path):
    rows = [f"{place}/photos/{name}/{i}.png,{name}" for name in NAMES for i in range(6)]
    (tmp_path / "birds.csv").write_text("\n".join(["path,label", *rows]) + "\n")
    succeeded(tuplet("train", "birds.csv", *SMALL, "--loss", "triplet", cwd=tmp_path))
    assert (tmp_path / "runs/birds/report.html").is_file()
    labels = np.arange(60) // 6
    features = np.random.default_rng(0).normal(size=(60, 12)) + 3 * np.eye(12)[labels]
    np.savez(tmp_path / "f.npz", features=features, labels=labels)
    words = ("train", "f.npz", "--loss", "proxy_anchor", "--loss-options", "alpha=16,margin=0.2", "--steps", "3")
    succeeded(tuplet(*words, "--dim", "4", "--out", "f", cwd=tmp_path))
    about = json.loads((tmp_path / "f/run.json").read_text())
    assert about["settings"]["loss_options"] == {"alpha": 16, "margin": 0.2}
    assert about["settings"]["model"] == "mlp"


def test_python_and_the_command_train_alike(place, tmp_path):
    options = {"model": "convnet", "model_options": {"size": 32, "channels": 3}, "dim": 8, "steps": 4, "device": "cpu"}
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    run = package.train(place / "photos", tmp_path / "run", **options)
    torch.set_num_threads(threads)
    assert run.embedder.fingerprint() == package.load(place / "run/best").fingerprint()


def test_comparing_prints_means_and_deviations(place):
    words = ("compare", "photos", "triplet", "raw_vthm", "--seeds", "2", "--out", "compared", *SMALL)
    said = succeeded(tuplet(*words, cwd=place))
    found = json.loads((place / "compared/comparison.json").read_text())
    assert typed("report", found["rows"][0]["runs"][1]["folder"], cwd=place).exit_code == 0
    assert "data:image" in (place / "compared/triplet/seed_1/report.html").read_text()
    for row in found["rows"]:
        recalls = [run["metrics"]["recall_at_1"] for run in row["runs"]]
        mean = sum(recalls) / 2
        deviation = abs(recalls[0] - recalls[1]) / 2**0.5
        assert re.search(
            rf"^{row['loss']} +here, 2 seeds +{100 * mean:.2f} ± {100 * deviation:.2f} %", said, re.MULTILINE
        )


def test_data_are_described(place):
    said = succeeded(tuplet("data", "photos", cwd=place))
    assert "all          48        8         6       6        6" in said
    assert "train        24        4" in said
    assert "ant (6), bee (6)" in said
    assert "all 48 pictures can be read" in said
    rows = [f"photos/{name}/{i}.png,{name},{'train' if i % 2 else 'test'}" for name in NAMES for i in range(6)]
    (place / "mixed.csv").write_text("\n".join(["path,label,split", *rows]))
    assert "8 of the 8 test classes are trained on too" in typed("data", "mixed.csv", "--no-check", cwd=place).output


def test_copies_among_the_data_are_named(place):
    """A copy is found first without anything learned."""
    shutil.copytree(place / "photos", place / "copied")
    assert "exact copies" not in succeeded(tuplet("data", "copied", cwd=place))
    shutil.copy(place / "copied/ant/1.png", place / "copied/ant/again.png")
    shutil.copy(place / "copied/ant/1.png", place / "copied/bee/again.png")
    said = succeeded(tuplet("data", "copied", cwd=place))
    first = "first copied/ant/again.png of copied/ant/1.png"
    assert f"pictures that are exact copies of others: 2, 1 of them under another class; {first}" in said


def test_losses_are_listed_with_equation_inputs_and_paper(place):
    said = succeeded(tuplet("losses", cwd=place))
    blocks = [block.splitlines() for block in said.strip().split("\n\n")]
    assert [block[0] for block in blocks] == list(LOSSES)
    for name, equation, inputs, paper in blocks:
        assert len(equation) > 10, name
        assert re.fullmatch(r"  Inputs: .{5,}", inputs), name
        assert re.fullmatch(r"  Paper: .{10,}", paper), name
    one = succeeded(tuplet("losses", "ranked_list", cwd=place))
    assert "RankedListLoss(alpha=1.2, margin=0.4, temperature=10.0" in one
    assert "w = e^{T(α − d)}" in one
    assert "MarginLoss(beta=1.2, margin=0.2, learn_beta=False, mining=…)" in typed("losses", "margin", cwd=place).output


def test_help_teaches_every_command_and_every_setting(tmp_path):
    overview = succeeded(tuplet("--help", cwd=tmp_path))
    for name in COMMANDS:
        assert re.search(rf"^  {name} ", overview, re.MULTILINE)
        page = typed(name, "--help", cwd=tmp_path).output
        assert re.search(rf"Examples?:\n +.*tuplet {name}", page), f"{name} has no example"
    page = succeeded(tuplet("train", "--help", cwd=tmp_path))
    for option in describe_options():
        assert f"--{option.name.replace('_', '-')} " in page
    assert "None" not in page  # which is typed as none


def test_help_needs_no_torch(tmp_path):
    script = "import sys, tuplet.cli as c; sys.argv = ['tuplet', '--help']\ntry: c.main()\nexcept SystemExit: pass\n"
    done = subprocess.run(
        [sys.executable, "-c", f"{script}assert 'torch' not in sys.modules"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_the_version(tmp_path):
    assert succeeded(tuplet("--version", cwd=tmp_path)) == f"tuplet {package.__version__}\n"


def test_plain_text_where_there_is_no_terminal(place):
    said = tuplet("evaluate", "run", cwd=place)
    assert not re.search(r"[\x1b│─┃━]", said.stdout + said.stderr)
    assert said.stderr == ""


def test_training_tells_what_it_has_reached(place):
    done = tuplet("train", "photos", "--out", "told", *SMALL, "--evaluate-every", "2", cwd=place)
    succeeded(done)
    *reached, last = done.stderr.splitlines()
    assert [re.match(r"tuplet: step (\d) of 4 after \d+ s: .*Recall@1 ", line)[1] for line in reached] == ["2", "4"]
    assert re.fullmatch(r"tuplet: testing the embedder of step [24] on 24 examples", last)


def test_lines_end_where_their_words_do(place):
    for words in (("data", "photos", "--no-check"), ("evaluate", "run")):
        lines = succeeded(tuplet(*words, cwd=place)).splitlines()
        assert [line for line in lines if line != line.rstrip()] == []


def test_a_bar_on_a_terminal(place):
    """On a terminal the work shows how far it is, how fast, and how long it takes."""
    leader, follower = pty.openpty()
    command = [sys.executable, "-m", "tuplet", "data", "photos"]
    env = {**environment(), "TERM": "xterm"}
    process = subprocess.Popen(command, cwd=place, stdout=follower, stderr=follower, env=env)
    os.close(follower)
    shown = b""
    try:
        while chunk := os.read(leader, 65536):
            shown += chunk
    except OSError:
        pass  # the terminal closes with its last process
    assert process.wait(timeout=60) == 0
    assert b"reading pictures" in shown
    assert b"\x1b[" in shown


def test_metrics_are_those_of_the_vectors(place):
    vectors = load_file(place / "run/vectors.safetensors")
    recall = evaluation.recall_at_k(vectors["embeddings"], vectors["labels"], ks=(1,))[1]
    assert json.loads((place / "run/evaluation.json").read_text())["recall_at_1"] == recall
