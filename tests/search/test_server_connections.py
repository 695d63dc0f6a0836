"""Slow, numerous and vanished clients, and the end of the server, with real sockets and a real process."""

import asyncio
import contextlib
import signal
import socket
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

import httpx
import pytest
import torch

from search import slow_clients
from search.server_process import server
from tuplet import search
from waiting import wait_for

pytest.importorskip("uvicorn", reason="serving needs uvicorn")
pytest.importorskip("fastapi", reason="serving needs fastapi")
SLOW = """
import time
find = index.search
def slow(queries, k, **options):
    if k == 7:
        print("searching", flush=True)
        {work}
    return find(queries, k, **options)
index.search = slow
"""
#: Work that checks whether it was cancelled, and work that does not.
CHECKING = "from tuplet import cancel\n        while True: time.sleep(0.01) or cancel.check()"
DEAF = "time.sleep(60)"
#: Reading costs 0.1 s of the thread each time, as if a garbage collection fell into it.
COLLECTING = """
import time
from uvicorn.protocols.http.h11_impl import H11Protocol
receive = H11Protocol.data_received
def collect_first(self, data):
    begun = time.thread_time()
    while time.thread_time() < begun + 0.1: pass
    receive(self, data)
H11Protocol.data_received = collect_first
"""


@pytest.fixture(scope="module")
def points(tmp_path_factory):
    folder = tmp_path_factory.mktemp("points") / "i"
    search.create(folder, dim=2).add(torch.randn(50, 2), range(50), [{"label": f"{i}" * 2000} for i in range(50)])
    return folder


@pytest.fixture(scope="module")
def hasty(points):
    """A server that gives its clients one second."""
    with server(points, seconds=1.0) as (address, _):
        yield address


BODY = slow_clients.BODY
KINDS = {
    "headers": (slow_clients.HEADERS, b"X-Drip: 1\r\n"),
    "no byte": (b"", b""),
    "a body, which is answered 408": (BODY.replace(b"image", b"vector"), b" "),
    "a body that no route reads": (BODY.replace(b"POST /api/search/image", b"GET /health"), b" "),
    "a body after 409": (BODY, b" "),
    "the second headers": (b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\nGET / HTTP/1.1\r\n", b"X-Drip: 1\r\n"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_dripping_client_is_closed(hasty, kind):
    assert asyncio.run(slow_clients.drip(hasty, *KINDS[kind], pause=0.2, seconds=60)) < 30


def is_established(server, client):
    """Return whether the server's end of a connection, from port to port, is open."""
    ends = [f"0100007F:{port:04X}" for port in (server, client)]
    return any(line.split()[1:4] == [*ends, "01"] for line in Path("/proc/net/tcp").read_text().splitlines())


def test_a_client_that_does_not_read_is_closed(hasty):
    parts = urlsplit(hasty)
    with socket.socket() as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.connect((parts.hostname, parts.port))
        client.settimeout(60)
        request = b"GET /api/labels HTTP/1.1\r\nHost: localhost\r\n\r\n"
        client.sendall(200 * request)  # answers of 100 KB, so that the server has to wait
        wait_for(lambda: not is_established(parts.port, client.getsockname()[1]))
        received = 0
        with contextlib.suppress(ConnectionResetError):
            while part := client.recv(1 << 16):
                received += len(part)
    assert received < 10_000_000


@pytest.mark.parametrize("start", [slow_clients.HEADERS, BODY], ids=["headers", "bodies"])
def test_many_dripping_clients_do_not_stop_answers(points, tmp_path, soak, start):
    with open(tmp_path / "log", "w+b") as log, server(points, files=1024, log=log, seconds=10.0) as (address, _):
        answers = slow_clients.latencies_among(address, 1100, 100 if soak else 20, start)
    assert {status for status, _ in answers} == {"HTTP/1.1 200 OK"}
    assert median(seconds for _, seconds in answers) < 2
    assert (tmp_path / "log").stat().st_size < 1000


def test_too_few_files_are_reported_once(points, tmp_path):
    reported = "too many open files; new connections must wait"

    async def until_reported(address):
        others = asyncio.create_task(slow_clients.crowd(address, 300, 600))
        while reported not in (tmp_path / "log").read_text():
            await asyncio.sleep(0.05)
        await asyncio.sleep(1)  # in which it would be reported again
        others.cancel()

    with open(tmp_path / "log", "w+b") as log, server(points, files=80, log=log, seconds=10.0) as (address, _):
        asyncio.run(asyncio.wait_for(until_reported(address), 120))
    text = (tmp_path / "log").read_text()
    assert text.count(reported) == 1
    assert len(text) < 1000


def test_a_search_ends_when_its_client_is_gone(points):
    with server(points, prepare=SLOW.format(work=CHECKING)) as (address, process):
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{address}/api/search/vector?k=7", json={"vector": [0, 0]}, timeout=0.5)
        # The one thread of searches is free again, long before the limit of a minute.
        assert httpx.post(f"{address}/api/search/vector?k=3", json={"vector": [0, 0]}, timeout=40).status_code == 200
        assert process.poll() is None


def test_a_slow_distinct_search_does_not_delay_others(points):
    with server(points, prepare=SLOW.format(work=DEAF)) as (address, process):
        with pytest.raises(httpx.ReadTimeout):
            httpx.post(f"{address}/api/search/vector?k=7&distinct=-1", json={"vector": [0, 0]}, timeout=0.5)
        assert httpx.post(f"{address}/api/search/vector?k=3", json={"vector": [0, 0]}, timeout=40).status_code == 200
        process.kill()


#: The server stops sooner, and is killed so much later that a moment without the processor changes nothing.
PATIENT = """
from tuplet.search.server import connections
connections.STOP_SECONDS, connections.KILL_SECONDS = 1, {kill}
"""


@pytest.mark.parametrize(
    ("work", "kill", "status"), [(CHECKING, 60, 0), (DEAF, 8, 1)], ids=["that stops", "that does not"]
)
def test_sigterm_ends_a_server_with_a_search_under_way(points, tmp_path, work, kill, status):
    prepare = SLOW.format(work=work) + PATIENT.format(kill=kill)
    with open(tmp_path / "log", "w+b") as log:
        with server(points, prepare=prepare, log=log) as (address, process):
            parts = urlsplit(address)
            with socket.create_connection((parts.hostname, parts.port)) as client:
                body = b'{"vector": [0, 0]}'
                client.sendall(
                    b"POST /api/search/vector?k=7 HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s"
                    % (len(body), body)
                )
                wait_for(lambda: "searching" in (tmp_path / "log").read_text())
                process.send_signal(signal.SIGTERM)
                answer = client.makefile("rb").read()
            assert process.wait(40) == status  # before the search that does not stop would end
        assert b"503" in answer.partition(b"\r\n")[0]
        assert b"the server is stopping; try again in a second" in answer
        text = (tmp_path / "log").read_text()
        assert "Traceback" not in text
        assert ("some of its work was not done" in text) == bool(status)


def test_a_body_in_chunks_of_one_byte_stops_nobody(points):
    """Each chunk takes as long as a kilobyte otherwise does."""
    start = b"POST /api/search/image HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"
    with server(points) as (address, _):
        place = urlsplit(address)
        with socket.create_connection((place.hostname, place.port)) as client:
            client.sendall(start)
            with contextlib.suppress(ConnectionError):
                for _ in range(20):
                    client.sendall(b"1\r\nx\r\n" * 50_000)
                client.settimeout(40)
                while client.recv(1 << 16):
                    pass
        assert httpx.get(f"{address}/health", timeout=40).status_code == 200


def test_a_garbage_collection_closes_no_connection(points):
    with server(points, prepare=COLLECTING) as (address, _):
        assert httpx.get(f"{address}/health", timeout=40).status_code == 200
