"""The glyphs: drawn and not boxes, fair, deterministic, hard for pixels."""

import hashlib
import subprocess
import sys

import numpy as np
import pytest
import torch
from PIL import ImageFont

from tuplet import data as tuplet_data
from tuplet.data.readers.glyphs import _draw, draw_characters, font_paths


@pytest.fixture(scope="module")
def glyphs():
    return tuplet_data.open("glyphs")


@pytest.fixture(scope="module")
def drawn():
    return draw_characters()


def test_hundreds_of_characters_in_sixteen_fonts(glyphs, drawn):
    drawings, names = drawn
    assert drawings.shape[0] == 16
    assert len(names) == len(set(names)) >= 300
    assert {"A", "g", "7", "Ω", "λ", "Ж", "Ю", "&", "€"} <= set(names)
    assert len(glyphs) == 32 * len(names)
    assert (torch.bincount(glyphs.labels) == 32).all()


def test_training_and_test_characters_are_disjoint_halves(glyphs):
    train, test = glyphs.split()
    assert not set(train.classes) & set(test.classes)
    assert abs(len(train.classes) - len(test.classes)) <= 1


def test_no_font_draws_the_box_of_a_missing_character(drawn):
    drawings, _ = drawn
    boxes = [_draw(ImageFont.truetype(path, 42), "漢") for path in font_paths()]
    assert sum(box.any() for box in boxes) >= 12
    for box, font in zip(boxes, drawings.numpy(), strict=True):
        assert not (font == box).all((1, 2)).any()


def test_characters_that_look_alike_are_one_class(drawn):
    drawings, names = drawn
    assert "A" in names
    assert not {"Α", "А", "О", "Ο", "Р", "Β"} & set(names)  # the Greek and Cyrillic ones
    flat = drawings.flatten(2).numpy()
    for i in range(len(names)):
        alike = (flat[:, i : i + 1] == flat[:, i + 1 :]).all(2).sum(0)
        assert alike.max(initial=0) < 4, names[i]


def test_the_same_seed_gives_the_same_pixels_in_another_process(glyphs):
    script = (
        "import hashlib; from tuplet.data import glyphs; print(hashlib.sha256(glyphs().images.numpy()).hexdigest())"
    )
    other = subprocess.run([sys.executable, "-c", script], capture_output=True, check=True, text=True)
    assert other.stdout.strip() == hashlib.sha256(glyphs.images.numpy()).hexdigest()


def test_the_images_show_something(glyphs):
    contrast = glyphs.images.float().flatten(1).std(1)
    assert contrast.min() > 8
    inverted = glyphs.images[:, :, 0, 0].float().mean(1) < 110
    assert 0.4 < inverted.float().mean() < 0.6


def test_pixels_alone_do_not_recognise_them(glyphs):
    """Recall@1 of the raw pixels on the test characters: far from solved, far above chance."""
    _, test = glyphs.split()
    vectors = test.images.flatten(1).float()
    distances = torch.cdist(vectors, vectors).fill_diagonal_(np.inf)
    recall = (test.labels[distances.argmin(1)] == test.labels).float().mean()
    assert 0.05 < recall < 0.25
