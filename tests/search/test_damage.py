"""Damaged files of an index: each is refused in a sentence, soon, and none answers differently."""

import json
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from typer.testing import CliRunner

from search.damage import DIM, ROWS, answers, flip_bits, make_index, seal, sentence, vectors
from tuplet.cli import make_app
from tuplet.search import Index, copy, files

faiss = pytest.importorskip("faiss", reason="an approximate index needs faiss")

PROGRAM = Path(__file__).with_name("damage.py")


@pytest.fixture(scope="module", params=["hnsw", "ivf_pq"])
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def made(tmp_path_factory, kind):
    return make_index(tmp_path_factory.mktemp("made") / "i", kind)


@pytest.fixture
def folder(made, tmp_path):
    return shutil.copytree(made, tmp_path / "i")


@pytest.fixture
def plain(tmp_path):
    index = Index.create(tmp_path / "plain", dim=2)
    index.add(torch.eye(2), ["a", "b"], [{"label": "x"}, {}])
    index.delete("a")
    return index.folder


def test_no_flipped_bit_is_silent(folder, soak):
    assert Index.open(folder).verify() == sum(
        path.stat().st_size
        for path in folder.rglob("*")
        if path.is_file() and path.name not in (files.MANIFEST, files.LOCK)
    )
    flip_bits(folder, 500 if soak else 36)


def test_a_damaged_approximate_index_never_crashes(folder):
    done = subprocess.run([sys.executable, PROGRAM, "mutate", folder, "200"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    assert int(done.stdout.split()[0]) > 190


def test_a_file_that_is_cut_under_a_reader_is_in_memory_or_a_sentence(folder):
    done = subprocess.run([sys.executable, PROGRAM, "shorten", folder], capture_output=True, text=True)
    assert done.returncode == 0, (done.returncode, done.stderr[-2000:])
    assert len(done.stdout.split()) == 2 * 5


def test_rows_that_a_graph_names_are_checked(made, tmp_path):
    """The checksum fits, but the approximate index is that of a larger index."""
    index = Index.create(tmp_path / "i", dim=DIM)
    index.add(vectors()[:500], range(500))
    about = index.build_approximate("hnsw", recall=0.3)
    larger = faiss.IndexIDMap(faiss.IndexHNSWFlat(DIM, 32))
    larger.add_with_ids(vectors(), np.arange(ROWS))
    faiss.write_index(larger, str(index.folder / about.file))
    content = json.loads((index.folder / files.MANIFEST).read_text())
    content["approximate"]["bytes"], content["approximate"]["crc32"] = files.checksum(index.folder / about.file)
    seal(index.folder, content)
    with pytest.raises(ValueError, match=r"faiss is damaged: it names row 5\d\d of 500; call build_approximate again"):
        Index.open(index.folder).search(vectors()[550:])


def test_large_files_are_checked_by_verify_and_before_exact_search(folder, monkeypatch):
    monkeypatch.setattr(files, "QUICK", 0)
    truth = answers(folder)
    for name in (files.VECTORS, files.THUMBNAILS):
        content = bytearray((folder / name).read_bytes())
        good, content[1000] = bytes(content), content[1000] ^ 4
        (folder / name).write_bytes(content)
        index = Index.open(folder)
        refused = rf"{name} is damaged: its checksum does not fit; restore it from a copy"
        for call in (index.verify, lambda index=index: list(index.batches())):
            with pytest.raises(ValueError, match=refused):
                call()
        if name == files.VECTORS:
            with pytest.raises(ValueError, match=refused):
                index.search(vectors()[:1], exact=True)
        with pytest.raises(ValueError, match=refused):
            copy(folder, folder.with_name("copied"))
        (folder / name).write_bytes(good)
    assert answers(folder) == truth


def test_a_later_state_is_checked_from_where_the_earlier_one_ends(plain):
    reader, writer = Index.open(plain), Index.open(plain)
    reader.search(torch.eye(2))
    writer.add(torch.ones(1, 2), ["c"])
    path = plain / files.VECTORS
    path.write_bytes(path.read_bytes()[:-1] + b"\0")
    reader.refresh()
    with pytest.raises(ValueError, match="its checksum does not fit"):
        reader.search(torch.eye(2))


@pytest.mark.parametrize("entry", [2**64 - 1, 2**63, 2, 0])
def test_deleted_rows_that_cannot_be(plain, entry):
    content = json.loads((plain / files.MANIFEST).read_text())
    (plain / files.DELETED).write_bytes(np.array([0, entry], "<u8").tobytes())
    content["deleted"], content["bytes"][files.DELETED] = 2, 16
    seal(plain, content)
    seal(plain)
    what = "names a row twice" if entry == 0 else f"names row {entry:,} of 2"
    with pytest.raises(ValueError, match=rf"deleted\.u64 is damaged: it {what}; restore it from a copy"):
        Index.open(plain)


NESTED = "[" * 100_000 + "]" * 100_000
WRONG = {
    "null": "null",
    "text": '"x"',
    "negative": "-1",
    "float": "1.5",
    "bool": "true",
    "large": str(2**62),
    "huge": "9" * 100_000,
    "infinite": "1e999",
    "nested": "[" * 500 + "]" * 500,
    "nested deep": NESTED,
    "object": '{"a": 1}',
}


@pytest.mark.parametrize("value", WRONG)
def test_a_manifest_with_a_value_that_cannot_be(tmp_path, value):
    index = Index.create(tmp_path / "i", dim=DIM)
    index.add(vectors(), range(ROWS))
    index.build_approximate("hnsw", recall=0.3)
    folder, path = index.folder, index.folder / files.MANIFEST
    good = json.loads(path.read_text())
    places = [(key,) for key in good if key != "checksum"]
    places += [(key, inner) for key in ("bytes", "crc32", "approximate") for inner in good[key]]
    for place in places:
        content = json.loads(json.dumps(good))
        target = content
        for key in place[:-1]:
            target = target[key]
        if (value, place) in (
            ("null", ("model",)),  # an index of plain vectors
            ("null", ("approximate",)),
            ("text", ("model",)),
            ("text", ("uid",)),
            ("float", ("approximate", "seconds")),
            ("float", ("approximate", "recall_at_10")),
            ("infinite", ("approximate", "seconds")),
            ("infinite", ("approximate", "recall_at_10")),
            ("large", ("approximate", "effort")),
        ):
            continue
        target[place[-1]] = "HERE"
        text = json.dumps(content).replace('"HERE"', WRONG[value])
        try:
            seal(folder, json.loads(text))
        except (ValueError, RecursionError):
            path.write_text(text)
        begun = time.process_time()
        found = sentence(lambda: answers(folder))
        assert found is not None or place[0] == "crc32" or place[-1] == "crc32", place
        assert time.process_time() - begun < 2
    for text in (WRONG[value], "{" + f'"format": {WRONG[value]}' + "}", f"[{WRONG[value]}]", ""):
        path.write_text(text)
        assert sentence(lambda: Index.open(folder)), text[:50]


@pytest.mark.parametrize("name", ["model/..", "model/.", "model/../../secret", "/etc/passwd", "model"])
def test_a_manifest_that_names_other_files(plain, name):
    content = json.loads((plain / files.MANIFEST).read_text())
    content["bytes"][name], content["crc32"][name] = 1, 0
    seal(plain, content)
    with pytest.raises(ValueError, match=r"index\.json is damaged \(bytes and crc32 must name the files\)"):
        Index.open(plain).verify()


def test_a_manifest_of_any_size_is_refused_at_once(plain):
    with open(plain / files.MANIFEST, "r+b") as file:
        file.truncate(1 << 40)
    with pytest.raises(ValueError, match=r"index\.json is damaged \(more than 1,048,576 bytes\); restore"):
        Index.open(plain)


@pytest.mark.parametrize("line", ['{"a": "x"}', '{"id": 1}', '{"id": null}', '["id"]', '"id"', "1", NESTED, "}"])
def test_lines_without_an_id(tmp_path, line):
    index = Index.create(tmp_path / "i", dim=1)
    index.add(torch.zeros(2, 1), ["a" * 200_000, "b"])
    path = index.folder / files.ITEMS
    second = path.read_bytes().splitlines()[1]
    path.write_bytes(line.encode().ljust(path.stat().st_size - len(second) - 2) + b"\n" + second + b"\n")
    seal(index.folder)
    index = Index.open(index.folder)
    questions = [
        lambda: list(index.search(torch.zeros(1, 1))),
        lambda: index.search(torch.zeros(1, 1), where={"label": "x"}),
        index.counts,
        lambda: index.known("a" * 200_000),
        lambda: index.delete("a" * 200_000),
        lambda: list(index.batches()),
    ]
    for ask in questions:
        assert "items.jsonl and rows.u64 do not fit" in (sentence(ask) or "")


@pytest.mark.parametrize("name", ["line", "thumbnail"])
@pytest.mark.parametrize("end", [0, 1, 2**63, 2**64 - 1])
def test_rows_that_point_elsewhere(plain, name, end):
    truth = list(Index.open(plain).search(torch.eye(2)))
    rows = np.fromfile(plain / files.ROWS, files.ROW)
    rows[name][1] = end
    (plain / files.ROWS).write_bytes(rows.tobytes())
    seal(plain)
    index, told = Index.open(plain), []
    found = sentence(lambda: told.extend(index.search(torch.eye(2))))
    if name == "line" and end < 2:
        assert "items.jsonl and rows.u64 do not fit" in found
    else:
        assert (told, index.thumbnail("b")) == (truth, None)


def test_rebuilt_approximate_indexes_leave_no_descriptor(tmp_path, kind):
    index = Index.create(tmp_path / "i", dim=DIM)
    index.add(vectors(), range(ROWS))
    counts = []
    for number in range(6):
        index.build_approximate(kind, recall=0.3)
        index.add(vectors()[:1], [f"later {number}"])
        index.search(vectors()[:2])
        index.search(vectors()[:2], exact=True)
        counts.append(len(os.listdir("/proc/self/fd")))
    assert len(set(counts[2:])) == 1, counts


def test_verify_from_the_command_line(folder):
    done = CliRunner().invoke(make_app("index"), ["index", "--verify", str(folder)])
    assert done.exit_code == 0, done.output
    assert "all as written" in done.output
    path = folder / files.THUMBNAILS
    path.write_bytes(b"X" + path.read_bytes()[1:])
    done = CliRunner().invoke(make_app("index"), ["index", "--verify", str(folder)])
    assert done.exit_code == 1
    assert "thumbnails.bin is damaged: its checksum does not fit; restore it from a copy" in " ".join(
        done.stderr.split()
    )
    done = CliRunner().invoke(make_app("index"), ["index", "--verify", "things.db"])
    assert done.exit_code != 0
