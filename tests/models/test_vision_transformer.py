"""Vision transformers against a literal float64 loop, against timm and transformers, and through the whole library."""

import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn import functional

from foreign import foreign
from tuplet import models
from tuplet.models.architectures import ALIASES, ARCHITECTURES
from tuplet.models.networks import vision_transformer
from tuplet.models.networks.transformer_names import timm_names
from tuplet.models.networks.vision_transformer import CONFIGS, Linear, VisionTransformer, resample
from tuplet.models.preprocessing import CLIP, IMAGENET
from tuplet.models.weights import fill

# Published parameter counts, without a classifier, of timm's models of these names at 224 pixels.
PUBLISHED = {
    "vit_tiny_patch16_224": 5_524_416,
    "vit_small_patch16_224": 21_665_664,
    "vit_base_patch32_224": 87_455_232,
    "vit_base_patch8_224": 85_807_872,
    "vit_small_patch14_dinov2": 21_628_800,
    "vit_base_patch14_reg4_dinov2": 85_727_232,
}
VARIANTS = {
    "plain": {},
    "dinov2": {"layer_scale": True},
    "registers": {"layer_scale": True, "registers": 4},
    "swiglu": {"layer_scale": True, "activation": "swiglu", "hidden": 48},
    "clip": {"pre_norm": True, "projection": 16, "activation": "quick_gelu", "eps": 1e-5},
}


def shaken(network):
    """Weights of their own for every parameter, so that a misplaced one shows."""
    torch.manual_seed(0)
    for parameter in network.parameters():
        parameter.data = torch.randn_like(parameter) * 0.1 + (0.5 if parameter.ndim == 1 else 0.0)
    return network.eval()


def small(variant="plain", **options):
    made = {"patch": 14, "width": 32, "depth": 4, "heads": 2, "size": 56, **VARIANTS[variant], **options}
    return shaken(VisionTransformer(**made))


@pytest.fixture
def tiny(monkeypatch):
    """The name of a small transformer that is built in while the test runs."""
    monkeypatch.setitem(ARCHITECTURES, "tiny", lambda size=56: small("registers", size=size))
    return "tiny"


def literal(network, images, heads, patch):
    """Return the class token and patches after each block, token by token, in float64."""
    p = {name: value.double() for name, value in network.state_dict().items()}
    depth = 1 + max(int(found[1]) for found in (re.match(r"blocks\.(\d+)", name) for name in p) if found)
    eps = network.norm.eps

    def norm(x, name):
        mean, variance = x.mean(-1, keepdim=True), x.var(-1, correction=0, keepdim=True)
        return (x - mean) / (variance + eps).sqrt() * p[f"{name}.weight"] + p[f"{name}.bias"]

    def activate(x):
        activation = network.blocks[0].mlp.activation.__name__
        if activation == "swiglu":
            half = x.shape[-1] // 2
            return x[..., :half] / (1 + (-x[..., :half]).exp()) * x[..., half:]
        return x / (1 + (-1.702 * x).exp()) if activation == "quick_gelu" else x * (1 + (x / 2**0.5).erf()) / 2

    result = []
    for image in images.double():
        rows, columns = image.shape[1] // patch, image.shape[2] // patch
        tokens = [p["stem.cls_token"][0, 0]]
        tokens += list(p["stem.reg_token"][0]) if "stem.reg_token" in p else []
        for i in range(rows):
            for j in range(columns):
                pixels = image[:, patch * i : patch * (i + 1), patch * j : patch * (j + 1)]
                token = (p["stem.proj.weight"] * pixels).sum((1, 2, 3)) + p["stem.pos_embed"][0, i * columns + j]
                tokens.append(token + p.get("stem.proj.bias", 0.0))
        x = torch.stack(tokens)
        x = norm(x, "stem.norm") if "stem.norm.weight" in p else x
        after = []
        for b in range(depth):
            name = f"blocks.{b}"
            q, k, v = (norm(x, f"{name}.norm1") @ p[f"{name}.attn.qkv.weight"].T + p[f"{name}.attn.qkv.bias"]).chunk(
                3, 1
            )
            width = q.shape[1] // heads
            heard = []
            for h in range(heads):
                part = slice(h * width, (h + 1) * width)
                weights = (q[:, part] @ k[:, part].T / math.sqrt(width)).exp()
                heard.append(weights / weights.sum(1, keepdim=True) @ v[:, part])
            y = torch.cat(heard, 1) @ p[f"{name}.attn.proj.weight"].T + p[f"{name}.attn.proj.bias"]
            x = x + y * p.get(f"{name}.ls1.gamma", 1.0)
            y = activate(norm(x, f"{name}.norm2") @ p[f"{name}.mlp.fc1.weight"].T + p[f"{name}.mlp.fc1.bias"])
            y = y @ p[f"{name}.mlp.fc2.weight"].T + p[f"{name}.mlp.fc2.bias"]
            x = x + y * p.get(f"{name}.ls2.gamma", 1.0)
            after.append(x)
        top = norm(x, "norm")
        top = top @ p["projection.weight"].T if "projection.weight" in p else top
        result.append(
            [torch.cat([y[:1], y[-rows * columns :]]) for y in (after[depth // 2 - 1], after[depth * 3 // 4 - 1], top)]
        )
    return [torch.stack(level) for level in zip(*result, strict=True)]


@pytest.mark.parametrize("variant", VARIANTS)
def test_levels_are_their_equations(variant):
    network = small(variant).double()
    images = torch.randn(2, 3, 56, 56, dtype=torch.float64)
    with torch.no_grad():
        found = network(images, "LMH")
        for level, expected in zip(found.values(), literal(network, images, heads=2, patch=14), strict=True):
            torch.testing.assert_close(level, expected, rtol=1e-9, atol=1e-9)
    assert {level: x.shape[2] for level, x in found.items()} == network.channels


@pytest.mark.parametrize("name", PUBLISHED)
def test_parameter_counts_are_the_published_ones(name):
    with torch.device("meta"):
        backbone = ARCHITECTURES[name]()
    registers = "reg4" in name  # which have no position embedding of the class token; elsewhere it is in the token
    assert (
        sum(p.numel() for p in backbone.parameters()) + (0 if registers else backbone.norm.normalized_shape[0])
        == (PUBLISHED[name])
    )


def test_every_short_name_is_a_network():
    assert set(ALIASES.values()) <= set(ARCHITECTURES)
    assert models.create("vit_tiny", dim=4).config.architecture == "vit_tiny_patch16_224"


NAMES = ["vit_tiny_patch16_224", "vit_small_patch14_dinov2", "vit_small_patch14_reg4_dinov2"]


def both(name, size, **options):
    """timm's model and ours of the same name and weights, made narrow and shallow."""
    narrow = {"embed_dim": 32, "depth": 4, "num_heads": 2, **({"num_classes": 16} if "clip" in name else {})}
    peer = shaken(foreign("timm").create_model(name, img_size=size, **{"num_classes": 0, **narrow, **options}))
    if "clip" in name:
        peer.head.bias.data.zero_()  # timm has a bias, the published files have none
    ours = {**CONFIGS[name], "width": 32, "depth": 4, "heads": 2, **({"projection": 16} if "clip" in name else {})}

    def filled(size):
        network = VisionTransformer(**ours, size=size).eval()
        fill(network, peer.state_dict(), "peer")
        return network

    return peer, filled


@pytest.mark.parametrize("name", [*NAMES, "vit_base_patch32_clip_224", "vit_base_patch16_clip_quickgelu_224"])
def test_equals_timm(name):
    peer, ours = both(name, size=224)
    images = torch.randn(2, 3, 224, 224)
    with torch.no_grad():
        found = ours(224)(images, "LMH")
        torch.testing.assert_close(found["H"][:, 0], peer(images))
        _, (low,) = peer.forward_intermediates(images, indices=[1])
    torch.testing.assert_close(found["L"][:, 1:].transpose(1, 2).unflatten(2, low.shape[2:]), low)


@pytest.mark.parametrize("name", NAMES[1:])
def test_positions_are_resampled_as_timm_does(name):
    peer, ours = both(name, size=70, dynamic_img_size=True)
    images = torch.randn(1, 3, 42, 98)
    with torch.no_grad():
        torch.testing.assert_close(ours(70)(images)["H"][:, 0], peer(images))
        square = images[..., :42]
        torch.testing.assert_close(ours(42)(square)["H"][:, 0], peer(square))


HUGGING_FACE = {
    "plain": ("ViT", {"intermediate_size": 128, "layer_norm_eps": 1e-6}),
    "dinov2": ("Dinov2", {}),
    "registers": ("Dinov2WithRegisters", {"num_register_tokens": 4}),
    "clip": ("CLIPVision", {"intermediate_size": 128, "projection_dim": 16}),
}


@pytest.mark.parametrize("variant", HUGGING_FACE)
def test_equals_transformers(variant):
    library = foreign("transformers")
    kind, options = HUGGING_FACE[variant]
    sizes = {"hidden_size": 32, "num_hidden_layers": 4, "num_attention_heads": 2, "image_size": 56, "patch_size": 14}
    made = "CLIPVisionModelWithProjection" if variant == "clip" else f"{kind}Model"
    if not hasattr(library, made):
        pytest.skip(f"transformers {library.__version__} has no {made}")
    peer = shaken(getattr(library, made)(getattr(library, f"{kind}Config")(**sizes, **options)))
    network = small(variant)
    fill(network, peer.state_dict(), "peer")
    images = torch.randn(2, 3, 56, 56)
    with torch.no_grad():
        output = peer(images)
        expected = output.image_embeds if variant == "clip" else output.last_hidden_state[:, 0]
        torch.testing.assert_close(network(images)["H"][:, 0], expected)


def timm_state(network):
    """The tensors of a network under timm's names, with a position embedding of the class token."""
    state = {}
    for name, value in network.state_dict().items():
        name = re.sub(r"^stem\.(cls_token|reg_token|pos_embed)", r"\1", name)
        name = name.replace("stem.proj.", "patch_embed.proj.").replace("stem.norm.", "norm_pre.")
        state[name.replace("projection.", "head.")] = value.clone()
    shift = torch.randn(1, 1, state["cls_token"].shape[2])
    state["cls_token"] -= shift
    state["pos_embed"] = torch.cat([shift, state["pos_embed"]], 1)
    return state


def meta(state):
    """Meta's DINOv2 names."""
    renamed = {"mask_token": torch.zeros(1, 32)}
    for name, value in state.items():
        name = name.replace("reg_token", "register_tokens")
        renamed[name.replace("mlp.fc1", "mlp.w12").replace("mlp.fc2", "mlp.w3") if "gate" in state else name] = value
    return renamed


def openai(state):
    """OpenAI's CLIP names, with a text tower beside the image tower."""
    swaps = (
        *(("patch_embed.proj", "conv1"), ("pos_embed", "positional_embedding"), ("blocks.", "transformer.resblocks.")),
        *(("norm_pre", "ln_pre"), ("cls_token", "class_embedding"), ("attn.qkv.", "attn.in_proj_")),
        *(("attn.proj", "attn.out_proj"), ("mlp.fc1", "mlp.c_fc"), ("mlp.fc2", "mlp.c_proj")),
    )
    renamed = {"token_embedding.weight": torch.zeros(4, 4), "transformer.resblocks.0.ln_1.weight": torch.zeros(4)}
    for name, value in state.items():
        for old, new in swaps:
            name = name.replace(old, new)
        name = re.sub(r"\.norm([12])\.", r".ln_\1.", re.sub(r"^norm\.", "ln_post.", name))
        flat = value[0, 0] if name == "class_embedding" else value[0] if name == "positional_embedding" else value
        renamed[f"visual.{name}" if name != "head.weight" else "visual.proj"] = (
            flat.T if name == "head.weight" else flat
        )
    return renamed


@pytest.mark.parametrize(("variant", "names"), [("registers", meta), ("clip", openai), ("plain", dict)])
def test_reads_published_names(variant, names):
    network, other = small(variant), small(variant)
    torch.nn.init.zeros_(other.norm.weight)
    fill(other, names(timm_state(network)), "file")
    images = torch.randn(1, 3, 56, 56)
    with torch.no_grad():
        torch.testing.assert_close(other(images)["H"], network(images)["H"])


def test_reads_meta_names_of_swiglu():
    network = small("swiglu")
    renamed = {
        name.replace("mlp.fc1", "mlp.w12").replace("mlp.fc2", "mlp.w3"): value
        for name, value in timm_state(network).items()
    }
    assert timm_names(renamed).keys() == timm_state(network).keys()


def test_half_precision_positions_are_added_in_float32():
    network = small()
    halves = {name: value.half() for name, value in timm_state(network).items()}
    other = small()
    fill(other, halves, "file")
    expected = halves["cls_token"].float() + halves["pos_embed"][:, :1].float()
    assert torch.equal(other.stem.cls_token, expected)


@given(grid=st.integers(1, 6), height=st.integers(1, 6), width=st.integers(1, 6))
def test_resampling_keeps_constants(grid, height, width):
    found = resample(torch.full((1, grid**2, 3), 2.5), grid, height, width)
    assert found.shape == (1, height * width, 3)
    torch.testing.assert_close(found, torch.full_like(found, 2.5))


def test_a_size_that_is_no_multiple_of_the_patch_is_a_sentence():
    with pytest.raises(ValueError, match=r"size is 60; it must be a multiple of the patch, 14; use 56 or 70$"):
        models.create("dinov2_small", preprocessing={"size": 60})
    with pytest.raises(ValueError, match=r"size is 9; it must be a multiple of the patch, 14; use 14 or 28$"):
        models.create("dinov2_small", preprocessing={"size": 9})
    with pytest.raises(ValueError, match=r"images are 56 × 60; both sides must be multiples of the patch, 14"):
        small()(torch.zeros(1, 3, 56, 60))


def test_the_preprocessing_sets_the_grid(tiny):
    embedder = models.create("vit_tiny", dim=4, preprocessing={"size": 112})
    assert embedder.backbone.stem.grid == 7
    assert (embedder.preprocessing.size, embedder.preprocessing.resize) == (112, 124)
    assert embedder.config.options == {"size": 112}
    with torch.device("meta"):
        assert ARCHITECTURES["vit_small_patch14_dinov2"]().preprocessing == IMAGENET
        assert ARCHITECTURES["vit_base_patch32_clip_quickgelu_224"]().preprocessing == CLIP


@pytest.mark.parametrize(("pooling", "width"), [(None, 32), ("class", 32), ("mean", 32), ("class+mean", 64)])
def test_pooling_and_width(tiny, pooling, width):
    embedder = models.create(tiny, dim=None, pooling=pooling, levels="LH").eval()
    assert embedder.width == 2 * width
    assert embedder.config.pooling == (pooling or "class")
    assert embedder(torch.zeros(2, 3, 56, 56, dtype=torch.uint8)).shape == (2, 2 * width)


def test_a_network_without_a_class_token_says_so():
    with pytest.raises(ValueError, match=r"pooling is 'class' and convnet has no class token; use pooling='mean'"):
        models.create("convnet", pooling="class")


def test_saved_loaded_exported_compiled(tiny, tmp_path, soak):
    import onnxruntime

    images = torch.randint(0, 256, (3, 3, 84, 84), dtype=torch.uint8)
    embedder = models.create(tiny, dim=8, pooling="class+mean", preprocessing={"size": 84}).eval()
    expected = embedder.embed(images)
    embedder.save(tmp_path / "model")
    assert torch.equal(models.load(tmp_path / "model").embed(images), expected)
    models.export_onnx(embedder, tmp_path / "model.onnx")
    (found,) = onnxruntime.InferenceSession(tmp_path / "model.onnx").run(None, {"images": images.numpy()})
    np.testing.assert_allclose(found, expected.numpy(), atol=1e-5)
    whole = torch.compile(embedder.backbone, backend="inductor" if soak else "eager", fullgraph=True, dynamic=False)
    with torch.no_grad():
        maps = embedder.backbone(embedder._prepare(images))
        torch.testing.assert_close(whole(embedder._prepare(images)), maps, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("levels", ["L", "H", "LMH"])
def test_training_reaches_every_parameter_below_the_highest_level(tiny, levels):
    embedder = models.create(tiny, dim=4, levels=levels).train()
    embedder(torch.randint(0, 256, (2, 3, 56, 56), dtype=torch.uint8)).square().sum().backward()
    for name, parameter in embedder.named_parameters():
        assert (parameter.grad is not None) == parameter.requires_grad, name
    assert embedder.backbone.stem.cls_token.grad is not None


def test_recomputing_gives_the_same_gradients_also_with_dropped_paths():
    images, gradients = torch.randn(4, 3, 56, 56), []
    for recompute in (False, True):
        network = small("registers").train()
        network.set_drop_path(0.5)
        network.set_grad_checkpointing(recompute)
        torch.manual_seed(1)
        network(images)["H"].square().sum().backward()
        gradients.append([p.grad for p in network.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*gradients, strict=True))


def test_dropped_paths_keep_the_mean_and_only_in_training():
    network = small()
    block = network.blocks[-1]
    network.set_drop_path(0.4)
    assert [round(b.drop_path, 3) for b in network.blocks] == [0.0, 0.133, 0.267, 0.4]
    x = torch.ones(20_000, 1, 1)
    block.train()
    dropped = block._drop(x)
    assert sorted(set(dropped.flatten().tolist())) == pytest.approx([0.0, 1 / 0.6])
    assert dropped.mean().item() == pytest.approx(1.0, abs=0.03)
    assert torch.equal(block.eval()._drop(x), x)


def test_other_networks_refuse_what_is_for_transformers():
    embedder = models.create("convnet", dim=4)
    with pytest.raises(ValueError, match=r"drop_path is 0\.1, which is for transformers"):
        embedder.backbone.set_drop_path(0.1)
    with pytest.raises(ValueError, match="grad_checkpointing is for transformers"):
        embedder.backbone.set_grad_checkpointing(True)


def test_the_class_token_sees_the_patches():
    """Attention is not masked: a change in the last patch changes the class token."""
    network = small()
    images = torch.zeros(1, 3, 56, 56)
    changed = functional.pad(torch.ones(1, 3, 14, 14), (42, 0, 42, 0))
    with torch.no_grad():
        assert (network(images)["H"][:, 0] - network(changed)["H"][:, 0]).abs().max() > 1e-3


@pytest.mark.parametrize("onednn", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("shape", [(7, 24), (2, 5, 24), (0, 24)])
def test_a_linear_layer_gives_the_same_outside_of_training(shape, bias, onednn, monkeypatch):
    if not onednn:
        monkeypatch.setattr(vision_transformer, "_onednn_linear", None)
    layer, x = Linear(24, 40, bias), torch.randn(*shape[:-1], 48)[..., ::2]
    expected = functional.linear(x.double(), layer.weight.double(), layer.bias.double() if bias else None)
    for context in (torch.enable_grad, torch.no_grad, torch.inference_mode):
        with context():
            torch.testing.assert_close(layer(x).double(), expected, atol=1e-5, rtol=0)
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        assert layer(x).dtype == torch.bfloat16
    with torch.no_grad():
        assert layer.double()(x.double()).dtype == torch.float64
