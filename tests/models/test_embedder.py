"""Heads, levels, normalising and freezing, against literal versions where there is something to compute."""

import math
from functools import partial
from unittest.mock import patch

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

import tuplet
from models.staged import GREY, Stages, random_images, staged
from tuplet import models
from tuplet.models.heads import pool
from tuplet.models.networks.small_networks import ConvNet


@given(
    shape=st.tuples(st.integers(1, 4), st.integers(1, 5), st.integers(1, 6), st.integers(1, 6)),
    how=st.sampled_from(["mean", "max", "mean+max"]),
    seed=st.integers(0, 1000),
)
def test_pooling_is_its_loop(shape, how, seed):
    x = torch.randn(shape, dtype=torch.float64, generator=torch.manual_seed(seed))
    for i in range(shape[0]):
        for c in range(shape[1]):
            values = [v for row in x[i, c].tolist() for v in row]
            expected = {"mean": sum(values) / len(values), "max": max(values)}
            expected["mean+max"] = expected["mean"] + expected["max"]
            assert pool(x, how)[i, c].item() == pytest.approx(expected[how], abs=1e-12)


def test_tokens_are_pooled_without_the_class_token():
    tokens = torch.randn(2, 5, 8, generator=torch.manual_seed(0))
    as_map = tokens[:, 1:].transpose(1, 2).unflatten(2, (2, 2))
    for how in ("mean", "max", "mean+max"):
        torch.testing.assert_close(pool(tokens, how), pool(as_map, how))
    assert torch.equal(pool(tokens, "class"), tokens[:, 0])
    assert torch.equal(pool(tokens, "class+mean"), torch.cat([tokens[:, 0], tokens[:, 1:].mean(1)], 1))


def test_other_shapes_are_refused():
    with pytest.raises(ValueError, match=r"\(2, 5, 8, 1, 1\)"):
        pool(torch.zeros(2, 5, 8, 1, 1), "mean")


@pytest.mark.parametrize("levels", ["L", "H", "LH", "LMH"])
@pytest.mark.parametrize("how", [True, False])
def test_forward_is_backbone_pool_linear_normalise(levels, how):
    embedder = staged(levels=levels, normalize=how).double().eval()
    images = random_images(3)
    with torch.no_grad():
        maps = dict(zip("LMH", embedder.backbone.module((images.double() - 127.5) / 64.0), strict=True))
        expected = []
        for level in levels:
            head = embedder.heads[level]
            v = maps[level].mean((2, 3)) @ head.weight.T + head.bias
            expected.append(v / v.norm(dim=1, keepdim=True) / math.sqrt(len(levels)) if how else v)
        found = embedder(images)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, torch.cat(expected, 1))
    if how:
        torch.testing.assert_close(found.norm(dim=1), torch.ones(3, dtype=torch.float64))
    for part, v in zip(embedder.split(found), expected, strict=True):
        torch.testing.assert_close(part, v * math.sqrt(len(levels)) if how else v)


def test_layer_norm_stands_between_pooling_and_the_head(tmp_path):
    embedder = models.create("convnet", dim=3, layer_norm=True, normalize=False).double()
    images = torch.randint(0, 256, (4, 1, 28, 28)).double()
    x = embedder.backbone((images - 127.5) / 127.5)["H"]
    head = embedder.heads["H"]
    expected = torch.stack([head((row - row.mean()) / (row.var(correction=0) + 1e-5).sqrt()) for row in x])
    torch.testing.assert_close(embedder(images), expected)
    embedder.float().save(tmp_path)
    assert tuplet.load(tmp_path).config.layer_norm


def test_a_compiled_embedder_shares_weights_and_is_compiled_once_for_all_heads():
    compiled, count = [], torch._dynamo.utils.counters["stats"]
    torch._dynamo.reset()
    for dim, seed in ((2, 0), (5, 1)):
        torch.manual_seed(seed)
        embedder = models.create("convnet", dim=dim)
        with patch("torch.compile", partial(torch.compile, backend="aot_eager")):
            fast = embedder.compiled()
        images = torch.rand(3, 1, 28, 28) * 255
        torch.testing.assert_close(fast(images), embedder(images))
        fast(images).sum().backward()
        assert all(p.grad is not None for p in embedder.parameters())
        compiled.append(count["unique_graphs"])
    assert compiled[0] == compiled[1]


def test_eval_normalising_is_off_in_training_only():
    embedder = staged(normalize="eval")
    images = random_images(4)
    lengths = [part.norm(dim=1) for part in embedder.split(embedder(images))]
    assert all((length - 1).abs().max() > 1e-3 for length in lengths)
    embedder.eval()
    lengths = [part.norm(dim=1) for part in embedder.split(embedder(images))]
    torch.testing.assert_close(torch.stack(lengths), torch.ones(3, 4))


def test_squared_distance_is_the_mean_over_levels():
    embedder = staged().eval()
    a, b = embedder(random_images(1)), embedder(random_images(1, seed=1))
    levels = [(p - q).square().sum() for p, q in zip(embedder.split(a), embedder.split(b), strict=True)]
    torch.testing.assert_close((a - b).square().sum(), torch.stack(levels).mean())


def test_levels_are_put_in_order_and_checked():
    assert staged(levels="HL").config.levels == "LH"
    for wrong in ("", "HH", "X"):
        with pytest.raises(ValueError, match="levels is"):
            staged(levels=wrong)
    with pytest.raises(ValueError, match="convnet has no level L; its levels are H"):
        models.create("convnet", levels="LH")


@pytest.mark.parametrize(
    ("argument", "value"), [("dim", 0), ("pooling", "median"), ("normalize", "never"), ("normalize", 1)]
)
def test_wrong_settings_are_a_sentence(argument, value):
    with pytest.raises(ValueError, match=f"{argument} is"):
        staged(**{argument: value})


@pytest.mark.parametrize("name", ["bn_inception", "resnet50", "googlenet", "efficientnet_lite0"])
def test_gradients_reach_every_level_and_every_layer(name):
    torch.manual_seed(0)
    embedder = models.create(name, dim=4, levels="LMH")
    images = random_images(2, size=64)
    parts = embedder.split(embedder(images))
    target = torch.randn(2, 4)
    for level, part in zip("LMH", parts, strict=True):
        embedder.zero_grad()
        (part * target).sum().backward(retain_graph=True)
        reached = {k for k, head in embedder.heads.items() if head.weight.grad is not None and head.weight.grad.any()}
        assert reached == {level}
        assert next(embedder.backbone.parameters()).grad.any()
    embedder.zero_grad()
    sum((part * target).sum() for part in parts).backward()
    assert [name for name, p in embedder.named_parameters() if p.grad is None] == []


def test_layers_above_the_highest_level_ask_for_no_gradient():
    embedder = models.create("resnet50", levels="LM", dim=4)
    idle = {name.split(".")[1] for name, p in embedder.named_parameters() if not p.requires_grad}
    assert idle == {"layer4"}
    embedder(random_images(2, size=64)).sum().backward()
    assert all(p.grad is not None for p in embedder.parameters() if p.requires_grad)


def test_levels_can_be_used_apart():
    embedder = staged().eval()
    images = random_images(3)
    parts = embedder.split(embedder(images))
    for level, part in zip("LMH", parts, strict=True):
        torch.testing.assert_close(embedder.select(level)(images), part)
    both = embedder.select("LH")
    torch.testing.assert_close(both(images), torch.cat([parts[0], parts[2]], 1) / math.sqrt(2))
    assert both.heads["L"] is embedder.heads["L"]
    assert embedder.bfloat16().select("L")(images).isfinite().all()
    with pytest.raises(ValueError, match="has the levels LH, not M"):
        both.select("M")


def test_dim_none_gives_pooled_features():
    embedder = staged(dim=None, normalize=False).eval()
    assert embedder.width == 4 + 5 + 6
    assert not list(embedder.heads.parameters())
    maps = embedder.backbone((random_images(2).float() - 127.5) / 64)
    torch.testing.assert_close(embedder.split(embedder(random_images(2)))[2], maps["H"].mean((2, 3)))


def test_frozen_batchnorm_survives_train():
    embedder = staged().freeze_batchnorm()
    norm = embedder.backbone.module.norm
    before = {name: value.clone() for name, value in norm.state_dict().items()}
    optimiser = torch.optim.SGD(embedder.parameters(), lr=0.1)
    for _ in range(2):
        embedder.eval()
        embedder.train()
        embedder(random_images(4)).sum().backward()
        optimiser.step()
    assert embedder.training
    assert not norm.training
    assert all(torch.equal(value, before[name]) for name, value in norm.state_dict().items())


def test_layers_can_be_frozen_up_to_a_level():
    embedder = models.create("resnet50", dim=2, levels="LH").freeze_to("L").train()
    embedder(torch.zeros(2, 3, 64, 64)).sum().backward()
    moved = {name for name, parameter in embedder.named_parameters() if parameter.grad is not None}
    parts = {name.removeprefix("backbone.").split(".")[0] for name in moved}
    assert parts == {"layer3", "layer4", "heads"}
    # Nor do the statistics of BatchNorm move there, in an embedder of some of the levels either.
    counts = {name: int(value) for name, value in embedder.named_buffers() if name.endswith("num_batches_tracked")}
    assert {name.split(".")[1] for name, count in counts.items() if count} == {"layer3", "layer4"}
    assert not embedder.eval().select("H").train().backbone.bn1.training
    network = models.create("convnet", dim=2)
    with pytest.raises(ValueError, match="convnet has no level M to freeze up to; leave freeze_to out"):
        network.freeze_to("M")
    assert all(parameter.requires_grad for parameter in network.parameters())


def test_frozen_statistics_leave_the_affine_part_free_on_request():
    embedder = staged().freeze_batchnorm(affine=False)
    embedder(random_images(4)).sum().backward()
    norm = embedder.backbone.module.norm
    assert norm.weight.grad is not None
    assert norm.num_batches_tracked == 0


def test_parameter_groups_cover_everything_that_learns_once():
    embedder = staged()
    groups = models.param_groups(embedder, lr=0.01, head_lr_scale=10, weight_decay=0.5)
    assert [(g["name"], g["lr"], g["weight_decay"]) for g in groups] == [
        ("backbone", 0.01, 0.5),
        ("backbone/flat", 0.01, 0.0),
        ("heads", 0.1, 0.5),
        ("heads/flat", 0.1, 0.0),
    ]
    listed = [id(p) for g in groups for p in g["params"]]
    assert sorted(listed) == sorted(id(p) for p in embedder.parameters())
    torch.optim.AdamW(groups)
    embedder.backbone.requires_grad_(False)
    assert [g["name"] for g in models.param_groups(embedder, lr=0.01, head_lr_scale=2)] == ["heads", "heads/flat"]


def test_floats_and_bytes_are_the_same_image():
    embedder = staged().eval()
    images = random_images(2)
    assert torch.equal(embedder(images), embedder(images.float()))


def test_a_grey_network_sees_the_luma_of_rgb():
    embedder = models.create("convnet", dim=2).eval()
    images = random_images(2)
    r, g, b = images.float().unbind(1)
    grey = (0.299 * r + 0.587 * g + 0.114 * b)[:, None]
    torch.testing.assert_close(embedder(images), embedder(grey))


def test_wrong_shapes_are_a_sentence():
    with pytest.raises(ValueError, match=r"\(3, 28, 28\); they must be \(N, 3, H, W\) .* image\[None\]"):
        staged()(torch.zeros(3, 28, 28))
    with pytest.raises(ValueError, match=r"32×32 and this convnet takes 28×28"):
        models.create("convnet")(torch.zeros(1, 3, 32, 32))


@pytest.mark.parametrize("size", [4, 7, 32])
@pytest.mark.parametrize("channels", [1, 3])
def test_convnet_takes_any_small_size(size, channels):
    embedder = models.create("convnet", dim=2, size=size, channels=channels, normalize=False)
    assert embedder(random_images(3, size=size)).shape == (3, 2)
    # Two convolutions and one fully connected layer.
    layers = [m for m in embedder.modules() if isinstance(m, nn.Conv2d | nn.Linear)]
    assert [type(m) for m in layers] == [nn.Conv2d, nn.Conv2d, nn.Linear]


def test_mlp_embeds_vectors():
    embedder = models.create("mlp", features=10, hidden=(16, 8), dim=4)
    x = torch.randn(5, 10)
    torch.testing.assert_close(embedder.embed(x), embedder.eval()(x).detach())
    with pytest.raises(TypeError, match="has no preprocessing"):
        embedder.embed(["a.jpg"])


@pytest.mark.parametrize("name", ["resnet50", "bn_inception", "efficientnet_lite0", "googlenet"])
def test_forward_compiles_without_a_break(name):
    embedder = models.create(name, dim=4, levels="LMH").eval()
    images = random_images(2, size=64)
    with torch.no_grad():
        compiled = torch.compile(embedder, fullgraph=True, backend="eager")(images)
        torch.testing.assert_close(compiled, embedder(images))


def test_bfloat16_autocast_gives_float32_vectors():
    embedder = staged().eval()
    images = random_images(3)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        half = embedder(images)
    assert half.dtype == torch.float32
    torch.testing.assert_close(half.norm(dim=1), torch.ones(3))
    torch.testing.assert_close(half, embedder(images), rtol=0.05, atol=0.02)


def test_a_half_precision_network_takes_bytes():
    embedder = staged().to(torch.bfloat16).eval()
    torch.testing.assert_close(embedder(random_images(3)), staged().eval()(random_images(3)), rtol=0.1, atol=0.05)


def test_own_modules_need_something_to_measure_them_by():
    with pytest.raises(ValueError, match="example="):
        models.create(nn.Linear(3, 4))
    assert models.create(nn.Linear(3, 4), example=torch.zeros(1, 3), dim=2)(torch.ones(5, 3)).shape == (5, 2)
    with pytest.raises(TypeError, match="leave out weights="):
        models.create(nn.Linear(3, 4), weights="x.pth")
    with pytest.raises(ValueError, match="no preprocessing to change"):
        models.create("mlp", features=3, preprocessing={"size": 3})


@pytest.mark.parametrize("dim", [0, 2.0, "2", True])
def test_a_dimension_that_is_none_is_a_sentence(dim):
    with pytest.raises(ValueError, match=f"dim is {dim!r}; it must be a positive integer or None"):
        models.create("convnet", dim=dim)


def test_measuring_a_module_leaves_it_as_it_was():
    module = Stages()
    module.norm.eval()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    models.create(module, preprocessing=GREY)
    assert module.training
    assert not module.norm.training
    assert all(torch.equal(value, before[name]) for name, value in module.state_dict().items())


def test_a_backbone_of_the_users_own_is_taken_as_it_is():
    backbone = ConvNet(size=8)
    assert models.create(backbone, dim=2).backbone is backbone


@pytest.mark.parametrize(
    "fields",
    [
        {"mean": (1.0, 2.0)},
        {"std": (0.0, 1.0, 1.0)},
        {"mean": (300.0, 0.0, 0.0)},
        {"mean": (0.485, 0.456, 0.406), "std": (0.229, 0.224, 0.225)},
        {"size": 0},
        {"resize_mode": "round"},
        {"mean": (1.0,), "std": (1.0, 1.0, 1.0)},
    ],
)
def test_wrong_preprocessing_is_a_sentence(fields):
    with pytest.raises(ValueError, match=r"^(mean|std|size|resize_mode) "):
        models.create("resnet50", preprocessing=fields)


def test_a_field_that_preprocessing_has_not_is_named_with_those_it_has():
    with pytest.raises(TypeError, match=r"preprocessing has no option 'sise'; did you mean 'size'"):
        models.create("resnet50", preprocessing={"sise": 160})
