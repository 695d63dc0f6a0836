"""The server: answers, pages, batches, tokens and its OpenAPI description."""

import asyncio
import io
import json
import re

import numpy as np
import pytest
import torch
from PIL import Image

from search.asgi_client import client, fetch
from search.bad_uploads import random_image, saved
from tuplet import models, search
from tuplet.search.ingest import add_images
from tuplet.search.inputs import query_views
from tuplet.search.listing import list_images
from waiting import wait_for

pytest.importorskip("fastapi", reason="serving needs fastapi")
from tuplet.search.server import Limits, create_app
from tuplet.search.server.app import app_of
from tuplet.search.server.metrics import Metrics
from tuplet.search.server.service import Service


def test_image_search_equals_the_index(app, index, embedder):
    image = Image.fromarray(np.random.default_rng(4).integers(0, 256, (32, 48, 3), np.uint8))
    answer = fetch(app, "POST", "/api/search/image?k=5", content=saved(image, "PNG"))
    assert answer.status_code == 200
    expected = index.search(image, 5)[0]
    assert [(hit["id"], hit["metadata"]) for hit in answer.json()["hits"]] == [(h.id, h.metadata) for h in expected]
    assert [hit["score"] for hit in answer.json()["hits"]] == pytest.approx([h.score for h in expected], abs=1e-6)
    assert answer.json()["hits"][0]["id"] == "photos/4.png"
    assert re.fullmatch(r"embed;dur=[\d.]+, search;dur=[\d.]+", answer.headers["server-timing"])
    mirrored = fetch(app, "POST", "/api/search/image?k=5&mirror=true", content=saved(image, "PNG")).json()
    both = embedder.embed([image, image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)]).mean(0)
    assert [hit["id"] for hit in mirrored["hits"]] == [h.id for h in index.search(both, 5)[0]]


def test_mirrored_views_are_averaged_as_in_the_index(tmp_path):
    """For the cosine each view is scaled to unit length."""
    torch.manual_seed(0)
    index = search.create(tmp_path / "i", embedder=models.create("convnet", dim=8, normalize=False), metric="cosine")
    index.add(torch.randn(9, 8), range(9))
    random_image(seed=1).save(tmp_path / "photo.png")
    expected = index.search(query_views(index.embedder, [tmp_path / "photo.png"], mirror=True), 3)[0]
    content = (tmp_path / "photo.png").read_bytes()
    hits = fetch(create_app(index), "POST", "/api/search/image?k=3&mirror=true", content=content).json()["hits"]
    assert [(hit["id"], pytest.approx(hit["score"], abs=1e-6)) for hit in hits] == [(h.id, h.score) for h in expected]


def test_vectors_items_filters_and_duplicates(app, index):
    vector = index.vectors(["photos/3.png"])[0].tolist()
    found = fetch(app, "POST", "/api/search/vector?k=4", json={"vector": vector}).json()["hits"]
    assert found[0]["id"] == "photos/3.png"
    item = fetch(app, "GET", "/api/search/item", params={"id": "photos/3.png", "k": 3}).json()["hits"]
    assert [hit["id"] for hit in item] == [hit["id"] for hit in found[1:]]
    some = {"id": "photos/3.png", "k": 30, "label": ["ant", "großer Käfer"]}
    assert {hit["metadata"]["label"] for hit in fetch(app, "GET", "/api/search/item", params=some).json()["hits"]} == {
        "ant", "großer Käfer",
    }  # fmt: skip
    assert fetch(app, "GET", "/api/search/item", params={"id": "photos/3.png", "label": "x"}).json() == {"hits": []}
    both = {"id": "photos/3.png", "k": 30, "label": ["ant", "bee"], "where": json.dumps({"label": ["bee", "x"]})}
    assert {hit["metadata"]["label"] for hit in fetch(app, "GET", "/api/search/item", params=both).json()["hits"]} == {
        "bee"
    }
    one = {"id": "photos/3.png", "where": json.dumps({"number": 7})}
    assert [hit["id"] for hit in fetch(app, "GET", "/api/search/item", params=one).json()["hits"]] == ["photos/7.png"]
    apart = fetch(app, "POST", "/api/search/vector?k=30&distinct=0.9", json={"vector": vector}).json()["hits"]
    expected = index.search(np.array(vector, np.float32), 30, distinct=0.9)[0]
    assert [hit["id"] for hit in apart] == [hit.id for hit in expected]
    assert len(apart) < 30


def test_pages_thumbnails_labels_and_health(app):
    assert fetch(app, "GET", "/health").json() == {"status": "ok"}
    about = fetch(app, "GET", "/api/about").json()
    assert (about["vectors"], about["dim"], about["images"]) == (30, 8, True)
    labels = [{"label": label, "count": 10} for label in ("ant", "bee", "großer Käfer")]
    assert fetch(app, "GET", "/api/labels").json() == labels
    shown = fetch(app, "GET", "/api/thumbnail", params={"id": "photos/3.png"})
    assert shown.headers["content-type"] == "image/webp"
    assert Image.open(io.BytesIO(shown.content)).size == (48, 32)
    for name in ("photos/99.png", "../index.json", "/etc/passwd", ""):
        assert fetch(app, "GET", "/api/thumbnail", params={"id": name}).status_code == 404
    for path in ("/", "/page.css", "/page.js", "/api", "/api.css", "/api.js"):
        page = fetch(app, "GET", path)
        assert page.status_code == 200
        assert "script-src 'self'; style-src 'self';" in page.headers["content-security-policy"]
        assert "<script>" not in page.text
        assert "<style>" not in page.text
        # The page loads nothing from other hosts.
        assert not re.findall(r"""(?:src|href|url\(|fetch\(|import)\W{0,3}(?:https?:)?//(?!www\.w3\.org)""", page.text)
    nowhere = "there is no /nowhere here; see /api for all paths"
    assert fetch(app, "GET", "/nowhere").json() == {"detail": nowhere}
    assert len(fetch(app, "GET", "/" + 5000 * "x").json()["detail"]) < 150
    wrong = fetch(app, "GET", "/api/search/image")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
    assert wrong.json() == {"detail": "/api/search/image takes POST, not GET; see /api for all paths"}


def test_the_start_shows_one_item_of_each_class(app):
    hits = fetch(app, "GET", "/api/start?k=7").json()["hits"]
    labels = [hit["metadata"]["label"] for hit in hits]
    assert len({hit["id"] for hit in hits}) == 7
    assert set(labels[:3]) == set(labels[3:6]) == {"ant", "bee", "großer Käfer"}


def test_the_start_is_drawn_once_however_many_ask(index, monkeypatch):
    searched, search_index = [], type(index).search

    def count(self, queries, *rest, **options):
        searched.append(len(queries))
        return search_index(self, queries, *rest, **options)

    monkeypatch.setattr(type(index), "search", count)
    app = create_app(index)

    async def ask():
        async with client(app) as connection:
            return await asyncio.gather(*(connection.get(f"/api/start?k={5 + i % 4}") for i in range(20)))

    hits = [answer.json()["hits"] for answer in asyncio.run(ask())]
    assert [len(each) for each in hits] == [5, 6, 7, 8] * 5
    assert all(each == hits[3][: len(each)] for each in hits)
    assert searched == [1, 1, 1, 1]  # a search for each of three classes, and one for any item


def test_previews_show_what_a_search_would_read(app):
    picture = Image.new("I;16", (300, 150), 40_000)
    answer = fetch(app, "POST", "/api/preview", content=saved(picture, "TIFF"))
    assert answer.headers["content-type"] == "image/webp"
    assert Image.open(io.BytesIO(answer.content)).size == (256, 128)
    refused = fetch(app, "POST", "/api/preview", content=b"no image")
    assert refused.status_code == 415


def test_originals_are_shown_only_where_they_are_allowed(tmp_path, embedder):
    (tmp_path / "photos/ant").mkdir(parents=True)
    Image.new("RGB", (3000, 1000), "red").save(tmp_path / "photos/ant/1.png")
    Image.new("RGB", (30, 10), "blue").save(tmp_path / "photos/ant/2.png")
    index = search.create(tmp_path / "i", embedder=embedder)
    add_images(index, list_images(tmp_path / "photos"))
    (tmp_path / "secret.txt").write_text("not an image")
    index.add(np.zeros((1, 8), np.float32), ["bad"], [{"file": {"path": str(tmp_path / "secret.txt")}}])
    item, original = "/api/search/item?id=ant/2.png", "/api/original?id=ant/1.png"
    closed, opened = create_app(index), create_app(index, originals=True)
    assert fetch(closed, "GET", original).status_code == 403
    assert "file" not in fetch(closed, "GET", item).json()["hits"][0]["metadata"]
    answer = fetch(opened, "GET", original)
    assert Image.open(io.BytesIO(answer.content)).size == (1600, 533)
    assert fetch(opened, "GET", item).json()["hits"][0]["metadata"]["file"]["path"].endswith("photos/ant/1.png")
    (tmp_path / "photos/ant/2.png").unlink()
    for id in ("ant/2.png", "bad", "unknown"):
        refused = fetch(opened, "GET", f"/api/original?id={id}")
        assert refused.status_code == 404, id
        assert "not an image" not in refused.text


def test_head_requests(app):
    for path in ("/", "/health", "/api/about", "/api/thumbnail?id=photos/3.png"):
        whole, head = fetch(app, "GET", path), fetch(app, "HEAD", path)
        assert (head.status_code, head.headers["content-length"]) == (200, whole.headers["content-length"])
    assert fetch(app, "HEAD", "/api/search/vector").status_code == 405
    # A redirection would trust the request's Host header.
    assert fetch(app, "GET", "/api/about/").status_code == 404


def test_metrics_count(index):
    app = create_app(index)
    vector = [0.0] * 8
    for _ in range(3):
        fetch(app, "POST", "/api/search/vector", json={"vector": vector})
    fetch(app, "GET", "/secret%0Aname")
    text = fetch(app, "GET", "/metrics").text
    assert 'tuplet_requests_total{path="/api/search/vector",status="200"} 3' in text
    assert 'tuplet_requests_total{path="other",status="404"} 1' in text
    assert "tuplet_search_seconds_count 3" in text
    assert "tuplet_vectors 30" in text
    for line in text.splitlines():
        assert line.startswith("# ") or re.fullmatch(
            r'[a-z_]+(\{[a-z]+="[^"]*"(,[a-z]+="[^"]*")*\})? [-+\d.einf]+', line
        )


def test_concurrent_images_are_embedded_in_batches(index, embedder, monkeypatch):
    served = Service(index, Limits(batch=8, images=64, seconds=60))
    app = app_of(served, token=None, hosts=None)
    sizes, plain = [], embedder.embed

    def counted(images):
        sizes.append(len(images))
        wait_for(lambda: len(served._embeds) == 30 - sum(sizes))  # all others have been decoded
        return plain(images)

    monkeypatch.setattr(embedder, "embed", counted)
    images = [Image.fromarray(np.random.default_rng(i).integers(0, 256, (32, 48, 3), np.uint8)) for i in range(30)]

    async def crowd():
        async with client(app) as connection:
            posts = [connection.post("/api/search/image?k=1", content=saved(image, "PNG")) for image in images]
            return await asyncio.gather(*posts)

    answers = asyncio.run(crowd())
    # Each gets its own answer.
    assert [answer.json()["hits"][0]["id"] for answer in answers] == [f"photos/{i}.png" for i in range(30)]
    assert max(sizes) == 8
    assert len(sizes) <= 5


PATHS = ["/", "/page.js", "/api", "/api/openapi.json", "/health", "/metrics", "/api/about", "/api/labels",
         "/api/thumbnail?id=photos/3.png", "/api/search/item?id=photos/3.png", "/nowhere"]  # fmt: skip


def test_a_missing_or_wrong_token_is_refused(index):
    app = create_app(index, token="sésame öffne dich")
    right = "sésame öffne dich".encode()
    bad = [{}, {"authorization": "Bearer wrong"}, {"authorization": "Basic c2VzYW1l"}, {"authorization": "Bearer "},
           {"cookie": "tuplet_token=wrong"}, {"authorization": "sesame"}, {"cookie": "tuplet_token="}]  # fmt: skip
    for headers in bad:
        for path in PATHS:
            answer = fetch(app, "GET", path, headers=headers)
            assert answer.status_code == 401, path
            assert answer.headers["www-authenticate"] == "Bearer"
            assert "photos/" not in answer.text
        assert fetch(app, "POST", "/api/search/vector", json={"vector": [0.0] * 8}, headers=headers).status_code == 401
    for path in PATHS[:-1]:
        answer = fetch(app, "GET", path, headers={b"authorization": b"Bearer " + right})
        assert answer.status_code == 200, path
    assert fetch(app, "GET", "/?token=wrong").status_code == 401
    welcome = fetch(app, "GET", "/", params={"token": right.decode()})
    assert (welcome.status_code, welcome.headers["location"]) == (303, "/")
    cookie = welcome.headers["set-cookie"]
    assert "HttpOnly" in cookie
    assert right.decode() not in cookie
    assert fetch(app, "GET", "/api/about", headers={"cookie": cookie.partition(";")[0]}).status_code == 200


@pytest.mark.parametrize("token", ["voilà", "naïveté à", "\u2005wide\u2005", "x\u0105"])
def test_tokens_may_end_in_any_letter(index, token):
    """UTF-8 of à ends in the byte A0, which Latin-1 takes for a space."""
    app = create_app(index, token=token)
    for spaces in (b" ", b"  "):
        headers = {b"authorization": b"Bearer" + spaces + token.encode() + b" "}
        assert fetch(app, "GET", "/health", headers=headers).status_code == 200
    assert fetch(app, "GET", "/health", headers={b"authorization": b"Bearer " + token.encode()[:-1]}).status_code == 401


def test_other_host_names_are_refused(index):
    app = create_app(index, hosts=("localhost", "127.0.0.1"))
    assert fetch(app, "GET", "/api/about", headers={"host": "evil.example"}).status_code == 421
    assert fetch(app, "GET", "/api/about", headers={"host": "localhost:8000"}).status_code == 200
    for host in ("[", "[::1", "a:b:c", "//", ""):  # none of them is a part of an address
        assert fetch(app, "GET", "/nowhere", headers={"host": host}).status_code == 421
        assert fetch(create_app(index), "GET", "/nowhere", headers={"host": host}).status_code == 404


def test_answers_conform_to_the_openapi_description(app, soak):
    """Random valid and invalid requests: no 500, and every answer as described."""
    schemathesis = pytest.importorskip("schemathesis", reason="it draws the requests")
    from hypothesis import HealthCheck, given, settings
    from schemathesis.specs.openapi import checks

    promised = [
        schemathesis.checks.not_a_server_error,
        checks.status_code_conformance,
        checks.content_type_conformance,
        checks.response_schema_conformance,
    ]
    schema = schemathesis.openapi.from_asgi("/api/openapi.json", app)
    operations = [result.ok() for result in schema.get_all_operations()]
    assert len(operations) == 11
    calls = settings(max_examples=200 if soak else 8, deadline=None, suppress_health_check=list(HealthCheck))
    seen = set()
    for operation in operations:
        # A body alone may be any bytes, so only parameters can be wrong.
        modes = list(schemathesis.GenerationMode) if operation.query else [schemathesis.GenerationMode.POSITIVE]
        for mode in modes:

            @given(case=operation.as_strategy(generation_mode=mode))
            @calls
            def holds(case):
                answer = case.call()
                seen.add(answer.status_code)
                case.validate_response(answer, checks=promised)

            holds()
    assert {200, 404, 415, 422} <= seen


def test_labels_may_be_text_numbers_or_booleans(tmp_path):
    """The page sends labels as text: true, not True."""
    index = search.create(tmp_path / "i", dim=1)
    labels = [True, "true", 2011, "2011", 0.5, 1e-7, "NaN", None]
    index.add(torch.arange(8.0)[:, None], range(8), [{"label": label} for label in labels])
    app = create_app(index)

    def found(*labels, **options):
        params = {"id": "7", "label": labels, **options}
        return [int(hit["id"]) for hit in reversed(fetch(app, "GET", "/api/search/item", params=params).json()["hits"])]

    asked = {"true": [0, 1], "2011": [2, 3], "2011.0": [2], "0.5": [4], "1e-7": [5], "0.0000001": [5], "NaN": [6]}
    assert {label: found(label) for label in asked} == asked
    assert found("null") == found("[" * 5000) == found('"true"') == found("9" * 5000) == []
    assert found("true", "0.5") == [0, 1, 4]
    assert found("2011", "0.5", where='{"label": [2011, 1]}') == [2]


def test_metrics_are_not_rounded():
    metrics = Metrics()
    for seconds in (123_456.0, 0.25):
        metrics.request_seconds.observe(seconds)
    metrics.vectors.set(12_345_678)
    lines = metrics.text().decode().splitlines()
    values = dict(line.rsplit(" ", 1) for line in lines)
    assert float(values["tuplet_request_seconds_sum"]) == 123_456.25
    assert float(values["tuplet_vectors"]) == 12_345_678
