"""Learning rates by depth, freezing by depth, and low-rank adapters."""

import copy

import pytest
import torch
from torch import nn

from foreign import foreign
from tuplet import models
from tuplet.models.lora import LoRALinear, add_lora
from tuplet.models.networks.vision_transformer import VisionTransformer

IMAGES = torch.randint(0, 256, (3, 3, 28, 28), dtype=torch.uint8, generator=torch.manual_seed(0))


def embedder(**options):
    torch.manual_seed(0)
    backbone = VisionTransformer(patch=14, width=16, depth=4, heads=2, size=28, registers=1, layer_scale=True)
    return models.create(backbone, preprocessing=backbone.preprocessing, **{"dim": 4, **options}).eval()


@pytest.mark.parametrize("levels", ["H", "L"])
def test_every_layer_learns_slower_than_the_one_above(levels):
    made = embedder(levels=levels)
    groups = models.param_groups(made, lr=1.0, head_lr_scale=5.0, weight_decay=0.1, layer_lr_decay=0.5)
    lr = {id(p): group["lr"] for group in groups for p in group["params"]}
    assert len(lr) == sum(p.requires_grad for p in made.parameters())
    above = {"H": 5, "L": 2}[levels]  # blocks and the last normalisation above the stem
    backbone = made.backbone
    assert lr[id(backbone.stem.cls_token)] == 0.5**above
    assert lr[id(backbone.blocks[0].attn.qkv.weight)] == lr[id(backbone.blocks[0].norm1.bias)] == 0.5 ** (above - 1)
    assert {lr[id(p)] for p in made.heads.parameters()} == {5.0}
    decay = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    assert all(decay[id(p)] == (0.1 if p.ndim > 1 else 0.0) for p in made.parameters() if p.requires_grad)


@pytest.mark.parametrize(("name", "layers"), [("resnet50", 5), ("efficientnet_lite0", 9)])
def test_a_batchnorm_learns_like_the_convolution_below_it(name, layers):
    groups = models.param_groups(models.create(name, dim=2), lr=1.0, layer_lr_decay=0.5)
    for kind in ("", "/flat"):
        rates = [group["lr"] for group in groups if group["name"].endswith("/flat") == bool(kind)]
        assert rates == [*(0.5**i for i in reversed(range(layers))), 1.0]  # the last is the head's


@pytest.mark.parametrize(("name", "options"), [("mlp", {"features": 4, "hidden": [5, 6]}), ("convnet", {})])
def test_layers_of_small_networks_learn_slower_than_the_ones_above(name, options):
    groups = models.param_groups(models.create(name, dim=2, **options), lr=1.0, layer_lr_decay=0.5)
    rates = [group["lr"] for group in groups if "/flat" not in group["name"]]
    assert rates == [0.5, 1.0, 1.0]  # the last is the head's


def test_layers_that_are_not_known_cannot_learn_slower():
    made = models.create(nn.Linear(4, 3), dim=2, example=torch.zeros(1, 4))
    with pytest.raises(ValueError, match=r"layer_lr_decay is 0\.5, and the layers of own module are not known; leave"):
        models.param_groups(made, lr=1.0, layer_lr_decay=0.5)


@pytest.mark.parametrize(("end", "blocks"), [("L", 2), ("M", 3), (1, 1), (4, 4)])
def test_blocks_are_frozen_by_level_or_number(end, blocks):
    made = embedder().freeze_to(end).train()
    made(IMAGES).sum().backward()
    frozen = {name for name, p in made.backbone.named_parameters() if p.grad is None}
    below = ("stem.", *(f"blocks.{i}." for i in range(blocks)))
    assert frozen == {name for name, _ in made.backbone.named_parameters() if name.startswith(below)}


def test_blocks_that_are_not_there_are_a_sentence():
    with pytest.raises(ValueError, match="own module has 4 blocks; give 1 to 4, or a level: L or M"):
        embedder().freeze_to(5)
    with pytest.raises(ValueError, match=r"freeze_to is 1 and resnet50 has no numbered blocks; give a level: L or M"):
        models.create("resnet50", dim=2).freeze_to(1)


@pytest.mark.parametrize(
    ("name", "end", "trained"),
    [
        ("vit_tiny_patch16_224", 10, {"blocks.10", "blocks.11", "norm"}),
        ("resnet18", "M", {"layer4"}),
        ("convnext_atto", "L", {"stages.2", "stages.3"}),
    ],
)
def test_models_of_timm_are_frozen_by_depth(name, end, trained):
    foreign("timm")
    made = models.create(f"timm/{name}", dim=2).freeze_to(end).train()
    names = [n.removeprefix("model.") for n, p in made.backbone.named_parameters() if p.requires_grad]
    found = {".".join(n.split(".")[: 2 if n.startswith(("blocks", "stages")) else 1]) for n in names}
    assert found - {"head"} == trained
    norms = [m for m in made.modules() if isinstance(m, nn.BatchNorm2d)]
    assert all(norm.training == norm.weight.requires_grad for norm in norms)
    groups = models.param_groups(made, lr=1.0, layer_lr_decay=0.5)
    assert sum(len(group["params"]) for group in groups) == sum(p.requires_grad for p in made.parameters())


@pytest.mark.parametrize(("layers", "adapted"), [("attention", 8), ("all", 16)])
def test_low_rank_additions_start_at_nothing_and_train_alone(layers, adapted):
    made, plain = embedder(), embedder()
    add_lora(made.backbone, rank=2, layers=layers)
    assert torch.equal(made(IMAGES), plain(IMAGES))
    assert sum(isinstance(module, LoRALinear) for module in made.modules()) == adapted
    trained = {name for name, p in made.named_parameters() if p.requires_grad}
    assert all(".lora_" in name or name.startswith("heads.") for name in trained)
    assert len(trained) == 2 * adapted + 2
    assert made.fingerprint() == plain.fingerprint()


def test_low_rank_additions_follow_their_equation_and_are_merged_on_save(tmp_path):
    made = embedder()
    add_lora(made.backbone, rank=2, layers="all")
    for name, parameter in made.named_parameters():
        if ".lora_" in name:
            nn.init.normal_(parameter, std=0.3, generator=torch.manual_seed(len(name)))
    layer = made.backbone.blocks[1].mlp.fc1
    x = torch.randn(5, 16)
    torch.testing.assert_close(layer(x), x @ (layer.weight + layer.lora_b @ layer.lora_a).T + layer.bias)
    before = made.embed(IMAGES)
    plain = embedder()
    assert (before - plain.embed(IMAGES)).abs().max() > 1e-2
    made.save(tmp_path)
    loaded = models.load(tmp_path, backbone=copy.deepcopy(plain.backbone))
    torch.testing.assert_close(loaded.embed(IMAGES), before)
    assert not any(isinstance(module, LoRALinear) for module in loaded.modules())
    made.restore(loaded.weights())
    assert torch.equal(made.embed(IMAGES), loaded.embed(IMAGES))
    assert made.weights().keys() == plain.state_dict().keys() == made.state_dict().keys()


def test_low_rank_additions_stay_below_the_highest_level():
    made = embedder(levels="L")
    add_lora(made.backbone, rank=1)
    adapted = [name for name, module in made.named_modules() if isinstance(module, LoRALinear)]
    assert {name.split(".")[2] for name in adapted} == {"0", "1"}


def test_low_rank_additions_are_for_transformers():
    with pytest.raises(ValueError, match="lora is 4, which is for transformers; leave it out"):
        add_lora(models.create("resnet50", dim=2).backbone, rank=4)


@pytest.mark.parametrize("name", ["efficientnet_lite0", "vit_tiny_patch16_224"])
def test_layers_beside_frozen_ones_get_the_same_gradients(name):
    """Frozen layers may compute in a faster way; whatever lies between them still learns."""
    torch.manual_seed(0)
    network = models.create(name, dim=4, weights=None).eval()
    layers = [layer for layer in network.modules() if isinstance(layer, nn.Linear | nn.Conv2d)]
    for layer in network.modules():
        layer.requires_grad_(layer in layers[1::7])
    images = torch.rand(2, 3, 64, 64) * 255 if name.startswith("eff") else torch.rand(2, 3, 224, 224) * 255
    exact = copy.deepcopy(network).double()
    for each, x in ((network, images), (exact, images.double())):
        each(x).pow(3).sum().backward()
    for got, expected in zip(network.parameters(), exact.parameters(), strict=True):
        assert (got.grad is None) == (expected.grad is None) == (not got.requires_grad)
        if got.grad is not None:
            torch.testing.assert_close(got.grad.double(), expected.grad, atol=1e-4, rtol=1e-2)
