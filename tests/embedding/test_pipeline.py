"""Embedding many examples takes the memory of a few."""

import weakref

import torch

from tuplet import data, models
from tuplet.embedding import embed_store


def test_no_output_of_the_network_outlives_the_next_one():
    """Small tensors that stay would cut the heap to pieces: a CPU took gigabytes for some thousand photographs."""
    embedder = models.create("convnet", size=32, channels=3, dim=4)
    images = torch.randint(0, 256, (600, 3, 32, 32), dtype=torch.uint8)
    store = data.load(data.from_images(images, [0] * 600))
    outputs, alive = [], []
    embedder.register_forward_pre_hook(lambda *_: alive.append(sum(output() is not None for output in outputs)))
    embedder.register_forward_hook(lambda _module, _inputs, output: outputs.append(weakref.ref(output)))
    vectors = embed_store(embedder, store)
    assert len(outputs) > 2
    assert max(alive) <= 1
    outputs.clear()
    expected = torch.cat([embed_store(embedder, store, range(start, start + 100)) for start in range(0, 600, 100)])
    torch.testing.assert_close(vectors, expected)


def test_a_process_may_have_no_examples():
    """With more processes than examples, some of them have nothing to embed."""
    store = data.load(data.from_images(torch.zeros(2, 3, 32, 32, dtype=torch.uint8), [0, 0]))
    assert embed_store(models.create("convnet", size=32, channels=3, dim=4), store, []).shape == (0, 4)
