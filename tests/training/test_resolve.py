"""Defaults that suit the data and the device."""

import pytest
import torch

from training_tools import image_set, vectors
from tuplet import data, losses, models, training
from tuplet.cli.flags import flag_spelling
from tuplet.cli.train import train
from tuplet.errors import spell
from tuplet.training.distributed import join_processes
from tuplet.training.plan import try_plan
from tuplet.training.resolve import describe_choices, resolve_settings

LITE = {"model": "efficientnet_lite0", "weights": "efficientnet_lite0_imagenet"}
pytestmark = pytest.mark.usefixtures("only_packaged_weights")


def many(count):
    return data.from_images(torch.zeros(count, 4, 4, dtype=torch.uint8), torch.arange(count) // 10)


def test_the_weights_at_hand_are_used_and_a_random_start_is_asked_for(monkeypatch):
    settings = resolve_settings(None, {}, image_set())
    assert (settings.model, settings.weights) == tuple(LITE.values())
    assert resolve_settings(None, {"model": "efficientnet_lite0"}, image_set()).weights == LITE["weights"]
    assert resolve_settings(None, {"weights": "resnet50_v1_imagenet"}, image_set()).model == "resnet50"
    assert resolve_settings(None, {"weights": None}, image_set()).model == "resnet50"
    file = models.weights_at_hand("efficientnet_lite0")[0].source
    assert resolve_settings(None, {"weights": file}, image_set()).model == LITE["model"]
    assert resolve_settings(None, {"weights": file, "model": "lite0"}, image_set()).model == "lite0"
    assert resolve_settings(None, {"model": "convnet"}, image_set()).weights is None
    monkeypatch.setattr(models, "weights_at_hand", lambda device: [])
    with pytest.raises(ValueError, match=r"no pretrained weights are at hand.*'tuplet\[lite0\]', give model and"):
        resolve_settings(None, {}, image_set())


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"steps": "10"}, "steps is '10'; it must be int: number of training steps"),
        ({"test_share": "half"}, "test_share is 'half'; it must be float: share of the classes"),
        ({"weights": ["a", "b"]}, r"weights is \['a', 'b'\]; it must be str or None: initial weights"),
    ],
)
def test_a_wrong_type_is_named_before_other_options_are_chosen_by_it(wrong, message):
    """A file of options may have it so."""
    with pytest.raises(TypeError, match=message):
        resolve_settings(None, wrong, image_set())


def test_few_images_change_pretrained_weights_only_a_little():
    small = resolve_settings(None, {"device": "cuda"}, many(600))
    assert (small.dim, small.freeze_to, small.steps, small.evaluate_every) == (None, "L", 60, 15)
    assert small.wise_ft
    assert small.keep_start
    assert small.select_by == "map_at_r"
    marked = describe_choices({"device": "cuda"}, small, many(600))
    line = spell(marked)
    assert line.startswith(
        "settings chosen for about 240 training images on a GPU: model='efficientnet_lite0' weights="
    )
    assert " augment={'area': (0.3, 1.0)} dim=None freeze_to='L' wise_ft=True steps=60 " in line
    flags = spell(marked, flag_spelling(train))
    assert " --augment 'area=[0.3,1.0]' --dim none --freeze-to L --wise-ft true --steps 60 " in flags
    assert resolve_settings(None, {"device": "cuda"}, many(6000)) == training.Settings(device="cuda", **LITE)
    larger_network = {"model": "resnet50", "weights": "resnet50_v1_imagenet", "device": "cpu"}
    assert resolve_settings(None, larger_network, many(600)).freeze_to == "M"
    assert resolve_settings(None, {"model": "lite0"}, many(600)).freeze_to == "L"
    large = resolve_settings(None, {"device": "cpu"}, many(6000))
    assert (large.dim, large.freeze_to, large.steps, large.wise_ft) == (512, "M", 400, False)


def test_what_is_given_takes_precedence():
    given = {"freeze_to": None, "dim": 64, "steps": 8, "lr": 1e-5, "wise_ft": False, "keep_start": False}
    settings = resolve_settings(None, {**given, "device": "cpu"}, many(600))
    assert {name: getattr(settings, name) for name in given} == given
    assert settings.evaluate_every == 2
    assert resolve_settings(None, {"head_steps": 5}, many(600)).dim == 512
    joined = losses.SumLoss([(losses.SoftmaxLoss(9, 512), 1.0), (losses.ContrastiveLoss(), 1.0)])
    for loss in (losses.ProxyAnchorLoss(9, 512), losses.PDDMLoss(512), joined):
        assert resolve_settings(None, {"loss": loss}, many(600)).dim == 512
    assert resolve_settings(None, {"loss": losses.MarginLoss(learn_beta=True)}, many(600)).dim is None
    assert resolve_settings(None, {"transform": "own:augment"}, many(600)).augment == {}
    assert resolve_settings("demo", {}, many(600)).dim == 64
    assert resolve_settings(None, {"dim": 5}, vectors()) == training.Settings(model="mlp", weights=None, dim=5)


@pytest.mark.parametrize("recipe", training.RECIPES)
def test_every_recipe_can_be_trained_on_feature_vectors(recipe):
    try_plan(vectors(classes=400, each=8), recipe, {}, join_processes("cpu"))
