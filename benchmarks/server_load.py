"""Measure the server under many clients at once: vectors, then images."""

import asyncio
import io
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

import common
from tuplet import models, search

ITEMS = 10_000


@dataclass
class Load:
    """The answers that clients received: statuses, milliseconds of each, and the server's own timing."""

    statuses: Counter[str] = field(default_factory=Counter)
    whole: list[float] = field(default_factory=list)
    embed: list[float] = field(default_factory=list)
    search: list[float] = field(default_factory=list)


async def client(port: int, requests: list[bytes], until: float, load: Load) -> None:
    """Send one request after another over one connection; wait as long as `Retry-After` says."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    number = 0
    while time.monotonic() < until:
        start = time.perf_counter()
        try:
            writer.write(requests[number % len(requests)])
            head = (await reader.readuntil(b"\r\n\r\n")).decode().lower().split("\r\n")
            headers = dict(line.split(": ", 1) for line in head[1:] if line)
            await reader.readexactly(int(headers["content-length"]))
        except (OSError, asyncio.IncompleteReadError) as error:
            load.statuses[type(error).__name__] += 1
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            continue
        status, number = head[0].split()[1], number + 1
        if status == "200":
            load.whole.append(1000 * (time.perf_counter() - start))
            for part in headers["server-timing"].split(", "):
                name, _, duration = part.partition(";dur=")
                getattr(load, name).append(float(duration))
        elif "retry-after" in headers:
            status += " with retry-after"
            await asyncio.sleep(float(headers["retry-after"]))
        load.statuses[status] += 1
        if headers.get("connection") == "close":
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.close()


def run_clients(port: int, requests: list[bytes], clients: int, seconds: int) -> Load:
    load = Load()

    async def together() -> None:
        until = time.monotonic() + seconds
        await asyncio.gather(*(client(port, requests[i:] + requests[:i], until, load) for i in range(clients)))

    asyncio.run(together())
    return load


def post(path: str, body: bytes) -> bytes:
    return f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


def make_index(folder: Path) -> search.Searchable:
    """Return an index of random unit vectors with a model, EfficientNet-Lite0 if its weights are installed."""
    try:
        embedder = models.create("efficientnet_lite0", dim=None, weights="efficientnet_lite0_imagenet")
    except ImportError:
        embedder = models.create("convnet", dim=128)
    index = search.create(folder / "served.index", embedder=embedder)
    vectors = torch.randn(ITEMS, embedder.width, generator=torch.Generator().manual_seed(0))
    index.add(torch.nn.functional.normalize(vectors, dim=1), range(ITEMS), [{"label": i % 100} for i in range(ITEMS)])
    return index


def jpeg(seed: int) -> bytes:
    values = np.random.default_rng(seed).integers(0, 256, (30, 40, 3), np.uint8)
    file = io.BytesIO()
    Image.fromarray(values).resize((640, 480)).save(file, "JPEG")
    return file.getvalue()


def measure(clients: int, seconds: int) -> list[dict[str, Any]]:
    """Measure both kinds of requests on a server in its own process; the clients share the machine."""
    with tempfile.TemporaryDirectory() as temporary:
        index = make_index(Path(temporary))
        rng = np.random.default_rng(0)
        vectors = [json.dumps({"vector": rng.normal(size=index.dim).round(4).tolist()}).encode() for _ in range(64)]
        kinds = {
            "vectors": [post("/api/search/vector?k=10", body) for body in vectors],
            "images": [post("/api/search/image?k=10", jpeg(i)) for i in range(32)],
        }
        command = [sys.executable, "-m", "tuplet", "serve", f"{temporary}/served.index", "--port", "0"]
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert process.stdout is not None
        try:
            port = int(process.stdout.readline().partition("127.0.0.1:")[2].split()[0])  # it says where it listens
            rows = []
            for kind, requests in kinds.items():
                load = run_clients(port, requests, clients, seconds)
                row: dict[str, Any] = {"kind": kind, "clients": clients, "seconds": seconds, "dim": index.dim}
                row |= {"statuses": dict(load.statuses), "architecture": index.embedder.config.architecture}
                for name in ("whole", "embed", "search"):
                    if times := getattr(load, name):
                        row[name] = {"p50": float(np.median(times)), "p99": float(np.percentile(times, 99))}
                rows.append(row)
                print(row)
        finally:
            process.terminate()
            process.wait()
    return rows


def report(rows: list[dict[str, Any]]) -> str:
    if not rows:
        return ""
    first = rows[0]
    lines = [
        f"{first['clients']} clients for {first['seconds']} s each, {ITEMS:,} vectors of {first['dim']} "
        f"({first['architecture']}), exact search; {common.machine()}, shared with the clients.",
        "",
    ]
    head = ["sending", "answers/s", "statuses", "whole: p50", "p99", "decode, wait, embed: p50", "p99"]
    table = []
    for row in rows:
        statuses = ", ".join(f"{count:,} × {status}" for status, count in sorted(row["statuses"].items()))
        cells = [row["kind"], f"{row['statuses'].get('200', 0) / row['seconds']:,.0f}", statuses]
        for name in ("whole", "embed", "search"):
            cells += [f"{row[name][at]:,.0f} ms" if name in row else "" for at in ("p50", "p99")]
        table.append(cells)
    return "\n".join([*lines, common.table([*head, "search: p50", "p99"], table)])
