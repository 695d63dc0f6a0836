"""Writers killed with -9 at random moments: what they said they did is there, and nothing is half done."""

import random
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from search.endless_writer import BATCH, vector
from tuplet.search import Index

WRITER = Path(__file__).with_name("endless_writer.py")


def killed_writer(folder: Path, first: int, delay: float) -> list[list[str]]:
    """Let a writer run for a while after its first word, kill it, and give all that it said."""
    process = subprocess.Popen([sys.executable, WRITER, folder, str(first)], stdout=subprocess.PIPE, text=True)
    said = process.stdout.readline()
    time.sleep(delay)
    process.kill()
    said += process.stdout.read()
    process.wait()
    # A line that the kill cut short was not said.
    return [line.split() for line in said.splitlines(keepends=True) if line.endswith("\n")]


def check(index: Index) -> dict[int, set[int]]:
    """Every row is whole, and batches are there with all or all but the two deleted; the numbers there, by batch."""
    there: dict[int, set[int]] = {}
    queries = []
    for row, item in enumerate(index.snapshot.items(range(len(index.snapshot.rows)))):
        number = int(item["id"])
        assert item["label"] == f"label {number}"
        assert np.array_equal(index.snapshot.vectors[row], vector(number))
        assert (index.snapshot.picture(row) or b"") == str(number).encode() * (number % 5)
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


def test_kill_9_loses_nothing_acknowledged_and_tears_nothing(tmp_path, soak):
    folder = tmp_path / "killed.index"
    Index.create(folder, dim=16)
    moment = random.Random(0)
    batches = 0
    for _ in range(50 if soak else 3):
        first = batches * BATCH
        said = killed_writer(folder, first, moment.uniform(0, 0.4))
        there = check(Index.open(folder))
        for what, start in said:
            numbers = there[int(start) // BATCH]
            assert int(start) in numbers
            assert what == "added" or int(start) + 1 not in numbers
        # At most the one change under way when it was killed is there without having been acknowledged.
        acknowledged = {int(start) // BATCH for what, start in said if what == "added"}
        assert len(there) - batches - len(acknowledged) <= 1
        batches = len(there)
    assert batches > 3
