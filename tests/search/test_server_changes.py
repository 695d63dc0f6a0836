"""The server while its index changes: what is added, deleted, or put in its place."""

import asyncio
import shutil

import pytest
import torch

from search.asking import fetch
from search.bad_uploads import picture, saved
from tuplet import models, search

pytest.importorskip("fastapi", reason="serving needs fastapi")
from tuplet.search.server import Limits, create_app, service


def test_additions_are_seen_within_a_second_or_so(tmp_path, monkeypatch):
    monkeypatch.setattr(service, "STALE_SECONDS", 0.0)
    writer = search.create(tmp_path / "i", dim=2)
    writer.add(torch.eye(2), ["a", "b"], [{"label": "x"}] * 2)
    app = create_app(search.open(tmp_path / "i"))
    assert fetch(app, "GET", "/api/labels").json() == [{"label": "x", "count": 2}]
    writer.add(torch.tensor([[3.0, 3.0]]), ["c"], [{"label": "y"}])
    hits = fetch(app, "POST", "/api/search/vector?k=1", json={"vector": [3.0, 3.0]}).json()["hits"]
    assert hits[0]["id"] == "c"
    assert {entry["label"] for entry in fetch(app, "GET", "/api/labels").json()} == {"x", "y"}


def test_without_a_search_nothing_is_older_either(tmp_path, monkeypatch):
    monkeypatch.setattr(service, "STALE_SECONDS", 0.0)
    writer = search.create(tmp_path / "i", dim=2)
    writer.add(torch.eye(2), ["a", "b"], [{"label": "x"}, {"label": "y"}], pictures=[b"1", b"2"])
    app = create_app(search.open(tmp_path / "i"))
    assert len(fetch(app, "GET", "/api/labels").json()) == 2
    writer.delete("a")
    assert fetch(app, "GET", "/api/labels").json() == [{"label": "y", "count": 1}]
    writer.delete("b")
    for path in ("/api/picture?id=b", "/api/search/item?id=b"):
        assert fetch(app, "GET", path).status_code == 404
    writer.add(torch.eye(2), ["c", "d"])
    assert fetch(app, "GET", "/api/about").json()["vectors"] == 2
    writer.delete("c")
    assert "tuplet_vectors 1\n" in fetch(app, "GET", "/metrics").text


def test_another_index_in_its_place_brings_its_own_model(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(service, "STALE_SECONDS", 0.0)
    images = [picture(seed=seed) for seed in range(5)]
    for seed in range(2):
        torch.manual_seed(seed)
        search.create(tmp_path / f"{seed}", embedder=models.create("convnet", dim=8)).add(images, range(5))
    (tmp_path / "0").rename(tmp_path / "i")
    app = create_app(search.open(tmp_path / "i"))
    ask = {"method": "POST", "path": "/api/search/photograph?k=1", "content": saved(images[3], "PNG")}
    assert fetch(app, **ask).json()["hits"][0]["score"] == pytest.approx(1, abs=1e-5)
    shutil.rmtree(tmp_path / "i")
    for method, path in (("POST", ask["path"]), ("GET", "/api/labels"), ("GET", "/api/about")):
        gone = fetch(app, method, path, content=ask["content"])
        assert (gone.status_code, gone.headers["retry-after"]) == (503, "1")
        assert gone.json()["detail"] == "the index cannot be read now, as the server's log says; try again in a second"
        assert f"tuplet: {tmp_path}/i does not exist" in capsys.readouterr().err
    (tmp_path / "1").rename(tmp_path / "i")
    assert fetch(app, **ask).json()["hits"][0] == {"id": "3", "score": pytest.approx(1, abs=1e-5), "metadata": {}}


def test_labels_counted_while_the_index_changed_are_counted_again(tmp_path, monkeypatch):
    monkeypatch.setattr(service, "STALE_SECONDS", 0.0)
    writer = search.create(tmp_path / "i", dim=2)
    writer.add(torch.eye(2), ["a", "b"], [{"label": "x"}] * 2)
    index = search.open(tmp_path / "i")
    served = service.Service(index, Limits())
    count = index.counts

    def slowly():
        found = count()
        if len(index) == 2:
            writer.delete("a")
            served._refresh()
        return found

    monkeypatch.setattr(index, "counts", slowly)
    assert [asyncio.run(served.labels()), asyncio.run(served.labels())] == [{"x": 2}, {"x": 1}]
