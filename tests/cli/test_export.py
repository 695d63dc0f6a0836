"""`tuplet export`: files for other runtimes, checked on images before they are written."""

import pytest
import torch

from commands import SMALL, typed
from report_runs import draw_folder
from tuplet import models
from tuplet.cli import export


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    folder = tmp_path_factory.mktemp("export")
    draw_folder(folder / "photos", ("ant", "bee", "cat", "dog"), each=6)
    done = typed("train", "photos", "--out", "run", *SMALL, "--batch-size", "8", cwd=folder)
    assert done.exit_code == 0, done.output
    assert "Recall@1" in (folder / "run/best/README.md").read_text()
    return folder


@pytest.mark.parametrize(
    ("format", "precision", "files"),
    [
        ("torch_export", "fp32", ["m.pt2"]),
        ("onnx", "fp16", ["m.onnx"]),
        ("openvino", "int8", ["m.bin", "m.xml"]),
    ],
)
def test_exported_file_gives_the_models_vectors(run, tmp_path, format, precision, files):
    out = tmp_path / files[-1]
    done = typed("export", "run", "--format", format, "--precision", precision, "--out", out, cwd=run)
    assert done.exit_code == 0, done.output
    assert "Recall@1 on 12 images" in done.output
    assert "warning" not in done.stderr
    assert sorted(p.name for p in tmp_path.iterdir()) == files
    embedder = models.load(run / "run/best")
    images = torch.randint(0, 256, (3, 3, embedder.preprocessing.size, embedder.preprocessing.size), dtype=torch.uint8)
    vectors = models.open_exported(out)(images)
    assert torch.nn.functional.cosine_similarity(vectors, embedder.embed(images)).min() > 0.9


def test_a_file_that_differs_is_not_written(run, tmp_path, monkeypatch):
    monkeypatch.setitem(export.LOWEST, "fp32", 1.1)
    out = tmp_path / "m.pt2"
    done = typed("export", "run", "--format", "torch_export", "--out", out, cwd=run)
    assert done.exit_code == 1
    assert "nothing was written" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_images_of_training_are_needed_for_int8_alone(run, tmp_path):
    rows = [f"photos/{name}/{i}.png,{name},test" for name in ("ant", "bee") for i in range(6)]
    (run / "tested.csv").write_text("\n".join(["path,label,split", *rows]))
    words = ("export", "run", "tested.csv", "--format", "torch_export", "--out", tmp_path / "m.pt2")
    done = typed(*words, cwd=run)
    assert done.exit_code == 0, done.output
    assert "Recall@1 on 12 images" in done.stdout
    done = typed(*words, "--precision", "int8", cwd=run)
    assert "there is no split 'train' here" in done.stderr


def test_images_that_cannot_be_read_are_not_needed(run, tmp_path):
    draw_folder(tmp_path / "cut", ("ant", "bee", "cat", "dog"), each=6)
    (tmp_path / "cut/dog/2.png").write_bytes(b"cut")
    done = typed("export", "run", tmp_path / "cut", "--format", "torch_export", "--out", tmp_path / "m.pt2", cwd=run)
    assert done.exit_code == 0, done.output
    assert "Recall@1 on 11 images" in done.stdout
    assert "1 of 12 images were skipped" in done.stderr


def test_a_place_that_cannot_be_written_is_named(run, tmp_path):
    (tmp_path / "file").touch()
    done = typed("export", "run", "--out", tmp_path / "file/m.onnx", cwd=run)
    assert (done.exit_code, done.stderr.count("\n")) == (1, 1)
    assert "m.onnx could not be written" in done.stderr
    assert "give another folder" in done.stderr


def test_a_wrong_ending_is_shown_as_it_was_given(run, tmp_path):
    done = typed("export", "run", "--out", tmp_path / "m.pt2", cwd=run)
    assert done.stderr == "tuplet: --out is m.pt2; the ending of onnx is .onnx\n"


def test_wrong_choices_are_refused(tmp_path):
    embedder = models.create("convnet", dim=4)
    with pytest.raises(ValueError, match=r"the ending of onnx is \.onnx"):
        models.export_model(embedder, tmp_path / "a.pt2", "onnx")
    with pytest.raises(ValueError, match="int8' is for onnx and openvino"):
        models.export_model(embedder, tmp_path / "a.pt2", "torch_export", "int8")
    with pytest.raises(ValueError, match="needs images to calibrate"):
        models.export_model(embedder, tmp_path / "a.onnx", "onnx", "int8")
    with pytest.raises(ValueError, match="no exported model"):
        models.open_exported(tmp_path / "a.txt")
