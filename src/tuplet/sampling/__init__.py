"""Batch samplers: which examples meet in a batch."""

from tuplet.sampling.hard import HardClassSampler
from tuplet.sampling.samplers import ClassBalancedSampler, NGroupSampler, NPairSampler, TripletSampler

__all__ = ["ClassBalancedSampler", "HardClassSampler", "NGroupSampler", "NPairSampler", "TripletSampler"]
