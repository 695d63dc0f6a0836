"""Middleware for every request: the token, the host names that are allowed, security headers and metrics."""

import asyncio
import hashlib
import hmac
import re
import time
from collections.abc import Awaitable, Callable, MutableMapping
from typing import Any, TypeAlias
from urllib.parse import parse_qs

from tuplet.search.server.metrics import Metrics

Message: TypeAlias = MutableMapping[str, Any]
Receive: TypeAlias = Callable[[], Awaitable[Message]]
Send: TypeAlias = Callable[[Message], Awaitable[None]]
App: TypeAlias = Callable[[Message, Receive, Send], Awaitable[None]]

#: The headers of every answer. A page may only load what this server sends; browsers must ask each time whether it
#: changed, since another index may later have the same ids at the same address.
HEADERS = [
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' blob: data:; connect-src 'self'; "
        b"form-action 'self'; base-uri 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cache-control", b"private, no-cache"),
]
COOKIE = "tuplet_token"
_FORM = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Token needed</title><body><form><p>This server needs its token.</p>
<input name="token" type="password" aria-label="Token" autofocus> <button>Open</button></form></body></html>"""


class Middleware:
    """An ASGI application that wraps another one.

    With `token`, every request must bring it: as `Authorization: Bearer TOKEN`, or in the cookie that `/?token=TOKEN`
    sets. With `hosts`, the Host header must be one of them; this stops pages of other names that point here (DNS
    rebinding).
    """

    def __init__(
        self,
        app: App,
        metrics: Metrics,
        paths: set[str],
        token: str | None = None,
        hosts: tuple[str, ...] | None = None,
    ) -> None:
        if token == "":
            raise ValueError("the token is empty; give one that is hard to guess")
        self._app, self._metrics, self._paths, self._hosts = app, metrics, paths, hosts
        self._token = None if token is None else token.encode()
        self._secret = "" if token is None else hashlib.sha256(token.encode()).hexdigest()

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Refuse a request, or pass it on to the application."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        begun, status, is_started = time.perf_counter(), 500, False
        if scope["method"] == "HEAD":  # the server leaves out the body itself
            scope = {**scope, "method": "GET"}

        async def send_with_headers(message: Message) -> None:
            nonlocal status, is_started
            if message["type"] == "http.response.start":
                status, is_started = message["status"], True
                message["headers"] = [*message.get("headers", []), *HEADERS]
            await send(message)

        try:
            headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
            host = re.sub(r":\d+$", "", headers.get("host", "")).lower()
            if self._hosts is not None and host not in self._hosts:
                await _answer(send_with_headers, 421, "this server answers to the name localhost only; use it")
            elif self._token is None or self._has_token(headers):
                await self._app(scope, receive, send_with_headers)
            else:
                await self._ask_for_token(scope, send_with_headers)
        except asyncio.CancelledError:  # only when the server stops
            if not is_started:
                await _answer(send_with_headers, 503, "the server is stopping; try again in a second")
        finally:
            path = scope["path"] if scope["path"] in self._paths else "other"
            self._metrics.requests.labels(path, status).inc()
            self._metrics.request_seconds.observe(time.perf_counter() - begun)

    def _has_token(self, headers: dict[str, str]) -> bool:
        kind, _, given = headers.get("authorization", "").partition(" ")
        cookies = dict(part.strip().partition("=")[::2] for part in headers.get("cookie", "").split(";"))
        return (
            self._is_token(given.encode("latin-1").strip(b" \t"))
            if kind.lower() == "bearer"
            else hmac.compare_digest(cookies.get(COOKIE, "").encode(), self._secret.encode())
        )

    def _is_token(self, given: bytes) -> bool:
        return self._token is not None and hmac.compare_digest(given, self._token)

    async def _ask_for_token(self, scope: Message, send: Send) -> None:
        """Accept the token in the address of the page; otherwise answer that one is needed."""
        given = parse_qs(scope["query_string"].decode("latin-1")).get("token", [""])[0]
        if scope["path"] == "/" and self._is_token(given.encode()):
            cookie = f"{COOKIE}={self._secret}; HttpOnly; SameSite=Strict; Path=/"
            await _answer(send, 303, "", [(b"location", b"/"), (b"set-cookie", cookie.encode())])
            return
        challenge = [(b"www-authenticate", b"Bearer")]
        if scope["path"] == "/":
            await _answer(send, 401, _FORM, challenge, kind="text/html; charset=utf-8")
        else:
            await _answer(send, 401, "the token is missing or wrong; send it as Authorization: Bearer TOKEN", challenge)


async def _answer(
    send: Send, status: int, text: str, headers: list[tuple[bytes, bytes]] | None = None, kind: str = ""
) -> None:
    body = text.encode() if kind else f'{{"detail":"{text}"}}'.encode()
    content = [(b"content-type", (kind or "application/json").encode()), (b"content-length", str(len(body)).encode())]
    await send({"type": "http.response.start", "status": status, "headers": [*content, *(headers or [])]})
    await send({"type": "http.response.body", "body": body})
