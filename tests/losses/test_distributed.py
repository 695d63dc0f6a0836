"""Several processes with parts of a batch give the value and the gradients of one process with all of it."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize("world", [2, 3])
def test_many_processes_equal_one(world, tmp_path):
    """With unequal batches, classes of one rank only, proxies, a learned β, a memory bank, with and without DDP."""
    processes = []
    for rank in range(world):
        environment = {
            **os.environ,
            "RANK": str(rank),
            "WORLD_SIZE": str(world),
            "STORE": str(tmp_path / "store"),
            "PYTHONPATH": os.pathsep.join([str(TESTS), os.environ.get("PYTHONPATH", "")]),
        }
        command = [sys.executable, "-m", "losses.distributed_worker"]
        processes.append(subprocess.Popen(command, env=environment, stderr=subprocess.PIPE, text=True))
    errors = [process.communicate(timeout=240)[1] for process in processes]
    assert [process.returncode for process in processes] == [0] * world, "\n".join(errors)
