"""The commands `tuplet index`, `tuplet search` and `tuplet serve`."""

import json
import re
import shutil
import socket
from pathlib import Path

import pytest
import torch
from PIL import Image
from typer.testing import CliRunner

from search.bad_uploads import saved
from search.server_process import COLOURS, draw_image
from tuplet import models, search

cli = pytest.importorskip("tuplet.cli")


def typed(*words):
    return CliRunner().invoke(cli.make_app(words[0]), [str(word) for word in words])


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A saved model, a folder of images with a broken one, and their index."""
    place = tmp_path_factory.mktemp("commands")
    torch.manual_seed(0)
    models.create("convnet", dim=16).save(place / "model")
    for label in COLOURS:
        (place / "photos" / label).mkdir(parents=True)
        for number in range(4):
            (place / "photos" / label / f"{number}.png").write_bytes(saved(draw_image(label, number), "PNG"))
    (place / "photos/red/broken.jpg").write_bytes(b"broken")
    made = typed("index", place / "model", place / "photos", "-o", place / "things.index", "--device", "cpu")
    assert made.exit_code == 0, made.output
    assert "12 images added" in made.output
    assert "broken.jpg cannot be read" in made.output
    return place


def test_indexing_again_adds_nothing(place):
    again = typed("index", place / "model", place / "photos", "-o", place / "things.index")
    assert again.exit_code == 0
    assert "0 images added, 12 known already" in again.output


@pytest.mark.parametrize(("source", "sentence"), [("phots", "phots does not exist"), ("", "the data is empty")])
def test_a_mistyped_source_leaves_no_index_behind(place, monkeypatch, source, sentence):
    """An empty source is more likely an unset variable than the current folder."""
    monkeypatch.chdir(place)
    refused = typed("index", "model", source, "-o", "none.index")
    assert refused.exit_code == 1
    assert sentence in refused.output
    assert not (place / "none.index").exists()


def test_a_model_of_vectors_is_refused_first(place):
    models.create("mlp", dim=4, features=8).save(place / "vectors")
    refused = typed("index", place / "vectors", place / "photos", "-o", place / "none.index")
    assert refused.exit_code == 1
    assert "takes feature vectors, not images" in refused.output
    assert not (place / "none.index").exists()


def test_another_metric_is_refused(place):
    words = ("index", place / "model", place / "photos", "-o", place / "things.index", "--metric")
    assert typed(*words, "dot").exit_code == 0
    refused = typed(*words, "euclidean")
    assert refused.exit_code == 1
    assert "things.index has the metric dot, not euclidean; leave out --metric" in refused.output


def test_another_model_is_refused_in_one_sentence(place):
    torch.manual_seed(1)
    models.create("convnet", dim=16).save(place / "other")
    refused = typed("index", place / "other", place / "photos", "-o", place / "things.index")
    assert refused.exit_code == 1
    assert "was made by the model" in refused.output
    assert "Traceback" not in refused.output


def test_approximate_option(place):
    shutil.copytree(place / "things.index", place / "copy.index")
    made = typed("index", place / "model", place / "photos", "-o", place / "copy.index", "--approximate", "hnsw")
    assert made.exit_code == 0, made.output
    assert "recall@10 1.000 against exact search" in made.output
    assert search.open(place / "copy.index").approximate.kind == "hnsw"
    exact = typed("search", place / "copy.index", place / "photos/red/1.png", "--exact", "--json")
    assert json.loads(exact.output)[0]["hits"][0]["id"] == "red/1.png"


def test_approximate_option_is_refused_for_milvus(place):
    made = typed("index", place / "model", place / "photos", "-o", place / "things.db", "--approximate", "hnsw")
    assert made.exit_code == 2
    assert "--approximate is for an index in a folder" in " ".join(made.output.replace("│", " ").split())
    assert not (place / "things.db").exists()


def test_search_options(place):
    query = place / "photos/green/2.png"
    table = typed("search", place / "things.index", query, "--top", "3")
    assert table.exit_code == 0, table.output
    assert table.output.splitlines()[0] == str(query)
    assert table.output.splitlines()[2].split()[1:] == ["green", str(query)]
    assert len(table.output.splitlines()) == 5
    data = json.loads(typed("search", place / "things.index", query, "--json", "--label", "blue").output)
    assert data[0]["image"] == str(query)
    assert {hit["metadata"]["label"] for hit in data[0]["hits"]} == {"blue"}
    assert len(data[0]["hits"]) == 4
    two = [query, place / "photos/red/0.png"]
    assert len(json.loads(typed("search", place / "things.index", *two, "--json").output)) == 2
    assert (
        len(json.loads(typed("search", place / "things.index", *two, "--json", "--together", "--mirror").output)) == 1
    )
    together = typed("search", place / "things.index", place / "photos/green", "--together").output
    assert together.splitlines()[0].endswith("1.png + 2 more")
    folder = json.loads(typed("search", place / "things.index", place / "photos/green", "--json").output)
    assert [Path(each["image"]).name for each in folder] == ["0.png", "1.png", "2.png", "3.png"]
    sheet = place / "sheet.jpg"
    assert typed("search", place / "things.index", *two, "--sheet", sheet, "--top", "4").exit_code == 0
    assert Image.open(sheet).size == (12 + 5 * 172, 12 + 2 * 212)


@pytest.mark.parametrize("ending", ["jpg", "webp"])
def test_sheet_too_wide_for_its_format(place, monkeypatch, ending):
    monkeypatch.setattr("tuplet.search.sheet.contact_sheet", lambda *_: Image.new("RGB", (70_000, 2)))
    told = typed("search", place / "things.index", place / "photos/red/0.png", "--sheet", place / f"wide.{ending}")
    assert told.exit_code == 1
    assert re.search(
        rf"wide\.{ending} cannot hold 70,000 × 2 pixels \(.*\); choose a smaller --top, or .png", told.output
    )


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["nowhere.index", "photo.jpg"], 1, "nowhere.index does not exist; make an index with tuplet index"),
        (["photos", "photo.jpg"], 1, "photos is not an index: it has no index.json; make one with tuplet index"),
        (["things.index", "nowhere.jpg"], 1, "nowhere.jpg does not exist; give images or folders of images"),
        (["things.index", "photos/red/broken.jpg"], 1, "cannot be read"),
        (["things.index", "photos/red/0.png", "--where", "{"], 2, "--where is {; give year=2011, or a JSON object"),
        (["things.index", "photos/red/0.png", "--where", "price"], 2, "--where is price; give year=2011, or a JSON"),
        (
            ["things.index", "photos/red/0.png", "--where", "price=10"],
            1,
            "--where asks for price 10, and no item of things.index has such a value; they have label=",
        ),
        (
            ["things.index", "photos/red/0.png", "--where", "label=10"],
            1,
            "--where asks for label 10, and no item of things.index has such a value; they have label=",
        ),
        (["things.index", "photos/red/0.png", "--where", "label=pink"], 0, "0.png: nothing in the index matches"),
        (["things.index", "photos/red/0.png", "--where", "label=red,label=blue"], 2, "or a JSON object"),
        (["things.index", "photos/red/0.png", "--distinct", "nan"], 1, "--distinct is nan; it must be a number"),
        (["things.index", "photos/red/0.png", "--where", "[" * 9000], 2, "or a JSON object"),
        (["things.index", "photos/red/0.png", "--where", "[1]"], 2, "--where is [1]; give year=2011, or a JSON object"),
        (["things.index", "photos/red/0.png", "--top", "0"], 2, "Invalid value for '--top'"),
        (["things.index", "photos/red/0.png", "--sheet", "s.foo"], 2, "--sheet is s.foo; its ending must be"),
        (["things.index", "photos/red/0.png", "--sheet", "s.psd"], 2, "--sheet is s.psd; its ending must be"),
        (["things.index", "photos/red/0.png", "--label", "gren"], 1, "no label 'gren'; did you mean 'green'?"),
        (["things.index", "photos/red/0.png", "--label", "x"], 1, "no label 'x'; choose one of blue, green, red"),
        (["things.index", "photos/red/0.png", "--where", '{"year": 1}'], 1, "--where asks for year 1, and no item"),
        (
            ["things.index", "photos/red/0.png", "--where", '{"label": "red"}', "--label", "blue"],
            0,
            "0.png: nothing in the index matches",
        ),
    ],
)
def test_wrong_options_get_one_sentence(place, monkeypatch, words, code, sentence):
    monkeypatch.chdir(place)
    told = typed("search", *words)
    assert told.exit_code == code, told.output
    assert sentence in " ".join(told.output.replace("│", " ").split())
    assert "score  label" not in told.output  # no table without rows


def test_a_search_says_that_the_index_is_empty(place, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    search.create("empty.index", embedder=search.open(place / "things.index").embedder)
    told = typed("search", "empty.index", str(place / "photos/red/0.png"))
    assert told.exit_code == 0
    assert told.output.endswith("0.png: the index is empty\n")


@pytest.mark.parametrize(
    ("where", "count"), [("label=green", 4), ('{"label": ["green", "red"]}', 8), ("year=null", 12)]
)
def test_conditions_as_pairs_and_as_json(place, monkeypatch, where, count):
    monkeypatch.chdir(place)
    told = typed("search", "things.index", "photos/red/0.png", "--where", where, "--top", "50", "--json")
    assert len(json.loads(told.output)[0]["hits"]) == count


def test_labels_that_are_numbers_are_typed_as_text(place, monkeypatch):
    monkeypatch.chdir(place)
    index = search.create("numbers.index", embedder=models.load("model"))
    names = ["photos/red/0.png", "photos/green/0.png", "photos/blue/0.png"]
    index.add(names, metadata=[{"label": 3}, {"label": 4}, {"label": "4"}])
    told = typed("search", "numbers.index", "photos/red/0.png", "--label", "4", "--json")
    assert {hit["id"] for hit in json.loads(told.output)[0]["hits"]} == set(names[1:])


@pytest.mark.parametrize(
    ("options", "code", "sentence"),
    [
        (["--port", "99999"], 2, "Invalid value for '--port'"),
        (["--host", "nowhere.invalid"], 1, "cannot listen at nowhere.invalid, port 8000: "),
        (["--token", "", "--port", "0"], 1, "the token is empty"),
    ],
)
def test_wrong_serve_options_get_one_sentence(place, options, code, sentence):
    pytest.importorskip("uvicorn", reason="serving needs uvicorn")
    pytest.importorskip("fastapi", reason="serving needs fastapi")
    told = typed("serve", place / "things.index", *options)
    assert told.exit_code == code, told.output
    assert sentence in " ".join(told.output.split())
    assert "vectors at" not in told.output


def test_a_used_port_is_refused(place):
    pytest.importorskip("uvicorn", reason="serving needs uvicorn")
    pytest.importorskip("fastapi", reason="serving needs fastapi")
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        told = typed("serve", place / "things.index", "--port", port)
    assert told.exit_code == 1, told.output
    assert f"cannot listen at 127.0.0.1, port {port}: Address already in use; choose another --port" in told.output
    assert "vectors at" not in told.output


def test_help(place):
    shown = typed("serve", "--help")
    assert shown.exit_code == 0
    assert "/?token=TOKEN" in shown.output


def test_sync_delete_and_dry_run(place, monkeypatch):
    monkeypatch.chdir(place)
    shutil.copytree("photos", "moving")
    words = ("index", "model", "moving", "-o", "moving.index", "--device", "cpu")
    assert "would add 13:\n  blue/0.png" in typed(*words, "--dry-run").output
    assert not Path("moving.index").exists()
    assert typed(*words).exit_code == 0
    shutil.copy("moving/red/0.png", "moving/green/0.png")
    Path("moving/blue/3.png").unlink()
    planned = typed(*words, "--sync", "--dry-run")
    assert planned.output == (
        "would add 1:\n  red/broken.jpg\nwould replace 1:\n  green/0.png\nwould delete 1:\n  blue/3.png\n"
    )
    assert len(search.open("moving.index")) == 12
    assert "0 images added, 1 replaced, 1 deleted, 10 known already" in typed(*words, "--sync").output
    delete = ("index", "-o", "moving.index", "--delete")
    assert typed(*delete, "blue/*", "--dry-run").output.startswith("would delete 3:\n  blue/0.png\n")
    assert typed(*delete, "blue/*", "--delete", "red/0.png").output == "moving.index: 4 deleted; 7 in all\n"
    refused = typed(*delete, "green/00.png")
    assert refused.exit_code == 1
    assert "moving.index has no id 'green/00.png'; did you mean 'green/0.png'?" in refused.output
    both = typed("index", "model", "moving", *delete[1:], "red/1.png")
    assert both.exit_code == 2
    assert "--delete takes no MODEL" in both.output
    assert "MODEL and IMAGES are missing" in typed("index", "-o", "moving.index").output


def test_a_table_with_other_columns(place, monkeypatch):
    monkeypatch.chdir(place)
    Path("list.csv").write_text("file,species\nphotos/red/0.png,fox\nphotos/green/1.png,frog\n")
    refused = typed("index", "model", "list.csv", "-o", "list.index")
    assert refused.exit_code == 1
    assert "its columns are file, species: rename one, or give --columns path=file,label=species" in refused.output
    words = ("index", "model", "list.csv", "-o", "list.index", "--columns", "path=file,label=species")
    assert "2 images added" in typed(*words, "--device", "cpu").output
    assert search.open("list.index").counts() == {"fox": 1, "frog": 1}
