"""A new layer that starts as principal components, half whitened: the literal ones, level by level."""

import pytest
import torch

from training_tools import pictures, vectors
from tuplet import data, models, training
from tuplet.training import heads

QUICK = {"loss": "nca", "steps": 1, "batch_size": 12, "rate": 1e-30}


def components(features, dim):
    """By the singular values of the centred features, which are their deviations times the root of their number."""
    centred = features.double() - features.double().mean(0)
    _, lengths, directions = torch.linalg.svd(centred, full_matrices=False)
    deviations = lengths[:dim] / len(features) ** 0.5
    return centred @ directions[:dim].T / deviations.sqrt() / deviations.sum().sqrt()


def assert_same_products(found, expected):
    """Components are known up to their signs, which no product of two vectors sees."""
    torch.testing.assert_close(found.double() @ found.double().T, expected @ expected.T, rtol=1e-4, atol=1e-5)


def test_a_layer_gives_the_principal_components_of_what_it_is_given():
    source = vectors()
    embedder = models.create("mlp", features=10, hidden=[8], dim=3, normalize=False)
    heads.start_at_principal_components(embedder, data.load(source))
    found = embedder(source.features).detach()
    assert_same_products(found, components(embedder.features(source.features)[0].detach(), 3))
    torch.testing.assert_close(found.mean(0), torch.zeros(3), atol=1e-5, rtol=0)
    assert found.square().sum(1).mean().item() == pytest.approx(1, rel=1e-4)


def test_every_level_has_its_own():
    source = pictures(each=12, size=32)
    embedder = models.create("resnet50", dim=5, levels="LMH", normalize=False, layer_norm=True)
    embedder.eval()
    heads.start_at_principal_components(embedder, data.load(source, 32))
    prepared = embedder.preprocessing
    images = data.views(source.images, prepared.size, prepared.resize, prepared.how)[:, 0]
    with torch.no_grad():
        levels, features = embedder.split(embedder(images)), embedder.features(images)
    for found, given in zip(levels, features, strict=True):
        assert_same_products(found, components(given, 5))


def test_a_run_starts_there_and_only_examples_that_train_are_looked_at(tmp_path):
    source = vectors()
    run = training.train(source, tmp_path, head_start="pca", dim=3, normalize=False, **QUICK)
    train = source.split()[0].features
    assert_same_products(run.embedder.embed(train), components(run.embedder.features(train)[0].detach(), 3))


def test_a_large_dataset_is_looked_at_in_part(monkeypatch):
    seen = []
    monkeypatch.setattr(heads, "LOOKED_AT", 10)
    monkeypatch.setattr(
        heads, "crops", lambda embedder, store, which: seen.extend(which) or iter([store.values[which]])
    )
    heads.start_at_principal_components(models.create("mlp", features=10, dim=3), data.load(vectors()))
    assert len(seen) == 10
    assert (seen[0], seen[-1]) == (0, 71)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"dim": None}, "dim is None, so there is no new layer; give dim"),
        ({"dim": 40}, "36 training examples with 512 features have 35 components at most; choose a smaller dim"),
    ],
)
def test_what_cannot_start_so_is_said(tmp_path, options, words):
    with pytest.raises(ValueError, match=words):
        training.train(vectors(), tmp_path, head_start="pca", **options, **QUICK)
