"""Weight files: read safely, converted, checked, and never without their preprocessing."""

import csv
import os
import pickle
import tarfile
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from safetensors.torch import save_file

from tuplet import models
from tuplet.models import find_weights
from tuplet.models.architectures import build
from tuplet.models.known_weights import KNOWN, Known
from tuplet.models.preprocessing import CAFFE, IMAGENET, LITE
from tuplet.models.weights import fill, read

DATA = os.environ.get("TUPLET_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="TUPLET_DATA is not set")


@pytest.fixture
def state():
    """A convnet's weights."""
    torch.manual_seed(0)
    return build("convnet", {}).state_dict()


@pytest.mark.parametrize("suffix", [".safetensors", ".pth", ".pt"])
def test_half_precision_files_become_float32(tmp_path, state, suffix):
    path = tmp_path / f"weights{suffix}"
    half = {name: value.half() for name, value in state.items()}
    save_file(half, path) if suffix == ".safetensors" else torch.save(half, path)
    with pytest.warns(UserWarning, match=r"is not known: .*models\.create\(\.\.\., preprocessing=\)"):
        embedder = models.create("convnet", weights=path)
    for name, value in embedder.backbone.state_dict().items():
        assert value.dtype == torch.float32
        assert torch.equal(value, half[name].float())


class Touch:
    """Pickles into a call that creates a file."""

    def __init__(self, path):
        self.path = path

    def __reduce__(self):
        return Path.touch, (Path(self.path),)


def test_code_in_a_file_is_refused_and_not_run(tmp_path):
    marker, path = tmp_path / "executed", tmp_path / "weights.pth"
    torch.save({"weight": torch.zeros(2), "evil": Touch(marker)}, path)
    with pytest.raises(ValueError, match="holds Python objects besides tensors"):
        models.create("convnet", weights=path)
    path.write_bytes(pickle.dumps(Touch(marker)))
    with pytest.raises(ValueError, match="weights"):
        models.create("convnet", weights=path)
    assert not marker.exists()


@pytest.mark.parametrize("suffix", [".safetensors", ".pth"])
@pytest.mark.parametrize("keep", [0, 7, 0.5, 0.99])
def test_truncated_files_are_a_sentence_with_the_path(tmp_path, state, suffix, keep):
    path = tmp_path / f"weights{suffix}"
    save_file(state, path) if suffix == ".safetensors" else torch.save(state, path)
    content = path.read_bytes()
    path.write_bytes(content[: keep if isinstance(keep, int) else int(keep * len(content))])
    with pytest.raises(ValueError, match=rf"weights{suffix}") as error:
        read(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("content", ["<html>404 Not Found</html>", "version https://git-lfs.github.com/spec/v1\n"])
def test_a_page_or_a_pointer_in_place_of_weights_is_to_be_fetched_again(tmp_path, content):
    path = tmp_path / "weights.pth"
    path.write_text(content)
    with pytest.raises(ValueError, match=r"weights\.pth cannot be read \(torch\.save did not write it\); fetch"):
        read(path)


@given(content=st.binary(max_size=200), suffix=st.sampled_from([".safetensors", ".pth", ".dat"]))
def test_any_bytes_are_a_sentence(tmp_path_factory, content, suffix):
    path = tmp_path_factory.mktemp("bytes") / f"weights{suffix}"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"weights{suffix}"):
        read(path)


@pytest.mark.parametrize("content", [[torch.zeros(2)], {"epoch": 3}, torch.zeros(2)])
def test_files_of_something_else_are_refused(tmp_path, content):
    path = tmp_path / "weights.pth"
    torch.save(content, path)
    with pytest.raises(ValueError, match="not a dict of tensors"):
        read(path)


def test_an_unknown_ending_is_refused(tmp_path):
    path = tmp_path / "weights.h5"
    path.touch()
    with pytest.raises(ValueError, match=r"'\.h5'"):
        read(path)


def test_a_mismatch_names_the_first_of_each_kind(state):
    first, second, *_ = state
    state[f"{first}_other"] = state.pop(first)
    state[second] = torch.zeros(3, 4)
    backbone = build("convnet", {})
    with pytest.raises(ValueError, match="does not fit ConvNet") as error:
        fill(backbone, state, "file.pth")
    text = str(error.value)
    assert f"1 tensors missing, first {first} (32, 1, 5, 5)" in text
    assert f"1 unknown, first {first}_other" in text
    assert f"1 with another shape, first {second} (3, 4) for (32,)" in text


def test_missing_batch_counters_are_no_mismatch():
    backbone = build("bn_inception", {})
    state = {name: value for name, value in backbone.state_dict().items() if "num_batches" not in name}
    fill(build("bn_inception", {}), state, "file")


def test_a_file_that_is_not_there_names_what_is_known():
    with pytest.raises(FileNotFoundError, match=r"'nowhere\.pth'.*.*, or resnet50_torch.* or auto$"):
        models.create("resnet50", weights="nowhere.pth")
    with pytest.raises(FileNotFoundError, match=r"known for convnet; give the path of a file$"):
        models.create("convnet", weights="nowhere.pth")
    with pytest.raises(TypeError, match=r"weights is True; give the path of a file or a name of models\.KNOWN"):
        models.create("resnet50", weights=True)


def test_known_weights_without_their_file_say_which(monkeypatch, tmp_path):
    monkeypatch.setenv("TUPLET_DATA", str(tmp_path))
    with pytest.raises(FileNotFoundError, match=r"resnet50_v1_imagenet_fp16\.safetensors"):
        models.create("resnet50", weights="resnet50_v1_imagenet")
    (tmp_path / "resnet50_v1_imagenet_fp16.safetensors").write_bytes(b"damaged")
    with pytest.raises(ValueError, match="checksum"):
        models.create("resnet50", weights="resnet50_v1_imagenet")


def test_weights_of_another_architecture_are_named():
    with pytest.raises(ValueError, match="weights of efficientnet_lite0, not of googlenet"):
        models.create("googlenet", weights="efficientnet_lite0_imagenet")


def test_a_known_file_is_recognised_wherever_it_lies(tmp_path, monkeypatch):
    backbone = build("resnet50", {"strides": "v1"})
    path = tmp_path / "renamed.safetensors"
    save_file(backbone.state_dict(), path)
    checksum = find_weights._sha256(path)
    monkeypatch.setitem(KNOWN, "mine", Known("resnet50", "mine.safetensors", checksum[:10], CAFFE, {"strides": "v1"}))
    embedder = models.create("resnet50", weights=path)
    assert embedder.preprocessing == CAFFE
    assert embedder.config.options == {"strides": "v1"}
    assert embedder.backbone.layer2[0].conv1.stride == (2, 2)
    with pytest.raises(ValueError, match=r"needs strides='v1', but 'v1\.5' was given"):
        models.create("resnet50", weights=path, strides="v1.5")
    smaller = models.create("resnet50", weights=path, preprocessing={"size": 160, "resize_mode": "square"})
    assert (smaller.preprocessing.size, smaller.preprocessing.resize_mode, smaller.preprocessing.mean) == (
        160,
        "square",
        CAFFE.mean,
    )


def test_a_stated_preprocessing_needs_no_warning(tmp_path, state, recwarn):
    path = tmp_path / "weights.safetensors"
    save_file(state, path)
    usual = build("convnet", {}).preprocessing
    assert models.create("convnet", weights=path, preprocessing=usual).preprocessing == usual
    assert not [w for w in recwarn if "preprocessing" in str(w.message)]


def test_lite0_finds_its_weights_in_the_package():
    embedder = models.create("efficientnet_lite0", weights="efficientnet_lite0_imagenet")
    assert embedder.preprocessing == LITE


def test_a_random_start_has_the_usual_preprocessing():
    assert models.create("resnet50").preprocessing == IMAGENET


def images(count):
    with (Path(DATA) / "cub200.csv").open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["split"] == "test"]
    wanted = {row["path"] for row in rows[:: len(rows) // count][:count]}
    with tarfile.open(Path(DATA) / "cub200_test.tar") as tar:
        return [tar.extractfile(member).read() for member in tar if member.name in wanted]


@needs_data
@pytest.mark.parametrize(
    ("name", "weights"),
    [("resnet50", "resnet50_v1_imagenet"), ("efficientnet_lite0", "efficientnet_lite0_imagenet")],
)
def test_birds_are_seen_as_birds(name, weights):
    embedder = models.create(name, dim=None, normalize=False, weights=weights)
    backbone = embedder.backbone
    file = backbone.translate(read(find_weights.find_file(weights, name)[0]))
    layer = [file[f"{backbone.classifier}.{part}"].float() for part in ("weight", "bias")]
    top = torch.nn.functional.linear(embedder.embed(images(60)), *layer).argmax(1)
    birds = torch.tensor([*range(7, 25), *range(80, 101), *range(127, 147)])
    assert torch.isin(top, birds).double().mean() > 0.8


@needs_data
def test_the_v1_file_is_recognised_by_path():
    embedder = models.create("resnet50", weights=Path(DATA) / "resnet50_v1_imagenet_fp16.safetensors")
    assert embedder.preprocessing == CAFFE
    assert embedder.backbone.layer3[0].conv1.stride == (2, 2)
    assert embedder.backbone.conv1.weight.dtype == torch.float32
