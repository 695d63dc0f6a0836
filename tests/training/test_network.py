"""How the network of a run is trained: its precision, what of it stays, in pieces, and compiled."""

from dataclasses import replace
from typing import ClassVar

import pytest
import torch

from training_tools import QUICK, SMALL, pictures, same, vectors, weights
from tuplet import losses, models, training
from tuplet.training.network import make_embedder


@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_precisions_train_and_agree_roughly(precision, tmp_path):
    # Steps so small that none overflows in float16: the weights then move by some 3e-3.
    options = {**QUICK, **SMALL, "optimizer": "sgd", "rate": 1e-3, "head_rate": 1.0}
    training.train(pictures(), tmp_path, precision=precision, **options)
    training.train(pictures(), tmp_path / "full", **options)
    ours, theirs = weights(tmp_path), weights(tmp_path / "full")
    for name in theirs:
        assert ours[name].dtype == torch.float32
        torch.testing.assert_close(ours[name], theirs[name], rtol=0, atol=0 if precision == "float32" else 2e-4)
    assert same(ours, theirs) == (precision == "float32")


class Huge(losses.ContrastiveLoss):
    def value(self, view):
        return 3e33 * super().value(view)


def test_float16_leaves_out_steps_that_overflow_and_lowers_its_scale(tmp_path):
    """A scale of 65,536 overflows at first; the run goes on, and the weights stay finite."""
    run = training.train(vectors(), tmp_path, **{**QUICK, "steps": 20, "precision": "float16", "loss": Huge()})
    scaler = torch.load(tmp_path / "checkpoint.pt", weights_only=True)["scaler"]
    assert scaler["scale"] < 65536
    assert all(bool(value.isfinite().all()) for value in run.embedder.state_dict().values())


def test_frozen_batchnorm_stays_as_it_starts(tmp_path):
    def net():
        torch.manual_seed(0)
        layers = torch.nn.Sequential(torch.nn.Linear(10, 8), torch.nn.BatchNorm1d(8), torch.nn.ReLU())
        return models.create(layers, dim=5, example=torch.zeros(2, 10))

    options = {k: v for k, v in QUICK.items() if k != "dim"}
    for frozen in (False, True, "statistics"):
        training.train(vectors(), tmp_path / str(frozen), model=net(), frozen_batchnorm=frozen, rate=0.01, **options)
        moved = {
            name: not torch.equal(value, net().state_dict()[name])
            for name, value in weights(tmp_path / str(frozen)).items()
        }
        assert moved["backbone.module.0.weight"]
        assert moved["backbone.module.1.running_mean"] == (frozen is False)
        assert moved["backbone.module.1.weight"] == (frozen is not True)
    with pytest.raises(ValueError, match="has BatchNorm, whose statistics would be those of a piece"):
        training.train(vectors(), tmp_path / "pieces", model=net(), piece_size=4, **options)
    frozen = net().freeze_batchnorm()
    with pytest.raises(ValueError, match="frozen_batchnorm is False and the embedder was given with"):
        training.train(vectors(), tmp_path / "given", model=frozen, frozen_batchnorm=False, **options)


def test_batchnorm_is_frozen_by_default_where_weights_are_given():
    known = training.Settings(model="efficientnet_lite0", weights="efficientnet_lite0_imagenet")
    for settings, frozen in ((known, True), (replace(known, frozen_batchnorm=False), False)):
        embedder, decided = make_embedder(settings, losses.RAWLoss(), pictures())
        assert embedder.frozen_batchnorm == decided.frozen_batchnorm == frozen
    with pytest.warns(UserWarning, match="random weights"):
        _, decided = make_embedder(replace(known, weights=None), losses.RAWLoss(), pictures())
    assert decided.frozen_batchnorm is False


class Two(models.Backbone):
    """Two levels, each with BatchNorm."""

    channels: ClassVar = {"M": 4, "H": 5}
    usual = models.Preprocessing(12, 12, "square", (127.5,) * 3, (127.5,) * 3)

    def __init__(self):
        super().__init__()
        self.low = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.BatchNorm2d(4), torch.nn.ReLU())
        self.high = torch.nn.Sequential(torch.nn.Conv2d(4, 5, 3), torch.nn.BatchNorm2d(5), torch.nn.ReLU())

    def stages(self):
        return [("M", self.low), ("H", self.high)]


@pytest.mark.parametrize(("level", "stays"), [(None, set()), ("M", {"low"})])
def test_layers_up_to_a_level_stay_as_they_start(level, stays, tmp_path):
    start = models.create(Two(), dim=5)
    options = {k: v for k, v in QUICK.items() if k != "dim"}
    training.train(pictures(), tmp_path, model=start, frozen_to=level, rate=0.01, **options)
    same_as_before = {name: value.equal(start.state_dict()[name]) for name, value in weights(tmp_path).items()}
    for name, stayed in same_as_before.items():
        assert stayed == (name.split(".")[1] in stays), name


def test_a_backbone_from_random_weights_is_warned_of(tmp_path):
    with pytest.warns(UserWarning, match="googlenet starts from random weights; give weights="):
        training.train(pictures(), tmp_path, **{**QUICK, "model": "googlenet", "steps": 1, "size": 32, "resize": 32})


def test_pieces_train_as_the_whole_does(tmp_path):
    options = {**QUICK, **SMALL, "resize": 14}
    training.train(pictures(), tmp_path / "whole", **options)
    training.train(pictures(), tmp_path / "pieces", piece_size=5, **options)
    for ours, theirs in zip(weights(tmp_path / "pieces").values(), weights(tmp_path / "whole").values(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_a_compiled_network_trains_as_it_does_uncompiled(tmp_path, soak):
    if not soak:
        pytest.skip("compiling takes half a minute: make soak")
    for name in ("plain", "compiled"):
        training.train(vectors(), tmp_path / name, compile=name == "compiled", **QUICK)
    for ours, theirs in zip(weights(tmp_path / "compiled").values(), weights(tmp_path / "plain").values(), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("whole", [True, False])
def test_a_network_that_was_compiled_before_trains_and_is_saved_as_any(whole, tmp_path):
    """Compiled is the embedder or a module of the user's, here by a compiler that leaves it as it is."""

    def net(compiler):
        torch.manual_seed(0)
        layers = torch.nn.Sequential(torch.nn.Linear(10, 8), torch.nn.ReLU())
        embedder = models.create(layers if whole else compiler(layers), dim=5, example=torch.zeros(2, 10))
        embedder.backbone = compiler(embedder.backbone) if whole else embedder.backbone
        return embedder

    sizes = []

    def as_it_is(graph, inputs):
        sizes.extend(len(each) for each in inputs if isinstance(each, torch.Tensor) and each.shape[-1] == 10)
        return graph.forward

    def compiled(module):
        return torch.compile(module, backend=as_it_is)

    options = {k: v for k, v in QUICK.items() if k != "dim"}
    run = training.train(vectors(), tmp_path / "compiled", model=net(compiled), **options)
    training.train(vectors(), tmp_path / "plain", model=net(lambda module: module), **options)
    assert same(weights(tmp_path / "compiled"), weights(tmp_path / "plain"))
    assert 1 not in sizes, "compiled for a batch that is none of the run's"
    own = compiled(torch.nn.Sequential(torch.nn.Linear(10, 8), torch.nn.ReLU()))
    again = models.load(tmp_path / "compiled" / "best", backbone=own)
    assert again.fingerprint() == run.embedder.fingerprint()
