"""Saving and loading: the same vectors in another process, and no vectors at all from a folder that was changed."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from tuplet import models
from tuplet.models import storage

IMAGES = torch.randint(0, 256, (3, 3, 64, 64), dtype=torch.uint8, generator=torch.manual_seed(0))


def small(seed=0, **options):
    torch.manual_seed(seed)
    return models.create("convnet", **{"dim": 3, "size": 8, **options})


EMBEDDERS = {
    "bn_inception": lambda: models.create("bn_inception", dim=5, levels="LMH", pooling="mean+max"),
    "resnet50": lambda: models.create("resnet50", dim=None, normalize="eval", strides="v1", levels="MH"),
    "efficientnet_lite0": lambda: models.create("efficientnet_lite0", weights="efficientnet_lite0_imagenet", dim=4),
    "convnet": lambda: models.create("convnet", dim=2, size=64, channels=1, normalize=False),
}

EMBED_ELSEWHERE = """
import sys, torch
from tuplet import models
images, *folders = sys.argv[1:]
for folder in folders:
    embedder = models.load(folder)
    torch.save((embedder.embed(torch.load(images)), embedder.fingerprint()), f"{folder}.pt")
"""


def test_another_process_gives_identical_vectors(tmp_path):
    torch.save(IMAGES, tmp_path / "images.pt")
    made = {}
    for name, make in EMBEDDERS.items():
        torch.manual_seed(1)
        made[name] = make()
        made[name](IMAGES).sum().backward()  # in training mode, so that BatchNorm's statistics have moved
        made[name].save(tmp_path / name)
    files = [tmp_path / name for name in ("images.pt", *made)]
    subprocess.run([sys.executable, "-c", EMBED_ELSEWHERE, *files], check=True)
    for name, embedder in made.items():
        vectors, fingerprint = torch.load(tmp_path / f"{name}.pt")
        assert torch.equal(vectors, embedder.embed(IMAGES)), name
        assert fingerprint == embedder.fingerprint()


def test_everything_comes_back(tmp_path):
    embedder = small(preprocessing={"mean": (10.0,), "resize": 9}, normalize="eval", pooling="max")
    embedder.save(tmp_path)
    loaded = models.load(tmp_path)
    assert loaded.config == embedder.config
    assert not loaded.training
    about = json.loads((tmp_path / "embedder.json").read_text())
    assert about["versions"]["torch"] == torch.__version__
    assert sorted(p.name for p in tmp_path.iterdir()) == ["embedder.json", "model.safetensors"]


def test_whoever_may_read_one_file_may_read_all(tmp_path):
    small().save(tmp_path)
    (tmp_path / "any other").touch()
    assert len({path.stat().st_mode for path in tmp_path.iterdir()}) == 1


def test_loading_draws_no_random_numbers(tmp_path):
    small().save(tmp_path)
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    models.load(tmp_path).select("H")
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("convnet", {"size": np.int64(8), "dim": np.int32(3)}),
        ("convnet", {"size": 8, "preprocessing": {"resize": np.int64(9)}}),
        ("mlp", {"features": np.int64(4), "hidden": (np.int64(3),)}),
    ],
)
def test_numbers_of_numpy_are_saved_as_numbers(name, options, tmp_path):
    numpys, pythons = (models.create(name, **each) for each in (options, json.loads(json.dumps(options, default=int))))
    assert numpys.config.stored() == pythons.config.stored()
    numpys.save(tmp_path)
    assert models.load(tmp_path).fingerprint() == numpys.fingerprint()


def test_an_option_that_no_file_holds_is_named():
    embedder = small()
    embedder.config.options["norm_layer"] = nn.LayerNorm
    with pytest.raises(TypeError, match=r"has the option <class '.*LayerNorm'>, which JSON cannot hold; give"):
        embedder.fingerprint()


@pytest.mark.parametrize("part", ["config", "preprocessing"])
def test_what_a_later_version_states_is_named_and_not_passed_over(part, tmp_path):
    """A new field at its default is not written, so that one that is there changes the vectors."""
    embedder = small()
    config = embedder.config.stored()
    (config if part == "config" else config["preprocessing"])["whitening"] = True
    storage.write(tmp_path, config, embedder.weights())
    with pytest.raises(ValueError, match=r"has the entry 'whitening', which tuplet .* does not know; install"):
        models.load(tmp_path)


def test_half_precision_stays_half(tmp_path):
    embedder = small().to(torch.bfloat16)
    embedder.save(tmp_path)
    loaded = models.load(tmp_path)
    assert loaded.fingerprint() == embedder.fingerprint()
    assert torch.equal(loaded.embed(IMAGES[:, :, :8, :8]), embedder.embed(IMAGES[:, :, :8, :8]))


def test_a_type_that_was_left_again_leaves_no_trace_in_the_preprocessing(tmp_path):
    """The weights are then as coarse as half precision made them, and saved so; mean and deviation are not saved."""
    embedder = models.create("convnet", dim=3, size=8, preprocessing={"mean": (123.68,), "std": (57.12,)})
    embedder = embedder.half().float()
    embedder.save(tmp_path)
    assert torch.equal(embedder.mean, torch.full((1, 1, 1, 1), 123.68))
    images = torch.randint(0, 256, (4, 3, 8, 8), dtype=torch.uint8)
    assert torch.equal(models.load(tmp_path).embed(images), embedder.embed(images))


def test_fingerprints_stay_what_they_are():
    """An index refuses the model that made it if this changes with a new version."""
    embedder = small()
    with torch.no_grad():
        for tensor in embedder.state_dict().values():
            tensor.fill_(1)
    assert embedder.fingerprint() == "f0f5b6bf1265e660afe3cf7338b2bbd7ddd7ba3cb3bf195a73e255a68610f6f8"
    assert "layer_norm" not in embedder.config.stored()
    assert models.create("convnet", dim=4, layer_norm=True).config.stored()["layer_norm"] is True


def test_fingerprints_tell_weights_and_settings_apart():
    a, b = small(), small()
    assert a.fingerprint() == b.fingerprint()
    assert a.fingerprint() == a.to(memory_format=torch.contiguous_format).fingerprint()
    assert a.fingerprint() != small(seed=1).fingerprint()
    assert a.fingerprint() != small(preprocessing={"mean": (100.0,)}).fingerprint()
    with torch.no_grad():
        b.heads["H"].bias[0] += 1e-6
    assert a.fingerprint() != b.fingerprint()


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved")
    small().save(folder)
    return folder


@settings(max_examples=20)
@given(name=st.sampled_from(["model.safetensors", "embedder.json"]), keep=st.floats(0, 0.999))
def test_truncated_files_are_refused(saved, tmp_path_factory, name, keep):
    folder = copy(saved, tmp_path_factory)
    content = (folder / name).read_bytes().rstrip()
    (folder / name).write_bytes(content[: int(keep * len(content))])
    with pytest.raises(ValueError, match=name.replace(".", r"\.")):
        models.load(folder)


@settings(max_examples=20)
@given(place=st.floats(0, 0.999), bit=st.integers(0, 7))
def test_one_changed_bit_of_the_weights_is_refused(saved, tmp_path_factory, place, bit):
    folder = copy(saved, tmp_path_factory)
    content = bytearray((folder / "model.safetensors").read_bytes())
    content[int(place * len(content))] ^= 1 << bit
    (folder / "model.safetensors").write_bytes(content)
    with pytest.raises(ValueError, match=r"damaged|was changed"):
        models.load(folder)


def copy(saved, tmp_path_factory):
    folder = tmp_path_factory.mktemp("copy")
    for file in saved.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    return folder


def test_a_changed_mean_is_refused(saved, tmp_path_factory):
    folder = copy(saved, tmp_path_factory)
    about = json.loads((folder / "embedder.json").read_text())
    about["config"]["preprocessing"]["mean"] = [0.0]
    (folder / "embedder.json").write_text(json.dumps(about))
    with pytest.raises(ValueError, match="was changed after it was saved"):
        models.load(folder)


def test_folders_of_something_else_are_a_sentence(saved, tmp_path, tmp_path_factory):
    with pytest.raises(FileNotFoundError, match=r"embedder\.json is missing"):
        models.load(tmp_path)
    with pytest.raises(FileNotFoundError, match=r"nowhere does not exist; give a folder"):
        models.load(tmp_path / "nowhere")
    folder = copy(saved, tmp_path_factory)
    (folder / "embedder.json").write_text("[1, 2]")
    with pytest.raises(ValueError, match=r"embedder\.json is damaged"):
        models.load(folder)
    (folder / "embedder.json").write_text(json.dumps({"format": 99, "config": {}, "fingerprint": ""}))
    with pytest.raises(ValueError, match="has format 99"):
        models.load(folder)


def test_the_folder_of_a_run_names_its_best_embedder(tmp_path):
    small().save(tmp_path / "run/best")
    with pytest.raises(FileNotFoundError, match=r"run is the folder of a run.*; load .*run/best$"):
        models.load(tmp_path / "run")


def test_a_users_module_comes_back_with_the_module(tmp_path):
    def module(width=6):
        layer = nn.Linear(width, width)
        layer.weight = nn.Parameter(torch.eye(width))
        return nn.Sequential(nn.Conv2d(3, width, 3), nn.Flatten(), nn.LazyLinear(width), layer)

    network = module()
    embedder = models.create(network, dim=4, example=torch.zeros(2, 3, 8, 8))
    embedder.save(tmp_path)
    images = torch.randn(3, 3, 8, 8)
    fresh = module()
    fresh(images)
    assert torch.equal(models.load(tmp_path, backbone=fresh).embed(images), embedder.embed(images))
    with pytest.raises(ValueError, match="backbone=module"):
        models.load(tmp_path)
    with pytest.raises(ValueError, match=r"does not fit the own module: .*missing, first backbone\.module"):
        models.load(tmp_path, backbone=nn.Linear(2, 2))


def test_a_compiled_embedder_saves_what_it_shares(tmp_path):
    embedder = small()
    fast = embedder.compiled()
    assert fast.fingerprint() == embedder.fingerprint()
    fast.save(tmp_path)
    assert models.load(tmp_path).fingerprint() == embedder.fingerprint()


def test_tied_weights_are_saved(tmp_path):
    module = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    module[1].weight = module[0].weight
    embedder = models.create(module, dim=2, example=torch.zeros(1, 4))
    embedder.save(tmp_path)
    fresh = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4))
    x = torch.randn(3, 4)
    assert torch.equal(models.load(tmp_path, backbone=fresh).embed(x), embedder.embed(x))


def test_a_named_backbone_needs_no_module(saved):
    with pytest.raises(TypeError, match="leave backbone out"):
        models.load(saved, backbone=nn.Linear(2, 2))


SAVE_FOREVER = """
import sys, torch
from tuplet import models
a, b = models.load(sys.argv[1]), models.load(sys.argv[1])
with torch.no_grad():
    b.heads["H"].bias += 1
print("ready", flush=True)
while True:
    a.save(sys.argv[1])
    b.save(sys.argv[1])
"""


def test_a_kill_while_saving_never_leaves_a_wrong_model(saved, tmp_path_factory, soak):
    folder = copy(saved, tmp_path_factory)
    first = models.load(folder)
    second = models.load(folder)
    with torch.no_grad():
        second.heads["H"].bias += 1
    allowed = {first.fingerprint(), second.fingerprint()}
    for i in range(20 if soak else 2):
        first.save(folder)
        process = subprocess.Popen([sys.executable, "-c", SAVE_FOREVER, str(folder)], stdout=subprocess.PIPE)
        process.stdout.readline()
        time.sleep(0.01 + 0.007 * i)
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
        process.stdout.close()
        assert models.load(folder).fingerprint() in allowed


#: Save into each folder in a process of its own, killed after none, one, two … renames; print how each ended.
SAVE_AND_DIE = """
import os, signal, sys, torch
from tuplet import models
def save(folder, left):
    embedder, replace = models.load(folder), os.replace
    with torch.no_grad():
        embedder.heads["H"].bias += 1
    def dying(*names):
        nonlocal left
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        left -= 1
        replace(*names)
    os.replace = dying
    embedder.save(folder)
for renames, folder in enumerate(sys.argv[1:]):
    if os.fork() == 0:
        save(folder, renames)
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.wait()[1]))
"""


def test_a_kill_between_any_two_renames_leaves_the_old_or_the_new_model(saved, tmp_path_factory):
    first, second = models.load(saved), models.load(saved)
    with torch.no_grad():
        second.heads["H"].bias += 1
    folders = [copy(saved, tmp_path_factory) for _ in range(8)]
    done = subprocess.run([sys.executable, "-c", SAVE_AND_DIE, *folders], capture_output=True, text=True, check=True)
    codes = [int(code) for code in done.stdout.split()]
    renames = codes.index(0)
    assert codes == [-signal.SIGKILL] * renames + [0] * (len(folders) - renames)
    found = [models.load(folder).fingerprint() for folder in folders[: renames + 1]]
    for folder in folders[:renames]:
        first.save(folder)  # a later save finds its way
        assert models.load(folder).fingerprint() == first.fingerprint()
        assert sorted(path.name for path in folder.iterdir()) == ["embedder.json", "model.safetensors"]
    assert renames >= 2
    old = found.count(first.fingerprint())
    assert found == [first.fingerprint()] * old + [second.fingerprint()] * (len(found) - old)
    assert old >= 1
