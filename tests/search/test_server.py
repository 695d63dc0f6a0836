"""The server: answers, limits, batches, bad uploads, tokens, what its description promises."""

import asyncio
import io
import json
import re
import shutil
import threading
import time

import httpx
import numpy as np
import pytest
import torch
from PIL import Image

from search.bad_uploads import odd_but_right, picture, saved, uploads
from tuplet import models, search
from tuplet.search.looking import query_views

pytest.importorskip("fastapi", reason="serving needs fastapi")
from tuplet.search.server import Limits, create_app

LABELS = ["ant", "bee", "großer Käfer"]


def client(app, **options):
    transport = httpx.ASGITransport(app, raise_app_exceptions=False)
    return httpx.AsyncClient(transport=transport, base_url="http://localhost", **options)


def fetch(app, method, path, **options):
    async def once():
        async with client(app) as connection:
            return await connection.request(method, path, **options)

    return asyncio.run(once())


@pytest.fixture(scope="module")
def embedder():
    torch.manual_seed(0)
    return models.create("convnet", dim=8)


@pytest.fixture(scope="module")
def index(tmp_path_factory, embedder):
    folder = tmp_path_factory.mktemp("served")
    index = search.create(folder / "i", embedder=embedder)
    images = [Image.fromarray(np.random.default_rng(i).integers(0, 256, (32, 48, 3), np.uint8)) for i in range(30)]
    metadata = [{"label": LABELS[i % 3], "number": i} for i in range(30)]
    index.add(images, [f"photos/{i}.png" for i in range(30)], metadata)
    return index


@pytest.fixture(scope="module")
def app(index):
    return create_app(index)


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
    assert fetch(app, "GET", "/api/labels").json() == [{"label": label, "count": 10} for label in sorted(LABELS)]
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


@pytest.mark.parametrize(
    ("path", "options", "status", "sentence"),
    [
        ("/api/search/vector", {"json": {"vector": [1.0]}}, 422, "the vector has 1 numbers; this index takes 8"),
        ("/api/search/vector", {"content": b'{"vector": [NaN,0,0,0,0,0,0,0]}'}, 422, "not finite"),
        ("/api/search/vector", {"json": {"vector": [1e300] * 8}}, 422, "not finite"),
        ("/api/search/vector", {"content": b"{"}, 422, "the body must be"),
        ("/api/search/vector", {"json": {"vector": "x"}}, 422, "valid array"),
        ("/api/search/vector?k=0", {"json": {"vector": [0.0] * 8}}, 422, "k: Input should be greater"),
        ("/api/search/vector?k=9999", {"json": {"vector": [0.0] * 8}}, 422, "k: Input should be less"),
        ("/api/search/vector?where=[1]", {"json": {"vector": [0.0] * 8}}, 422, "where must be a JSON object"),
        ('/api/search/vector?where={"a":{"b":1}}', {"json": {"vector": [0.0] * 8}}, 422, "where must be a JSON object"),
        ('/api/search/vector?where={"a":[NaN]}', {"json": {"vector": [0.0] * 8}}, 422, "where must be a JSON object"),
        (f"/api/search/vector?where={'[' * 5000}", {"json": {"vector": [0.0] * 8}}, 422, "where must be a JSON object"),
        ("/api/search/vector?distinct=nan", {"json": {"vector": [0.0] * 8}}, 422, "distinct"),
        ("/api/search/vector", {"content": bytes(11 * 2**20)}, 413, "over 66,048 bytes"),
        ("/api/search/vector", {"content": b"[" * 60_000}, 422, "the body must be"),
        ("/api/search/vector", {"json": {"vector": [0.1] * 4096}}, 422, "has 4096 numbers; this index takes 8"),
        ("/api/search/photograph", {"content": bytes(11 * 2**20)}, 413, "over 10,485,760 bytes"),
        (
            "/api/search/photograph",
            {"files": {"photo": b"1"}},
            415,
            "the body must be the photograph itself, and no form",
        ),
    ],
)
def test_wrong_requests_get_a_sentence(app, path, options, status, sentence):
    answer = fetch(app, "POST", path, **options)
    assert answer.status_code == status
    assert sentence in answer.json()["detail"]
    assert "\n" not in answer.json()["detail"]


def test_an_item_that_is_not_there(app):
    answer = fetch(app, "GET", "/api/search/item", params={"id": "nowhere"})
    assert (answer.status_code, "holds no 'nowhere'" in answer.json()["detail"]) == (404, True)


def test_an_index_of_vectors_takes_no_photographs(tmp_path):
    index = search.create(tmp_path / "i", dim=2)
    index.add(torch.eye(2), ["a", "b"])
    app = create_app(index)
    answer = fetch(app, "POST", "/api/search/photograph", content=saved(picture(), "PNG"))
    assert (answer.status_code, "plain vectors" in answer.json()["detail"]) == (409, True)
    assert fetch(app, "GET", "/api/about").json()["photographs"] is False
    assert fetch(app, "GET", "/api/labels").json() == []


def test_bad_uploads_are_refused_and_change_nothing(index):
    app = create_app(index)
    good = saved(picture(), "PNG")
    bad = uploads()
    assert len(bad) >= 60

    async def everything():
        async with client(app) as connection:
            before = (await connection.post("/api/search/photograph", content=good)).json()
            for name, content in bad.items():
                answer = await connection.post("/api/search/photograph", content=content)
                assert answer.status_code in (413, 415), name
                detail = answer.json()["detail"]
                assert len(detail) < 300, name
                assert not re.search(
                    r"\n|0x|object at|Traceback|File \"|\.py|/home|/tmp|/root|/etc|site-packages", detail
                ), (
                    name,
                    detail,
                )
            for name, content in odd_but_right().items():
                answer = await connection.post("/api/search/photograph", content=content)
                assert answer.status_code == 200, (name, answer.text)
                assert answer.json()["hits"], name
            assert (await connection.post("/api/search/photograph", content=good)).json() == before

    asyncio.run(everything())


def test_limits_on_pixels_and_bytes(index):
    app = create_app(index, Limits(pixels=5_000, bytes=100_000))
    answer = fetch(app, "POST", "/api/search/photograph", content=saved(picture((96, 64)), "PNG"))
    assert answer.status_code == 413
    assert "96×64 pixels, over 5,000" in answer.json()["detail"]
    answer = fetch(app, "POST", "/api/search/photograph", content=bytes(100_001))
    assert (answer.status_code, answer.json()["detail"]) == (413, "the body has over 100,000 bytes; send a smaller one")
    assert fetch(app, "POST", "/api/search/photograph", content=saved(picture((40, 40)), "PNG")).status_code == 200


class Slow:
    """An index whose searches wait until they are let go."""

    def __init__(self, index):
        self.index, self.go = index, threading.Event()

    def __getattr__(self, name):
        return getattr(self.index, name)

    def __len__(self):
        return len(self.index)

    def search(self, *arguments, **options):
        assert self.go.wait(10)
        return self.index.search(*arguments, **options)


def test_a_full_queue_says_when_to_come_back(index):
    slow = Slow(index)
    app = create_app(slow, Limits(searches=3, seconds=5))

    async def crowd():
        async with client(app) as connection:
            asks = [
                asyncio.create_task(connection.post("/api/search/vector", json={"vector": [float(i)] * 8}))
                for i in range(12)
            ]
            await asyncio.sleep(0.3)
            slow.go.set()
            return await asyncio.gather(*asks)

    answers = asyncio.run(crowd())
    refused = [answer for answer in answers if answer.status_code == 503]
    assert {answer.status_code for answer in answers} == {200, 503}
    assert len(refused) in (8, 9)  # three wait, and one is perhaps being answered
    assert refused[0].headers["retry-after"] == "1"
    assert refused[0].json()["detail"] == "the server is busy: 3 searches are waiting; try again in a second"


def test_an_answer_that_takes_too_long_is_given_up(index):
    slow = Slow(index)
    app = create_app(slow, Limits(seconds=0.2))
    begun = time.monotonic()
    answer = fetch(app, "POST", "/api/search/vector", json={"vector": [0.0] * 8})
    slow.go.set()
    assert time.monotonic() - begun < 3
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    assert "no answer within 0.2 s" in answer.json()["detail"]
    assert fetch(app, "POST", "/api/search/vector", json={"vector": [0.0] * 8}).status_code == 200


def test_a_body_that_comes_too_slowly_is_given_up(index):
    app = create_app(index, Limits(seconds=0.2))

    async def drip():
        for _ in range(10):
            yield b"x"
            await asyncio.sleep(0.2)

    answer = fetch(app, "POST", "/api/search/photograph", content=drip())
    assert answer.status_code == 408
    assert "did not arrive within 0.2 s" in answer.json()["detail"]


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


def test_additions_are_seen_within_a_second_or_so(tmp_path, monkeypatch):
    from tuplet.search.server import service

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
    from tuplet.search.server import service

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
    from tuplet.search.server import service

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
    from tuplet.search.server import service

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


def test_a_search_that_fails_fails_alone(index):
    class Failing(Slow):
        def search(self, queries, k, **options):
            found = super().search(queries, k, **options)
            if k == 3:
                raise RuntimeError("no such luck")
            return found

    failing = Failing(index)
    app = create_app(failing)

    async def crowd():
        async with client(app) as connection:
            asks = [
                asyncio.create_task(connection.post(f"/api/search/vector?k={k}", json={"vector": [0.0] * 8}))
                for k in (1, 2, 3, 4)
            ]
            await asyncio.sleep(0.3)
            failing.go.set()
            return await asyncio.gather(*asks)

    assert [answer.status_code for answer in asyncio.run(crowd())] == [200, 200, 500, 200]


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
