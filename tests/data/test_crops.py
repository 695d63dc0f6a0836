"""Crops against literal loops and against Pillow; proportions; padding; views."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from tuplet.data import views
from tuplet.data.augment import crop, mirrored, paint_outside, resized_sizes
from tuplet.images.crop import MEAN_COLOUR, CentreCrop, resized_size


def bilinear(image, x, y):
    """The value at (x, y) in pixels, where pixel i has its middle at i + ½; the border goes on outside."""
    height, width = image.shape
    x, y = min(max(x - 0.5, 0), width - 1), min(max(y - 0.5, 0), height - 1)
    i, j = min(int(y), height - 2) if height > 1 else 0, min(int(x), width - 2) if width > 1 else 0
    v, u = y - i, x - j
    below, right = min(i + 1, height - 1), min(j + 1, width - 1)
    return (
        image[i, j] * (1 - v) * (1 - u)
        + image[i, right] * (1 - v) * u
        + image[below, j] * v * (1 - u)
        + image[below, right] * v * u
    )


@given(
    st.integers(2, 9),
    st.integers(2, 9),
    st.integers(1, 6),
    st.lists(st.floats(-0.5, 1.5), min_size=4, max_size=4),
    st.integers(0, 99),
)
def test_a_crop_is_the_bilinear_mean_of_its_samples(height, width, size, box, seed):
    image = np.random.default_rng(seed).integers(0, 256, (height, width)).astype(np.float64)
    left, top, right, bottom = box
    samples = max(1, round(max(height, width) / size))
    expected = np.zeros((size, size))
    for i in range(size):
        for j in range(size):
            for a in range(samples):
                for b in range(samples):
                    x = left + (right - left) * (j * samples + b + 0.5) / (size * samples)
                    y = top + (bottom - top) * (i * samples + a + 0.5) / (size * samples)
                    expected[i, j] += bilinear(image, x * width, y * height) / samples**2
    images = torch.tensor(image, dtype=torch.uint8).expand(1, 3, height, width)
    got = crop(images, torch.tensor([box]), size)
    assert got.shape == (1, 3, size, size)
    assert got.dtype == torch.float32
    assert np.abs(got[0, 1].numpy() - expected).max() < 2e-2


def test_enlarging_agrees_with_pillow():
    image = np.random.default_rng(0).integers(0, 256, (40, 40, 3), np.uint8)
    box = (3.25, 5.5, 30.75, 21.0)
    expected = np.asarray(Image.fromarray(image).resize((64, 64), Image.Resampling.BILINEAR, box=box)).astype(float)
    got = crop(torch.tensor(image).permute(2, 0, 1)[None], torch.tensor([box]) / 40, 64)[0].permute(1, 2, 0).numpy()
    assert np.abs(got - expected)[2:-2, 2:-2].max() < 1.01  # Pillow rounds to bytes; its edges end at the box


def test_shrinking_is_antialiased():
    """Stripes of one pixel become grey; single samples would have kept or lost whole stripes."""
    stripes = torch.zeros(1, 3, 64, 64, dtype=torch.uint8)
    stripes[..., ::2] = 255
    got = crop(stripes, torch.tensor([[0.0, 0.0, 1.0, 1.0]]), 16)
    assert (got - 127.5).abs().max() < 32
    assert (got[..., 1:-1] - 127.5).abs().max() < 1


def test_a_whole_pixel_crop_copies_pixels():
    image = torch.randint(0, 256, (1, 3, 64, 64), dtype=torch.uint8)
    got = crop(image, torch.tensor([[5, 9, 61, 65]]) / 64, 56)
    assert torch.allclose(got[:, :, :55], image[:, :, 9:64, 5:61].float(), atol=0.02)


def test_the_mirror_image_is_the_image_from_right_to_left():
    image = torch.randint(0, 256, (2, 3, 32, 32), dtype=torch.uint8)
    boxes = torch.tensor([[0.1, 0.2, 0.7, 0.9], [-0.2, 0.0, 1.0, 1.3]])
    assert torch.allclose(crop(image, mirrored(boxes), 24), crop(image, boxes, 24).flip(3), atol=0.02)


def test_what_lies_outside_is_painted():
    image = torch.zeros(1, 3, 8, 8, dtype=torch.uint8)
    box = torch.tensor([[-0.5, 0.0, 1.5, 1.0]])
    got = paint_outside(crop(image, box, 16), box)[0]
    mean = torch.tensor(MEAN_COLOUR)[:, None, None].float()
    assert (got[:, :, :4] == mean).all()
    assert (got[:, :, 4:12] == 0).all()
    assert (got[:, :, 12:] == mean).all()


@given(st.floats(0.2, 5), st.integers(8, 300), st.sampled_from(["square", "shorter", "longer"]))
def test_images_are_as_large_as_fit_makes_them(aspect, size, how):
    width, height = resized_sizes(torch.tensor([aspect]), size, how)[0].tolist()
    expected = resized_size(aspect, size, how)
    assert abs(width - expected[0]) <= (abs(size * aspect % 1 - 0.5) < 1e-3)
    assert abs(height - expected[1]) <= (abs(size / aspect % 1 - 0.5) < 1e-3)


@pytest.mark.parametrize("how", ["square", "shorter", "longer"])
@pytest.mark.parametrize("size", [(90, 60), (60, 90), (64, 64)])
def test_the_centre_view_is_what_pillow_shows(how, size):
    """An image stored as a square and cropped on the device, compared with the centre crop of the file."""
    y, x = np.mgrid[: size[1] * 4, : size[0] * 4]
    waves = np.stack([np.sin(x / 40), np.cos(y / 30), np.sin((x + y) / 50)], -1)
    image = Image.fromarray(((waves + 1) * 127).astype(np.uint8))
    expected = CentreCrop(56, 64, how)(image)
    stored = CentreCrop(64, 64, "square")(image)[None]
    shown = views(stored, 56, resize=64, resize_mode=how, aspects=torch.tensor([size[0] / size[1]]))[0, 0]
    assert (shown - expected.float()).abs().mean() < 1.5
    painted = (expected == torch.tensor(MEAN_COLOUR)[:, None, None]).all(0)
    assert ((shown == torch.tensor(MEAN_COLOUR)[:, None, None]).all(0) == painted).float().mean() > 0.98


def test_views_are_centre_corners_and_mirror_images():
    image = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8)
    shown = views(image, 48, resize=64, resize_mode="square", crops=5, mirror=True)
    assert shown.shape == (2, 10, 3, 48, 48)
    for number, (top, left) in enumerate([(8, 8), (0, 0), (0, 16), (16, 0), (16, 16)]):
        part = image[:, :, top : top + 48, left : left + 48].float()
        assert torch.allclose(shown[:, number], part, atol=0.02)
        assert torch.allclose(shown[:, number + 5], part.flip(3), atol=0.02)


def test_bad_requests_get_one_sentence():
    image = torch.zeros(1, 3, 8, 8, dtype=torch.uint8)
    with pytest.raises(ValueError, match="crops is 3; it must be 1"):
        views(image, 8, crops=3)
    with pytest.raises(ValueError, match="resize_mode is 'wide'"):
        views(image, 8, resize_mode="wide")
    for size, resize in ((0, 8), (8, 0), (8.5, 8)):
        with pytest.raises(ValueError, match=f"size is {size} and resize {resize}; both must be positive integers"):
            views(image, size, resize)


def test_true_proportions_make_a_circle_of_a_squashed_circle():
    y, x = np.mgrid[:128, :128]
    squashed = (((x - 64) / 32) ** 2 + ((y - 64) / 48) ** 2 < 1) * np.uint8(255)
    stored = torch.tensor(squashed).expand(1, 3, 128, 128)
    shown = views(stored, 128, resize=128, aspects=torch.tensor([1.5]))[0, 0, 0] > 127
    assert math.isclose(shown.any(0).sum(), shown.any(1).sum(), abs_tol=1)
