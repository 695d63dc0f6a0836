"""Test that two processes under torch.distributed share the batches of one process."""

import json

from forked import run_forked
from sampling.rank_worker import main


def test_two_processes_share_the_batches_of_one(tmp_path):
    calls = [(0, 1, str(tmp_path)), (0, 2, str(tmp_path)), (1, 2, str(tmp_path))]
    ended = run_forked(main, calls, tmp_path)
    assert [status for status, _ in ended] == [0, 0, 0], "\n".join(output for _, output in ended)
    whole, first, second = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("1-0", "2-0", "2-1"))
    assert whole
    for name, batches in whole.items():
        assert [a + b for a, b in zip(first[name], second[name], strict=True)] == batches, name
