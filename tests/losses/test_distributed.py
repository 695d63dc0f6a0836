"""Several processes with parts of a batch give the value and the gradients of one process with all of it."""

import pytest

from forked import run_forked
from losses.distributed_worker import main


@pytest.mark.parametrize("world", [2, 3])
def test_many_processes_equal_one(world, tmp_path):
    """With unequal batches, classes of one rank only, proxies, a learned β, a memory bank, with and without DDP."""
    calls = [(rank, world, str(tmp_path / "store")) for rank in range(world)]
    ended = run_forked(main, calls, tmp_path)
    assert [status for status, _ in ended] == [0] * world, "\n".join(output for _, output in ended)
