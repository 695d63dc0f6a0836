"""Test embeddings of several parts: heads of several widths, hidden heads, attention, weights of parts."""

import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

from models.staged import random_images, staged
from tuplet import models


def test_heads_of_several_widths_are_unit_parts_that_start_orthogonal():
    embedder = models.create("mlp", features=9, dim=6, heads=(1, 2, 3), part_weights=(1, 2, 3))
    out = embedder(torch.randn(4, 9))
    parts = embedder.split(out)
    assert [part.shape[1] for part in parts] == [1, 2, 3]
    assert embedder.widths == [1, 2, 3]
    for part, share, raw in zip(parts, (1, 2, 3), out.split([1, 2, 3], 1), strict=True):
        torch.testing.assert_close(part.norm(dim=1), torch.ones(4))
        torch.testing.assert_close(raw.norm(dim=1), torch.full((4,), share / 14**0.5))
    torch.testing.assert_close(out.norm(dim=1), torch.ones(4))
    weight = embedder.heads["H"].weight
    torch.testing.assert_close(weight @ weight.T, torch.eye(6), rtol=0, atol=1e-5)


def test_levels_in_any_order_keep_the_weights_of_parts():
    embedder = staged(dim=3, part_weights=(1, 2, 3))
    images = random_images(2)
    torch.testing.assert_close(embedder.select("HML")(images), embedder(images))


def test_a_hidden_layer_is_in_the_heads_below_the_top():
    embedder = staged(head_hidden=5)
    assert [type(head) for head in embedder.heads.values()] == [nn.Sequential, nn.Sequential, nn.Linear]
    assert embedder.heads["L"][0].out_features == 5
    assert embedder(random_images(2)).shape == (2, 21)


@pytest.mark.parametrize("decay", [1.0, 0.5])
@pytest.mark.parametrize("name", ["googlenet", "resnet50"])
def test_masks_learn_like_heads_and_copied_layers_like_their_layers(name, decay):
    embedder = models.create(name, dim=5, attention=3)
    groups = models.param_groups(embedder, lr=1.0, head_lr_scale=10.0, layer_lr_decay=decay)
    rates = {id(parameter): group["lr"] for group in groups for parameter in group["params"]}
    inner = embedder.backbone
    assert len(rates) == len(list(embedder.parameters()))
    assert {rates[id(parameter)] for parameter in (*inner.masks.parameters(), *embedder.heads.parameters())} == {10.0}
    stages = [stage for _, stage in inner.stages()]
    for copied, stage in zip(inner.attention, stages[inner.trunk :], strict=False):
        assert [rates[id(p)] for p in copied.parameters()] == [rates[id(p)] for p in stage.parameters()]


@pytest.mark.parametrize("name", ["googlenet", "resnet50", "bn_inception"])
def test_attention_gives_each_mask_its_part(name):
    """With the network written out: shared layers, a copy that looks at them, masks, and the rest for each mask."""
    torch.manual_seed(0)
    embedder = models.create(name, dim=5, attention=3).eval()
    images = random_images(2, size=64)
    inner, maps = embedder.backbone, []
    with torch.no_grad():
        x = embedder._prepare(images)
        stages = [stage for _, stage in inner.backbone.stages()]
        for stage in stages[: inner.trunk]:
            x = stage(x)
        seen = x
        for stage in inner.attention:
            seen = stage(seen)
        for k in range(3):
            channels = x.shape[1]
            logits = nn.functional.conv2d(
                seen,
                inner.masks.weight[k * channels : (k + 1) * channels],
                inner.masks.bias[k * channels : (k + 1) * channels],
            )
            if logits.shape[2:] != x.shape[2:]:
                logits = nn.functional.interpolate(logits, x.shape[2:], mode="bilinear")
            y = x * logits.sigmoid()
            for stage in stages[inner.trunk :]:
                y = stage(y)
            maps.append(normalize(embedder.heads["H"](y.mean((2, 3)))))
        out = embedder(images)
    torch.testing.assert_close(torch.stack(embedder.split(out)), torch.stack(maps), rtol=1e-3, atol=1e-4)
    same = zip(inner.attention.parameters(), _parameters(stages[inner.trunk :]), strict=False)
    assert all(torch.equal(ours, theirs) for ours, theirs in same)


def _parameters(stages):
    return [parameter for stage in stages for parameter in stage.parameters()]


def test_parts_are_saved_and_loaded(tmp_path):
    torch.manual_seed(0)
    embedder = models.create("googlenet", dim=6, attention=2, heads=[2, 4], part_weights=[1, 2, 1, 2])
    embedder.save(tmp_path)
    again = models.load(tmp_path)
    images = random_images(2, size=64)
    assert torch.equal(again.embed(images), embedder.embed(images))
    assert again.widths == [2, 4, 2, 4]


def test_the_levels_of_googlenet_can_end_at_other_blocks():
    embedder = models.create("googlenet", dim=4, levels="LMH", ends=["inception4a", "inception4d", "inception5b"])
    assert embedder.backbone.channels == {"L": 512, "M": 528, "H": 1024}
    with pytest.raises(ValueError, match="three blocks from low to high"):
        models.create("googlenet", ends=["inception4d", "inception4a", "inception5b"])


def test_attention_refuses_a_transformer():
    with pytest.raises(
        ValueError, match="attention needs a backbone with maps, stages and the levels L and M, such as"
    ):
        models.create("vit_tiny", attention=2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"heads": (3, 4), "dim": 6}, r"heads is \[3, 4\] and dim 6"),
        ({"part_weights": (1, 2), "dim": 6}, "give 1 numbers above 0"),
        ({"attention": 0}, "attention is 0"),
        ({"attention": 2}, "attention needs a backbone with maps, stages"),
        ({"heads": (2, 4), "dim": 6, "part_weights": (1, 1), "normalize": False}, "needs parts of unit length"),
    ],
)
def test_wrong_parts_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        models.create("mlp", features=4, **options)
