"""Test that two processes under torch.distributed share the batches of one process."""

import json
import subprocess
import sys

SCRIPT = """
import json, sys, torch
from tuplet import sampling
labels = [i // 6 for i in range(120)]
rank, world_size, folder = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
if world_size > 1:
    torch.distributed.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=world_size)
# Ranks whose models disagree, as rounding makes them now and then: the choice of rank 0 must hold for both.
vectors = torch.randn(120, 4, generator=torch.Generator().manual_seed(rank))
makers = {
    "hard": lambda: sampling.HardClassSampler(labels, lambda i: vectors[i], pairs=6),
    "npair": lambda: sampling.NPairSampler(labels, pairs=6),
    "neighbors": lambda: sampling.AnchorNeighborSampler(labels, lambda i: vectors[i], 2, 3, 2),
    "smart": lambda: sampling.SmartTripletSampler(labels, lambda i: vectors[i], 6),
    "one_class": lambda: sampling.OneClassSampler(labels, lambda i: vectors[i], 4, 8),
}
json.dump({name: list(make()) for name, make in makers.items()}, open(f"{folder}/{world_size}-{rank}.json", "w"))
if world_size > 1:
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()
"""


def test_two_processes_share_the_batches_of_one(tmp_path):
    runs = [
        subprocess.Popen([sys.executable, "-c", SCRIPT, str(rank), str(world_size), str(tmp_path)])
        for rank, world_size in ((0, 1), (0, 2), (1, 2))
    ]
    assert [run.wait(timeout=60) for run in runs] == [0, 0, 0]
    whole, first, second = (json.loads((tmp_path / f"{name}.json").read_text()) for name in ("1-0", "2-0", "2-1"))
    assert whole
    for name, batches in whole.items():
        assert [a + b for a, b in zip(first[name], second[name], strict=True)] == batches, name
