"""Training of a small vision transformer: resume, micro-batches, recomputing, adapters."""

import pytest
import torch
from safetensors.torch import save_file

import tuplet
from training_tools import QUICK, image_set, same, weights
from tuplet import models, training
from tuplet.errors import OptionError
from tuplet.models.architectures import ARCHITECTURES
from tuplet.models.networks.vision_transformer import VisionTransformer

OPTIONS = {**QUICK, "model": "tiny", "size": 28, "resize": 28, "weights": None}


def tiny(size: int = 28):
    return VisionTransformer(patch=14, width=16, depth=4, heads=2, size=size, registers=1, layer_scale=True)


@pytest.fixture(autouse=True)
def built_in(monkeypatch):
    monkeypatch.setitem(ARCHITECTURES, "tiny", tiny)


FINE_TUNING = {
    "lora": {"lora": 2, "lora_layers": "all", "drop_path": 0.3, "ema": 0.9, "layer_lr_decay": 0.8},
    "blocks": {"freeze_to": 2, "drop_path": 0.3, "pooling": "class+mean", "levels": "MH", "grad_checkpointing": True},
}


@pytest.mark.parametrize("case", FINE_TUNING)
def test_an_interrupted_run_ends_with_the_weights_of_a_whole_one(case, tmp_path):
    options = {**OPTIONS, **FINE_TUNING[case], "lr": 0.01}
    tuplet.train(image_set(), tmp_path / "whole", **options)
    tuplet.train(image_set(), tmp_path / "parts", **{**options, "steps": 2})
    run = tuplet.train(image_set(), tmp_path / "parts", **options)
    for name in ("best", "last"):
        assert same(weights(tmp_path / "parts", name), weights(tmp_path / "whole", name))
    loaded = tuplet.load(tmp_path / "parts" / "best")
    assert loaded.state_dict().keys() == run.embedder.state_dict().keys()  # a plain model, merged
    images = image_set().images[:4].repeat(1, 1, 3, 3)[..., :28, :28]
    assert torch.equal(loaded.embed(images), run.embedder.embed(images))


def test_lora_leaves_all_but_matrices_of_blocks_as_they_were(tmp_path):
    torch.manual_seed(0)
    start = tiny()
    save_file(start.state_dict(), tmp_path / "tiny.safetensors")
    with pytest.warns(UserWarning, match="preprocessing"):
        tuplet.train(
            image_set(), tmp_path / "run", **{**OPTIONS, "weights": str(tmp_path / "tiny.safetensors")}, lora=2
        )
    moved = {
        name
        for name, value in weights(tmp_path / "run", "last").items()
        if name.startswith("backbone.") and not value.equal(start.state_dict()[name.removeprefix("backbone.")])
    }
    assert moved == {f"backbone.blocks.{i}.attn.{layer}.weight" for i in range(4) for layer in ("qkv", "proj")}


def test_saved_weights_are_not_rounded_by_the_precision_of_the_network(tmp_path):
    """The best and the last embedder are the same one here, saved at two places of the loop."""
    tuplet.train(image_set(), tmp_path, **{**OPTIONS, "evaluate_every": 6}, lora=2, lr=0.01, precision="bfloat16")
    assert same(weights(tmp_path, "best"), weights(tmp_path, "last"))


def test_micro_batches_and_recomputing_give_the_same_weights(tmp_path):
    options = {**OPTIONS, "steps": 3, "optimizer": "sgd", "lr": 0.01}
    ways = {"whole": {}, "micro": {"micro_batch_size": 5}, "recomputed": {"grad_checkpointing": True}}
    for name, extra in ways.items():
        training.train(image_set(), tmp_path / name, **options, **extra)
    for name in ("micro", "recomputed"):
        for ours, theirs in zip(weights(tmp_path / name).values(), weights(tmp_path / "whole").values(), strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


def test_options_of_transformers_are_refused_elsewhere(tmp_path):
    for extra, sentence in (
        ({"lora": 2}, "lora is 2, which is for transformers"),
        ({"drop_path": 0.1}, r"drop_path is 0\.1, which is for transformers"),
        ({"freeze_to": 3}, "freeze_to is 3 and convnet has no numbered blocks"),
        ({"lora_layers": "all"}, "lora_layers='all' needs lora: the rank"),
        ({"layer_lr_decay": 1.5}, r"layer_lr_decay is 1\.5; it must be above 0 and at most 1"),
    ):
        with pytest.raises(ValueError, match=sentence):
            training.train(image_set(), tmp_path, **QUICK, model="convnet", **extra)


@pytest.mark.parametrize(
    ("options", "remedy"),
    [({"augment": {"size": 30}}, "choose another size in augment"), ({"size": 30}, "use 28 or 42")],
)
def test_a_size_that_the_patches_do_not_fill_names_the_option(options, remedy, tmp_path):
    with pytest.raises(OptionError, match=rf"30.* multiples? of the patch, 14\)?; {remedy}$"):
        training.train(image_set(), tmp_path, **{**OPTIONS, **options})


def test_a_run_starts_from_the_best_weights_at_hand_and_says_so(tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("TUPLET_WEIGHTS", str(tmp_path))
    torch.manual_seed(0)
    save_file(tiny().state_dict(), tmp_path / "tiny.safetensors")
    auto = {name: value for name, value in OPTIONS.items() if name != "weights"}
    with caplog.at_level("INFO", "tuplet"), pytest.warns(UserWarning, match="preprocessing"):
        tuplet.train(image_set(), tmp_path / "run", **auto)
    file = tmp_path / "tiny.safetensors"
    assert f"weights='{file}'" in caplog.messages[0]
    file.unlink()
    with pytest.raises(
        ValueError, match=r"no weights of tiny are at hand; give weights, a file, .* or weights=None to"
    ):
        tuplet.train(image_set(), tmp_path / "other", **auto)


def test_small_networks_start_from_random_numbers(tmp_path):
    run = tuplet.train(
        image_set(), tmp_path, **{**QUICK, "model": "convnet", "steps": 1, "model_options": {"size": 12}}
    )
    assert isinstance(run.embedder, models.Embedder)
