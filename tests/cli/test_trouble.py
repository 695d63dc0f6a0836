"""What goes wrong in a user's hands is one sentence and an exit code that means something, never a traceback."""

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
from PIL import Image

from commands import SMALL, environment, refused, succeeded, tuplet, typed
from report_runs import draw_folder
from tuplet import models
from tuplet.cli.trouble import said_plainly

NAMES = ("ant", "bee", "cat", "dog", "elk", "fox", "gnu", "hen")
TRAIN = ("train", "photos", "--out", "new", *SMALL)
COMPARE = ("compare", "photos", "triplet", "--seeds", "1", "--out", "compared", *SMALL)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Pictures, a run on them, and much that is not as it should be."""
    place = tmp_path_factory.mktemp("trouble")
    draw_folder(place / "photos", NAMES)
    draw_folder(place / "one", NAMES[:1])
    draw_folder(place / "two", NAMES[:2])
    draw_folder(place / "broken", NAMES[:4])
    (place / "broken/bee/3.png").write_bytes((place / "broken/bee/3.png").read_bytes()[:60])
    (place / "empty").mkdir()
    draw_folder(place / "validated/train", NAMES[:2])
    draw_folder(place / "validated/val", NAMES[2:4])
    for name, width in (("vectors", 8), ("narrow", 5)):
        np.savez(place / f"{name}.npz", features=np.eye(8)[:, :width], labels=np.arange(8) // 2)
    models.create("mlp", dim=4, features=8).save(place / "of_vectors")
    (place / "list.csv").write_text("file,label\nphotos/ant/0.png,1\n")
    succeeded(tuplet("train", "photos", "--out", "run", *SMALL, cwd=place))
    succeeded(tuplet(*COMPARE, cwd=place))
    for name in (b"odd/\xff.png", b"lines/a\nb.png"):
        copy = os.path.join(os.fsencode(place), name)
        os.mkdir(os.path.dirname(copy))
        shutil.copy(place / "photos/ant/0.png", copy)
    for name in ("scribbled", "cut"):
        shutil.copytree(place / "run", place / name)
    (place / "scribbled/run.json").write_text("{")
    os.truncate(place / "cut/events.jsonl", 20)
    shutil.copytree(place / "run/best", place / "my run/best")
    shutil.copytree(place / "run/best", place / "damaged")
    os.truncate(place / "damaged/model.safetensors", 100)
    shutil.copytree(place / "run", place / "swapped")
    about = json.loads((place / "swapped/best/embedder.json").read_text())
    about["config"]["dim"] = 16
    (place / "swapped/best/embedder.json").write_text(json.dumps(about))
    for name, data in (("moved", "/nowhere/photos"), ("in memory", "Dataset(48 images, 8 classes)")):
        shutil.copytree(place / "run", place / name)
        run = json.loads((place / "run/run.json").read_text())
        (place / name / "run.json").write_text(json.dumps({**run, "data": data}))
    return place


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("train", "nowhere"), "nowhere does not exist; give a folder"),
        (("train", "photos", "--out", ""), "out is ''; give the path of a folder"),
        (("compare", "photos", "triplet", "raw", "--out", ""), "out is ''; give the path of a folder"),
        (("train", "empty"), "empty holds no images; expected folders, one a class"),
        (("train", "one", *SMALL), "the data have 1 class: 'ant'"),
        (("train", "two", *SMALL), "training needs two classes of two examples or more, and there are 1"),
        (("train", "broken", *SMALL), "3.png cannot be read"),
        (("train", "list.csv"), "list.csv has no column 'path'; its columns are file, label"),
        ((*TRAIN, "--batch-size", "64"), "choose a --batch-size of 16 or less, or a larger --per-class"),
        ((*TRAIN, "--loss", "tripplet"), "there is no loss 'tripplet'; did you mean 'triplet'?"),
        (("train", "photos", "--out", "new", "--model", "convnet", "--size", "12"), "images are 12×12 and this convnet "
         "takes 28×28; resize them, or create it with its own option 'size' (--model-options in training)"),
        (("train", "photos", "--out", "new", "--model", "convnt"), "did you mean 'convnet'?"),
        ((*TRAIN, "--recipe", "ranked"), "there is no recipe 'ranked'; did you mean 'ranked_list'?"),
        ((*TRAIN, "--loss-options", "bets=3"), "has no option 'bets'; did you mean 'beta'?"),
        ((*TRAIN, "--rate", "-1"), "--rate is -1.0; it must be above 0"),
        ((*TRAIN, "--weights", "nowhere.pt"), "'nowhere.pt' are neither a file nor a name"),
        ((*TRAIN, "--device", "cuda:99"), "the device 'cuda:99' cannot be used here"),
        ((*TRAIN, "--device", "cuda:99"), "; leave --device out, or choose cpu"),
        ((*TRAIN, "--dim", "900000000000"), "can't allocate memory: you tried to allocate"),
        (("train", "photos", "--out", "list.csv", *SMALL), "list.csv is a file; give a folder"),
        ((*TRAIN, "--rate", "1e12", "--optimizer", "sgd", "--normalize", "false", "--schedule", "constant"),
         "lower the rate from 1e+12, or set --warmup or --clip"),
        ((*TRAIN, "--schedule", "step"), "--schedule step needs --decay-every, the number of steps"),
        ((*TRAIN, "--test-on", "validation"), "--test-on validation needs --validation, the share"),
        ((*TRAIN, "--loss", "npair", "--memory", "9"), "--memory is 9 and NPairLoss compares its batch with no other; "
         "use --memory 0, or another loss"),
        (("train", "photos", "--out", "new", "--model", "resnet50", "--piece-size", "4"), "--piece-size is 4 and "
         "resnet50 has BatchNorm, whose statistics would be those of a piece; set --frozen-batchnorm true"),
        (("train", "photos", "--out", "run", *SMALL, "--dim", "16"), "run holds a run with --dim 8, not --dim 16; "
         "give another folder, or --no-resume to begin again"),
        (("train", "photos", "--out", "run", *SMALL, "--model", "mlp"), "mlp takes"),
        (("evaluate", "nowhere"), "nowhere does not exist; give the folder of a run"),
        (("evaluate", "empty"), "empty holds no embedder and no run"),
        (("evaluate", "damaged", "photos"), "model.safetensors is damaged"),
        (("evaluate", "swapped"), "swapped/best"),
        (("evaluate", "scribbled"), "scribbled/run.json is not valid JSON"),
        (("report", "scribbled"), "scribbled/run.json is not valid JSON"),
        (("report", "cut"), "cut/events.jsonl is not valid JSON"),
        (("evaluate", "run/best"), "knows no data; name them"),
        (("evaluate", "moved"), "the data of moved are no longer at /nowhere/photos; name them: tuplet evaluate"),
        (("evaluate", "in memory"), "the data of in memory were in memory; name them: tuplet evaluate 'in memory'"),
        (("evaluate", "run", "one"), "the data have 1 class"),
        (("evaluate", "run", "vectors.npz"), "in run takes pictures, and vectors.npz holds feature vectors; give data"),
        (("evaluate", "of_vectors", "photos"), "in of_vectors takes feature vectors, and photos holds pictures; give"),
        (("evaluate", "of_vectors", "narrow.npz"), "takes vectors of 8 numbers, and those of narrow.npz have 5; give"),
        (("embed", "run", "nowhere", "--out", "v.npz"), "nowhere does not exist; give pictures"),
        (("embed", "run", "empty", "--out", "v.npz"), "empty holds no pictures"),
        (("embed", "run", "list.csv", "--out", "v.npz"), "list.csv is no picture; give pictures, or folders"),
        (("embed", "run", "broken", "--out", "v.npz"), "3.png cannot be read"),
        (("report", "nowhere"), "the run folder nowhere does not exist"),
        (("report", "photos"), "photos has no run.json, so it holds no finished run"),
        (("compare", "photos", "tripplet", *SMALL), "there is no loss 'tripplet'"),
        ((*COMPARE, "--dim", "16"), "compared/triplet/seed_0 holds a run with --dim 8, not --dim 16; "
         "give another folder, or delete that run's folder to begin again"),
        (("embed", "run", "photos", "--out", "list.csv/v.npz"), "list.csv: File exists, and it is no folder; choose"),
        (("embed", "run", "photos", "--out", "/proc/v.npz"), "; give another folder"),
        (("embed", "run", "photos", "--out", "/proc/v.safetensors"), "; give another folder"),
        (("embed", "run", "broken", "--out", "/proc/v.npz"), "/proc/v.npz could not be written"),
        (("embed", "run", "odd", "--out", "v.npz"), r"the name of 'odd/\udcff.png' is no UTF-8 text"),
        (("embed", "run", "lines", "--out", "v.npz"), r"the name of 'lines/a\nb.png' has a line break"),
        (("evaluate", "my run/best"), "name them: tuplet evaluate 'my run/best' DATA"),
        (("losses", "lifted_structur"), "did you mean 'lifted_structure'?"),
        (("data", "nowhere"), "nowhere does not exist"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, tuple) else "",
)  # fmt: skip
def test_one_sentence(place, words, sentence):
    done = typed(*words, cwd=place)
    assert done.exit_code == 1, done.output
    assert "Traceback" not in done.output
    said = [line for line in done.stderr.splitlines() if not line.startswith("tuplet: warning: ")]
    assert len(said) == 1, done.stderr
    assert said[0].startswith("tuplet: ")
    assert sentence in said[0]
    assert not (place / "v.npz").exists()


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("trian", "photos"), "No such command 'trian'. Did you mean 'train'?"),
        (("train",), "Missing argument 'DATA'"),
        ((*TRAIN, "--batchsize", "3"), "--batch-size"),
        ((*TRAIN, "--batch_size", "3"), "--batch-size"),
        ((*TRAIN, "--steps", "many"), "--steps is 'many'; it must be INT: how many batches"),
        ((*TRAIN, "--optimizer", "lion"), "--optimizer is 'lion'; it must be sgd|adam|adamw"),
        ((*TRAIN, "--loss-options", "beta"), "write name=value"),
        ((*TRAIN, "--loss-options", "{beta"), "--loss-options is no valid JSON"),
        (("embed", "run", "photos", "--out", "v.txt"), "its ending must be one of .npy, .npz, .safetensors, .parquet"),
        (("evaluate", "run", "--bootstrap", "-1"), "Invalid value for '--bootstrap'"),
        (("compare", "photos", "triplet", "--seeds", "0"), "Invalid value for '--seeds'"),
        (("evaluate", "run", "--on", "half"), "'half' is not one of 'test', 'train', 'all'"),
    ],
    ids=lambda value: " ".join(value)[:60] if isinstance(value, tuple) else "",
)
def test_wrong_usage_is_code_2(place, words, sentence):
    done = typed(*words, cwd=place)
    assert done.exit_code == 2, done.output
    assert sentence in " ".join(done.stderr.split())
    assert "Traceback" not in done.output


def test_a_process_says_the_same(place):
    assert "nowhere does not exist" in refused(tuplet("train", "nowhere", cwd=place))
    done = tuplet("train", "photos", "--stepz", "3", cwd=place)
    assert done.returncode == 2
    assert "--steps" in done.stderr


def test_warnings_are_lines_of_their_own(place):
    done = typed("train", "photos", "--model", "resnet50", "--steps", "1", "--dim", "0", cwd=place)
    assert done.exit_code == 1
    done = typed("train", "photos", "--out", "warned", *SMALL, "--loss", "npair", "--normalize", "true", cwd=place)
    assert done.exit_code == 0, done.output
    assert "tuplet: warning: NPairLoss gets unit vectors" in done.stderr
    assert "use --normalize eval\n" in done.stderr
    assert ".py" not in done.stderr


def test_a_test_split_of_one_class_is_no_triumph(place):
    draw_folder(place / "three", NAMES[:3])
    done = typed("train", "three", "--out", "three_run", *SMALL, cwd=place)
    assert done.exit_code == 0
    assert "tuplet: warning: these examples are of a single class, so that every answer is right" in done.stderr


def test_data_with_unreadable_files_are_described_and_code_1(place):
    done = typed("data", "broken", cwd=place)
    assert done.exit_code == 1
    assert "1 of 24 pictures cannot be read:" in done.output
    assert "broken/bee/3.png" in done.output


def test_a_picture_of_too_many_pixels_is_one_line(place, tmp_path):
    """Pillow has a limit and a warning of its own."""
    (tmp_path / "large").mkdir()
    for name, side in (("large", 9500), ("huge", 14_000)):
        Image.new("1", (side, side)).save(tmp_path / f"large/{name}.png")
        done = typed("embed", place / "run", tmp_path / f"large/{name}.png", "--out", tmp_path / "v.npz", cwd=place)
        assert done.exit_code == 1
        assert re.fullmatch(
            rf"tuplet: image \S+/{name}.png cannot be read: .*[^.]; replace it or leave it out .*\n", done.stderr
        )


def test_files_that_are_taken_for_no_pictures_are_counted(place):
    shutil.copytree(place / "photos", place / "phone")
    for name in ("ant/1.HEIC", "ant/2.heic", "bee/clip.mov"):
        (place / "phone" / name).touch()
    said = succeeded(tuplet("data", "phone", cwd=place))
    assert "files that are no pictures by their endings: 2 .heic, 1 .mov\n" in said


def test_data_that_are_too_few_to_train_on_are_called_so(place):
    few = "training needs two classes of two examples or more, and the train split has 1; add examples"
    assert few in typed("data", "two", cwd=place).output
    untested = "tuplet train cannot take these data: there is no split 'test', nor 'query' and 'gallery', here"
    assert untested in typed("data", "validated", cwd=place).output
    rows = [f"photos/{name}/{i}.png,{name}" for name in NAMES for i in range(2 if name < "elk" else 1)]
    (place / "alone.csv").write_text("\n".join(["path,label", *rows]))
    unfound = "tuplet train cannot take these data: no example of the test split has another one of its class to find"
    assert unfound in typed("data", "alone.csv", cwd=place).output
    assert "train" not in typed("data", "photos", cwd=place).output.partition("classes: ")[2]


def small_files(limit):
    """Let a process write files of this many bytes at most, as on a disk that is full."""

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
def test_a_disk_that_is_full(place, words, file):
    before = (place / "run/report.html").read_bytes()
    said = refused(tuplet(*words, cwd=place, preexec_fn=small_files(1000)))
    assert f"{file}" in said
    assert "could not be written" in said
    assert said.endswith("; make room, then call again")
    assert not list(place.glob("**/*.part"))
    assert (place / "run/report.html").read_bytes() == before


def mounted(place, mount, words):
    """What is said where the kernel lets a test mount a file system of its own."""
    script = f"{mount} || exit 77; exec {sys.executable} -m tuplet {words}"
    done = subprocess.run(
        ["unshare", "-rm", "sh", "-c", script],
        cwd=place,
        capture_output=True,
        text=True,
        check=False,
        env=environment(),
    )
    if done.returncode == 77 or "unshare" in done.stderr:
        pytest.skip(f"no file system of its own for a test here: {done.stderr.strip()}")
    return refused(done)


def test_a_real_file_system_that_is_full(place):
    files = " ".join(["photos"] * 40)
    said = mounted(place, f"mount -t tmpfs -o size=64k none {place}/empty", f"embed run {files} --out empty/v.npz")
    assert "empty/v.npz could not be written" in said
    assert "No space left on device" in said


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        ("report run", "run/report.html could not be written ([Errno 30] Read-only file system: "),
        ("index run photos -o run/an.index", "run/an.index could not be written ([Errno 30] Read-only file system: "),
    ],
)
def test_a_file_system_that_may_only_be_read(place, words, sentence):
    said = mounted(place, "mount --bind run run && mount -o remount,bind,ro run", words)
    assert sentence in said
    assert said.endswith("another folder")


def stopped_after(place, words, file):
    """Run a command until a file appears or changes, press ctrl-C, and give back its code and what it said."""
    before = file.stat().st_mtime_ns if file.exists() else 0
    command = [sys.executable, "-m", "tuplet", *words]
    process = subprocess.Popen(command, cwd=place, stderr=subprocess.PIPE, text=True, env=environment())
    until = time.monotonic() + 60
    while (not file.exists() or file.stat().st_mtime_ns == before) and time.monotonic() < until:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=60)
    return process.returncode, said


def test_ctrl_c_is_code_130_and_the_same_command_goes_on(place):
    words = ("train", "photos", "--out", "stopped", *SMALL, "--steps", "100000", "--checkpoint-every", "5")
    words += ("--log-every", "1")
    for begins in ("tuplet: ", "tuplet: going on from step "):
        code, said = stopped_after(place, words, place / "stopped/checkpoint.pt")
        assert code == 130
        assert said.startswith(begins)
        assert said.splitlines()[-1] == "tuplet: stopped; the same command goes on from the last checkpoint"
    events = [json.loads(line) for line in (place / "stopped/events.jsonl").read_text().splitlines()]
    steps = [event["step"] for event in events if event["event"] == "train"]
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) >= 10


def test_ctrl_c_while_the_command_is_still_being_imported(place):
    script = "import signal; signal.raise_signal(signal.SIGINT)"
    (place / "early").mkdir()
    (place / "early/torch.py").write_text(script)
    done = tuplet("losses", cwd=place, env={**environment(), "PYTHONPATH": str(place / "early")})
    assert (done.returncode, done.stderr) == (130, "tuplet: stopped\n")


def test_a_terminal_that_knows_few_letters(place):
    said = succeeded(tuplet("losses", "triplet", cwd=place, env={**environment(), "PYTHONIOENCODING": "ascii"}))
    assert "[d_ap? ? d_an? + m]" in said
    latin = {**environment(), "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    assert "report.html" in succeeded(tuplet("report", "run", cwd=place, env=latin))


def test_the_programs_own_errors_keep_their_traceback():
    def broken():
        raise KeyError("a bug")

    with pytest.raises(KeyError):
        said_plainly(broken)()
