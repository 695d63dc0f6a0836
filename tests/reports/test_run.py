"""Reading run folders: complete, moved, unfinished and damaged ones."""

import json
import shutil
import tarfile

import pytest
import torch
from PIL import Image

from report_runs import image_run, write_run
from tuplet import data as datasets
from tuplet.reports.run import FinishedRun, read_about, read_run


@pytest.fixture
def folder(tmp_path):
    return image_run(tmp_path)


def test_a_finished_run_is_read(folder):
    run = read_run(folder)
    assert run.settings["loss"] == "multi_similarity"
    assert [event["step"] for event in run.of_kind("evaluation")] == [20, 40]
    assert run.shown.class_names[7] == "bee"
    assert run.missing == ""
    assert [rows.tolist() for rows in run.queries_and_gallery()] == [list(range(36))] * 2


def test_data_can_be_given_as_a_dataset(folder):
    data = datasets.open(folder.parent / "photos")
    shutil.rmtree(folder.parent / "photos")
    assert read_run(folder, data).data is data


def test_data_can_be_given_as_a_path(folder):
    photos = (folder.parent / "photos").rename(folder.parent / "elsewhere")
    assert read_run(folder).data is None
    assert len(read_run(folder, str(photos)).data) == 36


def test_wrong_data_are_refused(folder, tmp_path):
    other = datasets.from_features(torch.zeros(36, 2), torch.arange(36) % 6)
    with pytest.raises(ValueError, match=r"does not contain the test examples of the run in"):
        read_run(folder, other)
    assert "give it to tuplet.reports.write as data=" in read_run(write_run(tmp_path / "memory", other, other)).missing


def test_examples_are_named_by_their_files_relative_to_the_data(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(folder.parent)
    assert read_run(folder, datasets.open("photos")).shown.files[0] == "ant/0.png"
    (tmp_path / "lists").mkdir()
    shutil.copy("photos/ant/0.png", "lists/near.png")
    table = tmp_path / "lists/list.csv"
    table.write_text(f"path,label\nnear.png,1\n{tmp_path}/photos/ant/0.png,1\nnear.png,2\nnear.png,2\n")
    run = read_run(write_run(tmp_path / "other", datasets.open(table), table))
    assert run.shown.files[:2] == ["near.png", f"{tmp_path}/photos/ant/0.png"]


def test_class_names_leave_out_their_common_folder(folder):
    """Captions of images are narrow and would show only `photos/a…`."""
    tar = folder.parent / "photos.tar"
    with tarfile.open(tar, "w") as packed:
        packed.add(folder.parent / "photos", "photos/new")
    data = datasets.open(tar)
    assert data.class_names[1] == "photos/new/bee"
    assert read_run(folder, data).shown.class_names[7] == "bee"


def test_missing_data_are_explained(folder):
    shutil.rmtree(folder.parent / "photos")
    run = read_run(folder)
    assert run.data is None
    assert "photos does not exist" in run.missing
    assert run.shown.class_names[7] == "1"


def test_changed_data_are_not_shown(folder):
    shutil.rmtree(folder.parent / "photos" / "ant")
    assert "has changed since this run" in read_run(folder).missing


def test_queries_and_gallery_are_separate(tmp_path):
    for split in ("train", "query", "gallery"):
        for name in ("ant", "bee"):
            (tmp_path / "shop" / split / name).mkdir(parents=True)
            for i in range(2):
                Image.new("RGB", (8, 8)).save(tmp_path / "shop" / split / name / f"{i}.png")
    data = datasets.open(tmp_path / "shop")
    rows = [i for i, split in enumerate(data.splits) if split != "train"]
    run = read_run(write_run(tmp_path / "run", data, tmp_path / "shop", rows=rows))
    queries, gallery = run.queries_and_gallery()
    assert {data.splits[i] for i in run.indices[queries].tolist()} == {"query"}
    assert {data.splits[i] for i in run.indices[gallery].tolist()} == {"gallery"}
    assert torch.equal(torch.cat([queries, gallery]).sort().values, torch.arange(8))


@pytest.mark.parametrize("name", ["events.jsonl", "vectors.safetensors"])
def test_a_lost_file_is_a_clear_error(folder, name):
    (folder / name).unlink()
    with pytest.raises(FileNotFoundError, match=f"run has no {name}, so it contains no complete run; finish it with"):
        read_run(folder)


@pytest.mark.parametrize("name", ["data", "settings"])
def test_a_run_json_without_an_entry_is_a_sentence(tmp_path, name):
    path = tmp_path / "run.json"
    for content in ({"data": "here", "settings": {}, "tuplet": "0"} | {name: None}, [], "text", {}):
        path.write_text(json.dumps(content))
        with pytest.raises(ValueError, match=r"run\.json (is damaged: \w+ is|holds no JSON object) .*; train again$"):
            read_about(path)


def test_a_run_without_evaluation_is_its_log(folder):
    (folder / "evaluation.json").unlink()
    (folder / "vectors.safetensors").unlink()
    with (folder / "events.jsonl").open("a") as log:
        log.write('{"event": "train", "st')  # a line that is still being written
    run = read_run(folder)
    assert not isinstance(run, FinishedRun)
    assert [event["step"] for event in run.of_kind("evaluation")] == [20, 40]


@pytest.mark.parametrize("name", ["run.json", "evaluation.json", "vectors.safetensors"])
def test_a_damaged_file_is_a_clear_error(folder, name):
    (folder / name).write_bytes((folder / name).read_bytes()[:20])
    with pytest.raises(ValueError, match=f"{name} (is not valid JSON|cannot be read)") as caught:
        read_run(folder)
    assert "\n" not in str(caught.value)


def test_a_missing_folder_is_a_clear_error(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"run folder .*nowhere does not exist; make one with: tuplet train"):
        read_run(tmp_path / "nowhere")
