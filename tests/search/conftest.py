"""Fixtures: an index of labelled images, the server's application, and a server process."""

import numpy as np
import pytest
import torch
from PIL import Image

from search.server_process import server
from soak.mixed_requests import served_index
from tuplet import models, search

LABELS = ["ant", "bee", "großer Käfer"]


@pytest.fixture(scope="module")
def embedder():
    torch.manual_seed(0)
    return models.create("convnet", dim=8)


@pytest.fixture(scope="module")
def index(tmp_path_factory, embedder):
    folder = tmp_path_factory.mktemp("served")
    index = search.create(folder / "i", embedder=embedder)
    images = [Image.fromarray(np.random.default_rng(i).integers(0, 256, (32, 48, 3), np.uint8)) for i in range(30)]
    metadata = [{"label": LABELS[i % 3], "number": i} for i in range(30)]
    index.add(images, [f"photos/{i}.png" for i in range(30)], metadata)
    return index


@pytest.fixture(scope="module")
def app(index):
    from tuplet.search.server import create_app  # fastapi may be missing

    return create_app(index)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return served_index(tmp_path_factory.mktemp("served") / "i")


@pytest.fixture(scope="module")
def address(folder):
    with server(folder) as (address, _):
        yield address
