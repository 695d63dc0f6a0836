"""Modules of the user's own: what they may give, in which type, and what is said where that cannot be embedded."""

from collections import namedtuple

import pytest
import torch
from torch import nn

from tuplet import models

Named = namedtuple("Named", "low high")
GREY = models.Preprocessing(8, 8, "square", mean=(127.5,) * 3, std=(127.5,) * 3)


class Gives(nn.Module):
    """A layer, and what is made of its output."""

    def __init__(self, make):
        super().__init__()
        self.layer, self.make = nn.Linear(8, 6), make

    def forward(self, x):
        return self.make(self.layer(x))


@pytest.mark.parametrize(
    ("make", "levels"),
    [
        (lambda y: y, "H"),
        (lambda y: y[:, :, None, None], "H"),
        (lambda y: (y,), "H"),
        (lambda y: [y[:, :1], y[:, :2], y[:, :3], y], "LMH"),
        (lambda y: Named(y[:, :2], y), "MH"),
        (lambda y: {"loss": y.sum(), "L": y[:, :2], "H": y}, "LH"),
    ],
)
def test_vectors_maps_sequences_and_dicts_are_levels(make, levels):
    embedder = models.create(Gives(make), dim=None, levels=levels, normalize=False, example=torch.zeros(1, 8))
    assert "".join(embedder.backbone.channels) == levels
    x = torch.randn(3, 8)
    torch.testing.assert_close(embedder.split(embedder.embed(x))[-1], embedder.backbone.module.layer(x).detach())


@pytest.mark.parametrize(
    ("make", "said"),
    [
        (lambda y: y[0], r"a tensor \(6,\) of torch\.float32"),
        (lambda y: y[:, None], r"a tensor \(2, 1, 6\) of torch\.float32"),
        (lambda y: (y, None), r"\(a tensor \(2, 6\) of torch\.float32, None\)"),
        (lambda y: {"features": y}, r"\{'features': a tensor \(2, 6\) of torch\.float32\}"),
        (lambda y: {"H": "high"}, r"\{'H': a str\}"),
        (lambda y: (), r"\(\)"),
        (lambda y: y.numpy(), "a ndarray"),
        (lambda y: object(), "a object"),
        (lambda y: None, "None"),
    ],
)
def test_what_no_head_can_stand_on_is_said_before_there_is_an_embedder(make, said):
    with pytest.raises(ValueError, match=rf"^the module returns {said}; it must return a vector \(N, C\) or a map"):
        models.create(Gives(make), example=torch.zeros(2, 8))


def test_a_module_without_an_input_to_try_is_refused():
    with pytest.raises(ValueError, match=r"needs preprocessing= .* or example= .*; give .* torch\.zeros\(1, 8\)"):
        models.create(Gives(lambda y: y))


def test_a_part_of_a_preprocessing_is_not_enough_for_a_module():
    with pytest.raises(ValueError, match=r"and has only size of the former; give a complete models\.Preprocessing"):
        models.create(nn.Conv2d(3, 4, 3), preprocessing={"size": 64})


def test_an_input_that_the_module_does_not_take_is_named():
    with pytest.raises(ValueError, match=r"fails on a tensor \(1, 9\) of torch\.float32 \(mat1 and mat2 shapes"):
        models.create(Gives(lambda y: y), example=torch.zeros(1, 9))


@pytest.mark.parametrize("kind", [torch.float16, torch.bfloat16, torch.float64])
def test_head_and_images_have_the_type_of_the_module(kind, tmp_path):
    def net():
        torch.manual_seed(0)
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU()).to(kind)

    embedder = models.create(net(), dim=2, preprocessing=GREY)
    assert embedder.heads["H"].weight.dtype == embedder.mean.dtype == kind
    images = torch.randint(0, 256, (3, 3, 8, 8), dtype=torch.uint8)
    whole = models.create(net().float(), dim=2, preprocessing=GREY)
    whole.heads.load_state_dict(embedder.heads.state_dict())
    torch.testing.assert_close(embedder.embed(images), whole.embed(images), rtol=0.02, atol=0.02)
    embedder.save(tmp_path)
    again = models.load(tmp_path, backbone=net().float())
    assert torch.equal(again.embed(images), embedder.embed(images))
    assert again.fingerprint() == embedder.fingerprint()
