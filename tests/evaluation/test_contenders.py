"""What is kept of a tile: all that may be among the first, whatever the tiles, and little else."""

import math

import pytest
import torch

from tuplet.evaluation.contenders import Contenders


@pytest.mark.parametrize("depth", [1, 3, 40, 900])
@pytest.mark.parametrize("width", [1, 37, 256, 1000])
def test_all_that_may_be_among_the_first_is_kept(depth, width):
    scores = torch.randn(20, 1000, generator=torch.Generator().manual_seed(depth))
    doubt = torch.linspace(0, 0.2, 20).double()[:, None]
    contenders = Contenders(depth, doubt)
    for start in range(0, 1000, width):
        contenders.add(scores[:, start : start + width].contiguous(), start)
    values, members = contenders.table()
    assert ((scores >= contenders.bar).sum(1) >= depth).all()
    for row in range(20):
        kept = members[row][values[row] > -torch.inf].tolist()
        assert len(kept) == len(set(kept))
        assert torch.equal(values[row][: len(kept)], scores[row, kept])
        last = scores[row].sort(descending=True).values[depth - 1]
        assert set((scores[row] >= last - 2 * doubt[row]).nonzero()[:, 0].tolist()) <= set(kept)


def test_little_else_is_kept():
    scores = torch.randn(50, 4096, generator=torch.Generator().manual_seed(0))
    contenders = Contenders(20, torch.full((50, 1), 1e-6).double())
    for start in range(0, 4096, 512):
        contenders.add(scores[:, start : start + 512].contiguous(), start)
    assert contenders.kept < 50 * 20 * (1 + math.log(8))
    assert (contenders.table()[0] > -torch.inf).sum() < 1.3 * 50 * 20
