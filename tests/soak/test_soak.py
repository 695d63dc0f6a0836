"""Samples of the long tests, which run at full counts in `make soak` and in benchmarks/robustness.py."""

import pytest

from soak import damaged_files, loss_batches, memory

MIB = 1 << 20


def test_losses_equal_their_equations_in_all_types(soak):
    outcome = loss_batches.run(100_000 if soak else 77)
    assert outcome.batches == (100_000 if soak else 77)
    assert not outcome.failures


@pytest.fixture(scope="module")
def read(request, tmp_path_factory):
    """How the reading of damaged files ended."""
    soak = request.config.getoption("--soak")
    *_, outcome = damaged_files.read_all(tmp_path_factory.mktemp("files"), 8 if soak else 1, every=1 if soak else 4)
    assert outcome.files > (300 if soak else 40)
    return outcome


KINDS = ("safetensors", "checkpoint", "JSON", "index", "faiss", "npz", "npy", "mat", "Parquet", "CSV", "tar", "images")


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_file_gives_a_result_or_a_sentence(read, kind, soak):
    assert kind in read.ended or not soak
    assert not [problem for problem in read.problems if problem.startswith(f"{kind},")]


@pytest.mark.parametrize("name", ["TRAIN", "EMBED"])
def test_memory_stays_flat(name, tmp_path, soak):
    if name == "EMBED" and not soak:
        pytest.skip("runs with --soak")
    count = {"TRAIN": 20_000, "EMBED": 50_000}[name] if soak else 3_000  # fewer steps measure the imports
    samples = memory.run(getattr(memory, name), tmp_path, count)
    assert len(samples) > 8
    assert memory.growth(samples) < 32 * MIB
