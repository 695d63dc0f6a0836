"""What the server refuses or gives up, with one sentence: wrong requests, bad uploads, crowds and slow ones."""

import asyncio
import re
import threading
import time

import pytest
import torch

from search.asking import client, fetch
from search.bad_uploads import odd_but_right, picture, saved, uploads
from tuplet import search

pytest.importorskip("fastapi", reason="serving needs fastapi")
from tuplet.search.server import Limits, create_app


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
    answer = fetch(app, "POST", "/api/search/photograph", content=uploads()["PNG of 60,000 × 60,000"])
    assert (answer.status_code, answer.json()["detail"]) == (
        413,
        "the photograph has too many pixels; send a smaller one",
    )
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
