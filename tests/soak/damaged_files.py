"""A corpus of damaged and crafted files of every kind that is read, and the process that reads them."""

import io
import json
import random
import shutil
import subprocess
import tarfile
import zipfile
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from queue import Empty, SimpleQueue
from threading import Thread

import numpy as np
import pyarrow
import pyarrow.parquet
import scipy.io
import torch
from PIL import Image
from safetensors.torch import save_file

from data.written import write_table
from search.damage import make_index, mutated
from training_tools import QUICK, TESTS, start_process, vectors
from tuplet import models, training
from tuplet.search import Index

#: Seconds in which every file must be read, on a busy machine too.
DEADLINE = 30.0
NESTED = "[" * 100_000 + "]" * 100_000
#: Texts in the place of any JSON file, and values in the place of those in it.
TEXTS = ["", "null", "[]", "{}", "1", '"x"', NESTED, "{" * 1000, "\\ud800", "[" + "9" * 100_000 + "]", "\x00" * 100]
VALUES = [None, -1, 1.5, True, 2**70, 1e308, "x", "", [], [[[]]], {"a": 1}]


@dataclass
class Outcome:
    """Counts of how the reading of files of each kind ended, and descriptions of all that ended badly."""

    ended: dict = field(default_factory=dict)
    problems: list = field(default_factory=list)
    slowest: float = 0.0
    peak_mib: int = 0

    @property
    def files(self):
        """The number of files that were read."""
        return sum(sum(counts.values()) for counts in self.ended.values())


class Reader:
    """The process that reads; it is started again after a crash or a file that takes too long."""

    def __init__(self):
        self._process = None

    def read(self, reader, path):
        """Return how the reading of a file ended, its seconds, and the peak memory of the process in MiB."""
        if self._process is None:
            program = TESTS / "soak" / "file_reader.py"
            self._process = start_process(program, command=("-u",), stdin=subprocess.PIPE)
            self._lines = SimpleQueue()
            Thread(target=_pass_on, args=(self._process.stdout, self._lines), daemon=True).start()
            assert self._line(300) == "ready\n", self._process.stderr.read()
        self._process.stdin.write(f"{reader}\t{path}\n")
        self._process.stdin.flush()
        line = self._line(DEADLINE)
        while line and not line.startswith('["'):  # a build of faiss prints its recall
            line = self._line(DEADLINE)
        if line:
            return json.loads(line)
        with suppress(subprocess.TimeoutExpired):  # after a crash its output ends first
            self._process.wait(1)
        ended = self._process.poll()
        self.close()
        return [f"no answer within {DEADLINE:g} s" if ended is None else f"a crash with status {ended}", DEADLINE, 0]

    def _line(self, seconds):
        try:
            return self._lines.get(timeout=seconds)
        except Empty:
            return ""

    def close(self):
        """End the process."""
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


def _pass_on(stream, lines):
    """Put the lines of a stream into a queue, and an empty one at its end; `select` would miss those read ahead."""
    for line in stream:
        lines.put(line)
    lines.put("")


def mutations(content, count, rng):
    """Yield damaged versions of the content of a file."""
    for _ in range(count):
        yield mutated(content, rng)


def json_damage(content, rng, count):
    """Yield texts in the place of a JSON file, and the file with one of its values changed."""
    yield from (text.encode("utf-8", "surrogatepass") for text in TEXTS)
    for _ in range(count):
        changed = json.loads(content)
        place, key = changed, None
        while isinstance(place, dict) and place and (key is None or rng.random() < 0.7):
            owner, key = place, rng.choice(list(place))
            place = owner[key]
        owner[key] = rng.choice(VALUES)
        if rng.random() < 0.3:
            del owner[key]
        yield json.dumps(changed).encode()


def files_in(folder, places, reader, rng, count):
    """Yield the readings of a folder in which one file at a time is damaged; the folder is whole again after each."""
    for place in places:
        path = Path(folder, place)
        good = path.read_bytes()
        damage = json_damage(good, rng, count) if path.suffix == ".json" else mutations(good, count, rng)
        for content in damage:
            path.write_bytes(content)
            yield reader, folder
        path.write_bytes(good)


def single_file(folder, name, content, reader, rng, count, crafted=()):
    """Yield the readings of damaged and crafted versions of one file."""
    path = Path(folder, name)
    for damaged in [*mutations(content, count, rng), *crafted]:
        path.write_bytes(damaged)
        yield reader, path
    path.unlink()


def bytes_of(write):
    """Return what a function writes to a file object."""
    file = io.BytesIO()
    write(file)
    return file.getvalue()


def zip_of(**members):
    def write(file):
        with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in members.items():
                archive.writestr(f"{name}.npy", content)

    return bytes_of(write)


def tar_of(folder):
    def write(file):
        with tarfile.open(fileobj=file, mode="w") as tar:
            tar.add(folder, ".")

    return bytes_of(write)


def images(format):
    noise = np.random.default_rng(0).integers(0, 256, (40, 50, 3), np.uint8)
    return bytes_of(lambda file: Image.fromarray(noise).save(file, format))


def npy_with_header(header):
    text = header.encode().ljust(118) + b"\n"
    return b"\x93NUMPY\x01\x00" + len(text).to_bytes(2, "little") + text + bytes(64)


NPY = [
    npy_with_header("{'descr': '<f4', 'fortran_order': False, 'shape': (4294967296, 4294967296), }"),
    npy_with_header("{'descr': '<f4', 'fortran_order': False, 'shape': (-1, 4), }"),
    npy_with_header("{'descr': '|O', 'fortran_order': False, 'shape': (4,), }"),
    npy_with_header("(" * 50),
    bytes_of(lambda file: np.save(file, np.zeros((0, 4), np.float32))),
    bytes_of(lambda file: np.save(file, np.full((4, 2), np.nan, np.float32))),
    bytes_of(lambda file: np.save(file, np.zeros((2, 2), np.complex64))),
]
TABLES = [
    b"",
    b"path,label",
    b"path,label\nx.jpg",
    b"path,label\n../../../etc/passwd,a\n",
    b"path,label\nx\x00.jpg,a\n",
    b"path,label\n" + b'"' * 10_001,
    b"label,label\na,b\n",
    b"path,label\n" + "\x1b[2J\ud800.jpg,a\n".encode("utf-8", "surrogatepass"),
    b"path,label,split\n" + b"x.jpg,a,nowhere\n" * 3,
    b"path,label\n" + b"x" * 200_000 + b",a\n",
]


def corpus(folder, count, seed=0):
    """Yield the kind, the reader and the path of every file: `count` damaged ones of each place, and crafted ones."""
    rng, folder = random.Random(seed), Path(folder)
    torch.manual_seed(seed)

    def kind(name, readings):
        return ((name, *reading) for reading in readings)

    model = folder / "model"
    models.create("mlp", features=10, dim=4).save(model)
    yield from kind("safetensors", files_in(model, ["model.safetensors"], "model", rng, 2 * count))
    yield from kind("JSON", files_in(model, ["embedder.json"], "model", rng, count))
    run = folder / "run"
    training.train(vectors(), run, **QUICK)
    yield from kind("checkpoint", checkpoints(run, rng, count))
    yield from kind("JSON", files_in(run, ["run.json", "evaluation.json"], "report", rng, count))
    yield from kind("safetensors", files_in(run, ["vectors.safetensors"], "report", rng, count))
    for sort in ("hnsw", "ivf_pq"):
        index = make_index(folder / sort, sort)
        names = ["vectors.f32", "items.jsonl", "rows.u64", "deleted.u64", "thumbnails.bin"]
        yield from kind("index", files_in(index, names, "index", rng, count // 2))
        yield from kind("JSON", files_in(index, ["index.json"], "index", rng, count))
        yield from kind("faiss", files_in(index, [Index.open(index).approximate.file], "index", rng, 2 * count))
    values = np.random.default_rng(seed).normal(size=(12, 4)).astype(np.float32)
    labels = np.arange(12) // 3
    plain = {name: bytes_of(lambda file, x=x: np.save(file, x)) for name, x in (("x", values), ("y", labels))}
    (folder / "labels.npy").write_bytes(plain["y"])
    yield from kind("npy", single_file(folder, "x.npy", plain["x"], "data", rng, 2 * count, NPY))
    packed = bytes_of(lambda file: np.savez_compressed(file, features=values, labels=labels))
    crafted = [zip_of(features=content, labels=plain["y"]) for content in NPY]
    crafted += [zip_of(features=plain["x"]), zip_of(features=plain["x"], labels=plain["x"]), zip_of(), b"PK"]
    yield from kind("npz", single_file(folder, "x.npz", packed, "data", rng, 2 * count, crafted))
    save_file({"features": torch.from_numpy(values), "labels": torch.from_numpy(labels)}, folder / "good.safetensors")
    content = (folder / "good.safetensors").read_bytes()
    yield from kind("safetensors", single_file(folder, "x.safetensors", content, "data", rng, count))
    yield from kind("images", image_files(folder, rng, count))
    photos = folder / "photos"
    for number in range(6):
        path = photos / "ab"[number % 2] / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(images("PNG"))
    yield from kind("tar", single_file(folder, "x.tar", tar_of(photos), "data", rng, 2 * count))
    rows = [{"path": f"photos/{'ab'[n % 2]}/{n}.png", "label": "ab"[n % 2]} for n in range(6)]
    for name, crafted in (("x.csv", TABLES), ("x.parquet", parquets())):
        content = write_table(folder / f"good{Path(name).suffix}", rows).read_bytes()
        readings = single_file(folder, name, content, "data", rng, 2 * count, crafted)
        yield from kind("CSV" if name.endswith("csv") else "Parquet", readings)
    yield from kind("mat", mats(folder / "cars", rng, 2 * count))


def checkpoints(run, rng, count):
    """Yield the readings of a run whose checkpoint is damaged, or lacks a part of its state."""
    # A copy for each: what is not refused trains on.
    good = torch.load(run / "checkpoint.pt", weights_only=True)
    damage = list(mutations((run / "checkpoint.pt").read_bytes(), count, rng))
    for name in [*good, "identity.settings", "identity.data", "progress.step", "optimizer.param_groups"]:
        for value in ("gone", None, {}):
            state = {key: dict(part) if isinstance(part, dict) else part for key, part in good.items()}
            first, _, second = name.partition(".")
            owner, key = (state[first], second) if second else (state, first)
            owner[key] = value
            if value == "gone":
                del owner[key]
            damage.append(bytes_of(lambda file, state=state: torch.save(state, file)))
    for number, content in enumerate([*damage, b"", b"PK"]):
        copied = shutil.copytree(run, run.with_name(f"run{number}"))
        (copied / "checkpoint.pt").write_bytes(content)
        yield "run", copied
        shutil.rmtree(copied)


def image_files(folder, rng, count):
    for format in ("PNG", "JPEG", "WEBP", "GIF", "TIFF", "BMP"):
        crafted = [b"", images(format)[:10], images("PNG")[:20] + images(format)]
        yield from single_file(folder, f"x.{format.lower()}", images(format), "image", rng, count, crafted)


def parquets():
    tables = [
        {"path": [["nested"]], "label": ["a"]},
        {"path": [b"\xff"], "label": ["a"]},
        {"path": [None], "label": [None]},
        {"label": ["a"]},
        {"path": [], "label": []},
    ]
    return [bytes_of(lambda file, t=t: pyarrow.parquet.write_table(pyarrow.table(t), file)) for t in tables]


def mats(folder, rng, count):
    """Yield the readings of Cars196 with a damaged list."""
    folder.mkdir()
    rows = np.array([("a.jpg", 1), ("b.jpg", 99)], [("relative_im_path", "O"), ("class", "O")])
    names = np.array([f"car {n}" for n in range(196)], object)
    content = bytes_of(lambda file: scipy.io.savemat(file, {"annotations": rows, "class_names": names}))
    for name in ("a.jpg", "b.jpg"):
        (folder / name).write_bytes(images("JPEG"))
    for damaged in [*mutations(content, count, rng), b"", content[:128]]:
        (folder / "cars_annos.mat").write_bytes(damaged)
        yield "data", folder


def read_all(folder, count, seed=0, every=1):
    """Read the corpus, or one file of every so many; yield the outcome so far after each file."""
    outcome, reader = Outcome(), Reader()
    try:
        for kind, how, path in islice(corpus(folder, count, seed), 0, None, every):
            told, seconds, peak = reader.read(how, path)
            outcome.ended.setdefault(kind, Counter())[told if told in ("result", "sentence") else "problem"] += 1
            if told not in ("result", "sentence"):
                outcome.problems.append(f"{kind}, {path.name}: {told}")
            outcome.slowest, outcome.peak_mib = max(outcome.slowest, seconds), max(outcome.peak_mib, peak)
            yield outcome
    finally:
        reader.close()
