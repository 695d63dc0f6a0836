"""The server: answers, pages, batches, tokens, what its description promises."""

import asyncio
import io
import json
import re
import time

import numpy as np
import pytest
import torch
from PIL import Image

from search.asking import client, fetch
from search.bad_uploads import picture, saved
from tuplet import models, search
from tuplet.search.looking import query_views

pytest.importorskip("fastapi", reason="serving needs fastapi")
from tuplet.search.server import Limits, create_app
from tuplet.search.server.metrics import Metrics


def test_a_photograph_finds_what_the_index_finds(app, index, embedder):
    image = Image.fromarray(np.random.default_rng(4).integers(0, 256, (32, 48, 3), np.uint8))
    answer = fetch(app, "POST", "/api/search/photograph?k=5", content=saved(image, "PNG"))
    assert answer.status_code == 200
    expected = index.search(image, 5)[0]
    assert [(hit["id"], hit["metadata"]) for hit in answer.json()["hits"]] == [(h.id, h.metadata) for h in expected]
    assert [hit["score"] for hit in answer.json()["hits"]] == pytest.approx([h.score for h in expected], abs=1e-6)
    assert answer.json()["hits"][0]["id"] == "photos/4.png"
    assert re.fullmatch(r"embed;dur=[\d.]+, search;dur=[\d.]+", answer.headers["server-timing"])
    mirrored = fetch(app, "POST", "/api/search/photograph?k=5&mirror=true", content=saved(image, "PNG")).json()
    both = embedder.embed([image, image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)]).mean(0)
    assert [hit["id"] for hit in mirrored["hits"]] == [h.id for h in index.search(both, 5)[0]]


def test_views_are_averaged_as_the_index_averages_them(tmp_path):
    """Under the cosine each view counts by its direction alone."""
    torch.manual_seed(0)
    index = search.create(tmp_path / "i", embedder=models.create("convnet", dim=8, normalize=False), metric="cosine")
    index.add(torch.randn(9, 8), range(9))
    picture(seed=1).save(tmp_path / "photo.png")
    expected = index.search(query_views(index, [tmp_path / "photo.png"], mirror=True), 3)[0]
    content = (tmp_path / "photo.png").read_bytes()
    hits = fetch(create_app(index), "POST", "/api/search/photograph?k=3&mirror=true", content=content).json()["hits"]
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


def test_pages_pictures_labels_and_health(app):
    assert fetch(app, "GET", "/health").json() == {"status": "ok"}
    about = fetch(app, "GET", "/api/about").json()
    assert (about["vectors"], about["dim"], about["photographs"]) == (30, 8, True)
    labels = [{"label": label, "count": 10} for label in ("ant", "bee", "großer Käfer")]
    assert fetch(app, "GET", "/api/labels").json() == labels
    shown = fetch(app, "GET", "/api/picture", params={"id": "photos/3.png"})
    assert shown.headers["content-type"] == "image/webp"
    assert Image.open(io.BytesIO(shown.content)).size == (48, 32)
    for name in ("photos/99.png", "../index.json", "/etc/passwd", ""):
        assert fetch(app, "GET", "/api/picture", params={"id": name}).status_code == 404
    for path in ("/", "/api"):
        page = fetch(app, "GET", path)
        assert page.status_code == 200
        assert "script-src 'sha256-" in page.headers["content-security-policy"]
        # Nothing is fetched from elsewhere.
        assert not re.findall(r"""(?:src|href|url\(|fetch\(|import)\W{0,3}(?:https?:)?//(?!www\.w3\.org)""", page.text)
    nowhere = "there is no /nowhere here; the interface is described at /api"
    assert fetch(app, "GET", "/nowhere").json() == {"detail": nowhere}
    wrong = fetch(app, "GET", "/api/search/photograph")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
    assert wrong.json() == {"detail": "/api/search/photograph takes POST, not GET; the interface is described at /api"}


def test_heads_of_answers(app):
    for path in ("/", "/health", "/api/about", "/api/picture?id=photos/3.png"):
        whole, head = fetch(app, "GET", path), fetch(app, "HEAD", path)
        assert (head.status_code, head.headers["content-length"]) == (200, whole.headers["content-length"])
    assert fetch(app, "HEAD", "/api/search/vector").status_code == 405
    # A redirection would go to whatever name the request gave the server.
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


def test_concurrent_photographs_are_embedded_together(index, embedder, monkeypatch):
    app = create_app(index, Limits(batch=8, photographs=64))
    sizes, plain = [], embedder.embed

    def counted(images):
        sizes.append(len(images))
        time.sleep(0.05)
        return plain(images)

    monkeypatch.setattr(embedder, "embed", counted)
    images = [Image.fromarray(np.random.default_rng(i).integers(0, 256, (32, 48, 3), np.uint8)) for i in range(30)]

    async def crowd():
        async with client(app) as connection:
            posts = [connection.post("/api/search/photograph?k=1", content=saved(image, "PNG")) for image in images]
            return await asyncio.gather(*posts)

    answers = asyncio.run(crowd())
    # Each gets its own answer.
    assert [answer.json()["hits"][0]["id"] for answer in answers] == [f"photos/{i}.png" for i in range(30)]
    assert max(sizes) == 8
    assert len(sizes) < 15


PATHS = ["/", "/api", "/api/openapi.json", "/health", "/metrics", "/api/about", "/api/labels",
         "/api/picture?id=photos/3.png", "/api/search/item?id=photos/3.png", "/nowhere"]  # fmt: skip


def test_a_token_that_is_absent_or_wrong_opens_nothing(index):
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


def test_another_name_for_this_machine_is_refused(index):
    app = create_app(index, hosts=("localhost", "127.0.0.1"))
    assert fetch(app, "GET", "/api/about", headers={"host": "evil.example"}).status_code == 421
    assert fetch(app, "GET", "/api/about", headers={"host": "localhost:8000"}).status_code == 200


def test_what_the_description_promises(app, soak):
    """Requests drawn from the OpenAPI description, well-formed and not: no 500, and every answer as described."""
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
    assert len(operations) == 8
    calls = settings(max_examples=200 if soak else 8, deadline=None, suppress_health_check=list(HealthCheck))
    seen = set()
    for operation in operations:
        modes = list(schemathesis.GenerationMode) if operation.query or operation.body else [
            schemathesis.GenerationMode.POSITIVE
        ]  # fmt: skip
        for mode in modes:

            @given(case=operation.as_strategy(generation_mode=mode))
            @calls
            def holds(case):
                answer = case.call()
                seen.add(answer.status_code)
                case.validate_response(answer, checks=promised)

            holds()
    assert {200, 404, 415, 422} <= seen


def test_a_label_may_be_text_or_a_number_or_a_boolean(tmp_path):
    """The page sends a label as it shows it: true, and not True."""
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
        metrics.observe("tuplet_request_seconds", seconds)
    lines = metrics.text({"tuplet_vectors": (12_345_678, "Vectors in the index.")}).splitlines()
    assert "tuplet_request_seconds_sum 123456.25" in lines
    assert lines[-1] == "tuplet_vectors 12345678"
