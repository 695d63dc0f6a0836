"""Requests of every kind to a server, right and wrong ones mixed, from several clients at once."""

import asyncio
import json
import random
from collections import Counter

import httpx
import torch

from search.bad_uploads import odd_but_right, random_image, saved, uploads
from search.server_process import COLOURS, draw_image
from tuplet import models, search

DIM = 16
CLIENTS = 8


def vector(rng):
    return {"vector": [rng.gauss(0, 1) for _ in range(DIM)]}


def requests(seed=0):
    """Yield for ever the statuses that are right for a request, its method, its path, and its body."""
    rng = random.Random(seed)
    good = [saved(random_image((40 + 10 * i, 30)), format) for i, format in enumerate(("PNG", "JPEG", "WEBP"))]
    good += list(odd_but_right().values())[:3]
    bad = [content for content in uploads().values() if len(content) < 1 << 16]
    ids = [f"{label}/{number}.png" for label in ("red", "green", "blue") for number in range(10)]
    kinds = [
        lambda: (200, "POST", f"/api/search/vector?k={rng.randint(1, 30)}", {"json": vector(rng)}),
        lambda: (200, "POST", f"/api/search/vector?distinct={rng.uniform(-2, 1)}", {"json": vector(rng)}),
        lambda: (200, "POST", "/api/search/vector?label=red&label=blue", {"json": vector(rng)}),
        lambda: (200, "POST", '/api/search/vector?where={"label":["red","x"]}', {"json": vector(rng)}),
        lambda: (200, "GET", f"/api/search/item?id={rng.choice(ids)}&k=5", {}),
        lambda: (200, "GET", f"/api/thumbnail?id={rng.choice(ids)}", {}),
        lambda: (200, "GET", rng.choice(["/", "/api", "/health", "/metrics", "/api/about", "/api/labels"]), {}),
        lambda: (200, "POST", "/api/search/image?k=3", {"content": rng.choice(good)}),
        lambda: (404, "GET", f"/api/search/item?id={rng.random()}", {}),
        lambda: (404, rng.choice(["GET", "POST"]), f"/{rng.random()}", {}),
        lambda: (405, "DELETE", "/api/search/vector", {}),
        lambda: (
            422,
            "POST",
            f"/api/search/vector?k={rng.choice(['0', 'x', '9999', '1e9'])}",
            {"json": vector(rng)},
        ),
        lambda: (422, "POST", "/api/search/vector", {"json": {"vector": [1.0] * rng.randrange(DIM)}}),
        lambda: (422, "POST", "/api/search/vector", {"content": rng.randbytes(rng.randrange(300))}),
        lambda: (422, "POST", "/api/search/vector?where=" + rng.choice(["[1]", "{", "[" * 900]), {"json": vector(rng)}),
        lambda: (422, "GET", "/api/search/item?id=red/1.png&distinct=nan", {}),
        lambda: (413, "POST", "/api/search/vector", {"content": bytes(200_000)}),
        lambda: (415, "POST", "/api/search/image", {"content": rng.randbytes(rng.randrange(1, 5000))}),
        lambda: ((413, 415), "POST", "/api/search/image", {"content": rng.choice(bad)}),
    ]
    while True:
        yield rng.choice(kinds)()


async def ask(address, count, seconds, outcome, seed):
    """Send requests one after another, until so many were answered or so much time is over."""
    loop = asyncio.get_running_loop()
    until = loop.time() + seconds
    async with httpx.AsyncClient(base_url=address, timeout=60) as client:
        for right, method, path, body in requests(seed):
            if outcome["requests"] >= count or loop.time() > until:
                return
            outcome["requests"] += 1
            answer = await client.request(method, path, **body)
            outcome[answer.status_code] += 1
            is_right = answer.status_code in (right if isinstance(right, tuple) else (right,))
            if answer.status_code == 503 and "retry-after" in answer.headers:  # busy, which is an answer too
                await asyncio.sleep(0.1)
            elif not is_right or (answer.status_code >= 400 and not is_sentence(answer)):
                outcome[f"{method} {path[:60]}: {answer.status_code} {answer.text[:100]}"] += 1


def is_sentence(answer):
    """Tell whether a refusal is one sentence."""
    detail = json.loads(answer.content)["detail"]
    return isinstance(detail, str) and "\n" not in detail and len(detail) < 400


def run(address, count, seconds=1e9):
    """Send mixed requests from several clients; return counts of requests, of statuses and of wrong answers."""
    outcome = Counter()

    async def together():
        await asyncio.gather(*(ask(address, count, seconds, outcome, seed) for seed in range(CLIENTS)))

    asyncio.run(together())
    return outcome


def problems(outcome):
    """Return descriptions of the wrong answers."""
    return [f"{count} × {name}" for name, count in outcome.items() if isinstance(name, str) and name != "requests"]


def served_index(folder):
    """Make an index of images to serve."""
    torch.manual_seed(0)
    index = search.create(folder, embedder=models.create("convnet", dim=DIM))
    named = [(label, number) for label in COLOURS for number in range(10)]
    index.add(
        [draw_image(*name) for name in named],
        [f"{label}/{number}.png" for label, number in named],
        [{"label": label} for label, _ in named],
    )
    return folder
