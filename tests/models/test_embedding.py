"""`embed`: images of any kind, and vectors, to embeddings."""

import platform
import re
import subprocess
import sys
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image

from models.staged import random_images, staged
from tuplet import models
from tuplet.models.embedder import images_at_once
from tuplet.models.preprocessing import IMAGENET
from tuplet.threads import map_in_threads


def test_embeds_paths_bytes_images_and_tensors_alike(tmp_path):
    embedder = models.create("convnet", dim=3, size=16, channels=3)
    pixels = np.random.default_rng(0).integers(0, 256, (5, 16, 16, 3), dtype=np.uint8)
    opened = [Image.fromarray(p) for p in pixels]
    paths = [tmp_path / f"{i}.png" for i in range(5)]
    for image, path in zip(opened, paths, strict=True):
        image.save(path)
    expected = embedder.embed(torch.from_numpy(pixels).permute(0, 3, 1, 2))
    assert expected.shape == (5, 3)
    assert expected.dtype == torch.float32
    for images in (paths, [str(p) for p in paths], [p.read_bytes() for p in paths], opened):
        assert torch.equal(embedder.embed(images), expected)
        torch.testing.assert_close(embedder.embed(images, batch_size=2, workers=3), expected)
    assert torch.equal(embedder.embed(paths[0]), embedder.embed(paths[:1]))
    assert embedder.embed([]).shape == (0, 3)
    assert embedder.embed(torch.zeros(0, 3, 16, 16)).shape == (0, 3)


def test_a_cpu_embeds_few_large_or_many_small_images_at_once(monkeypatch):
    embedder, seen = models.create("mlp", features=3, dim=2), []
    monkeypatch.setattr(
        embedder.backbone, "forward", lambda x, levels: seen.append(len(x)) or {"H": x.new_ones(len(x), 512)}
    )
    embedder.embed(torch.ones(130, 3))
    assert seen == [128, 2]
    sides = {20: 128, 112: 16, 224: 4, 336: 1, 518: 1}
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert {side: images_at_once(cpu, (3, side, side), 128) for side in sides} == sides
    assert images_at_once(gpu, (3, 518, 518), 128) == 128


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="about glibc's allocator")
def test_memory_is_not_returned_to_the_system_between_layers():
    """In a process of its own, since what a process did before decides what glibc keeps."""
    script = """
import resource, torch
from tuplet import models
embedder = models.create("dinov2_small", dim=None)
images = torch.zeros(8, 3, 224, 224, dtype=torch.uint8)
embedder.embed(images)
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
embedder.embed(images)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 8_000, "page faults of eight images; about 70,000 where every layer asks the system"


def test_embedding_resizes_and_crops_as_the_preprocessing_says():
    embedder = models.create(
        "convnet", dim=3, size=8, channels=3, preprocessing={"resize": 16, "resize_mode": "shorter"}
    )
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (20, 30, 3), dtype=np.uint8))
    resized = np.array(image.resize((24, 16), Image.Resampling.BICUBIC))[4:12, 8:16]
    assert torch.equal(embedder.embed(image), embedder.embed(torch.from_numpy(resized).permute(2, 0, 1)[None]))


def test_a_large_image_is_reduced_by_a_box_filter_before_it_is_resized(tmp_path):
    """A file, its bytes and a PIL image give the same pixels."""
    y, x = np.mgrid[:900, :1200]
    path = tmp_path / "large.jpg"
    Image.fromarray(np.stack([x * 255 // 1200, y * 255 // 900, (x + y) // 9], -1).astype(np.uint8)).save(path)
    preprocessing = replace(IMAGENET, size=96, resize=112)
    image = Image.open(path).convert("RGB")
    expected = np.array(image.reduce(4).resize((149, 112), Image.Resampling.BICUBIC))[8:104, 26:122]
    for source in (path, path.read_bytes(), Image.open(path), image):
        seen = preprocessing.image(source).permute(1, 2, 0).numpy().astype(int)
        assert np.abs(seen - expected).max() <= 1


def test_embedding_restores_the_mode_and_gives_plain_tensors():
    embedder = staged()
    result = embedder.embed(random_images(3))
    assert embedder.training
    assert not result.is_inference()
    assert not result.requires_grad
    # Batches of any size give the same vectors, since BatchNorm was in evaluation mode.
    torch.testing.assert_close(embedder.embed(random_images(3), batch_size=1), result)


def test_a_corrupt_file_is_named_and_the_mode_restored(tmp_path):
    embedder = models.create("convnet")
    good, bad = tmp_path / "good.png", tmp_path / "bad.png"
    Image.new("RGB", (30, 30)).save(good)
    bad.write_bytes(good.read_bytes()[:40])
    with pytest.raises(ValueError, match=r"bad\.png"):
        embedder.embed([good, bad, good])
    assert embedder.training
    with pytest.raises(FileNotFoundError, match=r"nowhere\.png"):
        embedder.embed([tmp_path / "nowhere.png"])


def test_images_may_come_from_a_generator_and_arrays_are_named():
    embedder = models.create("convnet", dim=3, size=16, channels=3)
    images = [Image.new("RGB", (16, 16), (shade, 0, 0)) for shade in (10, 200)]
    assert torch.equal(embedder.embed(image for image in images), embedder.embed(images))
    with pytest.raises(TypeError, match=r"an array of shape \(2, 16, 16, 3\); give a tensor \(n, 3, H, W\)"):
        embedder.embed(np.zeros((2, 16, 16, 3), np.uint8))
    with pytest.raises(TypeError, match="images is 5; give a tensor"):
        embedder.embed(5)


@pytest.mark.parametrize("given", [np.zeros((3, 8)), "a.jpg"], ids=lambda given: type(given).__name__)
def test_a_model_of_vectors_asks_for_a_tensor(given):
    embedder = models.create("mlp", features=8, dim=2)
    kind = type(given).__name__
    with pytest.raises(TypeError, match=rf"takes a tensor, not {kind}; give one, such as torch\.as_tensor\("):
        embedder.embed(given)


@pytest.mark.parametrize("shape", [(3, 5), (8,), (2, 3, 8)])
def test_vectors_of_another_length_are_a_sentence(shape):
    embedder = models.create("mlp", features=8, dim=2)
    with pytest.raises(ValueError, match=re.escape(f"vectors have shape {shape} and this mlp takes (N, 8); give")):
        embedder.embed(torch.randn(shape))


def test_images_in_unit_range_are_refused():
    with pytest.raises(ValueError, match=r"they must be in 0 … 255"):
        models.create("convnet").embed(torch.rand(2, 3, 28, 28))
    with pytest.raises(ValueError, match=r"run from -3\."):
        models.create("convnet").embed(torch.linspace(-3.2, 3, 784).expand(1, 3, 784).reshape(1, 3, 28, 28))
    with pytest.raises(ValueError, match="batch_size is 0"):
        models.create("convnet").embed(random_images(1), batch_size=0)


def test_reading_stays_a_bounded_lead_ahead():
    started, lock = [], threading.Lock()

    def work(i):
        with lock:
            started.append(i)
        return i

    for taken, i in enumerate(map_in_threads(work, range(50), workers=4, lead=6), start=1):
        assert i == taken - 1
        assert len(started) <= taken + 6
