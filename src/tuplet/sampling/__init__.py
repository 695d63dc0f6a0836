"""Batch samplers: which examples meet in a batch.

All of them give lists of indices, for `torch.utils.data.DataLoader(batch_sampler=…)` or `tuplet.data.batches`, and take
`labels` (integers), numbers of their own, `seed`, and as options `batches`, `rank` and `world_size`.

**Epochs.** An epoch is ⌊N / batch⌋ batches (at least one) unless `batches` is given, and a function of the seed and the
epoch's number alone. Iterating to the end moves on to the next epoch; `set_epoch` goes to any.

**Ranks.** Under `torch.distributed`, or where `rank` and `world_size` are given, all processes draw the same batch and
each yields its own run of whole groups, so the batches of all ranks together are the batch that one process would have
drawn.

**Resuming.** `state_dict()` says how far the latest iteration has come, and after `load_state_dict` the next iteration
of a sampler that was made alike yields exactly what would have followed. A `DataLoader` with workers draws ahead of
what it has delivered, to the end of an epoch and so into the next: count the epochs and their delivered batches
yourself and load `{**state, "epoch": the one, "batch": the other}`.

Classes of one example are left out, with a warning that names them; labels of which no class has two are a ValueError.

>>> sampler = ClassBalancedSampler([0, 0, 1, 1, 2, 2, 3, 3], classes=2, per_class=2, seed=0)
>>> first = next(iter(sampler))
>>> len(sampler), sampler.state_dict()
(2, {'epoch': 0, 'batch': 1})
"""

from tuplet.sampling.hard import HardClassSampler
from tuplet.sampling.samplers import ClassBalancedSampler, NGroupSampler, NPairSampler, TripletSampler

__all__ = ["ClassBalancedSampler", "HardClassSampler", "NGroupSampler", "NPairSampler", "TripletSampler"]
