"""Architectures against published counts and shapes, and against literal or foreign versions of themselves."""

import itertools
import re

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional

from foreign import foreign
from tuplet import models
from tuplet.models.architectures import build
from tuplet.models.networks.bn_inception import BLOCKS
from tuplet.models.weights import fill

# Published parameter counts with their 1000-class layer, and the maps of a 224 × 224 image at L, M and H.
PUBLISHED = {
    "resnet50": (25_557_032, 2048, [(512, 28), (1024, 14), (2048, 7)]),
    "googlenet": (6_624_904, 1024, [(480, 28), (832, 14), (1024, 7)]),
    "bn_inception": (11_295_240, 1024, [(576, 14), (1056, 7), (1024, 7)]),
    "efficientnet_lite0": (4_652_008, 1280, [(40, 28), (112, 14), (1280, 7)]),
}


def shaken(network):
    """Every BatchNorm given statistics of its own, so that a misplaced one shows."""
    for module in network.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.normal_(0, 0.1)
            module.running_var.uniform_(0.5, 1.5)
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, 0, 0.1)
    return network.eval()


@pytest.mark.parametrize("name", PUBLISHED)
def test_counts_and_shapes_are_the_published_ones(name):
    count, width, maps = PUBLISHED[name]
    backbone = build(name, {}).eval()
    assert sum(p.numel() for p in backbone.parameters()) == count - 1000 * (width + 1)
    with torch.no_grad():
        found = backbone(torch.zeros(1, 3, 224, 224), "LMH")
    assert [(x.shape[1], x.shape[2]) for x in found.values()] == maps
    assert [x.shape[2] == x.shape[3] for x in found.values()] == [True] * 3
    assert backbone.channels == dict(zip("LMH", (channels for channels, _ in maps), strict=True))


@pytest.mark.parametrize("channels", [1, 3])
def test_casianet_has_the_layers_of_its_paper(channels, tmp_path):
    embedder = models.create("casianet", dim=None, channels=channels)
    convolutions = [layer for layer in embedder.modules() if isinstance(layer, nn.Conv2d)]
    widths = [channels, 32, 64, 64, 128, 96, 192, 128, 256, 160, 320]
    assert [(c.in_channels, c.out_channels) for c in convolutions] == list(itertools.pairwise(widths))
    assert [c.kernel_size for c in convolutions] == [(3, 3)] * 10
    faces = torch.randint(0, 256, (2, 3, 100, 100), dtype=torch.uint8)
    maps = embedder.backbone(embedder._prepare(faces), "LMH")
    assert [tuple(x.shape[1:]) for x in maps.values()] == [(192, 13, 13), (256, 7, 7), (320, 7, 7)]
    embedder.save(tmp_path)
    assert torch.equal(models.load(tmp_path).embed(faces), embedder.embed(faces))
    assert embedder.width == 320


def test_paper_004_crops_of_227_give_the_same_maps():
    with torch.no_grad():
        maps = build("bn_inception", {}).eval()(torch.zeros(1, 3, 227, 227), "LMH")
    assert [x.shape[-1] for x in maps.values()] == [14, 7, 7]


@given(name=st.sampled_from(sorted(PUBLISHED)), height=st.integers(33, 90), width=st.integers(33, 90))
def test_any_size_of_image_goes_through(name, height, width):
    backbone = NETWORKS[name]
    with torch.no_grad():
        maps = backbone(torch.zeros(1, 3, height, width), "LMH")
    assert all(min(x.shape) > 0 and x.isfinite().all() for x in maps.values())


NETWORKS = {name: build(name, {}).eval() for name in PUBLISHED}


@pytest.mark.parametrize("name", PUBLISHED)
def test_running_stops_at_the_highest_level_asked_for(name):
    backbone = NETWORKS[name]
    last = backbone.stages()[-2][1]
    calls = []
    hook = last.register_forward_hook(lambda *_: calls.append(1))
    with torch.no_grad():
        low = backbone(torch.ones(1, 3, 64, 64), "L")
        assert not calls
        every = backbone(torch.ones(1, 3, 64, 64), "LMH")
    hook.remove()
    assert calls
    assert low.keys() == {"L"}
    assert torch.equal(low["L"], every["L"])


def test_resnet_strides_stand_where_each_version_has_them():
    for strides, expected in (("v1", [(2, 1)] * 3), ("v1.5", [(1, 2)] * 3)):
        network = build("resnet50", {"strides": strides})
        blocks = [network.get_submodule(f"layer{i}.0") for i in (2, 3, 4)]
        assert [(b.conv1.stride[0], b.conv2.stride[0]) for b in blocks] == expected
    with pytest.raises(ValueError, match="strides is 'v2'"):
        build("resnet50", {"strides": "v2"})


def test_resnet_versions_share_names_but_not_values():
    torch.manual_seed(0)
    old, new = shaken(build("resnet50", {"strides": "v1"})), build("resnet50", {"strides": "v1.5"}).eval()
    new.load_state_dict(old.state_dict())
    x = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        assert (old(x)["H"] - new(x)["H"]).abs().max() > 0.1


def flat_bn_inception(state, x):
    """BN-Inception in the flat names of its published files, layer by layer, on a BGR image."""

    def unit(x, name, stride=1):
        weight = state[f"{name}.weight"]
        x = functional.conv2d(x, weight, state[f"{name}.bias"], stride, padding=weight.shape[-1] // 2)
        bn = [state[f"{name}_bn.{kind}"].reshape(-1) for kind in ("running_mean", "running_var", "weight", "bias")]
        return functional.relu(functional.batch_norm(x, *bn))

    x = functional.max_pool2d(unit(x, "conv1_7x7_s2", 2), 3, 2, ceil_mode=True)
    x = functional.max_pool2d(unit(unit(x, "conv2_3x3_reduce"), "conv2_3x3"), 3, 2, ceil_mode=True)
    maps = {}
    for block in ("3a", "3b", "3c", "4a", "4b", "4c", "4d", "4e", "5a", "5b"):
        name, stride = f"inception_{block}", 2 if block in ("3c", "4e") else 1
        three = unit(unit(x, f"{name}_3x3_reduce"), f"{name}_3x3", stride)
        double = unit(unit(x, f"{name}_double_3x3_reduce"), f"{name}_double_3x3_1")
        double = unit(double, f"{name}_double_3x3_2", stride)
        if stride == 2:
            x = torch.cat([three, double, functional.max_pool2d(x, 3, 2, ceil_mode=True)], 1)
        else:
            pool = functional.max_pool2d if block == "5b" else functional.avg_pool2d
            x = torch.cat([unit(x, f"{name}_1x1"), three, double, unit(pool(x, 3, 1, 1), f"{name}_pool_proj")], 1)
        maps[block] = x
    return [maps["3c"], maps["4e"], maps["5b"]]


@pytest.mark.parametrize("two_dimensional", [False, True])
def test_bn_inception_reads_published_names_and_sees_rgb(two_dimensional):
    torch.manual_seed(0)
    source = shaken(build("bn_inception", {}))
    published = {"last_linear.weight": torch.zeros(1000, 1024), "last_linear.bias": torch.zeros(1000)}
    for name, value in source.state_dict().items():
        parts = name.split(".")
        layer, part, kind = "_".join(parts[:-2]), parts[-2], parts[-1]
        if kind == "num_batches_tracked":
            continue
        if part == "bn":
            layer, value = f"{layer}_bn", value[None] if two_dimensional else value
        published[f"{layer}.{kind}"] = value.double()
    assert "inception_4e_double_3x3_2_bn.running_var" in published
    network = build("bn_inception", {}).double().eval()
    fill(network, published, "file")
    rgb = torch.randn(2, 3, 64, 64, dtype=torch.float64)
    with torch.no_grad():
        found = network(rgb, "LMH").values()
        expected = flat_bn_inception(published, rgb.flip(1))
    for a, b in zip(found, expected, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-9, atol=1e-9)


def test_bn_inception_widths_add_up():
    assert [w.one + w.three + w.double + w.pool for w in BLOCKS.values()][-2:] == [1024, 1024]


@pytest.mark.parametrize("number", [0, 1, 2])
def test_lite_agrees_with_the_package_that_its_weights_come_from(number):
    from efficientnet_lite_pytorch import EfficientNet

    torch.manual_seed(0)
    peer = shaken(EfficientNet.from_name(f"efficientnet-lite{number}"))
    network = build(f"efficientnet_lite{number}", {}).eval()
    fill(network, peer.state_dict(), "peer")
    size = (224, 240, 260)[number]  # the peer pads for this size alone
    x = torch.randn(2, 3, size, size)
    with torch.no_grad():
        torch.testing.assert_close(network(x)["H"], peer.extract_features(x), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", ["resnet50", "googlenet"])
def test_agrees_with_torchvision(name):
    torch.manual_seed(0)
    options = {"init_weights": False, "transform_input": True} if name == "googlenet" else {}
    peer = shaken(getattr(foreign("torchvision").models, name)(**options))
    backbone = build(name, {}).eval()
    fill(backbone, peer.state_dict(), "peer")
    peer.fc = nn.Identity()
    embedder = models.create(backbone, dim=None, normalize=False, preprocessing=backbone.preprocessing).eval()
    images = torch.rand(2, 3, 224, 224) * 255
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    with torch.no_grad():
        expected = peer((images / 255 - mean.view(3, 1, 1)) / std.view(3, 1, 1))
        torch.testing.assert_close(embedder(images), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "name", ["tf_efficientnet_lite0", "convnext_atto", "vit_tiny_patch16_224", "swin_tiny_patch4_window7_224"]
)
def test_timm_models_give_levels(name):
    foreign("timm")
    embedder = models.create(f"timm/{name}", dim=8, levels="LMH").eval()
    size = embedder.preprocessing.size
    images = torch.randint(0, 256, (2, 3, size, size), dtype=torch.uint8)
    with torch.no_grad():
        assert embedder(images).shape == (2, 24)
        maps = embedder.backbone(images.float(), "LMH")
        assert torch.equal(maps["H"], embedder.backbone(images.float())["H"])
    assert {level: x.shape[1] for level, x in maps.items()} == embedder.backbone.channels


def test_a_name_nobody_has_is_a_sentence():
    with pytest.raises((ValueError, ImportError), match="'resnet5O'"):
        models.create("resnet5O")


def test_the_folder_of_an_embedder_is_no_name(tmp_path):
    models.create("convnet", dim=4).save(tmp_path / "best")
    with pytest.raises(ValueError, match=r"best is a folder, not the name of a backbone; .* tuplet\.load"):
        models.create(f"{tmp_path}/best")


@pytest.mark.parametrize("weights", [None, "pretrained"])
def test_a_name_that_is_nearly_right_gets_the_right_one(weights):
    with pytest.raises((ValueError, ImportError), match="did you mean 'convnet'"):
        models.create("convnt", weights=weights)
    with pytest.raises((ValueError, ImportError)) as error:
        models.create("timm/convnt", weights=weights)
    assert "did you mean" not in str(error.value)
    assert "not built in" not in str(error.value)


@pytest.mark.parametrize(
    ("name", "options", "sentence"),
    [
        ("resnet50", {"depth": 50}, "resnet50 has no option 'depth'; choose one of strides"),
        ("convnet", {"sizes": 50}, "convnet has no option 'sizes'; did you mean 'size'?"),
        ("efficientnet_lite0", {"depth": 1}, "efficientnet_lite0 has no option 'depth'; it has none"),
        ("mlp", {}, "mlp needs its option 'features'; give features="),
        ("mlp", {"features": "ten"}, "features is 'ten' and hidden (512,); they must be a positive integer and a list"),
        (
            "mlp",
            {"features": 10, "hidden": 64},
            "features is 10 and hidden 64; they must be a positive integer and a list",
        ),
        (
            "mlp",
            {"features": 10, "hidden": [0]},
            "features is 10 and hidden [0]; they must be a positive integer and a list",
        ),
        (
            "convnet",
            {"size": "a"},
            "size is 'a' and channels 1; convnet needs an integer size of 4 or more, and 1 or 3",
        ),
    ],
)
def test_wrong_options_get_a_sentence(name, options, sentence):
    with pytest.raises((TypeError, ValueError), match=re.escape(sentence)):
        models.create(name, **options)


def test_what_is_neither_a_name_nor_a_module_is_refused():
    with pytest.raises(TypeError, match="the architecture is 50; give a name, such as 'resnet50', or a module"):
        models.create(50)


def test_timm_gets_no_weights_behind_ones_back():
    with pytest.raises(ValueError, match="'checkpoint_path' would load weights"):
        build("timm/resnet18", {"checkpoint_path": "weights.pth"})


@pytest.mark.parametrize("error", [FileNotFoundError("no network.\nTry again"), RuntimeError("No pretrained weights")])
def test_weights_that_timm_cannot_get_are_a_sentence(error, monkeypatch):
    timm = foreign("timm")

    def fail(*_, **__):
        raise error

    monkeypatch.setattr(timm, "create_model", fail)
    sentence = (
        r"timm cannot get its weights of resnet18 \((no network|No pretrained weights).*\); give a file in their place"
    )
    with pytest.raises(FileNotFoundError, match=sentence):
        models.pretrained("timm/resnet18")


@pytest.mark.parametrize("name", PUBLISHED)
def test_normalisation_folded_into_convolutions_changes_nothing(name):
    """Outside of training a CPU embeds in fewer passes over the maps; with gradients it does not."""
    made = shaken(models.create(name, dim=None, normalize=False))
    images = torch.randint(0, 256, (2, 3, 97, 64))
    plain = made(images).detach()
    with torch.no_grad():
        folded = made(images)
    assert not torch.equal(folded, plain)
    torch.testing.assert_close(folded, plain, rtol=0, atol=1e-5 * plain.abs().max().item())
    with torch.no_grad():
        made.train()
        before = {n: x.clone() for n, x in made.named_buffers() if n.endswith("running_mean")}
        made(images)
    assert all(not torch.equal(x, before[n]) for n, x in made.named_buffers() if n in before)
