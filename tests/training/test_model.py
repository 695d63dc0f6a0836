"""Tests of the network of a run: precision, freezing, micro-batches and compilation."""

from dataclasses import replace
from typing import ClassVar

import pytest
import torch

from training_tools import QUICK, SMALL, image_set, same, vectors, weights
from tuplet import losses, models, training
from tuplet.training.model import make_embedder


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_all_precisions_train_and_agree_roughly(precision, tmp_path):
    # Steps so small that none overflows in float16. The weights change by about 3e-3.
    options = {**QUICK, **SMALL, "optimizer": "sgd", "lr": 1e-3, "head_lr_scale": 1.0}
    training.train(image_set(), tmp_path, precision=precision, **options)
    training.train(image_set(), tmp_path / "full", **options)
    ours, theirs = weights(tmp_path), weights(tmp_path / "full")
    for name in theirs:
        assert ours[name].dtype == torch.float32
        torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=0 if precision == "float32" else 2e-4)
    assert same(ours, theirs) == (precision == "float32")


class Huge(losses.ContrastiveLoss):
    def value(self, view):
        return 3e33 * super().value(view)


def test_float16_skips_steps_that_overflow_and_lowers_its_scale(tmp_path):
    """The first scale, 65,536, overflows. The run continues, and the weights stay finite."""
    run = training.train(vectors(), tmp_path, **{**QUICK, "steps": 20, "precision": "float16", "loss": Huge()})
    scaler = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["scaler"]
    assert scaler["scale"] < 65536
    assert all(bool(value.isfinite().all()) for value in run.embedder.state_dict().values())


def test_frozen_batchnorm_does_not_change(tmp_path):
    def net():
        torch.manual_seed(0)
        layers = torch.nn.Sequential(torch.nn.Linear(10, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU())
        return models.create(layers, dim=5, example=torch.zeros(2, 10))

    options = {k: v for k, v in QUICK.items() if k != "dim"}
    for frozen in (False, True, "statistics"):
        training.train(vectors(), tmp_path / str(frozen), model=net(), freeze_batchnorm=frozen, lr=0.01, **options)
        moved = {
            name: not torch.equal(value, net().state_dict()[name])
            for name, value in weights(tmp_path / str(frozen)).items()
        }
        assert moved["backbone.module.0.weight"]
        assert moved["backbone.module.1.running_mean"] == (frozen is False)
        assert moved["backbone.module.1.weight"] == (frozen is not True)
    with pytest.raises(ValueError, match="has BatchNorm, whose statistics would be those of a micro-batch"):
        training.train(vectors(), tmp_path / "micro", model=net(), micro_batch_size=4, **options)
    frozen = net().freeze_batchnorm()
    with pytest.raises(ValueError, match="freeze_batchnorm is False and the BatchNorm of the given embedder is frozen"):
        training.train(vectors(), tmp_path / "given", model=frozen, freeze_batchnorm=False, **options)


def test_batchnorm_is_frozen_by_default_if_weights_are_given():
    known = training.Settings(model="efficientnet_lite0", weights="efficientnet_lite0_imagenet")
    for settings, frozen in ((known, True), (replace(known, freeze_batchnorm=False), False)):
        embedder, completed = make_embedder(settings, losses.RAWLoss(), image_set())
        assert embedder.frozen_batchnorm == completed.freeze_batchnorm == frozen
    _, completed = make_embedder(replace(known, weights=None), losses.RAWLoss(), image_set())
    assert completed.freeze_batchnorm is False


class Two(models.Backbone):
    """Two levels, each with BatchNorm."""

    channels: ClassVar = {"M": 4, "H": 5}
    preprocessing = models.Preprocessing(12, 12, "square", (127.5,) * 3, (127.5,) * 3)

    def __init__(self):
        super().__init__()
        self.low = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
        self.high = torch.nn.Sequential(torch.nn.Conv2d(4, 5, 3), torch.nn.BatchNorm2d(5), torch.nn.ReLU())

    def stages(self):
        return [("M", self.low), ("H", self.high)]


@pytest.mark.parametrize(("level", "frozen"), [(None, set()), ("M", {"low"})])
def test_layers_up_to_a_level_can_be_frozen(level, frozen, tmp_path):
    start = models.create(Two(), dim=5)
    options = {k: v for k, v in QUICK.items() if k != "dim"}
    training.train(image_set(), tmp_path, model=start, freeze_to=level, lr=0.01, **options)
    unchanged = {name: value.equal(start.state_dict()[name]) for name, value in weights(tmp_path).items()}
    for name, value in unchanged.items():
        assert value == (name.split(".")[1] in frozen), name


def test_micro_batches_train_like_whole_batches(tmp_path):
    options = {**QUICK, **SMALL, "resize": 14}
    training.train(image_set(), tmp_path / "whole", **options)
    training.train(image_set(), tmp_path / "micro", micro_batch_size=5, **options)
    for ours, theirs in zip(weights(tmp_path / "micro").values(), weights(tmp_path / "whole").values(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_compiled_network_trains_like_an_uncompiled_one(tmp_path, soak):
    if not soak:
        pytest.skip("compilation takes half a minute: make soak")
    for name in ("plain", "compiled"):
        training.train(vectors(), tmp_path / name, compile=name == "compiled", **QUICK)
    for ours, theirs in zip(weights(tmp_path / "compiled").values(), weights(tmp_path / "plain").values(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("compile_backbone", [True, False])
def test_a_network_that_is_already_compiled_can_be_trained_and_saved(compile_backbone, tmp_path):
    """Either the backbone or the user's module in it is compiled, by a backend that changes nothing."""

    def net(compiler):
        torch.manual_seed(0)
        layers = torch.nn.Sequential(torch.nn.Linear(10, 8), torch.nn.ReLU())
        embedder = models.create(layers if compile_backbone else compiler(layers), dim=5, example=torch.zeros(2, 10))
        embedder.backbone = compiler(embedder.backbone) if compile_backbone else embedder.backbone
        return embedder

    sizes = []

    def no_backend(graph, inputs):
        sizes.extend(len(each) for each in inputs if isinstance(each, torch.Tensor) and each.shape[-1] == 10)
        return graph.forward

    def compiled(module):
        return torch.compile(module, backend=no_backend)

    options = {k: v for k, v in QUICK.items() if k != "dim"}
    run = training.train(vectors(), tmp_path / "compiled", model=net(compiled), **options)
    training.train(vectors(), tmp_path / "plain", model=net(lambda module: module), **options)
    assert same(weights(tmp_path / "compiled"), weights(tmp_path / "plain"))
    assert 1 not in sizes, "compiled for a batch that is not part of the run"
    own = compiled(torch.nn.Sequential(torch.nn.Linear(10, 8), torch.nn.ReLU()))
    again = models.load(tmp_path / "compiled" / "best", backbone=own)
    assert again.fingerprint() == run.embedder.fingerprint()
