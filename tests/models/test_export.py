"""ONNX files, run by onnxruntime beside torch."""

import json
from unittest.mock import patch

import onnxruntime
import pytest
import torch

from tuplet import models


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("convnet", {}),
        ("efficientnet_lite0", {"levels": "LMH", "preprocessing": {"size": 64}}),
        ("bn_inception", {"levels": "LMH", "pooling": "mean+max", "normalize": "eval", "preprocessing": {"size": 64}}),
    ],
)
def test_onnx_gives_torchs_vectors_for_any_batch(tmp_path, name, options, capfd, recwarn, soak):
    if name == "efficientnet_lite0" and not soak:
        pytest.skip("another network, whose export takes seconds")
    torch.manual_seed(0)
    embedder = models.create(name, dim=6, **options)
    embedder.train()
    models.export_onnx(embedder, tmp_path / "embedder.onnx")
    assert (capfd.readouterr(), list(recwarn)) == (("", ""), [])
    assert [p.name for p in tmp_path.iterdir()] == ["embedder.onnx"]
    assert embedder.training
    session = onnxruntime.InferenceSession(tmp_path / "embedder.onnx")
    size = embedder.preprocessing.size
    for count in (1, 2, 5):
        images = torch.randint(0, 256, (count, 3, size, size), dtype=torch.uint8)
        (found,) = session.run(["embeddings"], {"images": images.numpy()})
        torch.testing.assert_close(torch.from_numpy(found), embedder.embed(images), rtol=1e-4, atol=1e-5)
    about = json.loads(session.get_modelmeta().custom_metadata_map["tuplet"])
    assert about["fingerprint"] == embedder.fingerprint()
    assert about["config"]["preprocessing"]["size"] == size


def test_a_missing_folder_is_made_and_one_in_the_files_place_is_refused_at_once(tmp_path):
    embedder = models.create("mlp", features=4, dim=2)
    models.export_onnx(embedder, tmp_path / "new/folder/embedder.onnx", example=torch.zeros(2, 4))
    assert (tmp_path / "new/folder/embedder.onnx").is_file()
    with (
        patch("torch.onnx.export", side_effect=AssertionError("began")),
        pytest.raises(IsADirectoryError, match=r"new is a folder; give a file in it, such as .*new/embedder\.onnx$"),
    ):
        models.export_onnx(embedder, tmp_path / "new", example=torch.zeros(2, 4))


def test_a_type_that_runtimes_do_not_run_is_refused(tmp_path):
    embedder = models.create("mlp", features=4, dim=2).bfloat16()
    with pytest.raises(ValueError, match=r"weights are torch\.bfloat16, which ONNX runtimes do not run; export"):
        models.export_onnx(embedder, tmp_path / "embedder.onnx", example=torch.zeros(2, 4, dtype=torch.bfloat16))


def test_vectors_need_an_example(tmp_path):
    embedder = models.create("mlp", features=4, dim=2)
    with pytest.raises(ValueError, match="example="):
        models.export_onnx(embedder, tmp_path / "embedder.onnx")
    models.export_onnx(embedder, tmp_path / "embedder.onnx", example=torch.zeros(2, 4))
    x = torch.randn(7, 4)
    (found,) = onnxruntime.InferenceSession(tmp_path / "embedder.onnx").run(None, {"images": x.numpy()})
    torch.testing.assert_close(torch.from_numpy(found), embedder.embed(x), rtol=1e-4, atol=1e-5)
