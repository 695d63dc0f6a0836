"""The server as a process: it stops cleanly, stays on this machine, and answers many at once."""

import signal
import socket
import threading
import time
from urllib.parse import urlsplit

import httpx
import pytest

from search.bad_uploads import picture, saved
from search.served import COLOURS, server
from tuplet import search

pytest.importorskip("uvicorn", reason="serving needs uvicorn")
pytest.importorskip("fastapi", reason="serving needs fastapi")


def begun(address, body):
    """A connection on which half of a photograph has been sent."""
    parts = urlsplit(address)
    connection = socket.create_connection((parts.hostname, parts.port))
    head = f"POST /api/search/photograph?k=3 HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body[: len(body) // 2])
    return connection


def test_it_stops_cleanly_with_requests_in_flight(folder):
    body = saved(picture(), "PNG")
    with server(folder) as (address, process):
        connections = [begun(address, body) for _ in range(8)]
        time.sleep(0.5)
        process.send_signal(signal.SIGTERM)
        time.sleep(0.5)
        for connection in connections:
            connection.sendall(body[len(body) // 2 :])
        answers = [connection.makefile("rb").read() for connection in connections]
        assert process.wait(20) == 0
    assert all(answer.startswith(b"HTTP/1.1 200") and b'"hits"' in answer for answer in answers)
    with pytest.raises(httpx.ConnectError):
        httpx.get(f"{address}/health")


def test_a_refusal_reaches_who_is_still_sending(address):
    for _ in range(5):
        answer = httpx.post(f"{address}/api/search/photograph", content=bytes(14 * 2**20), timeout=20)
        assert answer.status_code == 413


def test_only_this_machine_reaches_it(address):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            own = probe.getsockname()[0]
        except OSError:
            pytest.skip("this machine has no address but its own")
    with pytest.raises(OSError):  # noqa: PT011
        socket.create_connection((own, urlsplit(address).port), timeout=2)


def test_many_clients_at_once(address, folder):
    index = search.open(folder)
    names = [f"{label}/{number}.png" for label in COLOURS for number in range(10)]
    vectors = index.vectors(names).tolist()
    wrong = []

    def ask(start):
        with httpx.Client(base_url=address, timeout=30) as client:
            for i in range(start, start + 15):
                answer = client.post("/api/search/vector?k=1", json={"vector": vectors[i % 30]})
                if answer.status_code != 200 or answer.json()["hits"][0]["id"] != names[i % 30]:
                    wrong.append(answer.text)

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
