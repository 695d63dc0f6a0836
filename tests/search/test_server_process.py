"""The server process: clean stop, local access only, many clients."""

import signal
import socket
import subprocess
import sys
import threading
from urllib.parse import urlsplit

import httpx
import pytest

from search.bad_uploads import random_image, saved
from search.server_process import COLOURS, SCRIPT, server
from soak import mixed_requests
from tuplet import search
from waiting import wait_for

pytest.importorskip("uvicorn", reason="serving needs uvicorn")
pytest.importorskip("fastapi", reason="serving needs fastapi")


def listens(address):
    """Return whether a server takes connections at an address."""
    parts = urlsplit(address)
    with socket.socket() as client:
        return client.connect_ex((parts.hostname, parts.port)) == 0


def half_sent(address, body):
    """Open a connection and send half of an image."""
    parts = urlsplit(address)
    connection = socket.create_connection((parts.hostname, parts.port))
    head = f"POST /api/search/image?k=3 HTTP/1.1\r\nHost: {parts.netloc}\r\nContent-Length: {len(body)}\r\n\r\n"
    connection.sendall(head.encode() + body[: len(body) // 2])
    return connection


#: Print each request whose body is read, and have a minute to answer after the signal to stop.
READING = """
from tuplet.search.server import connections
from tuplet.search.server.uploads import Uploads
connections.STOP_SECONDS, connections.KILL_SECONDS = 60, 90
read = Uploads.read
def reading(*arguments):
    print("reading", flush=True)
    return read(*arguments)
Uploads.read = reading
"""


def test_running_requests_are_answered_before_it_stops(folder, tmp_path):
    body = saved(random_image(), "PNG")
    with (
        open(tmp_path / "log", "w+b") as log,
        server(folder, prepare=READING, log=log) as (address, process),
    ):
        connections = [half_sent(address, body) for _ in range(8)]
        wait_for(lambda: (tmp_path / "log").read_text().count("reading") == 8)
        process.send_signal(signal.SIGTERM)
        wait_for(lambda: not listens(address))
        for connection in connections:
            connection.sendall(body[len(body) // 2 :])
        answers = [connection.makefile("rb").read() for connection in connections]
        assert process.wait(60) == 0
    assert all(answer.startswith(b"HTTP/1.1 200") and b'"hits"' in answer for answer in answers)


SIGNAL_FIRST = """
import os, signal
from tuplet.search.server.connections import Server
run = Server.run
Server.run = lambda server, sockets: (os.kill(os.getpid(), signal.SIGTERM), run(server, sockets=sockets))
"""


def test_a_signal_before_the_server_listens_for_it_ends_it(folder):
    command = [sys.executable, "-c", SCRIPT, str(folder), "", "0", "10", SIGNAL_FIRST]
    assert subprocess.run(command, capture_output=True, timeout=60).returncode == 0


def test_a_refusal_reaches_a_client_that_is_still_sending(address):
    for _ in range(5):
        answer = httpx.post(f"{address}/api/search/image", content=bytes(14 * 2**20), timeout=60)
        assert answer.status_code == 413


def test_a_filter_may_have_as_many_long_labels_as_the_limit_allows(address):
    labels = [f"{number:0200d}" for number in range(255)]
    answer = httpx.get(
        f"{address}/api/search/item", params={"id": "red/1.png", "k": 30, "label": [*labels, "blue"]}, timeout=60
    )
    assert {hit["metadata"]["label"] for hit in answer.json()["hits"]} == {"blue"}


def test_only_this_machine_reaches_it(address):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
            own = probe.getsockname()[0]
        except OSError:
            pytest.skip("this machine has no address but its own")
    with pytest.raises(OSError):  # noqa: PT011
        socket.create_connection((own, urlsplit(address).port), timeout=2)


def test_mixed_requests_get_their_answers(address, soak):
    outcome = mixed_requests.run(address, 20_000 if soak else 150)
    assert outcome["requests"] >= (20_000 if soak else 150)
    assert not mixed_requests.problems(outcome)


def test_many_clients_at_once(address, folder):
    index = search.open(folder)
    names = [f"{label}/{number}.png" for label in COLOURS for number in range(10)]
    vectors = index.vectors(names).tolist()
    wrong = []

    def ask(start):
        with httpx.Client(base_url=address, timeout=60) as client:
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
