"""Clients that send slowly, never finish, or do not read their answers."""

import asyncio
import resource
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from urllib.parse import urlsplit

HEADERS = b"GET /health HTTP/1.1\r\nHost: localhost\r\n"
BODY = b"POST /api/search/image HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n"


def allow_files(count):
    """Let this process open this many files, and connections, if the system allows it."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, min(count, hard)), hard))


async def drip(address, start=HEADERS, piece=b"X-Drip: 1\r\n", pause=1.0, seconds=30.0):
    """Send `start`, then a piece after each pause; return the seconds until the server closed the connection."""
    parts, begun = urlsplit(address), time.monotonic()
    try:
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port)
        writer.write(start)
        closed = asyncio.create_task(read_until_closed(reader))
        while time.monotonic() - begun < seconds and not closed.done():
            writer.write(piece)
            await asyncio.wait([closed], timeout=pause)
        closed.cancel()
        writer.close()
    except OSError:
        pass
    return time.monotonic() - begun


async def read_until_closed(reader):
    """Read and forget what the server sends."""
    try:
        while await reader.read(1 << 16):
            pass
    except OSError:
        pass


async def crowd(address, clients, seconds, start=HEADERS, piece=b"X-Drip: 1\r\n"):
    """Drip with so many clients at once; each that is closed comes back after half a second."""
    until = time.monotonic() + seconds

    async def again():
        while time.monotonic() < until:
            await drip(address, start, piece, seconds=until - time.monotonic())
            await asyncio.sleep(0.5)

    await asyncio.gather(*(again() for _ in range(clients)))


@contextmanager
def crowd_process(address, clients, start=HEADERS):
    """Run a crowd in a process of its own, so that it does not slow down who measures; go on once it has begun."""
    command = [sys.executable, __file__, address, str(clients), start.decode()]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "begun\n"
        yield
    finally:
        process.kill()
        process.communicate()


def latency(address, path="/health"):
    """Return the status line and the seconds of one request over a new connection."""
    parts, begun = urlsplit(address), time.monotonic()
    with socket.create_connection((parts.hostname, parts.port), timeout=60) as client:
        client.sendall(f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode())
        answer = client.makefile("rb").read()
    return answer.partition(b"\r\n")[0].decode(), time.monotonic() - begun


def latencies_among(address, clients, count, start=HEADERS):
    """Ask so many times for /health, every 0.1 s, while so many clients drip; return the answers."""
    answers = []
    with crowd_process(address, clients, start):
        for _ in range(count):
            answers.append(latency(address))
            time.sleep(0.1)
    return answers


if __name__ == "__main__":
    allow_files(4096)
    print("begun", flush=True)
    asyncio.run(crowd(sys.argv[1], int(sys.argv[2]), 3600, sys.argv[3].encode()))
