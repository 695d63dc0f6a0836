"""Streaming: the batches of the in-memory store bit for bit, bounded caches, damage and an exact resume."""

import logging
import os
import sys
from pathlib import Path
from unittest.mock import Mock

import numpy as np
import pytest
import torch
from PIL import Image

import tuplet
from tuplet import data as tuplet_data
from tuplet.data import CentreCrop, batches, load, store, stream
from tuplet.data.stream import StreamedImages, available_memory
from tuplet.sampling import ClassBalancedSampler

SQUARE = 3 * 16 * 16


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Forty-eight images of many sizes in eight class folders."""
    rng, folder = np.random.default_rng(0), tmp_path_factory.mktemp("photos")
    for number in range(48):
        path = folder / f"class{number % 8}" / f"{number:02d}.png"
        path.parent.mkdir(exist_ok=True)
        height, width = rng.integers(20, 60, 2)
        Image.fromarray(rng.integers(0, 256, (height, width, 3), np.uint8)).save(path)
    return folder


def all_batches(kept, labels, epochs=2):
    sampler = ClassBalancedSampler(labels, classes=4, per_class=3)
    return [batch for _ in range(epochs) for batch in batches(kept, sampler, "cpu")]


@pytest.mark.parametrize("folder", [False, True])
@pytest.mark.parametrize("room", [0, 20, 1000])
def test_batches_are_those_of_the_store_in_memory(photos, tmp_path, folder, room):
    data = tuplet_data.open(photos)
    whole = all_batches(load(data, 16, stream=False), data.labels)
    options = {"memory": room * SQUARE, "disk": room * SQUARE, "folder": tmp_path if folder else None}
    for _ in range(2):  # the second time from the file
        streamed = load(data, 16, stream=True, **options)
        assert isinstance(streamed.values, StreamedImages)
        for one, other in zip(whole, all_batches(streamed, data.labels), strict=True):
            for name in ("index", "values", "aspects", "labels"):
                assert torch.equal(getattr(one, name), getattr(other, name))
        assert streamed.values._used == min(room, 48)
    if folder:
        [file] = tmp_path.glob("*.stream")
        index = np.fromfile(file.with_suffix(".index"), stream._ABOUT)
        assert (index["check"] != 0).sum() == min(room, 48)


def test_crops_for_measuring_are_the_same_too(photos):
    data, crop = tuplet_data.open(photos), CentreCrop(12, 16)
    streamed = load(data, crop=crop, stream=True, memory=0)
    assert torch.equal(streamed.values[torch.arange(48)], load(data, crop=crop, stream=False).values)


def test_the_file_saves_decoding_and_damage_in_it_is_found(photos, tmp_path, monkeypatch):
    data, everything = tuplet_data.open(photos), torch.arange(48)
    first = load(data, 16, tmp_path, stream=True, memory=0).values[everything]
    decoded = []
    image = tuplet_data.Dataset.image
    monkeypatch.setattr(tuplet_data.Dataset, "image", lambda self, i: decoded.append(i) or image(self, i))
    assert torch.equal(load(data, 16, tmp_path, stream=True, memory=0).values[everything], first)
    assert decoded == []
    [file] = tmp_path.glob("*.stream")
    content = bytearray(file.read_bytes())
    content[5 * SQUARE + 7] ^= 1
    file.write_bytes(content[: 40 * SQUARE])  # as after a crash: some were not written, and one is wrong
    assert torch.equal(load(data, 16, tmp_path, stream=True, memory=0).values[everything], first)
    assert sorted(decoded) == [5, *range(40, 48)]
    assert torch.equal(load(data, 16, tmp_path, stream=True, memory=0, disk=0).values[everything], first)
    assert len(decoded) == 9  # those were mended in their places


def test_more_than_half_of_the_memory_is_streamed_and_said(photos, monkeypatch, caplog):
    data = tuplet_data.open(photos)
    for free, streams in ((2 * 48 * SQUARE, False), (2 * 48 * SQUARE - 1, True)):
        monkeypatch.setattr(store, "available_memory", lambda free=free: free)
        with caplog.at_level(logging.INFO, "tuplet"):
            assert isinstance(load(data, 16).values, StreamedImages) == streams
        assert ("all 48 at 16 × 16 pixels would take" in caplog.text) == streams
    assert 0 < stream.available_memory() < 2**50


def test_unreadable_images_stop_or_are_found_before_the_first_batch(photos, tmp_path):
    data = tuplet_data.open(photos)
    spoilt = tmp_path / "spoilt.png"
    spoilt.write_bytes(b"no image")
    from dataclasses import replace

    data = replace(data, images=[*data.images[:3], str(spoilt), *data.images[4:]])
    with pytest.raises(ValueError, match=r"spoilt\.png cannot be read"):
        load(data, 16, stream=True).values[torch.arange(48)]
    with pytest.warns(UserWarning, match="1 of 48 images were skipped"):
        streamed = load(data, 16, tmp_path / "cache", stream=True, unreadable="skip")
    with pytest.warns(UserWarning, match="1 of 48 images were skipped"):
        whole = load(data, 16, stream=False, unreadable="skip")
    assert streamed.skipped.keys() == {3}
    assert torch.equal(streamed.values[torch.arange(47)], whole.values)


def test_a_run_that_streams_is_the_run_in_memory_also_after_a_stop(photos, tmp_path):
    options = {"model": "convnet", "model_options": {"size": 16, "channels": 3}, "dim": 4, "loss": "raw"}
    options |= {"batch_size": 8, "per_class": 2, "schedule": "constant", "evaluate_every": 4, "checkpoint_every": 3}
    whole = tuplet.train(photos, tmp_path / "whole", steps=7, stream=False, **options)
    streaming = {"stream": True, "cache_memory": 0.0, "cache_folder": str(tmp_path / "cache")}
    streamed = tuplet.train(photos, tmp_path / "streamed", steps=7, **streaming, **options)
    assert streamed.metrics == whole.metrics
    tuplet.train(photos, tmp_path / "stopped", steps=5, **streaming, **options)
    tuplet.train(photos, tmp_path / "stopped", steps=7, **streaming, **options)
    # Step 5 was evaluated there too and may be the best, so the last embedders are compared.
    for run in ("streamed", "stopped"):
        same = zip(*(tuplet.load(tmp_path / name / "last").parameters() for name in ("whole", run)), strict=True)
        assert all(torch.equal(one, other) for one, other in same)


def test_images_can_be_streamed_where_the_system_tells_less_than_linux(photos, monkeypatch, tmp_path):
    for name in ("sched_getaffinity", "pread", "pwrite"):
        monkeypatch.delattr(os, name)
    monkeypatch.setattr(os, "sysconf", {"SC_PAGE_SIZE": 4096, "SC_PHYS_PAGES": 100}.__getitem__)
    monkeypatch.setattr(Path, "read_text", Mock(side_effect=FileNotFoundError))
    assert available_memory() == 409_600
    data = tuplet_data.open(photos)
    for _ in range(2):
        streamed = tuplet_data.load(data, 16, tmp_path, stream=True)
        assert torch.equal(streamed.values[torch.arange(len(data))], tuplet_data.load(data, 16, stream=False).values)
    monkeypatch.setattr(os, "sysconf_names", {})
    assert available_memory() == sys.maxsize
