"""The server while its index changes or is replaced."""

import asyncio
import json
import shutil
import threading

import pytest
import torch

from search.asgi_client import fetch
from search.bad_uploads import random_image, saved
from tuplet import models, search
from tuplet.search import index as folder_index

pytest.importorskip("fastapi", reason="serving needs fastapi")
from tuplet.search.server import Limits, create_app, service
from tuplet.search.server.app import app_of


def test_additions_are_found(tmp_path, monkeypatch):
    monkeypatch.setattr(service, "STALE_SECONDS", 0.0)
    writer = search.create(tmp_path / "i", dim=2)
    writer.add(torch.eye(2), ["a", "b"], [{"label": "x"}] * 2)
    app = create_app(search.open(tmp_path / "i"))
    assert fetch(app, "GET", "/api/labels").json() == [{"label": "x", "count": 2}]
    writer.add(torch.tensor([[3.0, 3.0]]), ["c"], [{"label": "y"}])
    hits = fetch(app, "POST", "/api/search/vector?k=1", json={"vector": [3.0, 3.0]}).json()["hits"]
    assert hits[0]["id"] == "c"
    assert {entry["label"] for entry in fetch(app, "GET", "/api/labels").json()} == {"x", "y"}


def test_every_route_shows_the_latest_state(tmp_path, monkeypatch):
    monkeypatch.setattr(service, "STALE_SECONDS", 0.0)
    writer = search.create(tmp_path / "i", dim=2)
    writer.add(torch.eye(2), ["a", "b"], [{"label": "x"}, {"label": "y"}], thumbnails=[b"1", b"2"])
    app = create_app(search.open(tmp_path / "i"))
    assert len(fetch(app, "GET", "/api/labels").json()) == 2
    writer.delete("a")
    assert fetch(app, "GET", "/api/labels").json() == [{"label": "y", "count": 1}]
    writer.delete("b")
    for path in ("/api/thumbnail?id=b", "/api/search/item?id=b"):
        assert fetch(app, "GET", path).status_code == 404
    writer.add(torch.eye(2), ["c", "d"])
    assert fetch(app, "GET", "/api/about").json()["vectors"] == 2
    writer.delete("c")
    assert "tuplet_vectors 1.0\n" in fetch(app, "GET", "/metrics").text


def serving_one_of_two(folder, dims=(8, 8)):
    """Serve one of two indexes of the same images, made by two models; return the app and a query for item 3."""
    images = [random_image(seed=seed) for seed in range(5)]
    for seed, dim in enumerate(dims):
        torch.manual_seed(seed)
        search.create(folder / f"{seed}", embedder=models.create("convnet", dim=dim)).add(images, range(5))
    (folder / "0").rename(folder / "i")
    ask = {"method": "POST", "path": "/api/search/image?k=1", "content": saved(images[3], "PNG")}
    return create_app(search.open(folder / "i")), ask


def test_a_replaced_index_brings_its_own_model(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(service, "STALE_SECONDS", 0.0)
    app, ask = serving_one_of_two(tmp_path)
    assert fetch(app, **ask).json()["hits"][0]["score"] == pytest.approx(1, abs=1e-5)
    shutil.rmtree(tmp_path / "i")
    for method, path in (("POST", ask["path"]), ("GET", "/api/labels"), ("GET", "/api/about")):
        gone = fetch(app, method, path, content=ask["content"])
        assert (gone.status_code, gone.headers["retry-after"]) == (503, "1")
        assert gone.json()["detail"] == "the index cannot be read now, see the server's log; try again in a second"
        assert f"tuplet: {tmp_path}/i does not exist" in capsys.readouterr().err
    (tmp_path / "1").rename(tmp_path / "i")
    assert fetch(app, **ask).json()["hits"][0] == {"id": "3", "score": pytest.approx(1, abs=1e-5), "metadata": {}}


def test_a_search_while_the_model_of_a_replaced_index_is_loaded(tmp_path, monkeypatch):
    _, ask = serving_one_of_two(tmp_path, dims=(8, 16))
    served = service.Service(search.open(tmp_path / "i"), Limits())
    app = app_of(served, token=None, hosts=None)
    shutil.rmtree(tmp_path / "i")
    (tmp_path / "1").rename(tmp_path / "i")
    load, loading, may_load = folder_index.load, threading.Event(), threading.Event()

    def slowly(folder):
        loading.set()
        may_load.wait(20)
        return load(folder)

    monkeypatch.setattr(folder_index, "load", slowly)
    monkeypatch.setattr(service, "STALE_SECONDS", 1e9)  # no other refresh than this one
    served._refreshed -= 2e9
    refreshing = threading.Thread(target=served._refresh)
    refreshing.start()
    loading.wait(20)
    refused = fetch(app, **ask)
    may_load.set()
    refreshing.join()
    assert refused.status_code == 503
    assert refused.json()["detail"] == "another index took the place of this one; try again in a second"
    assert fetch(app, **ask).json()["hits"][0]["score"] == pytest.approx(1, abs=1e-5)


def test_the_model_of_a_replaced_index_goes_to_the_same_device(tmp_path):
    serving_one_of_two(tmp_path)
    index = search.open(tmp_path / "i")
    index.embedder.to("meta")
    shutil.rmtree(tmp_path / "i")
    (tmp_path / "1").rename(tmp_path / "i")
    assert index.refresh()
    assert index.embedder.device.type == "meta"


def test_labels_are_counted_again_after_a_change(tmp_path, monkeypatch):
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


def test_a_replaced_index_may_have_another_dimension(tmp_path, monkeypatch):
    """Vector searches use the replaced index with its own dimension."""
    monkeypatch.setattr(service, "STALE_SECONDS", 0.0)
    for dim in (2, 3000):
        search.create(tmp_path / f"{dim}", dim=dim).add(torch.ones(1, dim), [dim])
    (tmp_path / "2").rename(tmp_path / "i")
    app = create_app(search.open(tmp_path / "i"))
    assert fetch(app, "POST", "/api/search/vector", json={"vector": [0.0] * 2}).status_code == 200
    shutil.rmtree(tmp_path / "i")
    (tmp_path / "3000").rename(tmp_path / "i")
    answer = fetch(app, "POST", "/api/search/vector", json={"vector": [1 / 3] * 3000 + [0.25]})
    assert answer.json()["detail"] == "the vector has 3001 numbers; this index takes 3000"
    found = fetch(app, "POST", "/api/search/vector", content=json.dumps({"vector": [1 / 3] * 3000}, indent=20))
    assert found.json()["hits"][0]["id"] == "3000"


@pytest.mark.parametrize("dim", [2, 3])
@pytest.mark.parametrize("path", ["/api/search/vector", "/api/search/item?id=a"])
def test_replacing_the_index_during_a_request_is_refused(tmp_path, monkeypatch, path, dim):
    for name, width in (("i", 2), ("new", dim)):
        search.create(tmp_path / name, dim=width).add(torch.eye(width), list("abc"[:width]))
    index = search.open(tmp_path / "i")
    app = create_app(index)
    find = index.search

    def replaced(*arguments, **options):
        shutil.rmtree(tmp_path / "i")
        (tmp_path / "new").rename(tmp_path / "i")
        index.refresh()
        return find(*arguments, **options)

    monkeypatch.setattr(index, "search", replaced)
    method = {"method": "POST", "json": {"vector": [0.0, 1.0]}} if path.endswith("vector") else {"method": "GET"}
    answer = fetch(app, path=path, **method)
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert answer.json()["detail"] == "another index took the place of this one; try again in a second"


def test_an_index_without_its_model_is_refused(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(service, "STALE_SECONDS", 0.0)
    app, ask = serving_one_of_two(tmp_path)
    shutil.rmtree(tmp_path / "i")
    (tmp_path / "1" / "model").rename(tmp_path / "model")  # copied last
    (tmp_path / "1").rename(tmp_path / "i")
    assert [fetch(app, **ask).status_code for _ in range(3)] == [503] * 3
    assert "model" in capsys.readouterr().err
    (tmp_path / "model").rename(tmp_path / "i" / "model")
    hits = fetch(app, **ask).json()["hits"]
    assert hits == [{"id": "3", "score": pytest.approx(1, abs=1e-5), "metadata": {}}]


@pytest.mark.parametrize("name", ["vectors.f32", "items.jsonl"])
def test_a_damaged_index_is_refused_until_it_is_restored(tmp_path, monkeypatch, capsys, name):
    monkeypatch.setattr(service, "STALE_SECONDS", 0.0)
    search.create(tmp_path / "i", dim=2).add(torch.eye(2), ["a", "b"], [{"label": "x"}] * 2)
    path = tmp_path / "i" / name
    good = path.read_bytes()
    path.write_bytes(good[:-2] + bytes([good[-2] ^ 1]) + good[-1:])
    app = create_app(search.open(tmp_path / "i"))
    asks = [{"method": "POST", "path": "/api/search/vector", "json": {"vector": [0.0, 1.0]}},
            {"method": "GET", "path": "/api/search/item?id=a"}, {"method": "GET", "path": "/api/start"}]  # fmt: skip
    for ask in asks:
        answer = fetch(app, **ask)
        assert (answer.status_code, answer.headers["retry-after"]) == (503, "1"), ask
        assert answer.json()["detail"] == "the index cannot be read now, see the server's log; try again in a second"
        assert f"{name} is damaged: its checksum does not fit" in capsys.readouterr().err
    path.write_bytes(good)
    assert [fetch(app, **ask).status_code for ask in asks] == [200] * 3


def test_labels_of_an_index_that_does_not_report_changes(tmp_path, monkeypatch):
    """Milvus is such an index: `refresh` always returns False."""
    index = search.create(tmp_path / "i", dim=2)
    index.add(torch.eye(2), ["a", "b"], [{"label": "x"}] * 2)
    monkeypatch.setattr(index, "refresh", lambda: False)
    app = create_app(index)
    assert fetch(app, "GET", "/api/labels").json() == [{"label": "x", "count": 2}]
    index.add(torch.ones(1, 2), ["c"], [{"label": "y"}])
    hits = fetch(app, "POST", "/api/search/vector?label=y", json={"vector": [0.0, 0.0]}).json()["hits"]
    assert [hit["id"] for hit in hits] == ["c"]
    monkeypatch.setattr(service, "RECOUNT_SECONDS", -1.0)
    assert {entry["label"] for entry in fetch(app, "GET", "/api/labels").json()} == {"x", "y"}


def test_thumbnails_are_revalidated_by_browsers(tmp_path, monkeypatch):
    monkeypatch.setattr(service, "STALE_SECONDS", 0.0)
    index = search.create(tmp_path / "i", dim=2)
    index.add(torch.eye(2), ["a", "b"], thumbnails=[b"old", b"other"])
    app = create_app(search.open(tmp_path / "i"))
    shown = fetch(app, "GET", "/api/thumbnail?id=a")
    assert (shown.content, shown.headers["cache-control"]) == (b"old", "private, no-cache")
    kept = {"if-none-match": shown.headers["etag"]}
    same = fetch(app, "GET", "/api/thumbnail?id=a", headers=kept)
    assert (same.status_code, same.content, same.headers["etag"]) == (304, b"", shown.headers["etag"])
    assert fetch(app, "GET", "/api/thumbnail?id=b", headers=kept).content == b"other"
    index.delete("a")
    assert fetch(app, "GET", "/api/thumbnail?id=a", headers=kept).status_code == 404
    index.add(torch.eye(2)[:1], ["a"], thumbnails=[b"new"])
    assert fetch(app, "GET", "/api/thumbnail?id=a", headers=kept).content == b"new"
