"""Text queries: the text tower beside transformers' whole CLIP model, the command, and what is refused."""

import copy
import json

import numpy as np
import pytest
import torch
from PIL import Image

from commands import typed
from foreign import foreign
from tuplet import models, search
from tuplet.models.lora import add_lora
from tuplet.models.preprocessing import CLIP

transformers = foreign("transformers")

SHAPE = {"hidden_size": 48, "intermediate_size": 192, "num_hidden_layers": 2, "num_attention_heads": 12}
TEXTS = ["red bird", "a car on snow", "x " * 200]
NAME = "vit_base_patch32_clip_quickgelu_224"


def save_clip(folder, seed=0):
    """Save a small CLIP model with random weights and a tokenizer of letters, as transformers does."""
    folder.mkdir()
    letters = "abcdefghijklmnopqrstuvwxyz"
    words = [*letters, *(f"{letter}</w>" for letter in letters), "<|startoftext|>", "<|endoftext|>"]
    (folder / "vocab.json").write_text(json.dumps({word: number for number, word in enumerate(words)}))
    (folder / "merges.txt").write_text("#version: 0.2\n")
    about = {"tokenizer_class": "CLIPTokenizer", "model_max_length": 77, "pad_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(about))
    ends = {"bos_token_id": len(words) - 2, "eos_token_id": len(words) - 1, "pad_token_id": len(words) - 1}
    text = {**SHAPE, "vocab_size": len(words), "max_position_embeddings": 77, **ends}
    config = transformers.CLIPConfig(
        text_config=text, vision_config={**SHAPE, "image_size": 32, "patch_size": 8}, projection_dim=16
    )
    torch.manual_seed(seed)
    model = transformers.CLIPModel(config).eval()
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    model.save_pretrained(folder)
    return model


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    """Return the folder of a CLIP model, the model, its embedder and a folder of images."""
    place = tmp_path_factory.mktemp("clip")
    model = save_clip(place / "clip")
    shape = {"patch": 8, "width": 48, "depth": 2, "projection": 16}
    weights = place / "clip" / "model.safetensors"
    embedder = models.create(NAME, dim=None, weights=weights, preprocessing=CLIP.at(32), **shape)
    (place / "photos").mkdir()
    noise = np.random.default_rng(0)
    for name in "abcdef":
        pixels = noise.integers(0, 256, (32, 32, 3), dtype=np.uint8) // noise.integers(1, 4, 3, dtype=np.uint8)
        Image.fromarray(pixels).save(place / "photos" / f"{name}.png")
    return place, model, embedder


def test_text_and_images_lie_where_transformers_puts_them(clip):
    place, model, embedder = clip
    tokenizer = transformers.AutoTokenizer.from_pretrained(place / "clip")
    pixels = embedder.preprocessing.image(place / "photos" / "a.png")
    mean, std = (torch.tensor(each).view(3, 1, 1) for each in (embedder.preprocessing.mean, embedder.preprocessing.std))
    tokens = tokenizer(TEXTS, padding=True, truncation=True, return_tensors="pt")
    with torch.no_grad():
        expected = model(pixel_values=((pixels - mean) / std)[None], **tokens)
    encoder = models.TextEncoder(embedder, place / "clip")
    torch.testing.assert_close(encoder.embed(TEXTS), expected.text_embeds, atol=1e-5, rtol=0)
    torch.testing.assert_close(encoder.embed(TEXTS[0]), expected.text_embeds[:1], atol=1e-5, rtol=0)
    torch.testing.assert_close(embedder.embed(pixels[None]), expected.image_embeds, atol=1e-4, rtol=0)


def test_the_command_searches_by_text(clip, tmp_path):
    place, _, embedder = clip
    index = search.create(tmp_path / "photos.index", embedder=embedder)
    paths = sorted((place / "photos").iterdir())
    index.add(paths)
    words = ["search", str(tmp_path / "photos.index"), "--text-model", str(place / "clip"), "--top", "6"]
    shown = typed(*words, "--text", TEXTS[0], "--text", TEXTS[1], "--json", cwd=tmp_path).stdout
    scores = models.TextEncoder(embedder, place / "clip").embed(TEXTS[:2]) @ embedder.embed(paths).T
    for query, text, expected in zip(json.loads(shown), TEXTS, scores, strict=False):
        assert query["text"] == text
        assert [hit["id"] for hit in query["hits"]] == [str(paths[i]) for i in expected.argsort(descending=True)]
    both = typed(*words, str(paths[0]), "--text", TEXTS[0], cwd=tmp_path).stdout
    assert both.index(f"{paths[0]}\n") < both.index(f"{TEXTS[0]}\n")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "there is no query; give images, or --text 'a red bird on snow'"),
        (["--text", "bird", "--sheet", "sheet.png"], "--sheet shows the images of queries, and --text has none"),
    ],
)
def test_the_command_refuses_what_it_cannot_do(clip, tmp_path, words, message):
    search.create(tmp_path / "photos.index", embedder=clip[2])
    ended = typed("search", "photos.index", *words, cwd=tmp_path)
    assert ended.returncode == 2
    assert message in " ".join(ended.stderr.split())


def test_an_image_tower_that_was_trained_further_gets_a_warning(clip, recwarn):
    """Low-rank additions leave the projection as it was, so that the tower still looks like the published one."""
    place, _, embedder = clip
    models.TextEncoder(copy.deepcopy(embedder).half(), place / "clip")
    assert not [each for each in recwarn if "trained" in str(each.message)]
    tuned = copy.deepcopy(embedder)
    add_lora(tuned.backbone, rank=2)
    torch.nn.init.normal_(tuned.backbone.blocks[0].attn.qkv.lora_b, std=1e-2)
    with pytest.warns(UserWarning, match=r"the image tower was trained further than that of .*clip, so text fits its"):
        models.TextEncoder(tuned, place / "clip")


def test_other_vectors_than_those_of_the_image_tower_are_refused(clip, tmp_path):
    embedder = clip[2]
    with pytest.raises(ValueError, match="those of convnet, which was not trained with text; for text queries make"):
        models.TextEncoder(models.create("convnet", dim=8))
    save_clip(tmp_path / "other", seed=1)
    with pytest.raises(ValueError, match="other is not the one that made the vectors, so its text does not fit them"):
        models.TextEncoder(embedder, tmp_path / "other")
    with pytest.raises(FileNotFoundError, match=r"nothing is neither a folder here nor on the hub .*; give the folder"):
        models.TextEncoder(embedder, tmp_path / "nothing")
    unknown = models.create("vit_base_patch32_clip_224", dim=None, width=48, depth=2)
    with pytest.raises(ValueError, match="the text tower of vit_base_patch32_clip_224 is not known; give the folder"):
        models.TextEncoder(unknown)
