"""Batch samplers: choose which examples share a batch.

Every sampler yields lists of indices, for `torch.utils.data.DataLoader(batch_sampler=...)` or `tuplet.data.batches`. It
takes `labels` (the class of each example, an integer), its own sizes, the `seed` of all random choices, and the options
`batches`, `rank` and `world_size`.

**Epochs.** An epoch has ⌊N / batch⌋ batches (at least one) unless `batches` is given. It depends on the seed and on the
number of the epoch alone. Iterating to the end advances to the next epoch; `set_epoch` goes to any epoch.

**Ranks.** Under `torch.distributed`, or with `rank` and `world_size`, all processes draw the same batch and each yields
its own share of whole groups. Together the ranks yield the batch that one process would draw.

**Resuming.** `state_dict()` holds the position of the latest iteration. After `load_state_dict`, the next iteration of
a sampler with the same arguments yields exactly what would have followed. A `DataLoader` with workers draws ahead of
the batches that it delivers, even into the next epoch. In that case count the delivered epochs and batches yourself,
and load `{**state, "epoch": epoch, "batch": batch}`.

Classes with one example are left out, with a warning that names them. A ValueError is raised if no class has two.

`SAMPLERS` holds the exported samplers by name.

>>> sampler = ClassBalancedSampler([0, 0, 1, 1, 2, 2, 3, 3], classes=2, per_class=2, seed=0)
>>> first = next(iter(sampler))
>>> len(sampler), sampler.state_dict()
(2, {'epoch': 0, 'batch': 1})
"""

from tuplet.sampling.base import ClassSampler
from tuplet.sampling.class_tree import ClassTree
from tuplet.sampling.hard import HardClassSampler
from tuplet.sampling.neighbors import AnchorNeighborSampler
from tuplet.sampling.one_class import OneClassSampler
from tuplet.sampling.samplers import ClassBalancedSampler, NGroupSampler, NPairSampler, TripletSampler
from tuplet.sampling.smart import SmartTripletSampler

__all__ = [
    "SAMPLERS",
    "AnchorNeighborSampler",
    "ClassBalancedSampler",
    "ClassSampler",
    "ClassTree",
    "HardClassSampler",
    "NGroupSampler",
    "NPairSampler",
    "OneClassSampler",
    "SmartTripletSampler",
    "TripletSampler",
]

#: The samplers by name.
SAMPLERS: dict[str, type[ClassSampler]] = {
    each.name: each for each in map(globals().get, __all__) if isinstance(each, type) and hasattr(each, "name")
}
