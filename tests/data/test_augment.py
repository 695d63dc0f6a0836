"""Augmentation: what is drawn, that it is drawn per sample, and the colour matrix against literal steps."""

import json
import subprocess
import sys

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tuplet.data import Augment
from tuplet.data.augment import _GREY
from tuplet.images.crop import MEAN_COLOUR

EVERYTHING = {"brightness": 0.4, "contrast": 0.4, "saturation": 0.4, "hue": 0.1, "erase": 0.5}


def random_images(count, size=32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8, generator=generator)


@pytest.mark.parametrize("area", [None, (0.1, 1.0)])
@pytest.mark.parametrize("how", ["square", "shorter", "longer"])
def test_a_sample_is_augmented_the_same_in_any_batch(area, how):
    augment = Augment(size=24, resize=32, resize_mode=how, area=area, **EVERYTHING)
    images, index = random_images(10), torch.arange(100, 110)
    aspects = torch.linspace(0.5, 2, 10)
    whole = augment(images, index, 5, aspects)
    assert whole.shape == (10, 3, 24, 24)
    assert 0 <= whole.min() < whole.max() <= 255
    for chosen in ([3], [9, 0, 4], list(range(10))[::-1]):
        part = augment(images[chosen], index[chosen], 5, aspects[chosen])
        assert torch.allclose(part, whole[chosen], atol=1e-3)


def test_seeds_steps_samples_and_repeats_differ():
    image = random_images(1)
    draw = lambda index, step, seed=0: Augment(size=24, resize=32, area=(0.1, 1.0), seed=seed)(  # noqa: E731
        image.expand(len(index), 3, 32, 32), torch.tensor(index), step
    )
    base = draw([7], 0)
    assert torch.equal(base, draw([7], 0))
    for other in (draw([8], 0), draw([7], 1), draw([7], 0, seed=1)):
        assert not torch.equal(base, other)
    twice = draw([7, 3, 7], 0)
    assert torch.allclose(twice[:1], base, atol=1e-3)
    assert not torch.allclose(twice[2:], base, atol=1)


SCRIPT = """
import hashlib, json, sys, torch
from tuplet.data import Augment
torch.set_num_threads(int(sys.argv[1]))
images = torch.randint(0, 256, (6, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
augment = Augment(size=24, area=(0.1, 1.0), brightness=0.4, contrast=0.4, saturation=0.4, hue=0.1, erase=0.5)
parts = [augment(images[i::2], torch.arange(6)[i::2], 3) for i in (0, 1)]
print(json.dumps(torch.stack(parts, 1).flatten(0, 1).round().tolist()))
"""


def test_processes_agree():
    runs = [subprocess.run([sys.executable, "-c", SCRIPT, n], capture_output=True, check=True) for n in ("1", "2")]
    first, second = (torch.tensor(json.loads(run.stdout)) for run in runs)
    here = Augment(size=24, area=(0.1, 1.0), **EVERYTHING)(random_images(6), torch.arange(6), 3)
    assert torch.equal(first, second)
    assert (first - here).abs().max() <= 0.51


def positions(count=64):
    """Images that say in red and green where each pixel lies, so that a crop shows its own box."""
    at = (torch.arange(count) + 0.5) * 255 / count
    return torch.stack([at.expand(count, count), at[:, None].expand(count, count), torch.zeros(count, count)])[None]


def boxes_seen(augment, count, aspect):
    out = augment(positions().expand(count, 3, 64, 64), torch.arange(count), 0, torch.full((count,), aspect)) / 255
    step = (
        (out[:, 0, 0, -2] - out[:, 0, 0, 1]) / (augment.size - 3),
        (out[:, 1, -2, 0] - out[:, 1, 1, 0]) / (augment.size - 3),
    )
    return step[0] * augment.size, step[1] * augment.size, out


def test_resized_crops_have_the_area_and_the_true_proportions_asked_for():
    augment = Augment(size=32, area=(0.2, 0.4), ratio=(0.75, 1.25), mirror=0.0)
    for aspect in (0.6, 1.0, 1.5):
        width, height, _ = boxes_seen(augment, 2000, aspect)
        area, ratio = width * height, width * aspect / height
        assert 0.195 < area.min() < 0.21
        assert 0.38 < area.max() < 0.405
        assert 0.74 < ratio.min() < 0.77
        assert 1.22 < ratio.max() < 1.26


def test_a_crop_that_does_not_fit_is_shrunk_and_keeps_its_proportions():
    width, height, _ = boxes_seen(Augment(size=32, area=(1.0, 1.0), ratio=(1.0, 1.0), mirror=0.0), 10, 2.0)
    assert torch.allclose(width, torch.tensor(0.5), atol=0.01)
    assert torch.allclose(height, torch.tensor(1.0), atol=0.01)


def test_random_crops_reach_every_place_and_no_further():
    augment = Augment(size=48, resize=64, resize_mode="square", mirror=0.0)
    _, _, out = boxes_seen(augment, 3000, 1.0)
    left = (out[:, 0, 0, 0] * 64 - 0.5).round().int()
    assert sorted(set(left.tolist())) == list(range(17))
    counts = torch.bincount(left, minlength=17)
    assert counts.min() > 3000 / 17 * 0.7


def test_mirroring_happens_as_often_as_asked():
    for share in (0.0, 0.5, 1.0):
        _, _, out = boxes_seen(Augment(size=48, resize=64, resize_mode="square", mirror=share), 2000, 1.0)
        mirrored = (out[:, 0, 0, 0] > out[:, 0, 0, -1]).float().mean()
        assert abs(mirrored - share) < 0.05


def test_longer_sides_are_padded_with_the_mean_colour_at_random_places():
    out = Augment(size=56, resize=64, resize_mode="longer")(
        torch.zeros(200, 3, 64, 64), torch.arange(200), 0, torch.full((200,), 2.0)
    )
    mean = torch.tensor(MEAN_COLOUR)[:, None, None]
    rows = (out == mean).all(1).all(2)
    assert (rows.sum(1) == 56 - 32).all()
    assert len(set((~rows).float().argmax(1).tolist())) > 20


def grey(rgb):
    return sum(weight * channel for weight, channel in zip(_GREY, rgb, strict=True))


@given(st.integers(0, 1000))
def test_the_colour_matrix_is_brightness_then_contrast_then_saturation(seed):
    augment = Augment(size=8, resize=8, mirror=0.0, brightness=0.4, contrast=0.3, saturation=0.5, seed=seed)
    image = torch.rand(1, 3, 8, 8, generator=torch.Generator().manual_seed(seed), dtype=torch.float64) * 100 + 50
    chance = augment._chances(torch.tensor([3]), 2)[0, 5:8].double() * 2 - 1
    bright, contrast, saturation = (1 + chance * torch.tensor([0.4, 0.3, 0.5])).tolist()
    pixels = image[0].numpy() * bright
    pixels = contrast * pixels + (1 - contrast) * grey(pixels).mean()
    pixels = saturation * pixels + (1 - saturation) * grey(pixels)
    got = augment(image, torch.tensor([3]), 2)[0].numpy()
    assert np.abs(got - pixels.clip(0, 255)).max() < 0.05


def test_hue_turns_colours_and_leaves_greys_and_lightness_alone():
    augment = Augment(size=4, resize=4, hue=0.5)
    flat = torch.full((50, 3, 4, 4), 90.0)
    assert torch.allclose(augment(flat, torch.arange(50), 0), flat, atol=0.05)
    coloured = flat + torch.tensor([30.0, -10.0, 5.0])[:, None, None]
    out = augment(coloured, torch.arange(50), 0)
    luma = torch.einsum("nchw,c->nhw", out, torch.tensor(_GREY))
    assert torch.allclose(luma, torch.einsum("chw,c->hw", coloured[0], torch.tensor(_GREY)).expand_as(luma), atol=0.1)
    assert out[:, 0].std() > 5


def test_erasing_paints_rectangles_of_the_area_promised():
    augment = Augment(size=64, resize=64, resize_mode="square", erase=0.7)
    out = augment(torch.zeros(1000, 3, 64, 64), torch.arange(1000), 0)
    holes = (out == torch.tensor(MEAN_COLOUR)[:, None, None]).all(1)
    share = holes.float().mean((1, 2))
    assert abs((share > 0).float().mean() - 0.7) < 0.05
    assert share.max() < 0.34
    assert share[share > 0].min() > 0.01
    rows, columns = holes.any(2).sum(1), holes.any(1).sum(1)
    assert (rows * columns == holes.sum((1, 2))).all()


def test_bytes_and_floats_give_the_same():
    images, index = random_images(4), torch.arange(4)
    augment = Augment(size=24, resize=32, **EVERYTHING)
    assert torch.equal(augment(images, index, 0), augment(images.float(), index, 0))


def test_autocast_does_not_coarsen_the_colours():
    images, index = random_images(4), torch.arange(4)
    augment = Augment(size=24, resize=32, **EVERYTHING)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inside = augment(images, index, 0)
    assert torch.equal(inside, augment(images, index, 0))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"area": (0.5, 0.2)}, r"area is \(0.5, 0.2\)"),
        ({"ratio": (0, 1)}, r"ratio is \(0, 1\)"),
        ({"mirror": 2}, "mirror is 2; it must be between 0 and 1"),
        ({"mirror": None}, "mirror is None; it must be between 0 and 1"),
        ({"brightness": "0.4"}, "brightness is '0.4'; it must be between 0 and 1"),
        ({"erase": float("nan")}, "erase is nan; it must be between 0 and 1"),
        ({"hue": 0.7}, r"hue is 0\.7; it must be between 0 and 0\.5"),
        ({"hue": (0.1,)}, r"hue is \(0\.1,\); it must be between 0 and 0\.5"),
        ({"seed": "x"}, "seed is 'x'; it must be an integer"),
        ({"resize_mode": "wide"}, "resize_mode is 'wide'; it must be 'square', 'shorter' or 'longer'"),
        ({"size": 0}, "size is 0 and resize 256; both must be positive"),
        ({"resize": -1}, "size is 224 and resize -1; both must be positive"),
        ({"size": 8.5}, r"size is 8\.5 and resize 256; both must be positive integers"),
    ],
)
def test_bad_options_get_one_sentence(options, message):
    with pytest.raises(ValueError, match=message):
        Augment(**options)


def test_an_index_of_the_wrong_length_gets_one_sentence():
    with pytest.raises(ValueError, match="index has 3 entries for 4 images"):
        Augment(size=8)(random_images(4), torch.arange(3), 0)
    with pytest.raises(ValueError, match="aspects has 1 entries for 4 images"):
        Augment(size=8)(random_images(4), torch.arange(4), 0, torch.ones(1))


@pytest.mark.parametrize("area", ["0.25:1", 0.25, (0.5,), (0.5, 0.2), (0, 1)])
def test_an_area_that_is_no_pair_of_shares_gets_a_sentence(area):
    with pytest.raises(ValueError, match=r"^area is .*; it must be two shares in order"):
        Augment(area=area)
