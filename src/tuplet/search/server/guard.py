"""What stands before every route: the token, the names under which the server may be called, safe headers, counting."""

import base64
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

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
COOKIE = "tuplet_token"
_FORM = """<!doctype html><html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Token needed</title><body><form><p>This server needs its token.</p>
<input name="token" type="password" aria-label="Token" autofocus> <button>Open</button></form></body></html>"""


class Guard:
    """An ASGI application around another.

    With a `token` nothing is answered without it: as `Authorization: Bearer TOKEN`, or in the cookie that
    `/?token=TOKEN` sets. With `hosts` the request must name one of them, so that a page of another name that was made
    to point here (DNS rebinding) gets nothing.
    """

    def __init__(
        self,
        app: App,
        metrics: Metrics,
        paths: set[str],
        pages: list[str],
        token: str | None = None,
        hosts: tuple[str, ...] | None = None,
    ) -> None:
        if token == "":
            raise ValueError("the token is empty and would keep nobody out; give one that is hard to guess")
        self._app, self._metrics, self._paths, self._hosts = app, metrics, paths, hosts
        self._token = None if token is None else token.encode()
        self._secret = "" if token is None else hashlib.sha256(token.encode()).hexdigest()
        self._headers = _safe_headers(pages)

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer or pass on one request."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self._app(scope, receive, send)
            return
        begun, status = time.perf_counter(), 500
        if scope["method"] == "HEAD":  # servers leave the body out themselves
            scope = {**scope, "method": "GET"}

        async def counted(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message["headers"] = [*message.get("headers", []), *self._headers]
            await send(message)

        try:
            headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
            if self._hosts is not None and _host(headers.get("host", "")) not in self._hosts:
                await _answer(counted, 421, "this server answers to localhost only; call it by that name")
            elif self._token is None or self._opens(headers):
                await self._app(scope, receive, counted)
            else:
                await self._ask(scope, counted)
        finally:
            path = scope["path"] if scope["path"] in self._paths else "other"
            self._metrics.requests[path, status] += 1
            self._metrics.observe("tuplet_request_seconds", time.perf_counter() - begun)

    def _opens(self, headers: dict[str, str]) -> bool:
        kind, _, given = headers.get("authorization", "").partition(" ")
        cookies = dict(part.strip().partition("=")[::2] for part in headers.get("cookie", "").split(";"))
        return (
            self._is_token(given.strip().encode("latin-1"))
            if kind.lower() == "bearer"
            else hmac.compare_digest(cookies.get(COOKIE, "").encode(), self._secret.encode())
        )

    def _is_token(self, given: bytes) -> bool:
        return self._token is not None and hmac.compare_digest(given, self._token)

    async def _ask(self, scope: Message, send: Send) -> None:
        """Take the token where a browser brings it to the page; else say that one is needed."""
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


def _host(header: str) -> str:
    """The host of a Host header, without its port."""
    return re.sub(r":\d+$", "", header).lower()


def _safe_headers(pages: list[str]) -> list[tuple[bytes, bytes]]:
    """Headers for every answer; scripts and styles are allowed only as they stand in the server's own pages."""
    allowed = {
        tag: " ".join(
            f"'sha256-{base64.b64encode(hashlib.sha256(block.encode()).digest()).decode()}'"
            for page in pages
            for block in re.findall(rf"<{tag}>(.*?)</{tag}>", page, re.DOTALL)
        )
        for tag in ("script", "style")
    }
    policy = (
        f"default-src 'none'; script-src {allowed['script']}; style-src {allowed['style']}; "
        "img-src 'self' blob: data:; connect-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    )
    return [
        (b"content-security-policy", policy.encode()),
        (b"x-content-type-options", b"nosniff"),
        (b"referrer-policy", b"no-referrer"),
    ]
