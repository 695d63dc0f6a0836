import torch

from tuplet.rng import uniform, uniform_of


def test_numbers_depend_on_keys_alone():
    whole = uniform(3, torch.arange(100)[:, None], torch.arange(50))
    part = uniform(3, torch.arange(40, 60)[:, None], torch.arange(50))
    assert torch.equal(whole[40:60], part)


def test_numbers_are_uniform_and_uncorrelated():
    u = uniform(0, torch.arange(1000)[:, None], torch.arange(1000)).double()
    assert abs(u.mean() - 0.5) < 1e-3
    assert abs(u.var() - 1 / 12) < 1e-3
    counts = torch.histc(u.flatten().float(), 100, 0, 1)
    assert ((counts - 1e4) ** 2 / 1e4).sum() < 170  # chi-square with 99 degrees of freedom, far tail
    for shifted in (u[1:, :], u[:, 1:].T):
        base = u[: shifted.shape[0], : shifted.shape[1]] if shifted.shape[1] == 1000 else u[:, :-1].T
        assert abs(torch.corrcoef(torch.stack([base.flatten(), shifted.flatten()]))[0, 1]) < 5e-3


def test_huge_and_negative_keys_stay_apart():
    keys = torch.tensor([0, 1, -1, 2**32, 2**40, -(2**62)])
    assert len(set(uniform(0, keys).tolist())) == len(keys)
    assert uniform(1, keys).min() > 0
    assert uniform(1, keys).max() < 1


def test_one_key_draws_evenly_and_neighbours_independently():
    place = (torch.arange(1024)[:, None] << 32) + torch.arange(8)
    u = uniform_of(place).double()
    assert (u > 0).all()
    assert (u < 1).all()
    counts = torch.histc(u, 64, 0, 1)
    assert ((counts - counts.mean()) ** 2 / counts.mean()).sum() < 120  # chi-squared with 63 degrees of freedom
    for a, b in ((u[1:], u[:-1]), (u[:, 1:], u[:, :-1])):
        together = torch.bincount(((a * 8).long() * 8 + (b * 8).long()).flatten(), minlength=64).double()
        assert ((together - together.mean()) ** 2 / together.mean()).sum() < 120
