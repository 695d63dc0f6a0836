"""Peak memory of evaluation, measured in separate processes."""

import json
import subprocess
import sys
import textwrap

import numpy as np
import pytest

# Memory of the process that no file backs, sampled while the work runs.
MEASURE = """
import json, sys, threading, time
import numpy as np, torch
from tuplet import evaluation as ev
torch.set_num_threads(1)

def anonymous():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("RssAnon")) / 1024

def measured(work):
    work_done, most, before = False, 0, anonymous()
    def watch():
        nonlocal most
        while not work_done:
            most = max(most, anonymous())
            time.sleep(0.002)
    watcher = threading.Thread(target=watch)
    watcher.start()
    result = work()
    work_done = True
    watcher.join()
    print(json.dumps({"result": result, "extra_mib": most - before}))
"""

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="reads /proc/self/status, which only Linux has"
)


def run(script, *arguments):
    code = MEASURE + textwrap.dedent(script)
    done = subprocess.run(
        [sys.executable, "-c", code, *map(str, arguments)], capture_output=True, text=True, check=True
    )
    return json.loads(done.stdout)


def test_a_mapped_gallery_is_never_held_in_memory(tmp_path):
    """A gallery file of 195 MiB is searched and ranked with less than half of that."""
    rng = np.random.default_rng(0)
    gallery = np.lib.format.open_memmap(tmp_path / "gallery.npy", "w+", np.float32, (200_000, 256))
    block = rng.normal(size=(20_000, 256)).astype(np.float32)
    for start in range(0, len(gallery), len(block)):
        gallery[start : start + len(block)] = block + start / 1e6
    queries = np.array(gallery[[5, 123_456, 199_999]])
    np.save(tmp_path / "queries.npy", queries)
    del gallery
    script = """
    gallery = np.load(sys.argv[1], mmap_mode="r")
    queries = np.load(sys.argv[2])
    labels = np.arange(len(gallery)) // 4

    def work():
        found = ev.nearest(queries, gallery, k=2)
        recall = ev.recall_at_k(queries, labels[[5, 123_456, 199_999]], (1,), gallery=gallery, gallery_labels=labels)
        return found.indices[:, 0].tolist(), recall[1]

    measured(work)
    """
    measured = run(script, tmp_path / "gallery.npy", tmp_path / "queries.npy")
    assert measured["result"] == [[5, 123_456, 199_999], 1.0]
    assert measured["extra_mib"] < 95


def test_pml_accuracy_calculator_holds_every_list_and_this_does_not():
    """Scores and indices of all pairs of 12,000 vectors take 2 GiB; no metric needs a tenth of that."""
    script = """
    x = torch.randn(12_000, 16, generator=torch.Generator().manual_seed(0))
    y = torch.arange(12_000) // 5
    names = ("recall_at_1", "recall_at_1000", "mean_average_precision", "map_at_r")
    measured(lambda: ev.per_query(x, y, metrics=names)[1].sum().item())
    """
    measured = run(script)
    assert measured["result"] == 12_000 * 4
    assert measured["extra_mib"] < 300


def test_a_collapsed_model_needs_no_more_memory_than_others():
    """All of 20,000 vectors tie; the candidates for the first ranks are dropped when they become too many."""
    script = """
    x = torch.rand(16, generator=torch.Generator().manual_seed(0)).expand(20_000, 16).contiguous()
    y = torch.arange(20_000) // 5
    measured(lambda: ev.per_query(x, y, metrics=("recall_at_1", "map_at_r"))[1].sum().item())
    """
    measured = run(script)
    assert measured["result"] == 20_000 * 4
    assert measured["extra_mib"] < 300


def test_large_classes_are_ranked_in_blocks():
    """12,000 queries with 3,000 positives each make 36 million pairs; Recall@1 needs one block at a time."""
    script = """
    x = torch.randn(12_000, 16, generator=torch.Generator().manual_seed(0))
    measured(lambda: ev.recall_at_k(x, torch.arange(12_000) % 4, ks=(1,))[1])
    """
    measured = run(script)
    assert 0.2 < measured["result"] < 0.3
    assert measured["extra_mib"] < 300


def test_a_vote_of_many_neighbours_needs_little_memory():
    """1,000 voters of each of 1,024 examples make a billion pairs."""
    script = """
    x = torch.randn(1024, 16, generator=torch.Generator().manual_seed(0))
    measured(lambda: ev.recognition(x, torch.arange(1024) // 4, k=1000))
    """
    measured = run(script)
    assert 0 <= measured["result"] < 0.1
    assert measured["extra_mib"] < 300
