"""Kill writers with SIGKILL at random moments: acknowledged changes stay, and no change is half done."""

import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from search.endless_writer import BATCH, vector
from tuplet.search import Index

WRITER = Path(__file__).with_name("endless_writer.py")


def killed_writer(folder: Path, first: int, delay: float) -> list[list[str]]:
    """Start a writer, kill it some time after its second batch, and return its lines."""
    process = subprocess.Popen([sys.executable, WRITER, folder, str(first)], stdout=subprocess.PIPE, text=True)
    said = "".join(process.stdout.readline() for _ in range(3))
    time.sleep(delay)
    process.kill()
    said += process.stdout.read()
    process.wait()
    # Ignore a line that was cut short.
    return [line.split() for line in said.splitlines(keepends=True) if line.endswith("\n")]


def check(index: Index) -> dict[int, set[int]]:
    """Check every row, and that batches are complete but for deleted items; return the numbers by batch."""
    there: dict[int, set[int]] = {}
    queries = []
    for row, item in enumerate(index.snapshot.items(range(len(index.snapshot.rows)))):
        number = int(item["id"])
        assert item["label"] == f"label {number}"
        assert np.array_equal(index.snapshot.vectors[row], vector(number))
        assert (index.snapshot.thumbnail(row) or b"") == str(number).encode() * (number % 5)
        there.setdefault(number // BATCH, set())
        if index.snapshot.alive[row]:
            there[number // BATCH].add(number)
            queries.append(number)
    for batch, numbers in there.items():
        whole = set(range(batch * BATCH, batch * BATCH + BATCH))
        assert numbers in (whole, whole - {batch * BATCH + 1, batch * BATCH + 2})
    found = index.search(np.stack([vector(number) for number in queries]), k=1)
    assert [int(hits[0].id) for hits in found] == queries
    assert len(index) == len(queries)
    return there


def kill_writers(folder: Path, kills: int) -> Iterator[int]:
    """Kill one writer after another and check what each leaves; yield the number of batches after each."""
    Index.create(folder, dim=16)
    moment = random.Random(0)
    batches = 0
    for _ in range(kills):
        first = batches * BATCH
        said = killed_writer(folder, first, moment.uniform(0, 0.4))
        there = check(Index.open(folder))
        for what, start in said:
            numbers = there[int(start) // BATCH]
            assert int(start) in numbers
            assert what == "added" or int(start) + 1 not in numbers
        # At most one change, the one at the moment of the kill, is there without acknowledgement.
        acknowledged = {int(start) // BATCH for what, start in said if what == "added"}
        assert len(there) - batches - len(acknowledged) <= 1
        batches = len(there)
        yield batches


def test_kill_9_loses_no_acknowledged_change(tmp_path, soak):
    *_, batches = kill_writers(tmp_path / "killed.index", 100 if soak else 3)
    assert batches > 3
