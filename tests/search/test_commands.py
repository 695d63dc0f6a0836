"""`tuplet index`, `tuplet search` and the help of `tuplet serve`, as they are typed."""

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
from search.served import COLOURS, photograph
from tuplet import models, search

cli = pytest.importorskip("tuplet.cli")


def typed(*words):
    return CliRunner().invoke(cli._app(words[0]), [str(word) for word in words])


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A saved model, a folder of photographs of which one is broken, and an index of them."""
    place = tmp_path_factory.mktemp("commands")
    torch.manual_seed(0)
    models.create("convnet", dim=16).save(place / "model")
    for label in COLOURS:
        (place / "photos" / label).mkdir(parents=True)
        for number in range(4):
            (place / "photos" / label / f"{number}.png").write_bytes(saved(photograph(label, number), "PNG"))
    (place / "photos/red/broken.jpg").write_bytes(b"broken")
    made = typed("index", place / "model", place / "photos", "-o", place / "things.index", "--device", "cpu")
    assert made.exit_code == 0, made.output
    assert "12 photographs added" in made.output
    assert "broken.jpg cannot be read" in made.output
    return place


def test_indexing_again_adds_nothing(place):
    again = typed("index", place / "model", place / "photos", "-o", place / "things.index")
    assert again.exit_code == 0
    assert "0 photographs added, 12 were there already" in again.output


@pytest.mark.parametrize(("source", "sentence"), [("phots", "phots does not exist"), ("", "the data is empty")])
def test_a_mistyped_source_leaves_no_index_behind(place, monkeypatch, source, sentence):
    """One that is empty is more likely a variable that was not set than the current folder."""
    monkeypatch.chdir(place)
    refused = typed("index", "model", source, "-o", "none.index")
    assert refused.exit_code == 1
    assert sentence in refused.output
    assert not (place / "none.index").exists()


def test_a_model_of_vectors_is_refused_before_an_index_is_made(place):
    models.create("mlp", dim=4, features=8).save(place / "vectors")
    refused = typed("index", place / "vectors", place / "photos", "-o", place / "none.index")
    assert refused.exit_code == 1
    assert "takes feature vectors and no pictures" in refused.output
    assert not (place / "none.index").exists()


def test_another_metric_than_the_index_has_is_refused(place):
    words = ("index", place / "model", place / "photos", "-o", place / "things.index", "--metric")
    assert typed(*words, "dot").exit_code == 0
    refused = typed(*words, "euclidean")
    assert refused.exit_code == 1
    assert "things.index has the metric dot, not euclidean, and keeps it; leave --metric out" in refused.output


def test_another_model_is_refused_in_one_sentence(place):
    torch.manual_seed(1)
    models.create("convnet", dim=16).save(place / "other")
    refused = typed("index", place / "other", place / "photos", "-o", place / "things.index")
    assert refused.exit_code == 1
    assert "was made by the model" in refused.output
    assert "Traceback" not in refused.output


def test_approximate_where_asked(place):
    shutil.copytree(place / "things.index", place / "copy.index")
    made = typed("index", place / "model", place / "photos", "-o", place / "copy.index", "--approximate", "hnsw")
    assert made.exit_code == 0, made.output
    assert "recall@10 1.000 against exact search" in made.output
    assert search.open(place / "copy.index").approximate.kind == "hnsw"
    exact = typed("search", place / "copy.index", place / "photos/red/1.png", "--exact", "--json")
    assert json.loads(exact.output)[0]["hits"][0]["id"] == "red/1.png"


def test_an_approximate_index_of_a_collection_is_refused_before_it_is_made(place):
    made = typed("index", place / "model", place / "photos", "-o", place / "things.db", "--approximate", "hnsw")
    assert made.exit_code == 2
    assert "--approximate is for an index in a folder" in " ".join(made.output.replace("│", " ").split())
    assert not (place / "things.db").exists()


def test_searching(place):
    query = place / "photos/green/2.png"
    table = typed("search", place / "things.index", query, "--top", "3")
    assert table.exit_code == 0, table.output
    assert table.output.splitlines()[0] == str(query)
    assert table.output.splitlines()[2].split()[1:] == ["green", "green/2.png"]
    assert len(table.output.splitlines()) == 5
    data = json.loads(typed("search", place / "things.index", query, "--json", "--label", "blue").output)
    assert data[0]["photograph"] == str(query)
    assert {hit["metadata"]["label"] for hit in data[0]["hits"]} == {"blue"}
    assert len(data[0]["hits"]) == 4
    two = [query, place / "photos/red/0.png"]
    assert len(json.loads(typed("search", place / "things.index", *two, "--json").output)) == 2
    assert (
        len(json.loads(typed("search", place / "things.index", *two, "--json", "--together", "--mirror").output)) == 1
    )
    folder = json.loads(typed("search", place / "things.index", place / "photos/green", "--json").output)
    assert [Path(each["photograph"]).name for each in folder] == ["0.png", "1.png", "2.png", "3.png"]
    sheet = place / "sheet.jpg"
    assert typed("search", place / "things.index", *two, "--sheet", sheet, "--top", "4").exit_code == 0
    assert Image.open(sheet).size == (12 + 5 * 172, 12 + 2 * 212)


@pytest.mark.parametrize("ending", ["jpg", "webp"])
def test_a_sheet_that_is_too_wide_for_its_format(place, monkeypatch, ending):
    monkeypatch.setattr("tuplet.cli.search.contact_sheet", lambda *_: Image.new("RGB", (70_000, 2)))
    told = typed("search", place / "things.index", place / "photos/red/0.png", "--sheet", place / f"wide.{ending}")
    assert told.exit_code == 1
    assert re.search(
        rf"wide\.{ending} cannot hold 70,000 × 2 pixels \(.*\); choose a smaller --top, or .png", told.output
    )


@pytest.mark.parametrize(
    ("words", "code", "sentence"),
    [
        (["nowhere.index", "photo.jpg"], 1, "nowhere.index does not exist; make an index with tuplet index"),
        (["photos", "photo.jpg"], 1, "photos is no index: it has no index.json; make one with tuplet index"),
        (["things.index", "nowhere.jpg"], 1, "nowhere.jpg does not exist; give pictures, or folders of pictures"),
        (["things.index", "photos/red/broken.jpg"], 1, "cannot be read"),
        (["things.index", "photos/red/0.png", "--where", "{"], 2, "--where is no valid JSON"),
        (["things.index", "photos/red/0.png", "--where", "[1]"], 2, "it must be an object"),
        (["things.index", "photos/red/0.png", "--top", "0"], 2, "Invalid value for '--top'"),
        (["things.index", "photos/red/0.png", "--sheet", "s.foo"], 2, "--sheet is s.foo; its ending must be"),
        (["things.index", "photos/red/0.png", "--sheet", "s.psd"], 2, "--sheet is s.psd; its ending must be"),
        (["things.index", "photos/red/0.png", "--label", "gren"], 1, "no label 'gren'; did you mean 'green'?"),
        (["things.index", "photos/red/0.png", "--label", "x"], 1, "no label 'x'; it has 3, such as blue, green"),
        (["things.index", "photos/red/0.png", "--where", '{"year": 1}'], 0, "0.png: nothing in the index fits"),
        (
            ["things.index", "photos/red/0.png", "--where", '{"label": "red"}', "--label", "blue"],
            0,
            "0.png: nothing in the index fits",
        ),
    ],
)
def test_what_is_wrong_is_said_in_a_sentence(place, monkeypatch, words, code, sentence):
    monkeypatch.chdir(place)
    told = typed("search", *words)
    assert told.exit_code == code, told.output
    assert sentence in " ".join(told.output.replace("│", " ").split())
    assert "score" not in told.output  # no head of a table without rows


def test_labels_that_are_numbers_are_typed_as_text(place, monkeypatch):
    monkeypatch.chdir(place)
    index = search.create("numbers.index", embedder=models.load("model"))
    index.add(["photos/red/0.png", "photos/green/0.png"], metadata=[{"label": 3}, {"label": 4}])
    told = typed("search", "numbers.index", "photos/red/0.png", "--label", "4", "--json")
    assert [hit["id"] for hit in json.loads(told.output)[0]["hits"]] == ["photos/green/0.png"]


@pytest.mark.parametrize(
    ("options", "code", "sentence"),
    [
        (["--port", "99999"], 2, "Invalid value for '--port'"),
        (["--host", "nowhere.invalid"], 1, "cannot listen at nowhere.invalid, port 8000: "),
        (["--token", ""], 1, "the token is empty"),
    ],
)
def test_what_cannot_be_served_is_said_in_a_sentence(place, options, code, sentence):
    pytest.importorskip("uvicorn", reason="serving needs uvicorn")
    pytest.importorskip("fastapi", reason="serving needs fastapi")
    told = typed("serve", place / "things.index", *options)
    assert told.exit_code == code, told.output
    assert sentence in " ".join(told.output.split())
    assert "vectors at" not in told.output


def test_a_port_that_is_taken_is_named_before_anything_is_promised(place):
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
