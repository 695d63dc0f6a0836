"""One sampler of each kind, and labels to draw from."""

import numpy as np
import pytest
import torch

from tuplet import sampling


def labels_of(sizes, values=None, seed=0):
    values = range(len(sizes)) if values is None else values
    labels = np.repeat(np.array(list(values)), sizes)
    return np.random.default_rng(seed).permutation(labels)


def vectors_of(labels):
    directions = torch.randn(max(labels) + 1, 6, generator=torch.Generator().manual_seed(0))
    return lambda indices: directions[torch.as_tensor(labels).long()[indices]]


def hard(labels, pairs, **options):
    return sampling.HardClassSampler(labels, vectors_of(labels), pairs, candidates=max(pairs, 20), **options)


def spread_vectors(labels):
    """Return an `embed` whose classes overlap, so that neighbours of any class are near."""
    vectors = torch.randn(len(labels), 6, generator=torch.Generator().manual_seed(1)) + vectors_of(labels)(
        range(len(labels))
    )
    return lambda indices: torch.nn.functional.normalize(vectors)[indices]


#: Samplers that embed the training set once an epoch.
EPOCH_MAKERS = {
    "neighbors": (lambda labels, embed, **o: sampling.AnchorNeighborSampler(labels, embed, 2, 3, 2, **o), 12),
    "smart": (lambda labels, embed, **o: sampling.SmartTripletSampler(labels, embed, 4, **o), 12),
    "one_class": (lambda labels, embed, **o: sampling.OneClassSampler(labels, embed, 4, 8, **o), 12),
}

MAKERS = {
    "npair": (lambda labels, **o: sampling.NPairSampler(labels, 6, **o), 12),
    "triplet": (lambda labels, **o: sampling.TripletSampler(labels, 5, **o), 15),
    "balanced": (lambda labels, **o: sampling.ClassBalancedSampler(labels, 4, 5, **o), 20),
    "ngroup": (lambda labels, **o: sampling.NGroupSampler(labels, 4, 4, **o), 16),
    "hard": (lambda labels, **o: hard(labels, 6, **o), 12),
}


every_sampler = pytest.mark.parametrize(("make", "batch_size"), MAKERS.values(), ids=MAKERS)
