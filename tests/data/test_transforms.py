"""Transforms of the user's own, and torch's datasets, in training and evaluation."""

import random

import numpy as np
import pytest
import torch
from PIL import Image

import tuplet
from foreign import foreign
from tuplet import models
from tuplet.data import OnBatch, Transform, from_torch, load
from tuplet.data.transforms import named_transform
from tuplet.errors import OptionError

IMAGES = torch.randint(0, 256, (6, 3, 16, 16), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
INDEX = torch.tensor([9, 2, 5, 2, 7, 0])


def noisy(image):
    """Use every kind of random numbers that a transform may use."""
    shift = random.randint(0, 50) + np.random.randint(50) + int(torch.randint(50, ()))  # noqa: NPY002
    return image.resize((8, 8)).point(lambda value: min(255, value // 2 + shift))


def test_a_transform_depends_on_seed_step_and_sample_alone():
    transform = Transform(noisy, size=8, resize=12, seed=3)
    whole = transform(IMAGES, INDEX, step=5)
    assert whole.shape == (6, 3, 8, 8)
    order = torch.tensor([4, 1, 0])
    assert torch.equal(transform(IMAGES[order], INDEX[order], step=5), whole[order])
    assert not torch.equal(whole[1], whole[3]) or not torch.equal(IMAGES[1], IMAGES[3]), "the second 2 differs"
    twice = transform(IMAGES[[1, 1]], INDEX[[1, 1]], step=5)
    assert not torch.equal(twice[0], twice[1])
    for other in (Transform(noisy, size=8, resize=12, seed=4)(IMAGES, INDEX, 5), transform(IMAGES, INDEX, 6)):
        assert not torch.equal(other, whole)


def test_the_callers_random_numbers_stay_as_they_were():
    random.seed(1), np.random.seed(1), torch.manual_seed(1)  # noqa: NPY002
    expected = random.random(), np.random.rand(), torch.rand(())  # noqa: NPY002
    random.seed(1), np.random.seed(1), torch.manual_seed(1)  # noqa: NPY002
    Transform(noisy, size=8)(IMAGES, INDEX, 0)
    Transform(OnBatch(lambda x: x[..., :8, :8] * torch.rand(()) / 255), size=8)(IMAGES, INDEX, 0)
    assert (random.random(), np.random.rand(), torch.rand(())) == expected  # noqa: NPY002


def test_images_keep_their_proportions_and_results_may_be_of_any_kind():
    seen = []

    def look(image):
        seen.append(image.size)
        return np.asarray(image.resize((8, 8)))

    out = Transform(look, size=8, resize=10)(IMAGES[:2], INDEX[:2], 0, torch.tensor([2.0, 0.5]))
    assert seen == [(20, 10), (10, 20)]
    floats = Transform(lambda image: torch.from_numpy(look(image)).permute(2, 0, 1) / 255, size=8, resize=10)
    torch.testing.assert_close(floats(IMAGES[:2], INDEX[:2], 0, torch.tensor([2.0, 0.5])), out)
    batch = Transform(OnBatch(lambda images: images[..., 4:12, 4:12]), size=8)(IMAGES, INDEX, 0)
    assert torch.equal(batch, IMAGES[..., 4:12, 4:12].float())


@pytest.mark.parametrize(
    ("function", "message"),
    [
        (lambda image: image, r"gives images of shape \(3, 256, 256\), and the network takes \(3, 8, 8\); end it with"),
        (
            lambda image: torch.full((3, 8, 8), -1.0),
            "gives torch.float32 from -1 to -1, .* leave out what",
        ),
    ],
)
def test_what_a_transform_gives_is_checked(function, message):
    with pytest.raises(OptionError, match=message):
        Transform(function, size=8)(IMAGES, INDEX, 0)


def test_transforms_by_name():
    assert named_transform("PIL.ImageOps:flip")(Image.new("RGB", (2, 2))).size == (2, 2)
    with pytest.raises(OptionError, match=r"transform is 'nowhere:x', which cannot be imported"):
        named_transform("nowhere:x")


def test_transforms_of_torchvision_are_repeatable():
    foreign("torchvision")
    from torchvision.transforms import v2

    repeats(v2.Compose([v2.RandomResizedCrop(8), v2.ColorJitter(0.5)]))
    repeats(v2.Compose([v2.RandomResizedCrop(8), v2.ToImage(), v2.ToDtype(torch.float32, scale=True)]))
    repeats(OnBatch(v2.RandomResizedCrop(8)))


def test_transforms_of_albumentations_are_repeatable():
    albumentations = pytest.importorskip("albumentations")
    repeats(albumentations.Compose([albumentations.RandomCrop(8, 8), albumentations.HorizontalFlip()]))


def repeats(transform):
    """Check that the same step gives the same images, and another step others."""
    one, other = (Transform(transform, size=8, resize=12)(IMAGES, INDEX, 1) for _ in range(2))
    assert torch.equal(one, other)
    assert not torch.equal(one, Transform(transform, size=8, resize=12)(IMAGES, INDEX, 2))


class Squares(torch.utils.data.Dataset):
    """Images of noise as PIL images or tensors of different sizes, eight in each of six classes."""

    def __init__(self, kind="pil"):
        self.kind = kind

    def __len__(self):
        return 48

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        image = rng.integers(0, 256, (20 + index % 5, 24, 3), np.uint8)
        tensor = torch.from_numpy(image).permute(2, 0, 1)
        values = {"pil": Image.fromarray(image), "uint8": tensor, "float": tensor / 255}
        return values[self.kind], index % 6


@pytest.mark.parametrize("kind", ["pil", "uint8", "float"])
def test_a_torch_dataset_is_read_like_any_other(kind):
    data = from_torch(Squares(kind))
    assert data.labels.tolist() == [i % 6 for i in range(48)]
    expected = np.random.default_rng(7).integers(0, 256, (22, 24, 3), np.uint8)
    assert (np.asarray(data.image(7)) == expected).all()
    assert load(data, 8, workers=2).values.shape == (48, 3, 8, 8)


def test_targets_and_classes_of_torchvision_are_used_without_reading_images():
    class Listed(Squares):
        targets = [i % 6 for i in range(48)]  # noqa: RUF012
        classes = ["a", "b", "c", "d", "e", "f"]  # noqa: RUF012

        def __getitem__(self, index):
            assert index == 0, "only the kind of the first is looked at"
            return super().__getitem__(index)

    assert from_torch(Listed()).class_names == ("a", "b", "c", "d", "e", "f")
    Listed.targets = ["fedcba"[i % 6] for i in range(48)]
    data = from_torch(Listed())
    assert data.labels[:6].tolist() == [5, 4, 3, 2, 1, 0], "targets that are names"
    assert data.class_names == ("a", "b", "c", "d", "e", "f")


def test_torch_datasets_that_cannot_be_used_get_one_sentence(tmp_path):
    with pytest.raises(TypeError, match=r"an item of the list is no pair \(image or tensor, label\); return both"):
        from_torch([1, 2])
    with pytest.raises(TypeError, match="no pair"):
        from_torch([{"image": torch.zeros(3, 8, 8), "label": 1}])
    data = from_torch(Squares())
    with pytest.raises(ValueError, match="the cache cannot know when number 0 of the Squares changes; leave"):
        load(data, 8, tmp_path)


def test_training_and_evaluation_take_a_torch_dataset_and_a_transform_and_resume(tmp_path):
    options = {"model": "convnet", "model_options": {"size": 8, "channels": 3}, "dim": 4, "loss": "raw"}
    options |= {"batch_size": 6, "per_class": 2, "schedule": "constant", "checkpoint_every": 3, "transform": noisy}
    whole = tuplet.train(Squares(), tmp_path / "whole", steps=6, **options)
    tuplet.train(Squares(), tmp_path / "parts", steps=4, **options)
    again = tuplet.train(Squares(), tmp_path / "parts", steps=6, **options)
    # Step 4 was evaluated there too and may be the best, so the last embedders are compared.
    same = zip(*(tuplet.load(run.folder / "last").parameters() for run in (whole, again)), strict=True)
    assert all(torch.equal(one, other) for one, other in same)
    metrics = tuplet.evaluate(again.embedder, Squares())
    assert metrics["recall_at_1"] == again.metrics["recall_at_1"]
    with pytest.raises(OptionError, match="transform takes the place of augment; give one of them"):
        tuplet.train(Squares(), tmp_path / "x", steps=6, augment={"mirror": 0.0}, **options)
    assert models.create("convnet", dim=2, size=8, channels=3).preprocessing is not None
