"""Run folders that are whole, and those that are not."""

import shutil
import tarfile

import pytest
import torch
from PIL import Image

from report_runs import picture_run, write_run
from tuplet import data as datasets
from tuplet.reports.run import read


@pytest.fixture
def folder(tmp_path):
    return picture_run(tmp_path)


def test_everything_is_read_back(folder):
    run = read(folder)
    assert run.settings["loss"] == "multi_similarity"
    assert [event["step"] for event in run.of_kind("evaluation")] == [20, 40]
    assert run.class_name(7) == "bee"
    assert run.missing == ""
    assert [side.tolist() for side in run.sides()] == [list(range(36))] * 2


def test_the_data_may_be_given(folder):
    data = datasets.open(folder.parent / "photos")
    shutil.rmtree(folder.parent / "photos")
    assert read(folder, data).data is data


def test_the_data_may_be_named(folder):
    photos = (folder.parent / "photos").rename(folder.parent / "elsewhere")
    assert read(folder).data is None
    assert len(read(folder, str(photos)).data) == 36


def test_other_data_than_the_run_had_are_refused(folder, tmp_path):
    other = datasets.from_features(torch.zeros(36, 2), torch.arange(36) % 6)
    with pytest.raises(ValueError, match=r"does not hold the examples that the run in .* was tested on"):
        read(folder, other)
    assert "write takes them as data=" in read(write_run(tmp_path / "memory", other, other)).missing


def test_examples_are_called_by_their_files_below_the_data(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(folder.parent)
    assert read(folder, datasets.open("photos")).example(0) == "ant/0.png"
    (tmp_path / "lists").mkdir()
    shutil.copy("photos/ant/0.png", "lists/near.png")
    table = tmp_path / "lists/list.csv"
    table.write_text(f"path,label\nnear.png,1\n{tmp_path}/photos/ant/0.png,1\nnear.png,2\nnear.png,2\n")
    run = read(write_run(tmp_path / "other", datasets.open(table), table))
    assert [run.example(row) for row in (0, 1)] == ["near.png", f"{tmp_path}/photos/ant/0.png"]


def test_classes_are_called_without_the_folder_that_they_all_lie_in(folder):
    """As in the tar of a folder: in the narrow captions of pictures, `photos/a…` would be all that there is to see."""
    tar = folder.parent / "photos.tar"
    with tarfile.open(tar, "w") as packed:
        packed.add(folder.parent / "photos", "photos/new")
    data = datasets.open(tar)
    assert data.class_names[1] == "photos/new/bee"
    assert read(folder, data).class_name(7) == "bee"


def test_data_that_are_gone_are_missed_in_a_sentence(folder):
    shutil.rmtree(folder.parent / "photos")
    run = read(folder)
    assert run.data is None
    assert "photos does not exist" in run.missing
    assert run.class_name(7) == "1"


def test_data_that_have_changed_are_not_shown(folder):
    shutil.rmtree(folder.parent / "photos" / "ant")
    assert "no longer holds the examples" in read(folder).missing


def test_queries_and_gallery_are_kept_apart(tmp_path):
    for split in ("train", "query", "gallery"):
        for name in ("ant", "bee"):
            (tmp_path / "shop" / split / name).mkdir(parents=True)
            for i in range(2):
                Image.new("RGB", (8, 8)).save(tmp_path / "shop" / split / name / f"{i}.png")
    data = datasets.open(tmp_path / "shop")
    rows = [i for i, split in enumerate(data.splits) if split != "train"]
    run = read(write_run(tmp_path / "run", data, tmp_path / "shop", rows=rows))
    queries, gallery = run.sides()
    assert {data.splits[i] for i in run.indices[queries].tolist()} == {"query"}
    assert {data.splits[i] for i in run.indices[gallery].tolist()} == {"gallery"}
    assert torch.equal(torch.cat([queries, gallery]).sort().values, torch.arange(8))


@pytest.mark.parametrize("name", ["run.json", "events.jsonl", "evaluation.json", "vectors.safetensors"])
def test_an_unfinished_run_is_one_sentence(folder, name):
    (folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"run has no {name}, so it holds no finished run; train to the end"):
        read(folder)


@pytest.mark.parametrize("name", ["run.json", "evaluation.json", "vectors.safetensors"])
def test_a_damaged_file_is_one_sentence(folder, name):
    (folder / name).write_bytes((folder / name).read_bytes()[:20])
    with pytest.raises(ValueError, match=f"{name} (is not valid JSON|cannot be read)") as caught:
        read(folder)
    assert "\n" not in str(caught.value)


def test_no_folder_is_one_sentence(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"run folder .*nowhere does not exist; make one with: tuplet train"):
        read(tmp_path / "nowhere")
