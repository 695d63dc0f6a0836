"""What each process of a distributed test of samplers runs: write the batches of every sampler."""

import json

import torch

from tuplet import sampling


def main(rank, world_size, folder):
    labels = [i // 6 for i in range(120)]
    if world_size > 1:
        torch.distributed.init_process_group("gloo", f"file://{folder}/store", rank=rank, world_size=world_size)
    # Ranks whose models disagree, as rounding makes them now and then: the choice of rank 0 must hold for both.
    vectors = torch.randn(120, 4, generator=torch.Generator().manual_seed(rank))
    samplers = {
        "hard": sampling.HardClassSampler(labels, lambda i: vectors[i], pairs=6),
        "npair": sampling.NPairSampler(labels, pairs=6),
        "neighbors": sampling.AnchorNeighborSampler(labels, lambda i: vectors[i], 2, 3, 2),
        "smart": sampling.SmartTripletSampler(labels, lambda i: vectors[i], 6),
        "one_class": sampling.OneClassSampler(labels, lambda i: vectors[i], 4, 8),
    }
    with open(f"{folder}/{world_size}-{rank}.json", "w") as file:
        json.dump({name: list(sampler) for name, sampler in samplers.items()}, file)
    if world_size > 1:
        torch.distributed.barrier()
        torch.distributed.destroy_process_group()
