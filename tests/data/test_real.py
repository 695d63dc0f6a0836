"""The real images and drawings, where the environment variable TUPLET_DATA says they are."""

import os
from pathlib import Path

import pytest
import torch

from tuplet import data as tuplet_data

pytestmark = pytest.mark.skipif("TUPLET_DATA" not in os.environ, reason="TUPLET_DATA is not set: no real data here")


@pytest.fixture(scope="module")
def cub():
    return tuplet_data.open(Path(os.environ["TUPLET_DATA"], "cub200.csv"))


def test_cub_has_the_papers_split(cub):
    train, test = cub.split()
    assert (len(train), len(test)) == (5864, 5924)
    assert train.classes == list(range(100))
    assert test.classes == list(range(100, 200))
    assert cub.class_names[0] == "001.Black_footed_Albatross"


def test_images_come_out_of_the_tars_in_their_true_proportions(cub):
    some = cub.select(torch.arange(0, len(cub), 600))
    store = tuplet_data.load(some, 64, workers=2)
    assert store.values.shape == (20, 3, 64, 64)
    assert store.values.float().flatten(1).std(1).min() > 5
    assert torch.equal(store.aspects, some.aspects)
    assert store.aspects[0] == pytest.approx(320 / 223)
    shown = tuplet_data.views(store.values, 56, resize=64, aspects=store.aspects)
    assert shown.shape == (20, 1, 3, 56, 56)


def test_cars_have_the_split_of_the_copy():
    train, test = tuplet_data.open(Path(os.environ["TUPLET_DATA"], "cars196.csv")).split()
    assert (len(train), len(test)) == (8048, 8122)


def test_omniglot_is_complete():
    data = tuplet_data.open(Path(os.environ["TUPLET_DATA"], "omniglot.tar.gz"))
    train, test = data.split()
    assert (len(train.classes), len(test.classes)) == (964, 659)
    assert data.image(0).size == (105, 105)
