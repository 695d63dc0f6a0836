"""Candidates for the first ranks: complete for any tile size, and few."""

import math

import pytest
import torch

from tuplet.evaluation.top_ranks import TopCandidates


@pytest.mark.parametrize("depth", [1, 3, 40, 900])
@pytest.mark.parametrize("width", [1, 37, 256, 1000])
def test_every_possible_candidate_is_kept(depth, width):
    scores = torch.randn(20, 1000, generator=torch.Generator().manual_seed(depth))
    error_bound = torch.linspace(0, 0.2, 20).double()[:, None]
    candidates = TopCandidates(depth, error_bound)
    for start in range(0, 1000, width):
        candidates.add(scores[:, start : start + width].contiguous(), start)
    values, members = candidates.table()
    assert ((scores >= candidates.threshold).sum(1) >= depth).all()
    for row in range(20):
        kept = members[row][values[row] > -torch.inf].tolist()
        assert len(kept) == len(set(kept))
        assert torch.equal(values[row][: len(kept)], scores[row, kept])
        last = scores[row].sort(descending=True).values[depth - 1]
        assert set((scores[row] >= last - 2 * error_bound[row]).nonzero()[:, 0].tolist()) <= set(kept)


def test_few_other_entries_are_kept():
    scores = torch.randn(50, 4096, generator=torch.Generator().manual_seed(0))
    candidates = TopCandidates(20, torch.full((50, 1), 1e-6).double())
    for start in range(0, 4096, 512):
        candidates.add(scores[:, start : start + 512].contiguous(), start)
    assert candidates.kept < 50 * 20 * (1 + math.log(8))
    assert (candidates.table()[0] > -torch.inf).sum() < 1.3 * 50 * 20
