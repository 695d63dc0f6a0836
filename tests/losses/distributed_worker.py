"""What each process of the distributed tests runs: every case on its slice, against one process with the whole."""

import gc
import sys
from dataclasses import replace
from functools import partial
from itertools import pairwise

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from losses.batches import batch, value_and_gradient
from losses.cases import CASES, CLASSES, DIM
from tuplet import losses, mining
from tuplet.rows import ProcessGroup

N = 24


def slices(world, n):
    """Unequal parts, of three the middle one empty. (Of a tiny batch all but the last rank have one row.)"""
    if n < N:
        return list(pairwise([0, *range(1, world), n]))
    return list(pairwise({2: [0, 7, N], 3: [0, 11, 11, N]}[world]))


class Sharpened(losses.NCALoss):
    """A scale e^k, computed from what is learned."""

    def __init__(self):
        super().__init__()
        self.k = torch.nn.Parameter(torch.tensor(1.0, dtype=torch.float64))

    def value(self, view):
        scale = view.learned(self.k).exp()
        return view.mean(lambda s, positive, negative, scale: self.rows(scale * s, positive, negative), shared=(scale,))


def equal_labels(labels, gallery_labels):
    return labels[:, None] == gallery_labels


def gradients(model, loss):
    return [parameter.grad for parameter in [*model.parameters(), *loss.parameters()]]


def one_and_many(case, make, world, rank, ddp, options, n=N):
    """The value and the gradients of one process with the whole batch, and of `world` processes with their slices."""
    x, labels = batch(case, n)
    torch.manual_seed(0)
    model, loss = torch.nn.Linear(DIM, DIM, bias=False).double(), make()
    value = loss(model(x), labels, **options)
    value.backward()
    single = [value.detach(), *gradients(model, loss)]

    torch.manual_seed(0)
    model, loss = torch.nn.Linear(DIM, DIM, bias=False).double(), make()
    start, stop = slices(world, n)[rank]
    forward = DistributedDataParallel(model) if ddp else model
    value = loss(forward(x[start:stop]), labels[start:stop], distributed=True, **options)
    value.backward()
    many = [value.detach()]
    for gradient in gradients(model, loss):
        if not ddp:
            dist.all_reduce(gradient)
            gradient /= world
        many.append(gradient)
    return single, many


def compare(name, single, many, failures):
    for k, (ours, theirs) in enumerate(zip(many, single, strict=True)):
        if not theirs.numel():  # a process without rows
            continue
        error = (ours - theirs).abs().max().item()
        if not error < 1e-11 * (1 + theirs.abs().max().item()):
            failures.append(f"{name}: {'value' if k == 0 else f'gradient {k}'} off by {error:.2e}")


def main(rank, world, store):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=world)
    failures = []
    extra = {
        "margin_drawn": lambda: losses.MarginLoss(learn_beta=True).double(),
        "raw_drawn": lambda: losses.RAWLoss(mining=mining.DistanceWeighted()),
        "sharpened": Sharpened,
    }
    by_name = {case.name: case for case in CASES}
    for case in CASES:
        single, many = one_and_many(case, case.make, world, rank, False, {"block_rows": 5})
        compare(case.name, single, many, failures)
    for name, make in extra.items():
        single, many = one_and_many(by_name["margin"], make, world, rank, False, {})
        compare(name, single, many, failures)
    # Classes divided among the processes: each has the gradient of its own class vectors.
    for kind, options in (
        (losses.SoftmaxLoss, {}),
        (losses.CosFaceLoss, {"scale": 8.0}),
        (losses.ArcFaceLoss, {"scale": 8.0, "centers": 2}),
    ):
        x, labels = batch(by_name["cosface"], N)
        start, stop = slices(world, N)[rank]
        # The second time some classes have no query.
        for classes in (CLASSES, CLASSES + 2):
            torch.manual_seed(3)
            whole, own = kind(classes, DIM, **options).double(), kind(classes, DIM, sharded=True, **options).double()
            rows = slice(own.shard.start * own.centers, own.shard.stop * own.centers)
            for ours, theirs in zip(own.parameters(), whole.parameters(), strict=True):
                ours.data = theirs.data[rows].clone()
            single = value_and_gradient(whole, x, labels)
            whole(x, labels).backward()
            value, gradient = value_and_gradient(own, x[start:stop], labels[start:stop], distributed=True)
            own(x[start:stop], labels[start:stop], distributed=True, block_rows=5).backward()
            # What this process passes back into its own rows is averaged over processes by DDP.
            one = [single[0], single[1][start:stop], *(p.grad[rows] for p in whole.parameters())]
            many = [value, gradient / world, *(p.grad for p in own.parameters())]
            compare(f"sharded {kind.__name__} {classes}", one, many, failures)
    with pytest.raises(
        ValueError, match=rf"among {world} processes and gets the batches of 1; .*call it with distributed=True"
    ):
        own(x, labels)
    # Inside DDP the model's gradients come averaged; the loss's own parameters are whole on every rank already.
    for name in ("raw_vthm", "lifted_structure", "proxy_anchor", "soft_triple", "margin_drawn", "sharpened"):
        case = by_name.get(name, by_name["margin"])
        compare(f"ddp {name}", *one_and_many(case, extra.get(name, case.make), world, rank, True, {}), failures)
    # Fewer pairs than processes: one of them has nothing to walk.
    compare("tiny", *one_and_many(by_name["npair_mc"], losses.NPairLoss, world, rank, False, {}, n=4), failures)
    # Labels of any type, beside a comparison of one's own.
    (start, stop), (x, labels) = slices(world, N)[rank], batch(by_name["raw"], N)
    for dtype in (torch.bool, torch.int16, torch.uint32, torch.bfloat16):
        tags = torch.stack([labels % 2, labels % 3], 1).to(dtype)
        look = {"same": lambda a, b: (a[:, None] == b).all(-1)}
        value = losses.RAWLoss()(x[start:stop], tags[start:stop], distributed=True, **look)
        compare(f"labels of {dtype}", [losses.RAWLoss()(x, tags, **look)], [value], failures)
    # A memory that every rank fills with the whole batch, as training does.
    case = by_name["raw_vthm"]
    x, labels = batch(case, N)
    bank = losses.MemoryBank(N, DIM, dtype=torch.float64)
    bank.add(x.flip(0), labels.flip(0))
    compare("bank", *one_and_many(case, case.make, world, rank, False, {"gallery": bank}), failures)
    # A gallery that every rank holds: of three, one has no queries to look at it with.
    for case in (case for case in CASES if case.labels == "any"):
        gallery = dict(zip(("gallery", "gallery_labels"), batch(case, N, seed=1), strict=True))
        for options in ({}, {"same": equal_labels}, {"same": equal_labels, "max_per_class": 4}):
            name = f"gallery {case.name} {sorted(options)}"
            compare(name, *one_and_many(case, case.make, world, rank, False, gallery | options), failures)
    # A gallery that every rank holds, whose vectors are queries too, and whose lengths count once.
    case = replace(by_name["npair_mc"], labels="different")
    gallery = {"gallery": batch(case, N, seed=1)[0], "gallery_labels": torch.arange(N).flip(0)}
    for options in ({"norm_penalty": 0.1}, {"symmetric": True}):
        make = partial(losses.NPairLoss, **options)
        compare(f"npair {options}", *one_and_many(case, make, world, rank, False, gallery), failures)
    with pytest.raises(ValueError, match=f"empty in all {world} processes"):
        losses.RAWLoss()(x[:0], labels[:0], distributed=True)
    # Rows that differ between processes, for which gloo would end them.
    last = {"embeddings": x, "labels": labels}
    for name, other, first_kind, last_kind in (
        ("embeddings", x[:, 1:], "float64 of 2 dimensions with 4 numbers", "float64 of 2 dimensions with 3 numbers"),
        ("embeddings", x.bfloat16(), "float64 of 2 dimensions with 4 numbers", "bfloat16 of 2 dimensions with 4"),
        ("labels", labels[:, None].float(), "int64 of 1 dimension with 1 number a row", "float32 of 2 dimensions"),
    ):
        given = last | {name: other} if rank == world - 1 else last
        wrong = rf"{name} are torch\.{first_kind}.* in process 0 and torch\.{last_kind}.* in process {world - 1}; use"
        with pytest.raises(ValueError, match=wrong):
            losses.RAWLoss()(*given.values(), distributed=True, same=lambda a, b: a[:, None] == b)
    # Of a group, the batches of its processes alone.
    group, parts = dist.new_group(list(range(1, world))), slices(world, N)
    if rank:
        (start, stop), first = parts[rank], parts[1][0]
        single = value_and_gradient(losses.RAWLoss(), x[first:], labels[first:])
        value, gradient = value_and_gradient(losses.RAWLoss(), x[start:stop], labels[start:stop], distributed=group)
        own = single[1][start - first : stop - first]
        compare("group", [single[0], own.sum(0)], [value, gradient.sum(0) / (world - 1)], failures)
    # What flows back into one gather may flow into another too, and is left as it came.
    ranks, size = ProcessGroup(), rank + 2
    one, other = (torch.zeros(size, DIM, requires_grad=True) for _ in range(2))
    sizes = ranks.sizes(one=one, other=other)
    weights = torch.arange(sum(sizes) * DIM).view(-1, DIM).float()
    ((ranks.gather(one, sizes) + ranks.gather(other, sizes)) * weights).sum().backward()
    expected = world * weights.split(sizes)[rank]
    compare("shared", [expected, expected], [one.grad, other.grad], failures)
    # What DDP averages with lies in a cycle, and its threads must have ended before the group does.
    gc.collect()
    dist.barrier()
    dist.destroy_process_group()
    if failures:
        sys.exit(f"rank {rank}: " + "; ".join(failures))
